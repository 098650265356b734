//! How many connections there may be to all upstreams together. Without a bound of their own they would take the file
//! descriptors that the store, the admin side and new clients need.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Connections to all upstreams that may still be made.
#[derive(Debug)]
pub struct Sockets(AtomicUsize);

/// Counts as a connection until it is dropped.
#[derive(Debug)]
pub(super) struct Socket(Arc<Sockets>);

// === impl Sockets ===

impl Sockets {
    /// For at most this many connections at one time.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(AtomicUsize::new(most)))
    }

    /// `None` when as many as there may be are open.
    pub(super) fn take(self: &Arc<Self>) -> Option<Socket> {
        let taken = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken.is_ok().then(|| Socket(self.clone()))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Relaxed);
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
}
