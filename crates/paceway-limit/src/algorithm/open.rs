//! A limiter that is worked on: its state and its rule together at one `now`, whichever algorithm it has. The rules
//! themselves are in the files of the algorithms.

use super::{
    Grant, Level, MAX_BUDGET, Micros, State, concurrency, each, fixed_window, leaky_bucket,
    sliding_window, token_bucket, warm_up,
};

/// A state that is worked on, as a decision sees it: an [`Open`], or that of an algorithm which the compiler knows. Most
/// requests ask one token bucket, and the same decision about [`token_bucket::Open`] takes half of the instructions.
pub trait OpenState {
    /// See [`Open::earliest`].
    fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64);
    /// See [`Open::take`].
    fn take(&mut self, start: i64, cost: i64) -> Grant;
    /// Notes that the request that took the permits at `start` waits until `at`, µs from now.
    fn promise(&mut self, at: Micros, start: i64);
    /// See [`Open::level`].
    fn level(&self) -> Level;
    /// See [`Open::close`].
    fn close(self) -> Option<(State, Micros)>;
    /// See [`Open::put_back`].
    fn put_back(self, state: &mut State);
    /// Whether it counts concurrency permits.
    fn is_lease(&self) -> bool;
    /// See [`Open::leases`].
    fn leases(&mut self) -> Option<&mut concurrency::Open>;
    /// See [`Open::longest_wait`].
    fn longest_wait(&self) -> Micros;
    /// The field of a grant that names the gate through which it was taken, 0 for none: one that the algorithm does not use
    /// itself. `None` if the gate counts no permits.
    fn gate_field<'g>(&self, grant: &'g mut Grant) -> Option<&'g mut i64>;
}

/// The state of a limiter while it is worked on: read at one `now`, changed in memory, and then kept or
/// dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Open {
    /// An open [`TokenBucket`](super::TokenBucket) with its time line.
    TokenBucket(token_bucket::Open),
    /// An open [`LeakyBucket`](super::LeakyBucket) with its time line.
    LeakyBucket(leaky_bucket::Open),
    /// An open [`SlidingWindow`](super::SlidingWindow) with its permits.
    SlidingWindow(sliding_window::Open),
    /// An open [`FixedWindow`](super::FixedWindow) with its windows.
    FixedWindow(fixed_window::Open),
    /// An open [`WarmUp`](super::WarmUp) with its time line.
    WarmUp(warm_up::Open),
    /// An open [`Concurrency`](super::Concurrency) with its holders and waiters.
    Concurrency(concurrency::Open),
}

// === impl Open ===

impl Open {
    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and the start
    /// of these permits for [`Self::take`].
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        each!(Self, self, open => open.earliest(from, cost))
    }

    /// Takes the permits that [`Self::earliest`] found, and returns the grant for a later refund.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        each!(Self, self, open => open.take(start, cost))
    }

    /// Returns the permits of an unused grant; false when the state has nothing (left) of this grant.
    pub fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        each!(Self, self, open => open.refund(grant, cost))
    }

    /// Returns the permits of a grant that was not used, or the last permits of one that was used in part, as
    /// [`Algorithm::unused_part`](super::Algorithm::unused_part) names them. False when the state has nothing (left) of this
    /// grant.
    pub fn settle(&mut self, grant: Grant, cost: i64) -> bool {
        match self {
            Self::TokenBucket(open) => open.settle(grant, cost),
            _ => self.refund(grant, cost),
        }
    }

    /// Notes that the request that took the permits at `start` waits until `at`, µs from now. Permits that come back to a bucket
    /// must not be granted within those of requests that wait.
    pub(super) fn promise(&mut self, at: Micros, start: i64) {
        if let Self::TokenBucket(open) = self {
            open.promise(at, start);
        }
    }

    /// How many permits a bucket or a sliding window has promised for instants after `instant` (µs of the store's clock).
    pub(super) fn promised_after(&self, instant: Micros) -> i64 {
        match self {
            Self::TokenBucket(open) => open.promised_after(instant),
            Self::SlidingWindow(open) => open.promised_after(instant),
            _ => 0,
        }
    }

    /// How full the limiter is at this instant; the state does not change.
    pub fn level(&self) -> Level {
        each!(Self, self, open => open.level())
    }

    /// The state that the store keeps and for how many µs it matters; `None` when it equals an absent state.
    pub fn close(self) -> Option<(State, Micros)> {
        match self {
            Self::TokenBucket(open) => open.close().map(|(s, ttl)| (State::TokenBucket(s), ttl)),
            Self::LeakyBucket(open) => open.close().map(|(s, ttl)| (State::LeakyBucket(s), ttl)),
            Self::SlidingWindow(open) => {
                open.close().map(|(s, ttl)| (State::SlidingWindow(s), ttl))
            }
            Self::FixedWindow(open) => open.close().map(|(s, ttl)| (State::FixedWindow(s), ttl)),
            Self::WarmUp(open) => open.close().map(|(s, ttl)| (State::WarmUp(s), ttl)),
            Self::Concurrency(open) => open.close().map(|(s, ttl)| (State::Concurrency(s), ttl)),
        }
    }

    /// Moves the parts that [`Algorithm::open`](super::Algorithm::open) took out of `state` back into it, when no
    /// permit was taken.
    pub fn put_back(self, state: &mut State) {
        match (self, state) {
            (Self::SlidingWindow(open), State::SlidingWindow(state)) => open.put_back(state),
            (Self::Concurrency(open), State::Concurrency(state)) => open.put_back(state),
            _ => {}
        }
    }

    /// The open state of a [`Concurrency`](super::Concurrency); `None` for the algorithms that count permits of a rate.
    pub fn leases(&mut self) -> Option<&mut concurrency::Open> {
        match self {
            Self::Concurrency(open) => Some(open),
            _ => None,
        }
    }

    /// The [`Algorithm::longest_wait`](super::Algorithm::longest_wait) of the rule with which this state was opened, µs.
    pub fn longest_wait(&self) -> Micros {
        match self {
            Self::LeakyBucket(open) => open.longest_wait(),
            Self::TokenBucket(_)
            | Self::SlidingWindow(_)
            | Self::FixedWindow(_)
            | Self::WarmUp(_)
            | Self::Concurrency(_) => MAX_BUDGET,
        }
    }
}

impl OpenState for Open {
    fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        self.earliest(from, cost)
    }

    fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.take(start, cost)
    }

    fn promise(&mut self, at: Micros, start: i64) {
        self.promise(at, start);
    }

    fn level(&self) -> Level {
        self.level()
    }

    fn close(self) -> Option<(State, Micros)> {
        self.close()
    }

    fn put_back(self, state: &mut State) {
        self.put_back(state);
    }

    fn is_lease(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    fn leases(&mut self) -> Option<&mut concurrency::Open> {
        self.leases()
    }

    fn longest_wait(&self) -> Micros {
        self.longest_wait()
    }

    fn gate_field<'g>(&self, grant: &'g mut Grant) -> Option<&'g mut i64> {
        match self {
            Self::TokenBucket(_) | Self::SlidingWindow(_) => Some(&mut grant.aux),
            Self::FixedWindow(_) => Some(&mut grant.ticks),
            Self::LeakyBucket(_) | Self::WarmUp(_) | Self::Concurrency(_) => None,
        }
    }
}
