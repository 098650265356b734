//! The rules of limiting as pure integer functions: no I/O, no clock. `now` is always an argument.
//!
//! Each algorithm stands twice, in `NAME.rs` and `NAME.lua`, with the same names, the same order and
//! the same arithmetic; `reserve.rs` and `reserve.lua` are the loop over the limiters of a request.
//! The memory store runs the first, Redis the second; `tests/it/twins.rs` compares them step by step.
//!
//! Units: an instant is µs since the Unix epoch of the store's clock, a span is µs, and inside a rule a
//! *tick* is 1/`den` µs, so that every permit is a whole number of ticks and nothing is ever rounded.

pub mod reserve;
pub mod token_bucket;

pub use token_bucket::TokenBucket;

/// An instant or a span in µs.
pub type Micros = i64;

/// No caller waits longer than this for one reservation, whatever its budget: 1 h. It keeps every span
/// of the rules below 2^53, where Lua's numbers end.
pub const MAX_BUDGET: Micros = 3_600_000_000;

/// The integers that Lua's doubles hold exactly end here.
pub(crate) const EXACT: i64 = 1 << 53;

/// The first byte of every stored state; another one is foreign and never decided on.
pub const STATE_VERSION: u8 = 1;

/// The Redis script: the twins of all the rules here, then the loop.
pub const SCRIPT: &str =
    concat!(include_str!("algorithm/token_bucket.lua"), include_str!("algorithm/reserve.lua"));

/// A limiter's rule with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Permits flow in at a constant rate, up to `burst` are kept.
    TokenBucket(TokenBucket),
}

/// What one limiter remembers of its grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Of a [`TokenBucket`].
    TokenBucket(token_bucket::State),
}

/// Names what one admission took from one limiter, so that it can be given back.
///
/// The instants are the store's own; a caller keeps them and returns them as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grant {
    /// Start on the limiter's virtual timeline: whole µs.
    pub whole: Micros,
    /// Start on the limiter's virtual timeline: ticks above `whole`.
    pub ticks: i64,
    /// When the state that granted it came into being; a later state does not take it back.
    pub born: Micros,
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
}

// === impl Algorithm ===

impl Algorithm {
    /// Reads a state at `now`; `None` is a limiter that nobody used, or not for long.
    pub fn open(&self, state: Option<&State>, now: Micros) -> Open {
        match self {
            Self::TokenBucket(rule) => {
                let state = state.map(|State::TokenBucket(state)| state);
                Open::TokenBucket(token_bucket::Open::new(state, now, *rule))
            }
        }
    }

    /// The greatest cost that can ever be paid, permits.
    pub fn capacity(&self) -> i64 {
        match self {
            Self::TokenBucket(rule) => rule.burst(),
        }
    }

    /// The name in the configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::TokenBucket(_) => "token_bucket",
        }
    }
}

// === impl Open ===

impl Open {
    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and where.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        match self {
            Self::TokenBucket(open) => open.earliest(from, cost),
        }
    }

    /// Takes what [`Self::earliest`] found.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        match self {
            Self::TokenBucket(open) => open.take(start, cost),
        }
    }

    /// Gives an unused grant back; false when there is nothing (left) to give back.
    pub fn give_back(&mut self, grant: Grant, cost: i64) -> bool {
        match self {
            Self::TokenBucket(open) => open.give_back(grant, cost),
        }
    }

    /// How full the limiter is.
    pub fn level(&self) -> Level {
        match self {
            Self::TokenBucket(open) => open.level(),
        }
    }

    /// The state to keep and for how many µs it matters; `None` when it equals an absent one.
    pub fn close(self) -> Option<(State, Micros)> {
        match self {
            Self::TokenBucket(open) => {
                open.close().map(|(state, ttl)| (State::TokenBucket(state), ttl))
            }
        }
    }
}
