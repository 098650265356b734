//! The rules of limiting as pure integer functions: no I/O, no clock. The caller passes `now` to each of
//! them.
//!
//! An [`Algorithm`] is the rule of a rate, a [`Rule`] that of any limiter: a rate, or the permits of a [`Concurrency`].
//!
//! Each algorithm is written twice, in `NAME.rs` and `NAME.lua`, with the same names, the same order and the
//! same arithmetic; `reserve.rs` and `reserve.lua` are the loop over the limiters of a request. The memory
//! store runs the Rust half, Redis runs the Lua half, and `tests/it/twins.rs` compares the two step by step.
//!
//! Units: an instant is µs since the Unix epoch of the store's clock, a span is µs, and inside a rule a
//! *tick* is 1/`den` µs, so that every permit is a whole number of ticks and nothing is ever rounded.
//!
//! ```
//! use paceway_limit::algorithm::{Algorithm, OpenRate, TokenBucket};
//!
//! // 10 permits per second, at most 2 at once; the third call comes 100 ms later.
//! let rule = Algorithm::TokenBucket(TokenBucket::new(10, 1_000_000, 2).expect("a legal rule"));
//! let now = 1_700_000_000_000_000;
//! let mut state = rule.open(None, now);
//! for wait in [0, 0, 100_000] {
//!     let (at, start) = state.earliest(0, 1, 0);
//!     assert_eq!(at, wait);
//!     state.take(start, 1);
//! }
//! ```

pub mod calendar_window;
pub mod concurrency;
pub mod fixed_window;
pub mod gate;
pub mod leaky_bucket;
pub mod auto_margin;
pub mod nanohertz;
pub mod data_loss;
pub mod fair;
mod rate_rule;
mod rates;
pub mod reserve;
mod rule;
mod settle;
mod share;
pub mod sliding_window;
pub mod stored;
pub mod timeline;
pub mod token_bucket;
pub mod warm_up;

pub use calendar_window::CalendarWindow;
pub use concurrency::Concurrency;
pub use data_loss::DataLoss;
pub use fixed_window::FixedWindow;
pub use gate::Gate;
pub use leaky_bucket::LeakyBucket;
pub use rate_rule::{OpenRate, RateFacts, RateRule, Returns};
pub use rates::{Algorithm, Open, State};
pub use rule::{OpenRule, Rule, RuleState};
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use warm_up::WarmUp;

/// An instant on the store's clock (µs since the Unix epoch) or a span of time, in µs.
pub type Micros = i64;

/// The longest wait of any reservation, whatever budget the caller has: 1 h in µs. This bound keeps every
/// span of the rules below 2^53, the last integer that a number of Lua holds exactly.
pub const MAX_BUDGET: Micros = 3_600_000_000;

/// The first integer that Lua's numbers, which are doubles, may not hold exactly: 2^53.
pub(crate) const EXACT: i64 = 1 << 53;

/// How many free intervals a state keeps for other requests. When one more is made, the shortest (among
/// equals the last) is dropped: its permits are wasted, and no limit is exceeded. Only waiting requests make
/// such intervals: those that leave, and those that another limiter delays.
pub const MAX_HOLES: usize = 2048;

/// The first byte of every stored state. A state with another first byte is foreign, and no request is
/// decided on it. From version 2 on the keys contain the version too, so that two versions of Paceway can
/// share one Redis.
pub const STATE_VERSION: u8 = 1;

/// Names the permits that one admission took from one limiter, so that they can be refunded.
///
/// The numbers have a meaning for the algorithm only; a caller keeps them and returns them unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grant {
    /// The start of the grant on the limiter's time line, whole µs.
    pub whole: Micros,
    /// The start of the grant on the limiter's time line, ticks above `whole`.
    pub ticks: i64,
    /// When the state that made the grant came into being. A state that was born later refuses the refund.
    pub born: Micros,
    /// One number more that the algorithm needs for the refund, such as the coldness of a warm-up.
    pub aux: i64,
}

/// How full a limiter is at one instant, as `RateLimit` headers and the admin page show it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Level {
    /// The permits that a caller could take now, one by one.
    pub remaining: i64,
    /// The time until one permit can be taken, µs from now; 0 if one can be taken at once.
    pub next: Micros,
    /// The time until the limiter is unused again if no request comes, µs from now.
    pub reset_after: Micros,
    /// The time until the pause of the limiter ends, µs from now; 0 if it is not paused.
    pub paused: Micros,
    /// The working rate, which refusals of the upstream have made lower than the written one; 0 if they have not.
    pub rate: nanohertz::Nanohertz,
    /// How long ago the working rate began, µs; negative during the pause before it.
    pub since: Micros,
    /// The status of the upstream's answer that caused the pause and the working rate; 0 without both.
    pub status: u16,
}

/// The part of a key's name that tells the version of its state: empty for version 1, the number from version
/// 2 on.
pub fn in_names(version: u8) -> String {
    match version {
        1 => String::new(),
        later => later.to_string(),
    }
}

/// `a / b`, rounded up; `b` is positive. The same as `math.ceil(a / b)` in the script.
fn ceil_div(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
pub(crate) mod tests;
