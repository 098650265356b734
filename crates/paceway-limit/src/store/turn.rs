//! The requests that take turns at a limiter, as a store sees them, and what operators see of each tenant. It decides
//! nothing: `algorithm/fair` does.

use super::{Check, Decision};
use crate::algorithm::{
    Grant, Level, Micros,
    fair::{Place, Priority},
    reserve::Part,
};
use std::{cmp::Reverse, sync::Arc};

/// A tenant of a limiter that shares its slots fairly, with its waiting requests and its grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantLevel {
    /// The tenant, such as the value of `x-team`; empty for all tenants together beyond the first
    /// [`MAX_TENANTS`](crate::algorithm::fair::turns::MAX_TENANTS).
    pub tenant: Arc<str>,
    /// The weight of its last request.
    pub weight: i64,
    /// The priority of these requests. A tenant with requests of two priorities is listed twice.
    pub priority: Priority,
    /// How many of its requests wait.
    pub waiting: u64,
    /// The permits that it was granted since it is known. A tenant is forgotten when none of its requests waits and it is
    /// not ahead of its share.
    pub granted: u64,
    /// How far it is ahead of its share, in the virtual time of [`Turns`](crate::algorithm::fair::Turns).
    pub lead: i64,
}

// === impl TenantLevel ===

impl TenantLevel {
    /// Sorts tenants: those with the most waiting requests first.
    pub(super) fn sort(tenants: &mut [Self]) {
        tenants.sort_by(|a, b| {
            let key = |it: &Self| (Reverse(it.waiting), it.priority);
            key(a).cmp(&key(b)).then_with(|| a.tenant.cmp(&b.tenant))
        });
    }
}

/// Whether a check is one whose permits a waiting request exchanges: it enforces a rate.
pub(super) fn is_rate(check: &Check) -> bool {
    check.enforce && !check.is_lease()
}

/// The index of the check in whose queue the request waits: the first that enforces a rate and has a turn.
pub(super) fn of_queue(checks: &[Check]) -> Option<usize> {
    checks.iter().position(|check| check.turn.is_some() && is_rate(check))
}

/// The costs and keys of the other limiters whose permits the request exchanges.
pub(super) fn others(checks: &[Check], q: usize) -> impl Iterator<Item = (i64, &str)> {
    let others = checks.iter().enumerate().filter(move |(i, check)| *i != q && is_rate(check));
    others.map(|(_, check)| (check.cost, &*check.key))
}

// === impl Decision ===

impl Decision {
    /// The answer to a request that does not wait for its turn any more at the limiter of check `q`.
    pub(super) fn gone(q: usize, level: Level) -> Self {
        Self { bound_by: q, level, ..Self::default() }
    }

    /// Makes it the answer to a request that waits for its turn for `wait` µs, at this place.
    pub(super) fn waits(&mut self, checks: &[Check], q: usize, wait: Micros, place: Place) {
        (self.admitted, self.wait) = (true, wait);
        self.parts = checks.iter().map(|_| Part::NOTHING).collect();
        self.parts[q] = Part { at: wait, grant: place.grant() };
    }

    /// Makes it the answer to a request that is sent in `wait` µs, with these permits. A slot that has passed has a negative
    /// wait: the request may be too late for it.
    pub(super) fn is_sent(&mut self, checks: &[Check], wait: Micros, grants: &[Grant]) {
        (self.admitted, self.wait) = (true, wait);
        let wait = wait.max(0);
        let mut grants = grants.iter();
        let part = |check: &Check| match is_rate(check).then(|| grants.next()).flatten() {
            Some(grant) => Part { at: wait, grant: *grant },
            None => Part::NOTHING,
        };
        self.parts = checks.iter().map(part).collect();
    }
}
