//! Limiters that an operator holds: all states of such a limiter grant nothing until its end. The store does not know of
//! holds, so a hold that an operator ends leaves nothing in it; every gateway learns of them by itself.

use super::{Covering, Pauses, WaitingCount};
use crate::store::Check;
use std::{
    fmt,
    sync::{Arc, atomic::Ordering::SeqCst},
};
use tokio::time::{Instant, sleep_until};

/// A limiter that an operator holds.
#[derive(Clone)]
pub struct LimiterHold {
    /// Whether a state, by its name, belongs to the limiter.
    pub is_its: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// The end of the hold.
    pub until: Instant,
}

// === impl Pauses ===

impl Pauses {
    /// Replaces all holds. Calls that wait for an instant within one of them are woken, and those that one of the earlier
    /// holds has stopped.
    pub fn hold(&self, holds: Vec<LimiterHold>) {
        {
            let mut table = self.table.write();
            if holds.is_empty() && table.holds.is_empty() {
                return;
            }
            table.holds = holds.clone().into();
            self.count.store(table.count(), SeqCst);
        }
        for WaitingCount { state, .. } in self.waiting.counts() {
            let own = holds.iter().filter(|hold| (hold.is_its)(&state));
            if let Some(until) = own.map(|hold| hold.until).max() {
                self.waiting.wake(&state, until);
            }
        }
        self.released.notify_waiters();
    }

    /// The hold of one of a request's limiters that enforce, which ends last; `None` if none is held.
    pub fn held(&self, checks: &[Check]) -> Option<Covering> {
        if self.is_empty() {
            return None;
        }
        let holds = self.table.read().holds.clone();
        let now = Instant::now();
        let active = holds.iter().filter(|hold| hold.until > now);
        let ends = active.flat_map(|hold| {
            let own = checks.iter().enumerate();
            let own = own.filter(|(_, check)| check.enforce && (hold.is_its)(&check.key));
            own.map(|(index, _)| Covering::of_hold(index, hold.until))
        });
        ends.max_by_key(|held| held.until)
    }

    /// Resolves when none of a request's limiters is held any more.
    pub async fn released(&self, checks: &[Check]) {
        loop {
            // Created before the look, so that no change between the two is missed.
            let changed = self.released.notified();
            let Some(held) = self.held(checks) else { return };
            tokio::select! {
                () = sleep_until(held.until) => {}
                () = changed => {}
            }
        }
    }
}

impl fmt::Debug for LimiterHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterHold").field("until", &self.until).finish_non_exhaustive()
    }
}
