//! The rules of limiting as pure integer functions: no I/O, no clock. `now` is always an argument.
//!
//! Each algorithm stands twice, in `NAME.rs` and `NAME.lua`, with the same names, the same order and
//! the same arithmetic; `reserve.rs` and `reserve.lua` are the loop over the limiters of a request.
//! The memory store runs the first, Redis the second; `tests/it/twins.rs` compares them step by step.
//!
//! Units: an instant is µs since the Unix epoch of the store's clock, a span is µs, and inside a rule a
//! *tick* is 1/`den` µs, so that every permit is a whole number of ticks and nothing is ever rounded.

pub mod concurrency;
pub mod fixed_window;
pub mod leaky_bucket;
pub mod loss;
pub mod reserve;
mod share;
pub mod sliding_window;
pub mod timeline;
pub mod token_bucket;
pub mod warm_up;

pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use leaky_bucket::LeakyBucket;
pub use loss::Loss;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use warm_up::WarmUp;

use smallvec::SmallVec;

/// An instant or a span in µs.
pub type Micros = i64;

/// No caller waits longer than this for one reservation, whatever its budget: 1 h. It keeps every span
/// of the rules below 2^53, where Lua's numbers end.
pub const MAX_BUDGET: Micros = 3_600_000_000;

/// The integers that Lua's doubles hold exactly end here.
pub(crate) const EXACT: i64 = 1 << 53;

/// Free intervals that a state keeps for others; beyond it the shortest (of equals the last) is dropped, which
/// is safe and wastes its permits. Only waiters make them: those who leave, and those who wait for
/// another limiter.
pub const MAX_HOLES: usize = 2048;

/// The first byte of every stored state; another one is foreign and never decided on. From 2 on the keys name it,
/// too, so that two versions on one store leave each other alone.
pub const STATE_VERSION: u8 = 1;

/// The Redis script: the short way of plain requests, the twins of all the rules here, then the loop.
pub const SCRIPT: &str = concat!(
    include_str!("algorithm/common.lua"),
    include_str!("algorithm/marker.lua"),
    include_str!("algorithm/plain.lua"),
    include_str!("algorithm/state.lua"),
    include_str!("algorithm/timeline.lua"),
    include_str!("algorithm/token_bucket.lua"),
    include_str!("algorithm/leaky_bucket.lua"),
    include_str!("algorithm/sliding_window.lua"),
    include_str!("algorithm/fixed_window.lua"),
    include_str!("algorithm/warm_up.lua"),
    include_str!("algorithm/concurrency.lua"),
    include_str!("algorithm/reserve.lua"),
);

/// A limiter's rule with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Permits flow in at a constant rate, up to `burst` are kept.
    TokenBucket(TokenBucket),
    /// One at a time, at a constant rate.
    LeakyBucket(LeakyBucket),
    /// At most so many in any window of a length, wherever it starts.
    SlidingWindow(SlidingWindow),
    /// At most so many in each window of the store's clock.
    FixedWindow(FixedWindow),
    /// A rate that rises from cold to full while it is used.
    WarmUp(WarmUp),
    /// At most so many at one time.
    Concurrency(Concurrency),
}

/// What one limiter remembers of its grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Of a [`TokenBucket`].
    TokenBucket(token_bucket::State),
    /// Of a [`LeakyBucket`].
    LeakyBucket(leaky_bucket::State),
    /// Of a [`SlidingWindow`].
    SlidingWindow(sliding_window::State),
    /// Of a [`FixedWindow`].
    FixedWindow(fixed_window::State),
    /// Of a [`WarmUp`].
    WarmUp(warm_up::State),
    /// Of a [`Concurrency`].
    Concurrency(concurrency::State),
}

/// Names what one admission took from one limiter, so that it can be given back.
///
/// The numbers are the store's own; a caller keeps them and returns them as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grant {
    /// Start on the limiter's timeline: whole µs.
    pub whole: Micros,
    /// Start on the limiter's timeline: ticks above `whole`.
    pub ticks: i64,
    /// When the state that granted it came into being; a later state does not take it back.
    pub born: Micros,
    /// What else the algorithm wants to know of it.
    pub aux: i64,
}

/// How full a limiter is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// Permits that could be taken now, one by one.
    pub remaining: i64,
    /// Until one permit can be taken, µs from now.
    pub next: Micros,
    /// Until the limiter is full again, µs from now.
    pub reset_after: Micros,
}

/// A state while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Open {
    /// Of a [`TokenBucket`].
    TokenBucket(token_bucket::Open),
    /// Of a [`LeakyBucket`].
    LeakyBucket(leaky_bucket::Open),
    /// Of a [`SlidingWindow`].
    SlidingWindow(sliding_window::Open),
    /// Of a [`FixedWindow`].
    FixedWindow(fixed_window::Open),
    /// Of a [`WarmUp`].
    WarmUp(warm_up::Open),
    /// Of a [`Concurrency`].
    Concurrency(concurrency::Open),
}

/// The same expression for every algorithm.
macro_rules! each {
    ($kind:ident, $self:expr, $one:pat => $do:expr) => {
        match $self {
            $kind::TokenBucket($one) => $do,
            $kind::LeakyBucket($one) => $do,
            $kind::SlidingWindow($one) => $do,
            $kind::FixedWindow($one) => $do,
            $kind::WarmUp($one) => $do,
            $kind::Concurrency($one) => $do,
        }
    };
}

