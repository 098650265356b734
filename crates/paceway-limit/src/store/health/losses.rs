//! The losses of states that a process knows, for the pages, the log and the answers of refused requests. It decides nothing:
//! the store does.

use crate::{
    algorithm::Micros,
    store::{Check, hash_tag},
};
use ahash::RandomState;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};
use tokio::sync::watch;

/// The last loss of each lane: `""` on one server, a hash tag in a Cluster. Lanes come from the configuration, so their
/// number is bounded.
#[derive(Debug, Default)]
pub struct StateLosses {
    /// Whether any loss is known; most of the time none is.
    some: AtomicBool,
    lanes: Mutex<HashMap<Box<str>, Micros, RandomState>>,
    /// By how much the store's clock was ahead of that of its server, which was set back, and the server's instant then.
    ahead: Mutex<Option<[Micros; 2]>>,
    /// How many losses have been found while this process ran.
    found: watch::Sender<u64>,
}

// === impl StateLosses ===

impl StateLosses {
    /// Notes the epoch of a lane: it began with a loss at the instant `lost`, µs of the store's clock, or no loss is known.
    /// `is_new` says that the loss was found just now.
    #[cfg(any(test, feature = "redis"))]
    pub(in crate::store) fn note(&self, lane: &str, lost: Option<Micros>, is_new: bool) {
        let mut lanes = self.lanes.lock();
        match lost {
            Some(at) => drop(lanes.insert(lane.into(), at)),
            None => drop(lanes.remove(lane)),
        }
        self.some.store(!lanes.is_empty(), Relaxed);
        drop(lanes);
        if is_new {
            self.found.send_modify(|found| *found += 1);
        }
    }

    /// The time in µs for which the limiter of `check` stays closed after `now`, µs of the store's clock, because its
    /// states were lost; `None` if no such loss is known, or if the limiter has reopened.
    pub(super) fn closes(&self, check: &Check, now: Micros) -> Option<Micros> {
        if !self.some.load(Relaxed) {
            return None;
        }
        let lanes = self.lanes.lock();
        let at = *lanes.get("").or_else(|| lanes.get(hash_tag(&check.key)))?;
        drop(lanes);
        let left = check.algorithm.closed_until(check.loss(at)?) - now;
        (left > 0).then_some(left)
    }

    /// Notes that the server's clock was set back: at its instant `since` the store's is ahead by `ahead` µs.
    #[cfg(any(test, feature = "redis"))]
    pub(in crate::store) fn note_clock(&self, ahead: Micros, since: Micros) {
        *self.ahead.lock() = Some([ahead, since]);
    }

    /// By how much the store's clock, which is `now`, is ahead of that of its server, µs; 0 if that was not set back.
    pub(super) fn clock_ahead(&self, now: Micros) -> Micros {
        let Some([ahead, since]) = *self.ahead.lock() else { return 0 };
        (ahead - (now - ahead - since).max(0) / 100).max(0)
    }

    /// Resolves after each loss that is found from now on.
    pub fn found(&self) -> watch::Receiver<u64> {
        self.found.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, FixedWindow, TokenBucket},
        store::OnLoss,
    };

    const HOUR: Micros = 3_600_000_000;

    fn check(algorithm: Algorithm) -> Check {
        Check::new("p:{k}:T:k", algorithm).with_horizon(algorithm.horizon(0, 1))
    }

    #[test]
    fn a_limiter_is_closed_until_its_rule_can_grant_again() {
        let bucket = Algorithm::TokenBucket(TokenBucket::new(1, HOUR, 3).unwrap());
        let day = Algorithm::FixedWindow(FixedWindow::new(5, 24 * HOUR).unwrap());
        let losses = StateLosses::default();
        let at = 10 * 24 * HOUR + 5 * HOUR;
        assert_eq!(losses.closes(&check(bucket), at), None);
        losses.note("", Some(at), true);
        assert_eq!(losses.closes(&check(bucket), at + 1), Some(HOUR - 1));
        assert_eq!(losses.closes(&check(bucket), at + HOUR), None);
        assert_eq!(losses.closes(&check(day), at), Some(19 * HOUR));
        let trusting = check(day).with_on_loss(OnLoss::Trust);
        assert_eq!(losses.closes(&trusting, at), None);
        losses.note("", None, false);
        assert_eq!(losses.closes(&check(day), at), None);
    }

    #[test]
    fn a_loss_on_one_server_of_a_cluster_closes_its_own_limiters() {
        let rule = Algorithm::TokenBucket(TokenBucket::new(1, HOUR, 3).unwrap());
        let losses = StateLosses::default();
        losses.note("other", Some(HOUR), true);
        assert_eq!(losses.closes(&check(rule), HOUR), None);
        losses.note("k", Some(HOUR), true);
        assert_eq!(losses.closes(&check(rule), HOUR), Some(HOUR));
    }
}
