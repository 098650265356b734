//! Whether this process has granted anything lately. A gateway that has not says so in its heartbeats, and the others leave
//! it no share of their rules when it has died. Knows no other gateway.

use crate::store::GONE;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::time::Instant;

/// The grants of this process since it started.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Something was granted since the last heartbeat.
    has_granted: AtomicBool,
    /// The last heartbeat said that nothing was granted lately.
    is_idle: AtomicBool,
    /// The first heartbeat after the last grant.
    last: Mutex<Option<Instant>>,
}

// === impl Activity ===

impl Activity {
    /// Something is granted. Returns true if the store is to know at once, because the last heartbeat said otherwise.
    pub(super) fn note_grant(&self) -> bool {
        // Most calls find the flag set: they write nothing that other workers read.
        !self.has_granted.load(Relaxed)
            && !self.has_granted.swap(true, Relaxed)
            && self.is_idle.load(Relaxed)
    }

    /// Whether the last heartbeat said that nothing was granted lately.
    pub(super) fn was_idle(&self) -> bool {
        self.is_idle.load(Relaxed)
    }

    /// Whether nothing was granted for [`GONE`], as the next heartbeat says.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        let mut last = self.last.lock();
        if self.has_granted.swap(false, Relaxed) {
            *last = Some(now);
        }
        let is_idle = last.is_none_or(|last| now.saturating_duration_since(last) >= GONE);
        self.is_idle.store(is_idle, Relaxed);
        is_idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_process_is_idle_until_its_first_grant_and_ten_seconds_after_its_last_one() {
        let (activity, start) = (Activity::default(), Instant::now());
        let idle_at = |ms: u64| activity.is_idle(start + Duration::from_millis(ms));
        assert!(idle_at(0));
        assert!(activity.note_grant(), "the store is to know at once");
        assert!(!activity.note_grant(), "one heartbeat is enough");
        assert!(!idle_at(10));
        assert!(!activity.note_grant(), "the store knows");
        assert!(!idle_at(500));
        assert!(!idle_at(10_499));
        assert!(idle_at(10_500));
    }
}
