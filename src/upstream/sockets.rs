//! How many connections there may be to all upstreams together. Without a bound of their own they would take the file
//! descriptors that the store, the admin side and new clients need.

use parking_lot::Mutex;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// Connections to all upstreams that may still be made.
pub struct Sockets {
    left: AtomicUsize,
    /// One entry for each pool, that is, for each worker and upstream.
    pools: Mutex<Vec<Shed>>,
}

/// Closes an idle connection of one pool; false if the pool has none.
type Shed = Box<dyn Fn() -> bool + Send + Sync>;

/// Counts as a connection until it is dropped.
#[derive(Debug)]
pub(super) struct Socket(Arc<Sockets>);

// === impl Sockets ===

impl Sockets {
    /// For at most this many connections at one time.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(most), pools: Mutex::default() })
    }

    /// Lets other pools close an idle connection of this one when no further connection may be opened.
    pub(super) fn share(&self, shed: impl Fn() -> bool + Send + Sync + 'static) {
        self.pools.lock().push(Box::new(shed));
    }

    /// `None` when as many as there may be are in use. An idle connection, of any worker to any upstream, is closed for a
    /// new one: otherwise 100 idle connections to one upstream would make calls to another one fail for seconds.
    pub(super) fn take(self: &Arc<Self>) -> Option<Socket> {
        loop {
            let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            if taken.is_ok() {
                return Some(Socket(self.clone()));
            }
            // Each turn closes a connection, so that the loop ends.
            if !self.pools.lock().iter().any(|shed| shed()) {
                return None;
            }
        }
    }
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_given_back_can_be_taken_again() {
        let sockets = Sockets::new(2);
        let (one, other) = (sockets.take(), sockets.take());
        assert!(one.is_some() && other.is_some() && sockets.take().is_none());
        drop(one);
        assert!(sockets.take().is_some());
    }

    #[test]
    fn an_idle_one_makes_room() {
        let sockets = Sockets::new(1);
        let idle = Mutex::new(sockets.take());
        sockets.share(|| false);
        sockets.share(move || idle.lock().take().is_some());
        let one = sockets.take();
        assert!(one.is_some() && sockets.take().is_none());
    }
}
