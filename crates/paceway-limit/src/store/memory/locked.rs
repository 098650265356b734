//! The parts of the states that a decision about several limiters works on, all of them locked.

use super::{MemoryStore, OpenedState, shard::Shard, stored_state::Print};
use crate::{algorithm::Micros, store::Check};
use parking_lot::MutexGuard;
use smallvec::SmallVec;

/// The parts that have the states of some checks.
pub(super) struct LockedShards<'s> {
    locked: SmallVec<[MutexGuard<'s, Shard>; 2]>,
    /// For each check the print of its key, and the position of its part in `locked`.
    places: SmallVec<[(Print, usize); 2]>,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// Locks the parts of all `checks`, always the first part first, so that no two decisions wait for each other.
    pub(super) fn lock_all(&self, checks: &[Check]) -> LockedShards<'_> {
        let prints: SmallVec<[Print; 2]> =
            checks.iter().map(|check| self.print(&check.key)).collect();
        let mut parts: SmallVec<[usize; 2]> =
            prints.iter().map(|print| self.shard_of(*print)).collect();
        parts.sort_unstable();
        parts.dedup();
        let place = |part: usize| parts.iter().position(|own| *own == part).unwrap_or_default();
        let places = prints.iter().map(|print| (*print, place(self.shard_of(*print)))).collect();
        let locked = parts.iter().map(|part| self.shared.shards[*part].0.lock()).collect();
        LockedShards { locked, places }
    }

    /// Opens the states of all `checks`, whose parts are locked.
    #[inline]
    pub(super) fn open_all(
        &self,
        shards: &mut LockedShards<'_>,
        checks: &[Check],
        now: Micros,
    ) -> SmallVec<[OpenedState; 2]> {
        // Pushing one by one takes half of the instructions of a collect, and every decision does this.
        let mut opened = SmallVec::new();
        for (i, check) in checks.iter().enumerate() {
            let print = shards.print(i);
            opened.push(self.open(shards.of(i), check, print, now));
        }
        opened
    }
}

// === impl LockedShards ===

impl LockedShards<'_> {
    /// The part of the check with index `i`.
    pub(super) fn of(&mut self, i: usize) -> &mut Shard {
        &mut self.locked[self.places[i].1]
    }

    /// The print of the key of the check with index `i`.
    pub(super) fn print(&self, i: usize) -> Print {
        self.places[i].0
    }
}
