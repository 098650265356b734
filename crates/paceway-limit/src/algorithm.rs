//! The rules of limiting as pure integer functions: no I/O, no clock. The caller passes `now` to each of
//! them.
//!
//! Each algorithm is written twice, in `NAME.rs` and `NAME.lua`, with the same names, the same order and the
//! same arithmetic; `reserve.rs` and `reserve.lua` are the loop over the limiters of a request. The memory
//! store runs the Rust half, Redis runs the Lua half, and `tests/it/twins.rs` compares the two step by step.
//!
//! Units: an instant is µs since the Unix epoch of the store's clock, a span is µs, and inside a rule a
//! *tick* is 1/`den` µs, so that every permit is a whole number of ticks and nothing is ever rounded.
//!
//! ```
//! use paceway_limit::algorithm::{Algorithm, TokenBucket};
//!
//! // 10 permits per second, at most 2 at once; the third call comes 100 ms later.
//! let rule = Algorithm::TokenBucket(TokenBucket::new(10, 1_000_000, 2).expect("a legal rule"));
//! let now = 1_700_000_000_000_000;
//! let mut state = rule.open(None, now);
//! for wait in [0, 0, 100_000] {
//!     let (at, start) = state.earliest(0, 1);
//!     assert_eq!(at, wait);
//!     state.take(start, 1);
//! }
//! ```

pub mod concurrency;
pub mod fixed_window;
pub mod gate;
pub mod leaky_bucket;
mod open;
pub mod auto_margin;
pub mod auto_rate;
pub mod data_loss;
pub mod fair;
pub mod reserve;
mod settle;
mod share;
pub mod sliding_window;
pub mod timeline;
pub mod token_bucket;
pub mod warm_up;

pub use concurrency::Concurrency;
pub use data_loss::DataLoss;
pub use fixed_window::FixedWindow;
pub use gate::Gate;
pub use leaky_bucket::LeakyBucket;
pub use open::{Open, OpenState};
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;
pub use warm_up::WarmUp;

use smallvec::SmallVec;

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

/// The rule of a limiter with its parameters. A limiter with several rates has one `Algorithm` for each rate.
///
/// ```
/// use paceway_limit::algorithm::{Algorithm, Concurrency, FixedWindow};
///
/// let window = Algorithm::FixedWindow(FixedWindow::new(500, 3_600_000_000).expect("500 per hour"));
/// assert_eq!((window.name(), window.capacity()), ("fixed_window", 500));
/// let concurrency = Algorithm::Concurrency(Concurrency::new(4, 30_000_000).expect("4 at once"));
/// assert_eq!((concurrency.limit(), concurrency.lease()), (4, Some(30_000_000)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Permits flow in at a constant rate, and an idle bucket keeps up to `burst` of them.
    TokenBucket(TokenBucket),
    /// Permits are granted one at a time, with the same time between any two of them.
    LeakyBucket(LeakyBucket),
    /// At most `count` permits are granted in any window of one length, wherever the window starts.
    SlidingWindow(SlidingWindow),
    /// At most `count` permits are granted in each window of the store's clock, for example in each minute.
    FixedWindow(FixedWindow),
    /// The rate rises from a cold rate to the full rate while the limiter is used.
    WarmUp(WarmUp),
    /// At most `max` requests hold a concurrency permit at one time.
    Concurrency(Concurrency),
}

/// The grants that one limiter remembers, in the form that its store keeps between two calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The end of the reserved time line of a [`TokenBucket`], and the holes before it.
    TokenBucket(token_bucket::State),
    /// The end of the reserved time line of a [`LeakyBucket`], and the holes before it.
    LeakyBucket(leaky_bucket::State),
    /// The instants of the permits of a [`SlidingWindow`].
    SlidingWindow(sliding_window::State),
    /// The permits taken in each window of a [`FixedWindow`].
    FixedWindow(fixed_window::State),
    /// The reserved time line of a [`WarmUp`] and how cold it is.
    WarmUp(warm_up::State),
    /// The holders and the waiters of a [`Concurrency`].
    Concurrency(concurrency::State),
}

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
}

/// Evaluates the same expression for the algorithm that a value has, whichever it is.
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
use each;

// === impl Algorithm ===

impl Algorithm {
    /// Reads a state at `now`; `None` is a limiter that no request has used, or not for a long time. Large
    /// parts are moved out of `state` until [`Open::put_back`] or [`Open::close`] returns them.
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

    /// The greatest cost that one request can ever pay, in permits; a request with a greater cost is refused.
    pub fn capacity(&self) -> i64 {
        each!(Self, self, rule => rule.capacity())
    }

    /// The most permits that exist at one time: the burst or the count of a rate, or the maximum of a
    /// [`Concurrency`].
    pub fn limit(&self) -> i64 {
        match self {
            Self::Concurrency(rule) => rule.max(),
            _ => self.capacity(),
        }
    }

    /// How long a concurrency permit is held without a renewal, µs; `None` for the algorithms that count
    /// permits of a rate.
    pub fn lease(&self) -> Option<Micros> {
        match self {
            Self::Concurrency(rule) => Some(rule.lease()),
            _ => None,
        }
    }

    /// How long the limiter's own queue may be, µs. A request that would wait longer is refused, whatever its
    /// budget is.
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

    /// By how much the travel time to the upstream may vary without breaking the rule there, µs.
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

    /// Whether it is a token bucket from which blocks of permits save calls: one of 1,000/s or more.
    pub fn is_fast_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket(rule) if rule.is_fast())
    }

    /// The time in which so many permits flow in, µs, at most [`MAX_BUDGET`]; 0 for a [`Concurrency`]. Both twins compute it
    /// in doubles and round up.
    pub(crate) fn time_of(&self, permits: i64) -> Micros {
        let [period, count] = self.pace();
        let time = (permits as f64 * period as f64 / count as f64).ceil();
        time.min(MAX_BUDGET as f64) as Micros
    }

    /// A time in µs and the permits that flow in meanwhile.
    fn pace(&self) -> [i64; 2] {
        match self {
            Self::TokenBucket(rule) => [rule.args()[0], rule.args()[1]],
            Self::LeakyBucket(rule) => [rule.args()[0], rule.args()[1]],
            Self::WarmUp(rule) => [rule.args()[0], rule.args()[1]],
            Self::SlidingWindow(rule) => [rule.span(), rule.capacity()],
            Self::FixedWindow(rule) => [rule.period(), rule.capacity()],
            Self::Concurrency(_) => [0, 1],
        }
    }

    /// The time in which all permits of an empty limiter flow in, µs; 0 for a [`Concurrency`].
    pub(crate) fn refill_time(&self) -> Micros {
        let [period, count] = self.pace();
        (self.capacity() as f64 * period as f64 / count as f64).ceil() as Micros
    }

    /// The arguments of the rule for the script, in the order in which `rule` of its Lua twin reads them.
    pub fn args(&self) -> SmallVec<[i64; 6]> {
        each!(Self, self, rule => rule.args().into_iter().collect())
    }

    /// The capital letter by which the script and the names of keys know the algorithm, such as `T`.
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

    /// The algorithm's name in the configuration and in metrics, such as `token_bucket`.
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
