//! The values that answers of one upstream report as the rest of its quotas, by the key of the limiter. The table decides
//! which of them the store learns, and asks no store itself.
//!
//! An upstream of 10,000 calls a second would otherwise cause as many calls of the store. So the store learns at most one
//! value per key in 50 ms, the newest, and none that cannot lower the level.

use crate::algorithm::Micros;
use ahash::RandomState;
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

/// Keys whose answers are known at one time. A further key replaces the one whose last answer is the oldest: of that key an
/// answer that was overtaken counts once more.
const MAX_KEYS: usize = 1_024;
/// The least time between two values of one key, µs.
const APART: u64 = 50_000;
/// For how long a value bounds the level of a bucket, µs. An operator may have reset the limiter since.
const BOUNDS: u64 = 1_000_000;

/// The newest values of one upstream. All workers share them.
#[derive(Debug, Default)]
pub(crate) struct Remainders(Mutex<HashMap<Arc<str>, Remainder, RandomState>>);

/// The newest values of one key. Instants are µs since the plan was made.
#[derive(Debug, Clone, Copy)]
struct Remainder {
    /// When the request was sent whose answer said the newest value.
    sent: u64,
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
    /// The store learns it now.
    Tell,
    /// The store learns the value that is the newest after this time, µs.
    TellIn(u64),
}

// === impl Remainders ===

impl Remainders {
    /// Takes the value `remaining` from the answer to a request that was `sent` at that instant. `interval` is the time in
    /// which a bucket gets a permit; `None` for a window, which may get all at once.
    pub(crate) fn hears(
        &self,
        key: &Arc<str>,
        (sent, now): (u64, u64),
        remaining: i64,
        interval: Option<Micros>,
    ) -> Consequence {
        let mut all = self.0.lock();
        if all.len() >= MAX_KEYS && !all.contains_key(key) {
            let oldest = all.iter().min_by_key(|(_, known)| known.sent).map(|(key, _)| key.clone());
            oldest.and_then(|key| all.remove(&key));
        }
        let known = all.entry(key.clone()).or_insert(Remainder { sent, told: None, next: None });
        if sent < known.sent {
            return Consequence::None;
        }
        known.sent = sent;
        if known.next.is_some() {
            known.next = Some(remaining);
            return Consequence::None;
        }
        let Some((told, at)) = known.told else {
            known.told = Some((remaining, now));
            return Consequence::Tell;
        };
        let since = now.saturating_sub(at);
        let most = interval.map(|interval| told + gained(since, interval));
        if since < BOUNDS && most.is_some_and(|most| remaining >= most) {
            return Consequence::None;
        }
        if since < APART {
            known.next = Some(remaining);
            return Consequence::TellIn(APART - since);
        }
        known.told = Some((remaining, now));
        Consequence::Tell
    }

    /// The newest value of a key, which the store learns `now`, after [`Consequence::TellIn`].
    pub(crate) fn next(&self, key: &str, now: u64) -> Option<i64> {
        let mut all = self.0.lock();
        let known = all.get_mut(key)?;
        let next = known.next.take()?;
        known.told = Some((next, now));
        Some(next)
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

    const MS: u64 = 1_000;
    /// 10 permits a second.
    const BUCKET: Option<Micros> = Some(100_000);

    fn key(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn an_answer_is_overtaken_by_those_of_its_own_key_only() {
        let all = Remainders::default();
        assert_eq!(all.hears(&key("a"), (200, 300), 5, None), Consequence::Tell);
        assert_eq!(all.hears(&key("b"), (100, 400), 5, None), Consequence::Tell);
        assert_eq!(all.hears(&key("a"), (100, 90 * MS), 0, None), Consequence::None);
    }

    #[test]
    fn the_store_learns_the_newest_value_every_50_ms() {
        let (all, a) = (Remainders::default(), key("a"));
        assert_eq!(all.hears(&a, (0, 0), 9, None), Consequence::Tell);
        assert_eq!(all.hears(&a, (1, 20 * MS), 7, None), Consequence::TellIn(30 * MS));
        // One task is enough for all that follow.
        assert_eq!(all.hears(&a, (3, 25 * MS), 5, None), Consequence::None);
        assert_eq!(all.hears(&a, (2, 26 * MS), 6, None), Consequence::None);
        assert_eq!(all.next("a", 50 * MS), Some(5));
        assert_eq!(all.next("a", 51 * MS), None);
        assert_eq!(all.hears(&a, (4, 99 * MS), 4, None), Consequence::TellIn(MS));
        assert_eq!(all.next("a", 100 * MS), Some(4));
        assert_eq!(all.hears(&a, (5, 150 * MS), 3, None), Consequence::Tell);
    }

    /// A bucket of 10/s whose level was lowered to 5 has at most 6 permits within 100 ms, and 8 after 250 ms.
    #[test]
    fn a_value_that_cannot_lower_a_bucket_is_not_told() {
        let (all, a) = (Remainders::default(), key("a"));
        assert_eq!(all.hears(&a, (0, 0), 5, BUCKET), Consequence::Tell);
        assert_eq!(all.hears(&a, (1, 99 * MS), 6, BUCKET), Consequence::None);
        assert_eq!(all.hears(&a, (2, 250 * MS), 8, BUCKET), Consequence::None);
        assert_eq!(all.hears(&a, (3, 250 * MS), 7, BUCKET), Consequence::Tell);
        // A window may have all of its permits again, and a limiter may have been reset.
        assert_eq!(all.hears(&a, (4, 300 * MS), 9, None), Consequence::Tell);
        assert_eq!(all.hears(&a, (5, 1_300 * MS), 99, BUCKET), Consequence::Tell);
    }

    #[test]
    fn keys_are_bounded() {
        let all = Remainders::default();
        for i in 0..3_000 {
            let key = key(&i.to_string());
            assert_eq!(all.hears(&key, (i, i), 1, None), Consequence::Tell);
        }
        assert_eq!(all.0.lock().len(), MAX_KEYS);
        assert!(all.0.lock().contains_key("2999"));
    }
}
