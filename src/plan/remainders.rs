//! The values that answers of one upstream report as the rest of its quotas, by the key of the limiter. The table decides
//! which of them the store learns, and asks no store itself.
//!
//! An upstream of 10,000 calls a second would otherwise cause as many calls of the store. So the store learns at most one
//! value per key in 50 ms, the newest, and none that cannot lower the level.
//!
//! A busy limiter has no level to lower, because its next slots are promised. If the upstream has refused a call of the key
//! lately, other programs use its quota, and the call after an answer that says "nothing remains" would be refused, too. So
//! that answer pauses the limiter.
//!
//! An answer does not count the calls that were sent after its own, so these are deducted.

use crate::{algorithm::Micros, store::Check};
use ahash::RandomState;
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::{HashMap, VecDeque},
    mem,
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
/// For how long after a refusal an answer that says "nothing remains" pauses a limiter: a minute, or the time of 32 permits if
/// that is longer. A limiter that is alone at its quota loses up to 2 % of its calls of that minute after a lone refusal. With
/// 10 s the upstream refused 1.3 to 2.0 % of calls beside a stranger at a fifth of 50/s, and a caller saw it in two of four runs
/// of 1,500; with a minute 0.7 to 0.9 %, and none in three.
const SUSPECTED: u64 = 60_000_000;
const SUSPECTED_PERMITS: u64 = 32;

/// The newest values of one upstream. All workers share them.
#[derive(Debug, Default)]
pub(crate) struct Remainders {
    /// Whether a value or a refusal of any key is known; every call reads it.
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
    /// Whether the newest value was enough for the request that came after it.
    has_rest: bool,
    /// When the upstream refused a call of this key last.
    refused: Option<u64>,
    /// The value that the store learned last, and when.
    told: Option<(i64, u64)>,
    /// The value that the store learns when 50 ms are over.
    next: Option<i64>,
}

/// The consequence of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consequence {
    /// Nothing: the value is older than another one, cannot lower the level, or replaces one that waits already.
    None,
    /// The store learns this value now: that of the answer, less the permits of calls that were sent since.
    Tell(i64),
    /// The store learns the value that is the newest after this time, µs.
    TellIn(u64),
    /// The upstream would refuse the next call, so the limiter is paused.
    Pause,
}

/// The rest of a limiter's quota, as an answer says it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeardRemainder {
    pub(crate) remaining: i64,
    /// The cost of the request, in permits.
    pub(crate) cost: i64,
    /// The time of one permit by the rate of the limiter, µs.
    pub(crate) permit: Micros,
    /// Whether the limiter gets one permit after the other. A window may give back all at once.
    pub(crate) is_bucket: bool,
}

// === impl Remainders ===

