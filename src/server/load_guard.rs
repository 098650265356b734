//! Counts one connection of one worker. The counters decide where the balancer sends new connections.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Counts as one connection of a worker from its creation until it is dropped.
pub(super) struct LoadGuard(Arc<AtomicUsize>);

// === impl LoadGuard ===

impl LoadGuard {
    /// Adds one to `connections`, the counter of a worker.
    pub(super) fn new(connections: Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Relaxed);
        Self(connections)
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
