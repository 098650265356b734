//! The losses of messages and states after which this process may know other pauses than the store. Asks no store.

use super::Pauses;
use std::sync::atomic::Ordering::SeqCst;

impl Pauses {
    /// Notes whether the store's messages about pauses arrive. Permits are not kept while they do not.
    pub(in crate::store) fn set_hears(&self, hears: bool) {
        self.hears.store(hears, SeqCst);
        if !hears {
            self.drop_permits(None);
        }
    }

    /// Notes that messages of the store may have been missed until now: a subscription begins, for example after its
    /// connection broke.
    pub(in crate::store) fn missed_messages(&self) {
        self.unheard.store(self.version.load(SeqCst), SeqCst);
    }

    /// Notes that the store has lost states, and with them perhaps the pauses that are known.
    pub(in crate::store) fn lost_states(&self) {
        self.lost.store(self.version.load(SeqCst), SeqCst);
    }
}
