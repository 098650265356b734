//! How many clients are connected, over all workers, and how many may be.

use super::{crew::Turn, windows::Windows};
use crate::metrics::{ConnectionMetrics, Protocol, Refusal};
use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

/// How many clients are connected, and how many may be.
pub(super) struct Seats {
    taken: AtomicUsize,
    /// `None`: any number.
    max: Option<NonZeroUsize>,
    /// What clients of HTTP/2 may make the gateway hold.
    pub(super) windows: Windows,
    metrics: ConnectionMetrics,
}

/// One connection's; given back when the last one who has to do with it lets go.
pub(super) struct Seat {
    seats: Arc<Seats>,
    /// Not known at first.
    protocol: Option<Protocol>,
    /// Of the worker that serves it.
    turn: Turn,
}

// === impl Seats ===

impl Seats {
    pub(super) fn new(max: Option<NonZeroUsize>) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
            windows: Windows::default(),
            metrics: ConnectionMetrics::default(),
        }
    }

    /// For a connection that it is somebody's `turn` to serve. `None`, and counted, when all are taken.
    pub(super) fn take(self: &Arc<Self>, turn: Turn) -> Option<Seat> {
        let taken = self.taken.fetch_add(1, Relaxed);
        let seat = Seat { seats: self.clone(), protocol: None, turn };
        if self.max.is_some_and(|max| taken >= max.get()) {
            self.refuse(Refusal::Limit);
            return None;
        }
        Some(seat)
    }

    /// Counts a connection that is ended by us.
    pub(super) fn refuse(&self, reason: Refusal) {
        self.metrics.refuse(reason);
    }
}

// === impl Seat ===

impl Seat {
    /// From now on the client speaks this.
    pub(super) fn speaks(&mut self, protocol: Protocol) {
        self.leave();
        self.seats.metrics.open(protocol).increment(1.0);
        self.protocol = Some(protocol);
    }

    /// The worker that was to serve it takes no more: it is the `turn` of the one that let it in.
    pub(super) fn stays(&mut self, turn: Turn) {
        self.turn = turn;
    }

    fn leave(&mut self) {
        if let Some(protocol) = self.protocol.take() {
            self.seats.metrics.open(protocol).decrement(1.0);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
        self.seats.taken.fetch_sub(1, Relaxed);
    }
}
