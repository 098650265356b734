//! One limiter, or one key of a limiter, that this gateway decides alone.

use crate::{
    algorithm::{Level, Micros},
    store::{
        Check,
        failover::{
            grants::Grants,
            permits::{Permits, Synced},
        },
        health::Health,
    },
};
use tokio::time::Instant;

/// One limiter, or one of its keys.
#[derive(Debug)]
pub(super) struct LocalLimiter {
    /// The check with the whole rule, of which this gateway enforces a share.
    pub(super) check: Check,
    /// The part of the local level that the shared state knows, too, and the instant of that level.
    pub(super) known: (Level, Micros),
    /// The permits that were granted since.
    pub(super) grants: Grants,
    /// The concurrency permits that are held.
    pub(super) permits: Permits,
    /// The shared state decides again: only the last grants are to be charged yet.
    pub(super) closing: bool,
    /// The end of the pause that the state has here, and of the one that the recovery has written to the store.
    pub(super) paused: [Option<Instant>; 2],
}

// === impl LocalLimiter ===

impl LocalLimiter {
    /// Takes over what the store reported about the concurrency permits of this process since the last decision. The cost
    /// is that of the changes, however many permits are held.
    pub(super) fn sync(&mut self, health: &Health, is_new: bool, now: Micros) -> Synced {
        self.silent_for(health, now);
        let (known, key) = (&health.known.permits, &self.check.key);
        let asked = known.asked(key);
        if is_new {
            let held = known.follow(key).into_iter();
            return self.permits.sync(held.map(|(holder, left)| (holder, Some(left))), asked, now);
        }
        let reports = known.changes(key, self.permits.to_recheck(now));
        self.permits.sync(reports, asked, now)
    }

    /// The store has not answered for a while: other gateways may hold permits of which this one does not know.
    pub(super) fn silent_for(&mut self, health: &Health, now: Micros) {
        let silence = i64::try_from(health.silent_for(&self.check.key).as_micros());
        let lease = self.check.algorithm.lease().unwrap_or_default();
        self.permits.silent_for(silence.unwrap_or(i64::MAX).min(lease), lease, now);
    }
}
