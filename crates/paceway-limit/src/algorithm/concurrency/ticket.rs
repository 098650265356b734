//! The name of a request that asks for a concurrency permit. It holds nothing.

use crate::algorithm::{Grant, Micros};

/// Identifies a request that asks for a concurrency permit: unique among all gateways of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The number of the gateway's store connection, 1 to 2^52.
    pub gateway: i64,
    /// The request's number on that connection.
    pub number: i64,
    /// When the request leaves the queue by itself, µs of the store's clock; 0 before it is in the queue,
    /// [`HELD`](Self::HELD) when it holds a permit already.
    pub deadline: Micros,
}

/// The identity of a request: a ticket without its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// See [`Ticket::gateway`].
    pub gateway: i64,
    /// See [`Ticket::number`].
    pub number: i64,
}

// === impl Ticket ===

impl Ticket {
    /// The deadline of a ticket whose permit was granted without this state: an observing limiter counts it
    /// even if no permit is free. Otherwise a state that is full, or whose holders are unknown, would not
    /// count a running call.
    pub const HELD: Micros = -1;

    /// Whether the permit of the ticket was granted without this state.
    pub(in crate::algorithm) fn is_held(self) -> bool {
        self.deadline == Self::HELD
    }

    /// The identity of the request.
    pub(crate) fn holder(self) -> Holder {
        Holder { gateway: self.gateway, number: self.number }
    }

    /// The ticket of this identity, before it is in a queue.
    pub(crate) fn of_holder(holder: Holder) -> Self {
        Self { gateway: holder.gateway, number: holder.number, deadline: 0 }
    }

    /// The grant that a refund passes to leave the queue or to return the permit.
    pub fn grant(self) -> Grant {
        Grant { whole: self.gateway, ticks: self.number, born: self.deadline, aux: 1 }
    }

    /// The ticket of the request to which `grant` belongs.
    pub fn of(grant: Grant) -> Self {
        Self { gateway: grant.whole, number: grant.ticks, deadline: grant.born }
    }
}
