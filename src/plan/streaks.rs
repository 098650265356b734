//! The refusals in a row of each limiter key of one upstream, by which the default pause doubles. Reads no clock, asks no
//! store.

use ahash::RandomState;
use parking_lot::RwLock;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

/// Keys whose refusals are counted at one time. A further key replaces the one whose last refusal is the oldest: that key
/// begins again with the default pause.
const MAX_KEYS: usize = 1_024;
/// The highest number of refusals in a row. A pause of 100 ms is at `max_pause` long before.
const MOST: u32 = 63;
/// For how long after its longest pause a key is remembered that is not called any more, µs: one hour. Each answer to a
/// call would otherwise look for its key among those that are gone.
const LAPSE: u64 = 3_600_000_000;

/// The refusals in a row, by the key of the limiter, in one gateway. All of its workers share them. Instants are µs since
/// the first plan of the process was made.
#[derive(Debug, Default)]
pub(crate) struct RefusalStreaks {
    /// How many keys have one; every answer reads it.
    count: AtomicUsize,
    /// When the last refusal of any key came that was counted.
    newest: AtomicU64,
    all: RwLock<HashMap<Arc<str>, RefusalStreak, RandomState>>,
}

/// The refusals in a row of one key.
///
/// A wave of calls that were under way together is one refusal: 20 answers of 429 within 50 ms double the pause once, not 20
/// times.
#[derive(Debug, Clone, Copy, Default)]
struct RefusalStreak {
    /// When the last refusal came that was counted.
    last: u64,
    count: u32,
}

// === impl RefusalStreaks ===

impl RefusalStreaks {
    /// Counts the refusal of a call of `key` that was sent at `sent`, and returns the number of refusals in a row, one or
    /// more. The refusal of a call that was sent before the last counted refusal came belongs to the same wave. `longest`
    /// is the longest pause, µs.
    pub(crate) fn refused(&self, key: &Arc<str>, sent: u64, now: u64, longest: u64) -> u32 {
        let mut all = self.all.write();
        if all.len() >= MAX_KEYS && !all.contains_key(key) {
            all.retain(|_, streak| !streak.is_forgotten(now, longest));
            if all.len() >= MAX_KEYS {
                let oldest = all.iter().min_by_key(|(_, streak)| streak.last);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.and_then(|key| all.remove(&key));
            }
        }
        let streak = all.entry(key.clone()).or_default();
        if streak.is_forgotten(now, longest) {
            *streak = RefusalStreak::default();
        }
        if streak.count == 0 || sent >= streak.last {
            *streak = RefusalStreak { last: now, count: (streak.count + 1).min(MOST) };
            self.newest.fetch_max(now, Relaxed);
        }
        let count = streak.count;
        self.count.store(all.len(), Relaxed);
        count
    }

    /// Whether a key has refusals in a row, so that an answer may end them.
    #[inline]
    pub(crate) fn is_begun(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Ends the rows of `keys` when the answer to a call that was sent at `sent` is no refusal. An answer to a call that
    /// was sent before the last refusal came does not: it says nothing about the time after it.
    #[cold]
    pub(crate) fn accepted<'a>(
        &self,
        keys: impl Iterator<Item = &'a Arc<str>> + Clone,
        sent: u64,
        longest: u64,
    ) {
        // Nearly all calls have other keys.
        let all = self.all.read();
        let ends = |key: &Arc<str>| all.get(key).is_some_and(|streak| sent >= streak.last);
        let has_ended = keys.clone().any(ends);
        drop(all);
        let newest = RefusalStreak { last: self.newest.load(Relaxed), count: 1 };
        let are_forgotten = newest.is_forgotten(sent, longest);
        if !has_ended && !are_forgotten {
            return;
        }
        let mut all = self.all.write();
        for key in keys {
            // A refusal that was counted meanwhile is kept.
            if all.get(key).is_some_and(|streak| sent >= streak.last) {
                all.remove(key);
            }
        }
        if are_forgotten {
            all.retain(|_, streak| !streak.is_forgotten(sent, longest));
        }
        self.count.store(all.len(), Relaxed);
    }
}

// === impl RefusalStreak ===

impl RefusalStreak {
    /// Whether the last refusal came so long before `now` that its row is over.
    fn is_forgotten(&self, now: u64, longest: u64) -> bool {
        now.saturating_sub(self.last) > longest.saturating_add(LAPSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice;

    const SECOND: u64 = 1_000_000;
    const LONGEST: u64 = 600 * SECOND;

    fn key(name: &str) -> Arc<str> {
        name.into()
    }

    fn refused(all: &RefusalStreaks, key: &Arc<str>, sent: u64, now: u64) -> u32 {
        all.refused(key, sent, now, LONGEST)
    }

    fn accepted(all: &RefusalStreaks, keys: &[Arc<str>], sent: u64) {
        all.accepted(keys.iter(), sent, LONGEST);
    }

    #[test]
    fn one_wave_of_refusals_counts_once() {
        let (all, a) = (RefusalStreaks::default(), key("a"));
        assert_eq!((0..20).map(|i| refused(&all, &a, i, 100 + i)).max(), Some(1));
        assert_eq!(refused(&all, &a, 150, 300), 2);
        assert_eq!(refused(&all, &a, 160, 310), 2);
        assert_eq!(refused(&all, &a, 301, 500), 3);
    }

    #[test]
    fn a_success_sent_after_the_refusal_ends_the_streak() {
        let (all, a) = (RefusalStreaks::default(), key("a"));
        refused(&all, &a, 0, 100);
        accepted(&all, slice::from_ref(&a), 99);
        assert_eq!(refused(&all, &a, 200, 300), 2);
        accepted(&all, slice::from_ref(&a), 300);
        assert!(!all.is_begun());
        assert_eq!(refused(&all, &a, 400, 500), 1);
    }

    #[test]
    fn each_key_has_its_own_streak() {
        let (all, [a, b]) = (RefusalStreaks::default(), ["a", "b"].map(key));
        assert_eq!(refused(&all, &a, 0, 100), 1);
        assert_eq!(refused(&all, &a, 200, 300), 2);
        assert_eq!(refused(&all, &b, 400, 500), 1);
        accepted(&all, slice::from_ref(&b), 600);
        assert_eq!(refused(&all, &a, 700, 800), 3);
        assert_eq!(refused(&all, &b, 700, 800), 1);
        accepted(&all, &[a, b], 900);
        assert!(!all.is_begun());
    }

    /// An answer an hour after the longest pause ends the rows of all keys, and a refusal then is the first.
    #[test]
    fn an_old_streak_is_forgotten() {
        let (all, [a, b]) = (RefusalStreaks::default(), ["a", "b"].map(key));
        let late = LONGEST + LAPSE;
        refused(&all, &a, 0, 100);
        accepted(&all, slice::from_ref(&b), late + 100);
        assert_eq!(refused(&all, &a, 200, 300), 2);
        accepted(&all, slice::from_ref(&b), late + 301);
        assert!(!all.is_begun());
        refused(&all, &a, late, late);
        assert_eq!(refused(&all, &a, 2 * late + 1, 2 * late + 1), 1);
    }

    #[test]
    fn counts_and_keys_have_bounds() {
        let all = RefusalStreaks::default();
        let last = (0..1000).map(|i| refused(&all, &key("a"), i, i)).last();
        assert_eq!(last, Some(MOST));
        for i in 1_000..4_000 {
            assert_eq!(refused(&all, &key(&i.to_string()), i, i), 1);
        }
        assert_eq!(all.all.read().len(), MAX_KEYS);
        assert_eq!(refused(&all, &key("3999"), 5_000, 5_000), 2);
    }
}
