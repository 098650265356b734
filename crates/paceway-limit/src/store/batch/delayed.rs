//! Entries that are sent later, ordered by their instant. Holds no timer.

use crate::store::{Check, Entry};
use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};
use tokio::time::Instant;

/// How many entries may wait for their instant. Further ones are dropped: a concurrency permit whose release is dropped is
/// free at the end of its lease.
const MOST: usize = 65_536;

/// Entries that are sent later.
#[derive(Debug, Default)]
pub(super) struct Delayed {
    /// By instant; the number keeps the order of those with the same instant.
    entries: BTreeMap<(Instant, u64), Later>,
    count: u64,
    /// The limiters with an entry that watches a claim, so that each has at most one.
    watched: HashSet<Arc<str>>,
}

/// The step to take when the instant has come.
#[derive(Debug)]
pub(super) enum Later {
    /// Gives a concurrency permit back once more; `since` is the instant of the first try.
    Release { entry: Entry, since: Instant },
    /// Reads the state of a limiter, which hands a concurrency permit on if a claim has expired.
    Watch(Check),
    /// Charges the permits that are owed to this key.
    Charge(Arc<str>),
}

// === impl Delayed ===

impl Delayed {
    /// Keeps `later` until `at`. Returns false, and drops it, when too many are kept.
    pub(super) fn push(&mut self, at: Instant, later: Later) -> bool {
        let has_room = self.entries.len() < MOST;
        if has_room {
            self.count += 1;
            self.entries.insert((at, self.count), later);
        }
        has_room
    }

    /// Watches a claim on a permit of `check` until `at`, unless another entry does so.
    pub(super) fn watch(&mut self, at: Instant, check: Check) {
        let key = check.key.clone();
        if self.watched.insert(key.clone()) && !self.push(at, Later::Watch(check)) {
            self.watched.remove(&key);
        }
    }

    /// Returns the instant of the first entry.
    pub(super) fn next(&self) -> Option<Instant> {
        self.entries.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes and returns the first entry whose instant has come by `now`.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Later> {
        let first = self.entries.first_entry().filter(|first| first.key().0 <= now)?;
        let later = first.remove();
        if let Later::Watch(check) = &later {
            // Removed before the state is read: a claim that begins after that is watched again.
            self.watched.remove(&check.key);
        }
        Some(later)
    }
}
