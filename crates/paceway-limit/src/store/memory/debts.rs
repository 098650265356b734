//! Debts of limiters that are so deep in debt that no state takes them yet: permits are granted for one hour ahead at most.
//! A task charges the rest each minute.

use super::MemoryStore;
use crate::store::{Check, Reply, settlement};
use ahash::RandomState;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{runtime::Handle, time::sleep};

/// How many keys may owe permits. A further debt is dropped.
const KEYS: usize = 4_096;
const AGAIN: Duration = Duration::from_secs(60);

/// The permits that keys owe and their states do not count yet.
#[derive(Debug, Default)]
pub(super) struct Debts {
    owed: HashMap<Arc<str>, (Check, i64), RandomState>,
    /// A task charges them.
    is_served: bool,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// Charges `permits` to the state of `check`, now or as soon as it takes them.
    pub(super) fn owe(&self, check: &Check, permits: i64) {
        let left = self.charge(check, permits);
        if left == 0 {
            return;
        }
        let mut debts = self.shared.debts.lock();
        let has_room = debts.owed.len() < KEYS;
        match debts.owed.get_mut(&check.key) {
            Some((_, owed)) => *owed = owed.saturating_add(left),
            None if has_room => {
                debts.owed.insert(check.key.clone(), (check.clone(), left));
            }
            None => return,
        }
        if !debts.is_served
            && let Ok(runtime) = Handle::try_current()
        {
            debts.is_served = true;
            runtime.spawn(self.clone().serve_debts());
        }
    }

    /// Charges as much as the state takes, and returns the rest.
    fn charge(&self, check: &Check, permits: i64) -> i64 {
        let mut left = settlement::bounded(check, permits);
        for entry in settlement::charges(check, left) {
            let Reply::Owed(owed) = self.execute_at(self.now(), &entry) else { break };
            left += owed - entry.checks().iter().map(|check| check.cost).sum::<i64>();
            if owed > 0 {
                break;
            }
        }
        left
    }

    async fn serve_debts(self) {
        loop {
            sleep(AGAIN).await;
            let owed: Vec<_> = {
                let mut debts = self.shared.debts.lock();
                debts.is_served = !debts.owed.is_empty();
                if !debts.is_served {
                    return;
                }
                debts.owed.drain().map(|(_, owed)| owed).collect()
            };
            for (check, permits) in owed {
                self.owe(&check, permits);
            }
        }
    }
}
