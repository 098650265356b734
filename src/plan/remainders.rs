//! The values that answers of one upstream report as the rest of its quotas, by the key of the limiter. The table decides
//! which of them the store learns, and asks no store itself.
//!
//! An upstream of 10,000 calls a second would otherwise cause as many calls of the store. So the store learns at most one
//! value per key in 50 ms, the newest, and none that cannot lower the level.
//!
//! An answer does not count the calls that were sent after its own, so these are deducted.

use crate::{algorithm::Micros, store::Check};
use ahash::RandomState;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Keys whose answers are known at one time. A further key replaces the one whose last answer is the oldest: of that key an
/// answer that was overtaken counts once more.
const MAX_KEYS: usize = 1_024;
/// Calls of one key that are kept one by one since the last answer. Further ones are taken for older than they are: the
/// next answers may not deduct them.
const MAX_SENT: usize = 256;
/// The least time between two values of one key, µs.
const APART: u64 = 50_000;
/// For how long a value bounds the level of a bucket, µs. An operator may have reset the limiter since.
const BOUNDS: u64 = 1_000_000;
/// Resets in whole seconds seem to move by this, µs.
const ROUNDED: u64 = 1_500_000;
/// The newest values of one upstream. All workers share them.
#[derive(Debug, Default)]
pub(crate) struct Remainders {
    /// Whether a value of any key is known; every call reads it.
    is_begun: AtomicBool,
    all: Mutex<HashMap<Arc<str>, Remainder, RandomState>>,
}

/// The newest values of one key. Instants are µs since the plan was made.
#[derive(Debug)]
struct Remainder {
    /// When the request was sent whose answer said the newest value.
    sent: u64,
    /// The calls that this gateway has sent since: when, and their permits.
    since: VecDeque<(u64, i64)>,
    /// The value that the store learned last, and when.
    told: Option<(i64, u64)>,
    /// The value that the store learns when 50 ms are over.
    next: Option<i64>,
    /// When the quota begins again, as the newest answer has it.
    ends: u64,
    /// That instant has moved, as that of a bucket that is full again does, and not by a period.
    moves: bool,
}

/// The consequence of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// Nothing: the value is older than another one, cannot lower the level, or replaces one that waits already.
    None,
    /// The store learns this value now: that of the answer, less the permits of calls that were sent since.
    Tell(Left),
    /// The store learns the value that is the newest after this time, µs.
    TellIn(u64),
}

/// The permits that are left of a quota, and for how many µs; 0 where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) permits: i64,
    pub(crate) span: Micros,
}

/// The rest of a limiter's quota, as an answer says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeardRemainder {
    pub(crate) remaining: i64,
    /// The time of one permit by the rate of the limiter, µs.
    pub(crate) permit: Micros,
    /// Whether the limiter gets one permit after the other. A window may give back all at once.
    pub(crate) is_bucket: bool,
    /// The time until the quota begins again, µs; 0 where that is not known.
    pub(crate) reset: Micros,
    /// The period of the limiter, µs.
    pub(crate) period: Micros,
}

// === impl Remainders ===

impl Remainders {
    /// Takes a value `now` from the answer to a request that was `sent` at that instant.
    pub(crate) fn hears(
        &self,
        key: &Arc<str>,
        sent: u64,
        now: u64,
        heard: HeardRemainder,
    ) -> Consequence {
        let HeardRemainder { remaining, permit, is_bucket, .. } = heard;
        let mut all = self.begun();
        let known = entry(&mut all, key, sent);
        if sent < known.sent {
            return Consequence::None;
        }
        known.sent = sent;
        while known.since.front().is_some_and(|(at, _)| *at <= sent) {
            known.since.pop_front();
        }
        known.note_reset(heard, now);
        let left = known.less_sent(remaining);
        if known.next.is_some() {
            known.next = Some(remaining);
            return Consequence::None;
        }
        let Some((told, at)) = known.told else {
            known.told = Some((left, now));
            return Consequence::Tell(known.rest(left, now));
        };
        let since = now.saturating_sub(at);
        let most = is_bucket.then(|| told + gained(since, permit));
        if since < BOUNDS && most.is_some_and(|most| left >= most) {
            return Consequence::None;
        }
        if since < APART {
            known.next = Some(remaining);
            return Consequence::TellIn(APART - since);
        }
        known.told = Some((left, now));
        Consequence::Tell(known.rest(left, now))
    }

    /// Notes that a call of these checks is sent, if the upstream has said something about its quotas.
    #[inline]
    pub(crate) fn sends(&self, checks: &[Check], now: impl FnOnce() -> u64) {
        if self.is_begun.load(Relaxed) {
            self.note_sent(checks, now());
        }
    }

