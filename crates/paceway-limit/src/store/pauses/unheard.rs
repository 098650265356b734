//! The losses of messages and states after which this process may know other pauses than the store. Asks no store.

use super::Pauses;
use std::sync::atomic::Ordering::SeqCst;
use tokio::time::Instant;

impl Pauses {
    /// Notes whether the store's messages about pauses arrive. Permits are not kept while they do not.
    pub(in crate::store) fn set_hears(&self, hears: bool) {
        self.hears.store(hears, SeqCst);
        if !hears {
            self.drop_permits(None);
        }
    }

    /// Notes that the store has lost states, and with them perhaps the pauses that are known.
    pub fn lost_states(&self) {
        let mut table = self.table.write();
        table.outdated = Some(Instant::now());
        table.all.values_mut().for_each(|known| known.is_told = false);
    }
}
