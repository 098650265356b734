//! The pauses of states, by their keys and in the order of their ends.

use super::{LONGEST, holds::LimiterHold};
use crate::{algorithm::Micros, store::Pause};
use ahash::RandomState;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// States whose pauses are known at one time. A further pause drops the one that ends first.
pub(super) const MAX_PAUSES: usize = 65_536;
/// The error of an end: the store counts in µs, and timers in ms.
const TIMER_ERROR: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
pub(super) struct PauseTable {
    pub(super) all: HashMap<Arc<str>, KnownPause, RandomState>,
    /// The same pauses in the order of their ends.
    pub(super) ends: BTreeSet<(Instant, Arc<str>)>,
    /// The limiters that operators hold.
    pub(super) holds: Arc<[LimiterHold]>,
    /// When the store last ended a pause, or lost its states: replies to older questions say nothing about pauses.
    pub(super) outdated: Option<Instant>,
}

/// A pause of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPause {
    /// The end of the pause, as far as this process knows: a message of the store that took 3 ms makes it 3 ms later.
    pub until: Instant,
    /// The status of the answer that caused it, such as 429; 0 as long as only the length of the pause is known.
    pub status: u16,
    /// How long it takes as a whole, as far as this process knows.
    pub(super) whole: Micros,
    pub(super) version: u64,
    /// It has lowered the rate of its limiter. Later refusals within the pause are of the calls that were sent before it.
    pub(super) fell: bool,
    /// The store has said that it knows of this end, and has lost no states since. A pause that this process has learned from
    /// an answer of the upstream is on its way to the store until then.
    pub(super) is_told: bool,
    /// The store decided as if there were no pause; when that was noticed.
    pub(super) doubted: Option<Instant>,
}

// === impl PauseTable ===

impl PauseTable {
    pub(super) fn count(&self) -> usize {
        self.all.len() + self.holds.len()
    }

    pub(super) fn put(&mut self, key: &Arc<str>, pause: KnownPause) {
        self.remove(key);
        self.ends.insert((pause.until, key.clone()));
        self.all.insert(key.clone(), pause);
        if self.all.len() > MAX_PAUSES
            && let Some((_, first)) = self.ends.pop_first()
        {
            self.all.remove(&first);
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<(Arc<str>, KnownPause)> {
        let (key, pause) = self.all.remove_entry(key)?;
        self.ends.remove(&(pause.until, key.clone()));
        Some((key, pause))
    }
}

// === impl KnownPause ===

impl KnownPause {
    /// How much of it is left, in µs.
    pub fn left(&self) -> Micros {
        left_until(self.until)
    }

    /// The same pause for a store. One that has not lowered the rate (`throttle: { learn: off }`) does not lower it there.
    pub fn pause(&self) -> Pause {
        let whole = if self.fell { self.whole } else { 0 };
        Pause { span: self.left(), whole, status: self.status, ago: 0 }
    }

    /// Whether the end `until`, as a message of the store tells it, is that of this pause or a later one.
    pub(super) fn ends_by(&self, until: Instant) -> bool {
        self.until <= until + TIMER_ERROR
    }

    /// Whether a pause until `until` with `status` says nothing that this one does not say.
    pub(super) fn covers(&self, until: Instant, status: u16) -> bool {
        until <= self.until && (status == 0 || self.status != 0)
    }
}

/// In µs, and rounded up: a call that waits until then comes after the end.
pub(super) fn left_until(end: Instant) -> Micros {
    let left = end.saturating_duration_since(Instant::now());
    i64::try_from(left.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

pub(super) fn span(left: Micros) -> Duration {
    Duration::from_micros(u64::try_from(left).unwrap_or(0)).min(LONGEST)
}
