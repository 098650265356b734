//! Copies of states, on which others decide what would happen. The states themselves stay as they are.

use super::{MAX_KEYS, MemoryStore};
use crate::{
    algorithm::{Micros, RuleState, stored::StoredRate},
    store::{Check, StateCopy},
};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// How long a copy keeps its states, µs: a day, and no copy lives for a minute.
const LIFE: Micros = 86_400_000_000;

impl MemoryStore {
    /// Copies the states of `checks` as they are at the instant `now`, in µs.
    pub fn copy_at(&self, now: Micros, checks: &[Check]) -> StateCopy {
        let copy = Self::calling(Arc::default());
        copy.lose(self.shared.lost.load(Relaxed));
        let mut shards = self.lock_all(checks);
        for (i, check) in checks.iter().enumerate() {
            let own = shards.print(i);
            let shard = shards.of(i);
            let is_own = shard.find(own).is_some() || shard.has_gate(own) || self.keys() < MAX_KEYS;
            let shared = check.overflow.as_ref().filter(|_| !is_own);
            let print = shared.map_or(own, |shared| self.print(shared));
            copy.keep_stored(now, check, shard.stored(print));
        }
        drop(shards);
        let queued = checks.iter().filter(|check| check.turn.is_some());
        let slots = queued
            .filter_map(|check| self.in_queue(check, |queue| queue.slots().collect::<Vec<_>>()));
        let slots = slots.flatten().collect();
        StateCopy::new(now, copy, slots)
    }

    /// Whether the upstream has refused calls of a check, or told what remains, and that counts.
    pub(in crate::store) fn has_gate(&self, check: &Check) -> bool {
        let print = self.print(&check.key);
        self.lock(print).has_gate(print)
    }

    /// Keeps the state of a check as another store has it at the instant `now`, in µs.
    pub fn keep_stored(&self, now: Micros, check: &Check, stored: StoredRate) {
        let print = self.print(&check.key);
        let mut shard = self.lock(print);
        if let Some(gate) = check.open_gate(stored.gate, now) {
            shard.put_gate(now, print, &gate);
        }
        if let Some(state) = stored.state {
            shard.put(print, None, RuleState::Rate(state), now + LIFE);
        }
    }
}

#[cfg(test)]
mod tests;
