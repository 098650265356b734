//! When a store is no longer asked, and how long it must have answered before it is asked again: rules only, without a
//! clock of their own.

use std::{
    sync::atomic::{AtomicU16, Ordering::SeqCst},
    time::Duration,
};
use tokio::time::Instant;

/// The breaker opens when this many of the last [`CALLS`] calls of one worker had no answer in time. They need not follow
/// each other: a store that answers now and then is charged twice for a request that it answers late, there and here.
const MISSES: u32 = 3;
const CALLS: u16 = 10;
/// A store that was too slow, is asked again, and is too slow again before this is asked later each time.
const SOON: Duration = Duration::from_secs(10);
/// For how long it must answer well then: twice as long each time.
const FIRST: Duration = Duration::from_millis(400);
const LONGEST: Duration = Duration::from_secs(5);

/// The last calls of one worker: a bit for each, which is set if the call had no answer in time.
#[derive(Debug, Default)]
pub(super) struct Recent(AtomicU16);

/// The time for which a store that answers again must answer well before it is asked.
#[derive(Debug, Default)]
pub(super) struct Probation {
    /// For how long the store must answer well.
    needed: Duration,
    closed: Option<Instant>,
}

/// Signs of life of one worker that were all answered in time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answers {
    /// The first of them.
    pub(super) since: Instant,
    /// The first from which on all were answered in half of the time-out.
    quick: Option<Instant>,
}

// === impl Recent ===

impl Recent {
    pub(super) fn answered(&self) {
        // In most calls no bit is set, so nothing is written.
        if self.0.load(SeqCst) != 0 {
            self.push(0);
        }
    }

    /// Records a call without an answer in time. Returns whether there were too many.
    pub(super) fn missed(&self) -> bool {
        self.push(1) >= MISSES
    }

    pub(super) fn forget(&self) {
        self.0.store(0, SeqCst);
    }

    fn push(&self, bit: u16) -> u32 {
        let pushed = |bits: u16| (bits << 1 | bit) & ((1 << CALLS) - 1);
        let before = self.0.fetch_update(SeqCst, SeqCst, |bits| Some(pushed(bits)));
        // It is never refused.
        pushed(before.unwrap_or_default()).count_ones()
    }
}

// === impl Probation ===

impl Probation {
    /// The breaker opens; `slow`: because answers came too late, not because a connection was lost.
    pub(super) fn opened(&mut self, now: Instant, slow: bool) {
        let Some(closed) = self.closed else { return };
        let asked_for = now.saturating_duration_since(closed);
        if slow && asked_for < SOON {
            self.needed = (2 * self.needed).clamp(FIRST, LONGEST);
            return;
        }
        let halvings = u32::try_from(asked_for.as_secs() / SOON.as_secs()).unwrap_or(u32::MAX);
        self.needed /= 1_u32.checked_shl(halvings).unwrap_or(u32::MAX);
        if self.needed < FIRST {
            self.needed = Duration::ZERO;
        }
    }

    pub(super) fn closed(&mut self, now: Instant) {
        self.closed = Some(now);
    }

    /// Whether these answers are enough. A store that needs more than half of the time-out for each may be well nevertheless,
    /// so after [`LONGEST`] it is asked in any case.
    pub(super) fn suffices(&self, answers: &Answers, now: Instant) -> bool {
        let long = |since: Instant, span| now.saturating_duration_since(since) >= span;
        self.needed.is_zero()
            || long(answers.since, LONGEST)
            || answers.quick.is_some_and(|since| long(since, self.needed))
    }
}

// === impl Answers ===

impl Answers {
    /// With one more, which is or is not `quick`.
    pub(super) fn and(before: Option<Self>, now: Instant, quick: bool) -> Self {
        let since = before.map_or(now, |answers| answers.since);
        let first = before.and_then(|answers| answers.quick).unwrap_or(now);
        Self { since, quick: quick.then_some(first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// `-` is a call without an answer; how many calls until the breaker opens.
    #[rstest]
    #[case::in_a_row("---", Some(3))]
    #[case::a_third_of_them("..-..-..-", Some(9))]
    #[case::the_third_of_ten("-...-....-", Some(10))]
    #[case::the_third_is_the_eleventh("-....-....-", None)]
    #[case::one_of_five("-....-....-....-....-....-....-....", None)]
    #[case::never(".......................", None)]
    fn missed_calls_open_the_breaker(#[case] calls: &str, #[case] expected: Option<usize>) {
        let recent = Recent::default();
        let opens = |call| match call {
            '-' => recent.missed(),
            _ => {
                recent.answered();
                false
            }
        };
        assert_eq!(calls.chars().position(opens).map(|at| at + 1), expected);
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// For how long a store must answer quickly, each time that it opens so long after it was closed, ms.
    #[rstest]
    #[case::slow_again_and_again(&[(100, true); 6], &[400, 800, 1600, 3200, 5000, 5000])]
    #[case::connections_that_are_lost(&[(100, false); 3], &[0, 0, 0])]
    #[case::lost_in_between(&[(100, true), (100, false), (100, true)], &[400, 400, 800])]
    #[case::seldom(&[(10_000, true), (60_000, true)], &[0, 0])]
    #[case::well_for_a_while(&[(1, true), (1, true), (1, true), (25_000, true), (1, true)], &[400, 800, 1600, 400, 800])]
    #[case::well_for_years(&[(1, true), (u64::from(u32::MAX), true)], &[400, 0])]
    fn repeated_outages_lengthen_the_probation(
        #[case] outages: &[(u64, bool)],
        #[case] expected: &[u64],
    ) {
        let mut now = Instant::now();
        let mut trust = Probation::default();
        trust.opened(now, true);
        assert_eq!(trust.needed, Duration::ZERO, "the first time");
        let mut needed = Vec::new();
        for (asked_for, slow) in outages {
            trust.closed(now);
            now += ms(*asked_for);
            trust.opened(now, *slow);
            needed.push(trust.needed);
        }
        let expected: Vec<_> = expected.iter().map(|span| ms(*span)).collect();
        assert_eq!(needed, expected);
    }

    /// Whether signs of life, 200 ms apart, are enough for a store that must answer quickly for 400 ms.
    #[rstest]
    #[case::none_before(&[true], false)]
    #[case::quick(&[true, true, true], true)]
    #[case::one_was_slow(&[true, true, false, true, true], false)]
    #[case::quick_again(&[true, false, true, true, true], true)]
    #[case::slow_for_long(&[false; 26], true)]
    #[case::slow(&[false; 25], false)]
    fn quick_answers_end_the_probation(#[case] quick: &[bool], #[case] expected: bool) {
        let trust = Probation { needed: FIRST, closed: None };
        let (mut now, mut answers) = (Instant::now(), None);
        let mut enough = false;
        for quick in quick {
            now += ms(200);
            let next = Answers::and(answers, now, *quick);
            enough = trust.suffices(&next, now);
            answers = Some(next);
        }
        assert_eq!(enough, expected);
        assert!(Probation::default().suffices(&Answers::and(None, now, false), now));
    }
}