    #[cold]
    fn note_sent(&self, checks: &[Check], now: u64) {
        let mut all = self.all.lock();
        for check in checks {
            let Some(known) = all.get_mut(&check.key) else { continue };
            let is_full = known.since.len() >= MAX_SENT;
            match known.since.back_mut().filter(|_| is_full) {
                Some((_, permits)) => *permits = permits.saturating_add(check.cost),
                None => known.since.push_back((now, check.cost)),
            }
        }
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Arc<str>, Remainder, RandomState>> {
        self.is_begun.store(true, Relaxed);
        self.all.lock()
    }

    /// The newest value of a key, which the store learns `now`, after [`Consequence::TellIn`].
    pub(crate) fn next(&self, key: &str, now: u64) -> Option<Left> {
        let mut all = self.all.lock();
        let known = all.get_mut(key)?;
        let next = known.next.take()?;
        let next = known.less_sent(next);
        known.told = Some((next, now));
        Some(known.rest(next, now))
    }
}

/// The entry of a key. A new one knows of no value.
fn entry<'a>(
    all: &'a mut HashMap<Arc<str>, Remainder, RandomState>,
    key: &Arc<str>,
    sent: u64,
) -> &'a mut Remainder {
    if all.len() >= MAX_KEYS && !all.contains_key(key) {
        let oldest = all.iter().min_by_key(|(_, known)| known.sent).map(|(key, _)| key.clone());
        oldest.and_then(|key| all.remove(&key));
    }
    let since = VecDeque::new();
    let new = Remainder { sent, since, told: None, next: None, ends: 0, moves: false };
    all.entry(key.clone()).or_insert(new)
}

// === impl Remainder ===

impl Remainder {
    /// Notes when the quota begins again, and whether the upstream means the instant at which a bucket is full: that one moves with
    /// each call, and the end of a window by whole periods.
    fn note_reset(&mut self, heard: HeardRemainder, now: u64) {
        let ends = if heard.reset > 0 { now + heard.reset.unsigned_abs() } else { 0 };
        let moved = ends.saturating_sub(self.ends);
        let less_than_a_period = heard.period.unsigned_abs() / 4 * 3;
        self.moves |=
            heard.is_bucket && self.ends > 0 && moved > ROUNDED && moved < less_than_a_period;
        self.ends = ends;
    }

    fn rest(&self, permits: i64, now: u64) -> Left {
        let span = if self.moves { 0 } else { self.ends.saturating_sub(now) };
        Left { permits, span: Micros::try_from(span).unwrap_or(0) }
    }

    /// The newest value less the permits of the calls that were sent since.
    fn less_sent(&self, remaining: i64) -> i64 {
        let sent = self.since.iter().fold(0_i64, |sum, (_, permits)| sum.saturating_add(*permits));
        remaining.saturating_sub(sent).max(0)
    }
}