impl Remainders {
    /// Takes a value from the answer to a request that was `sent` at that instant.
    pub(crate) fn hears(
        &self,
        key: &Arc<str>,
        (sent, now): (u64, u64),
        heard: HeardRemainder,
    ) -> Consequence {
        let HeardRemainder { remaining, cost, permit, is_bucket } = heard;
        let mut all = self.begun();
        let known = entry(&mut all, key, sent);
        if sent < known.sent {
            return Consequence::None;
        }
        known.sent = sent;
        while known.since.front().is_some_and(|(at, _)| *at <= sent) {
            known.since.pop_front();
        }
        let left = known.less_sent(remaining);
        let had_rest = mem::replace(&mut known.has_rest, left >= cost);
        // Some upstreams say 0 all the time, so only the first 0 after a larger value counts.
        if had_rest && !known.has_rest && known.is_suspected(now, permit) {
            return Consequence::Pause;
        }
        if known.next.is_some() {
            known.next = Some(remaining);
            return Consequence::None;
        }
        let Some((told, at)) = known.told else {
            known.told = Some((left, now));
            return Consequence::Tell(left);
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
        Consequence::Tell(left)
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

    /// Notes that the upstream has refused a call of `key`.
    pub(crate) fn refuses(&self, key: &Arc<str>, now: u64) {
        entry(&mut self.begun(), key, 0).refused = Some(now);
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<Arc<str>, Remainder, RandomState>> {
        self.is_begun.store(true, Relaxed);
        self.all.lock()
    }

    /// The newest value of a key, which the store learns `now`, after [`Consequence::TellIn`].
    pub(crate) fn next(&self, key: &str, now: u64) -> Option<i64> {
        let mut all = self.all.lock();
        let known = all.get_mut(key)?;
        let next = known.next.take()?;
        let next = known.less_sent(next);
        known.told = Some((next, now));
        Some(next)
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
    let new = Remainder { sent, since, has_rest: false, refused: None, told: None, next: None };
    all.entry(key.clone()).or_insert(new)
}

// === impl Remainder ===

impl Remainder {
    /// The newest value less the permits of the calls that were sent since.
    fn less_sent(&self, remaining: i64) -> i64 {
        let sent = self.since.iter().fold(0_i64, |sum, (_, permits)| sum.saturating_add(*permits));
        remaining.saturating_sub(sent).max(0)
    }

    /// Whether the upstream has refused a call of the key so lately that other programs probably use its quota.
    fn is_suspected(&self, now: u64, permit: Micros) -> bool {
        let span = u64::try_from(permit).unwrap_or(0).saturating_mul(SUSPECTED_PERMITS);
        self.refused.is_some_and(|at| now.saturating_sub(at) < span.max(SUSPECTED))
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
        HeardRemainder { remaining, cost: 1, permit: 100_000, is_bucket: true }
    }

    fn window(remaining: i64) -> HeardRemainder {
        HeardRemainder { is_bucket: false, ..bucket(remaining) }
    }

    fn key(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn only_a_later_answer_of_the_same_key_replaces_an_answer() {
        let all = Remainders::default();
        assert_eq!(all.hears(&key("a"), (200, 300), window(5)), Consequence::Tell(5));
        assert_eq!(all.hears(&key("b"), (100, 400), window(5)), Consequence::Tell(5));
        assert_eq!(all.hears(&key("a"), (100, 90 * MS), window(0)), Consequence::None);
    }

    #[test]
    fn the_store_learns_the_newest_value_every_50_ms() {
        let (all, a) = (Remainders::default(), key("a"));
        assert_eq!(all.hears(&a, (0, 0), window(9)), Consequence::Tell(9));
        assert_eq!(all.hears(&a, (1, 20 * MS), window(7)), Consequence::TellIn(30 * MS));
        // One task is enough for all that follow.
        assert_eq!(all.hears(&a, (3, 25 * MS), window(5)), Consequence::None);
        assert_eq!(all.hears(&a, (2, 26 * MS), window(6)), Consequence::None);
        assert_eq!(all.next("a", 50 * MS), Some(5));
        assert_eq!(all.next("a", 51 * MS), None);
        assert_eq!(all.hears(&a, (4, 99 * MS), window(4)), Consequence::TellIn(MS));
        assert_eq!(all.next("a", 100 * MS), Some(4));
        assert_eq!(all.hears(&a, (5, 150 * MS), window(3)), Consequence::Tell(3));
    }

    /// A bucket of 10/s whose level was lowered to 5 has at most 6 permits within 100 ms, and 8 after 250 ms.
    #[test]
    fn a_value_that_cannot_lower_a_bucket_is_not_sent() {
        let (all, a) = (Remainders::default(), key("a"));
        assert_eq!(all.hears(&a, (0, 0), bucket(5)), Consequence::Tell(5));
        assert_eq!(all.hears(&a, (1, 99 * MS), bucket(6)), Consequence::None);
        assert_eq!(all.hears(&a, (2, 250 * MS), bucket(8)), Consequence::None);
        assert_eq!(all.hears(&a, (3, 250 * MS), bucket(7)), Consequence::Tell(7));
        // A window may have all of its permits again, and a limiter may have been reset.
        assert_eq!(all.hears(&a, (4, 300 * MS), window(9)), Consequence::Tell(9));
        assert_eq!(all.hears(&a, (5, 1_300 * MS), bucket(99)), Consequence::Tell(99));
    }

    #[test]
    fn after_a_refusal_a_remaining_quota_of_0_pauses_the_limiter() {
        let (all, a, second) = (Remainders::default(), key("a"), 1_000 * MS);
        let hears = |at: u64, value| all.hears(&a, (at, at), value);
        // Without a refusal the upstream counts our calls alone.
        assert_eq!(hears(1, window(2)), Consequence::Tell(2));
        assert_eq!(hears(second, window(0)), Consequence::Tell(0));
        all.refuses(&a, 2 * second);
        // It said 0 before.
        assert_eq!(hears(3 * second, window(0)), Consequence::Tell(0));
        assert_eq!(hears(4 * second, window(2)), Consequence::Tell(2));
        assert_eq!(hears(5 * second, window(0)), Consequence::Pause);
        assert_eq!(hears(6 * second, window(0)), Consequence::Tell(0));
        assert_eq!(hears(7 * second, bucket(2)), Consequence::Tell(2));
        // Less than the cost of the request is nothing, too.
        let costs = HeardRemainder { cost: 3, ..bucket(2) };
        assert_eq!(hears(8 * second, bucket(3)), Consequence::Tell(3));
        assert_eq!(hears(9 * second, costs), Consequence::Pause);
        // An answer that was overtaken says nothing.
        assert_eq!(hears(10 * second, bucket(3)), Consequence::Tell(3));
        assert_eq!(all.hears(&a, (9 * second, 11 * second), bucket(0)), Consequence::None);
        // The refusal came too long ago.
        assert_eq!(hears(63 * second, bucket(0)), Consequence::Tell(0));
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
        assert_eq!(all.hears(&a, (10, 20), window(9)), Consequence::Tell(9));
        for (at, key, cost) in [(100, "a", 1), (200, "a", 3), (300, "b", 1), (400, "a", 1)] {
            all.sends(&[check(key, cost)], || at);
        }
        // The answer to the call at 100 counts that one, and not those at 200 and 400.
        assert_eq!(all.hears(&a, (101, 100 * MS), window(8)), Consequence::Tell(4));
        // The value that the store learns later is less the calls of that moment.
        assert_eq!(all.hears(&a, (201, 110 * MS), window(5)), Consequence::TellIn(40 * MS));
        all.sends(&[check("a", 2)], || 120 * MS);
        assert_eq!(all.next("a", 150 * MS), Some(2));
        // No value is negative.
        assert_eq!(all.hears(&a, (202, 300 * MS), window(1)), Consequence::Tell(0));
        assert_eq!(all.hears(&a, (200 * MS, 400 * MS), window(7)), Consequence::Tell(7));
    }

    #[test]
    fn calls_and_keys_are_bounded() {
        let all = Remainders::default();
        for i in 0..3_000 {
            let key = key(&i.to_string());
            assert_eq!(all.hears(&key, (i, i), window(1)), Consequence::Tell(1));
        }
        assert_eq!(all.all.lock().len(), MAX_KEYS);
        assert!(all.all.lock().contains_key("2999"));
        for i in 0..1_000 {
            all.sends(&[check("2999", 1)], || 3_000 + i);
        }
        assert_eq!(all.all.lock()["2999"].since.len(), MAX_SENT);
        let heard = HeardRemainder { remaining: 5_000, ..window(0) };
        assert_eq!(all.hears(&key("2999"), (3_000, 100 * MS), heard), Consequence::Tell(4_001));
    }
}
