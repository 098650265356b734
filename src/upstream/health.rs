//! Active health checks of an upstream's addresses: their settings, and their findings. Sends nothing: `checks` does.

use http::uri::PathAndQuery;
use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::Duration,
};

/// How the addresses of an upstream are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path that is asked for, with its query; the base path of the URL is not put before it.
    pub path: PathAndQuery,
    /// The time between two checks of one address.
    pub every: Duration,
    /// How many checks in a row must pass until an address is used again.
    pub healthy: u32,
    /// How many checks in a row must fail until no request is sent to an address.
    pub unhealthy: u32,
}

/// The findings of the checks of one address.
#[derive(Debug, Default)]
pub(super) struct CheckedHealth {
    is_down: AtomicBool,
    /// The checks in a row that contradict `is_down`.
    contrary: AtomicU32,
}

// === impl CheckedHealth ===

impl CheckedHealth {
    /// Whether no request is sent to the address, because its checks fail.
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Relaxed)
    }

    /// Notes a check; returns whether it was the one that changes the state. Only one task checks an address.
    pub(super) fn note(&self, passed: bool, check: &HealthCheck) -> bool {
        let is_down = self.is_down();
        if passed != is_down {
            self.contrary.store(0, Relaxed);
            return false;
        }
        let enough = if is_down { check.healthy } else { check.unhealthy };
        let changes = self.contrary.fetch_add(1, Relaxed) + 1 >= enough;
        if changes {
            self.contrary.store(0, Relaxed);
            self.is_down.store(!is_down, Relaxed);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configured_number_of_checks_changes_the_health() {
        let check = HealthCheck {
            path: PathAndQuery::from_static("/"),
            every: Duration::from_secs(1),
            healthy: 2,
            unhealthy: 3,
        };
        let health = CheckedHealth::default();
        let mut said = Vec::new();
        for passed in [false, false, true, false, false, false, true, false, true, true, true] {
            said.push((health.note(passed, &check), health.is_down()));
        }
        let changes: Vec<_> = said.iter().map(|(changes, _)| *changes).collect();
        let downs: Vec<_> = said.iter().map(|(_, is_down)| *is_down).collect();
        assert_eq!(changes.iter().filter(|changes| **changes).count(), 2);
        assert!(changes[5] && changes[9], "{changes:?}");
        assert!(downs[5..9].iter().all(|down| *down) && !downs[4] && !downs[9], "{downs:?}");
    }
}