/// The permits that flow into a bucket in `span` µs, rounded up.
fn gained(span: u64, interval: Micros) -> i64 {
    let span = i64::try_from(span).unwrap_or(i64::MAX);
    span / interval.max(1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow};

    const MS: u64 = 1_000;

    /// A value of a bucket of 10/s, or of a window.
    fn bucket(remaining: i64) -> HeardRemainder {
        HeardRemainder { remaining, permit: 100_000, is_bucket: true, reset: 0, period: 1_000_000 }
    }

    fn window(remaining: i64) -> HeardRemainder {
        HeardRemainder { is_bucket: false, ..bucket(remaining) }
    }

    fn tell(permits: i64) -> Consequence {
        Consequence::Tell(Left { permits, span: 0 })
    }

    fn key(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn only_a_later_answer_of_the_same_key_replaces_an_answer() {
        let all = Remainders::default();
        assert_eq!(all.hears(&key("a"), 200, 300, window(5)), tell(5));
        assert_eq!(all.hears(&key("b"), 100, 400, window(5)), tell(5));
        assert_eq!(all.hears(&key("a"), 100, 90 * MS, window(0)), Consequence::None);
    }

    #[test]
    fn the_store_learns_the_newest_value_every_50_ms() {
        let (all, a) = (Remainders::default(), key("a"));
        assert_eq!(all.hears(&a, 0, 0, window(9)), tell(9));
        assert_eq!(all.hears(&a, 1, 20 * MS, window(7)), Consequence::TellIn(30 * MS));
        // One task is enough for all that follow.
        assert_eq!(all.hears(&a, 3, 25 * MS, window(5)), Consequence::None);
        assert_eq!(all.hears(&a, 2, 26 * MS, window(6)), Consequence::None);
        assert_eq!(all.next("a", 50 * MS).map(|left| left.permits), Some(5));
        assert_eq!(all.next("a", 51 * MS), None);
        assert_eq!(all.hears(&a, 4, 99 * MS, window(4)), Consequence::TellIn(MS));
        assert_eq!(all.next("a", 100 * MS).map(|left| left.permits), Some(4));
        assert_eq!(all.hears(&a, 5, 150 * MS, window(3)), tell(3));
    }

    /// A bucket of 10/s whose level was lowered to 5 has at most 6 permits within 100 ms, and 8 after 250 ms.
    #[test]
    fn a_value_that_cannot_lower_a_bucket_is_not_sent() {
        let (all, a) = (Remainders::default(), key("a"));
        assert_eq!(all.hears(&a, 0, 0, bucket(5)), tell(5));
        assert_eq!(all.hears(&a, 1, 99 * MS, bucket(6)), Consequence::None);
        assert_eq!(all.hears(&a, 2, 250 * MS, bucket(8)), Consequence::None);
        assert_eq!(all.hears(&a, 3, 250 * MS, bucket(7)), tell(7));
        // A window may have all of its permits again, and a limiter may have been reset.
        assert_eq!(all.hears(&a, 4, 300 * MS, window(9)), tell(9));
        assert_eq!(all.hears(&a, 5, 1_300 * MS, bucket(99)), tell(99));
    }

    /// A bucket of 100 in 20 s is full 18 s after it has had 10 left, and later after each call. The end of a window stays.
    #[test]
    fn a_reset_that_moves_is_no_end_of_a_window() {
        let of = |remaining, seconds: Micros, is_bucket| HeardRemainder {
            is_bucket,
            reset: seconds * 1_000_000,
            period: 20_000_000,
            ..bucket(remaining)
        };
        for (seconds, is_bucket, expected) in [
            ([18, 18, 17, 20], true, [18, 18, 17, 20]),
            ([18, 20, 19, 5], true, [18, 0, 0, 0]),
            ([18, 20, 19, 5], false, [18, 20, 19, 5]),
        ] {
            let (all, a) = (Remainders::default(), key("a"));
            let spans = [0, 1, 2, 19].into_iter().zip(seconds).map(|(at, seconds)| {
                let at = at * 1_000 * MS;
                match all.hears(&a, at, at, of(10, seconds, is_bucket)) {
                    Consequence::Tell(left) => left.span / 1_000_000,
                    other => panic!("{other:?}"),
                }
            });
            assert_eq!(spans.collect::<Vec<_>>(), expected);
        }
    }

    fn check(key: &str, cost: i64) -> Check {
        let rule = Algorithm::FixedWindow(FixedWindow::new(10, 1_000_000).expect("a legal rule"));
        Check { cost, ..Check::new(key, rule) }
    }

    #[test]
    fn calls_that_were_sent_later_are_deducted() {
        let (all, a) = (Remainders::default(), key("a"));
        // Nothing is known of the key yet.
        all.sends(&[check("a", 1)], || unreachable!("no upstream has said anything"));
        assert_eq!(all.hears(&a, 10, 20, window(9)), tell(9));
        for (at, key, cost) in [(100, "a", 1), (200, "a", 3), (300, "b", 1), (400, "a", 1)] {
            all.sends(&[check(key, cost)], || at);
        }
        // The answer to the call at 100 counts that one, and not those at 200 and 400.
        assert_eq!(all.hears(&a, 101, 100 * MS, window(8)), tell(4));
        // The value that the store learns later is less the calls of that moment.
        assert_eq!(all.hears(&a, 201, 110 * MS, window(5)), Consequence::TellIn(40 * MS));
        all.sends(&[check("a", 2)], || 120 * MS);
        assert_eq!(all.next("a", 150 * MS).map(|left| left.permits), Some(2));
        // No value is negative.
        assert_eq!(all.hears(&a, 202, 300 * MS, window(1)), tell(0));
        assert_eq!(all.hears(&a, 200 * MS, 400 * MS, window(7)), tell(7));
    }

    #[test]
    fn calls_and_keys_are_bounded() {
        let all = Remainders::default();
        for i in 0..3_000 {
            let key = key(&i.to_string());
            assert_eq!(all.hears(&key, i, i, window(1)), tell(1));
        }
        assert_eq!(all.all.lock().len(), MAX_KEYS);
        assert!(all.all.lock().contains_key("2999"));
        for i in 0..1_000 {
            all.sends(&[check("2999", 1)], || 3_000 + i);
        }
        assert_eq!(all.all.lock()["2999"].since.len(), MAX_SENT);
        let heard = HeardRemainder { remaining: 5_000, ..window(0) };
        assert_eq!(all.hears(&key("2999"), 3_000, 100 * MS, heard), tell(4_001));
    }
}
