//! The names of the states that the memory store keeps, one part of the states in each step.

use super::{MemoryStore, shard::Shard, stored_state::Print};
use crate::store::{Check, ScanPlace, ScanStep};

// === impl MemoryStore ===

impl MemoryStore {
    /// Lists the states of keys in one part that begin with `prefix`.
    pub(super) fn scan_names(&self, prefix: &str, place: &ScanPlace) -> ScanStep {
        let number = usize::try_from(place.cursor).unwrap_or(usize::MAX);
        let names = self.shared.shards.get(number).map(|shard| shard.0.lock().names(prefix));
        let is_last = number.saturating_add(1) >= self.shared.shards.len();
        let next = ScanPlace { server: None, cursor: place.cursor.saturating_add(1) };
        ScanStep { names: names.unwrap_or_default(), next: (!is_last).then_some(next) }
    }

    /// Lists a new state, so that operators can see the keys that are in use.
    #[cold]
    pub(super) fn list(&self, shard: &mut Shard, print: Print, check: &Check) {
        if print == self.print(&check.key) {
            shard.list(print, &check.key);
        }
    }
}
