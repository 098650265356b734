//! The parts of the states that a decision works on, all of them locked.

use super::{MemoryStore, OpenedState, shard::Shard, stored_state::Print};
use crate::{
    algorithm::{Micros, concurrency::Ticket},
    store::Check,
};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

/// The parts that have the states of some checks.
pub(super) struct LockedShards<'s> {
    /// The locked parts with their positions among all parts.
    locked: SmallVec<[(usize, MutexGuard<'s, Shard>); 2]>,
    /// For each check the print of its key, and the position of its part.
    places: SmallVec<[(Print, usize); 2]>,
    /// The place of the first of the checks that are worked on.
    first: usize,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// Locks the parts of all `checks`, always the first part first, so that no two decisions wait for each other.
    #[inline]
    pub(super) fn lock_all(&self, checks: &[Check]) -> LockedShards<'_> {
        let mut places = SmallVec::<[(Print, usize); 2]>::new();
        for check in checks {
            let print = self.print(&check.key);
            places.push((print, self.shard_of(print)));
        }
        let mut locked = SmallVec::new();
        let mut first = 0;
        // Few parts are locked at one time, so that nothing needs to be sorted.
        while let Some(part) = places.iter().map(|(_, part)| *part).filter(|it| *it >= first).min()
        {
            locked.push((part, self.shared.shards[part].0.lock()));
            first = part + 1;
        }
        LockedShards { locked, places, first: 0 }
    }

    /// Opens the states of all `checks`, whose parts are locked.
    pub(super) fn open_all(
        &self,
        shards: &mut LockedShards<'_>,
        checks: &[Check],
        now: Micros,
    ) -> SmallVec<[OpenedState; 2]> {
        let mut opened = SmallVec::new();
        for (i, check) in checks.iter().enumerate() {
            let print = shards.print(i);
            opened.push(self.open(shards.of(i), check, print, now));
        }
        opened
    }

    /// Puts the states of all `checks` back, those as they are now that `is_changed` selects. Returns the tickets to wake when
    /// the parts are not locked any more.
    pub(super) fn put_all(
        &self,
        shards: &mut LockedShards<'_>,
        checks: &[Check],
        opened: SmallVec<[OpenedState; 2]>,
        is_changed: impl Fn(usize) -> bool,
        now: Micros,
    ) -> Vec<Ticket> {
        let mut called = Vec::new();
        for (i, (check, opened)) in checks.iter().zip(opened).enumerate() {
            called.append(&mut self.put(shards.of(i), check, opened, is_changed(i), now));
        }
        called
    }
}

// === impl LockedShards ===

impl LockedShards<'_> {
    /// From now on the checks are those from this place on among the locked ones.
    pub(super) fn begin_at(&mut self, first: usize) {
        self.first = first;
    }

    /// The part of the check with index `i` of those that are worked on.
    #[inline]
    pub(super) fn of(&mut self, i: usize) -> &mut Shard {
        let part = self.places[self.first + i].1;
        let at = self.locked.iter().position(|(own, _)| *own == part).unwrap_or_default();
        &mut self.locked[at].1
    }

    /// The print of the key of that check.
    pub(super) fn print(&self, i: usize) -> Print {
        self.places[self.first + i].0
    }
}