// === impl Algorithm ===

impl Algorithm {
    /// Reads a state at `now`; `None` is a limiter that nobody used, or not for long. What is large moves
    /// out of `state` until [`Open::put_back`] or [`Open::close`].
    pub fn open(&self, state: Option<&mut State>, now: Micros) -> Open {
        macro_rules! open {
            ($kind:ident, $module:ident, $rule:expr) => {{
                // The key of a state names its algorithm, so another kind is never there.
                let state = state.and_then(|state| match state {
                    State::$kind(state) => Some(state),
                    _ => None,
                });
                Open::$kind($module::Open::new(state, now, *$rule))
            }};
        }
        match self {
            Self::TokenBucket(rule) => open!(TokenBucket, token_bucket, rule),
            Self::LeakyBucket(rule) => open!(LeakyBucket, leaky_bucket, rule),
            Self::SlidingWindow(rule) => open!(SlidingWindow, sliding_window, rule),
            Self::FixedWindow(rule) => open!(FixedWindow, fixed_window, rule),
            Self::WarmUp(rule) => open!(WarmUp, warm_up, rule),
            Self::Concurrency(rule) => open!(Concurrency, concurrency, rule),
        }
    }

    /// The greatest cost that can ever be paid, permits.
    pub fn capacity(&self) -> i64 {
        each!(Self, self, rule => rule.capacity())
    }

    /// The most that are there at one time: permits, or places.
    pub fn limit(&self) -> i64 {
        match self {
            Self::Concurrency(rule) => rule.max(),
            _ => self.capacity(),
        }
    }

    /// How long a place is held that is not renewed, µs; `None` for what counts permits.
    pub fn lease(&self) -> Option<Micros> {
        match self {
            Self::Concurrency(rule) => Some(rule.lease()),
            _ => None,
        }
    }

    /// How long its own queue may be, µs: who would wait longer is refused, whatever its budget.
    pub fn longest_wait(&self) -> Micros {
        match self {
            Self::LeakyBucket(rule) => rule.longest_wait(),
            Self::TokenBucket(_)
            | Self::SlidingWindow(_)
            | Self::FixedWindow(_)
            | Self::WarmUp(_)
            | Self::Concurrency(_) => MAX_BUDGET,
        }
    }

    /// By how much the way to the upstream may vary without breaking the rule there, µs.
    pub fn margin(&self) -> Micros {
        match self {
            Self::LeakyBucket(rule) => rule.margin(),
            Self::SlidingWindow(rule) => rule.margin(),
            Self::TokenBucket(_)
            | Self::FixedWindow(_)
            | Self::WarmUp(_)
            | Self::Concurrency(_) => 0,
        }
    }

    /// The arguments of the script, in its order.
    pub fn args(&self) -> SmallVec<[i64; 6]> {
        each!(Self, self, rule => rule.args().into_iter().collect())
    }

    /// How the script and the keys know it: a capital letter.
    pub fn letter(&self) -> u8 {
        match self {
            Self::TokenBucket(_) => b'T',
            Self::LeakyBucket(_) => b'L',
            Self::SlidingWindow(_) => b'S',
            Self::FixedWindow(_) => b'F',
            Self::WarmUp(_) => b'W',
            Self::Concurrency(_) => b'C',
        }
    }

    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
            Self::LeakyBucket(_) => "leaky_bucket",
            Self::SlidingWindow(_) => "sliding_window",
            Self::FixedWindow(_) => "fixed_window",
            Self::WarmUp(_) => "warm_up",
            Self::Concurrency(_) => "concurrency",
        }
    }
}

// === impl Open ===

impl Open {
    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and where.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        each!(Self, self, open => open.earliest(from, cost))
    }

    /// Takes what [`Self::earliest`] found.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        each!(Self, self, open => open.take(start, cost))
    }

    /// Gives an unused grant back; false when there is nothing (left) to give back.
    pub fn give_back(&mut self, grant: Grant, cost: i64) -> bool {
        each!(Self, self, open => open.give_back(grant, cost))
    }

    /// How full the limiter is.
    pub fn level(&self) -> Level {
        each!(Self, self, open => open.level())
    }

    /// The state to keep and for how many µs it matters; `None` when it equals an absent one.
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

    /// Nothing was taken: what [`Algorithm::open`] moved out of `state` goes back.
    pub fn put_back(self, state: &mut State) {
        match (self, state) {
            (Self::SlidingWindow(open), State::SlidingWindow(state)) => open.put_back(state),
            (Self::Concurrency(open), State::Concurrency(state)) => open.put_back(state),
            _ => {}
        }
    }

    /// The leases of a [`Concurrency`].
    pub fn leases(&mut self) -> Option<&mut concurrency::Open> {
        match self {
            Self::Concurrency(open) => Some(open),
            _ => None,
        }
    }

    /// [`Algorithm::longest_wait`] of its rule.
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

/// What stands in the names of keys of a version: nothing of the first one.
pub fn in_names(version: u8) -> String {
    match version {
        1 => String::new(),
        later => later.to_string(),
    }
}

/// -(-a / b), rounded up; `b` is positive.
fn ceil_div(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
pub(crate) mod tests;
