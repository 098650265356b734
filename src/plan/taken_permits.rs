//! The permits that descriptors of Envoy took lately, so that a descriptor with negative hits gives them back: no more than
//! were taken, and by the grants that took them. They are in this process alone, and count as used after its end.

use crate::limit::Settlement;
use ahash::HashMap;
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::Instant;

/// The most grants that are kept. A further one takes the place of the oldest, whose permits then count as used.
const MOST_KEPT: usize = 65_536;
/// How long the permits of a grant can be given back.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// The grants of all descriptors. Plans that follow each other share them.
#[derive(Default)]
pub(crate) struct TakenPermits(Mutex<TakenTable>);

#[derive(Default)]
struct TakenTable {
    /// The states of the grants in the order in which these were made, each with the end of its time.
    order: VecDeque<(Instant, Arc<str>)>,
    /// The grants of each state, the oldest first.
    grants: HashMap<Arc<str>, VecDeque<Settlement>>,
}

// === impl TakenPermits ===

impl TakenPermits {
    /// Keeps a grant.
    pub(crate) fn keep(&self, grant: Settlement) {
        let mut table = self.0.lock();
        let state = grant.state().clone();
        table.order.push_back((Instant::now() + KEPT_FOR, state.clone()));
        table.grants.entry(state).or_default().push_back(grant);
        table.forget(MOST_KEPT);
    }

    /// Gives back up to `permits` of this state, those of the last grants first. Returns how many it gave back.
    pub(crate) fn give_back(&self, state: &str, permits: i64) -> i64 {
        let mut table = self.0.lock();
        table.forget(MOST_KEPT);
        let mut left = permits;
        // Those without permits stay for their time, so that `order` has one entry for each.
        for grant in table.grants.get_mut(state).into_iter().flatten().rev() {
            left -= grant.give_back(left);
            if left == 0 {
                break;
            }
        }
        permits - left
    }
}

// === impl TakenTable ===

impl TakenTable {
    /// Forgets the grants whose time has ended, and the oldest above `most`.
    fn forget(&mut self, most: usize) {
        let now = Instant::now();
        while let Some((until, state)) = self.order.front() {
            if *until > now && self.order.len() <= most {
                break;
            }
            if let Some(grants) = self.grants.get_mut(state) {
                grants.pop_front();
                if grants.is_empty() {
                    self.grants.remove(state);
                }
            }
            self.order.pop_front();
        }
    }
}
