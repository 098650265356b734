//! The algorithms of rates. Each is one line here, and answers the questions of [`rate_rule`](super::rate_rule) in its own
//! file.

use super::{
    CalendarWindow, FixedWindow, Grant, LeakyBucket, Level, MAX_BUDGET, Micros, OpenRate,
    RateFacts, RateRule, Rule, SlidingWindow, TokenBucket, WarmUp, calendar_window, fixed_window,
    leaky_bucket, sliding_window, stored::StoredBytes, token_bucket, warm_up,
};
use std::ops::Deref;

/// Evaluates the same expression for the algorithm that a value has, without a call through a table.
macro_rules! each {
    ($kind:ident, $self:expr, $one:pat => $do:expr) => {
        match $self {
            $kind::TokenBucket($one) => $do,
            $kind::LeakyBucket($one) => $do,
            $kind::SlidingWindow($one) => $do,
            $kind::FixedWindow($one) => $do,
            $kind::CalendarWindow($one) => $do,
            $kind::WarmUp($one) => $do,
        }
    };
}

/// Makes the enums of all algorithms.
macro_rules! rates {
    ($($(#[$doc:meta])+ $kind:ident in $module:ident;)+) => {
        /// The rule of a rate with its parameters. A limiter with several rates has one `Algorithm` for each rate.
        ///
        /// It answers all questions of a [`RateRule`].
        ///
        /// ```
        /// use paceway_limit::algorithm::{Algorithm, FixedWindow};
        ///
        /// let window = Algorithm::from(FixedWindow::new(500, 3_600_000_000).expect("500 per hour"));
        /// assert_eq!((window.facts().name, window.capacity()), ("fixed_window", 500));
        /// ```
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Algorithm {
            $($(#[$doc])+ $kind($kind),)+
        }

        /// The grants that one rate remembers, in the form that its store keeps between two calls.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum State {
            $(#[doc = concat!("The state of a [`", stringify!($kind), "`].")] $kind($module::State),)+
        }

        /// The state of a rate while it is worked on: read at one `now`, changed in memory, and then kept or dropped. See
        /// [`OpenRate`] for its functions.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Open {
            $(#[doc = concat!("An open [`", stringify!($kind), "`].")] $kind($module::Open),)+
        }

        $(impl From<$kind> for Algorithm {
            fn from(rule: $kind) -> Self {
                Self::$kind(rule)
            }
        }

        impl From<$kind> for Rule {
            fn from(rule: $kind) -> Self {
                Self::Rate(rule.into())
            }
        })+

        impl Algorithm {
            /// Reads a state at `now`; `None` is a limiter that no request has used, or not for a long time. Large
            /// parts are moved out of `state` until [`Open::put_back`] or [`Open::close`] returns them.
            pub fn open(&self, state: Option<&mut State>, now: Micros) -> Open {
                match self {
                    $(Self::$kind(rule) => {
                        // The key of a state names its algorithm, so another kind is never there.
                        let state = state.and_then(|state| match state {
                            State::$kind(state) => Some(state),
                            _ => None,
                        });
                        Open::$kind($module::Open::new(state, now, *rule))
                    })+
                }
            }
        }

        impl Algorithm {
            /// Reads a state as the Lua half of the algorithm has written it; `None` if it has not.
            pub(super) fn read(&self, bytes: &mut StoredBytes<'_>) -> Option<State> {
                match self {
                    $(Self::$kind(_) => $module::State::read(bytes).map(State::$kind),)+
                }
            }
        }

        impl OpenRate for Open {
            type State = State;

            #[inline]
            fn facts(&self) -> RateFacts {
                each!(Self, self, open => open.facts())
            }

            fn earliest(&self, from: Micros, cost: i64, kept: i64) -> (Micros, i64) {
                each!(Self, self, open => open.earliest(from, cost, kept))
            }

            fn take(&mut self, start: i64, cost: i64) -> Grant {
                each!(Self, self, open => open.take(start, cost))
            }

            fn refund(&mut self, grant: Grant, cost: i64) -> bool {
                each!(Self, self, open => open.refund(grant, cost))
            }

            fn promise(&mut self, at: Micros, start: i64, kept: i64) {
                each!(Self, self, open => open.promise(at, start, kept));
            }

            fn level(&self) -> Level {
                each!(Self, self, open => open.level())
            }

            fn close(self) -> Option<(State, Micros)> {
                match self {
                    $(Self::$kind(open) => {
                        open.close().map(|(state, ttl)| (State::$kind(state), ttl))
                    })+
                }
            }

            fn put_back(self, state: &mut State) {
                match (self, state) {
                    $((Self::$kind(open), State::$kind(state)) => open.put_back(state),)+
                    _ => {}
                }
            }
        }
    };
}

rates! {
    /// Permits flow in at a constant rate, and an idle bucket keeps up to `burst` of them.
    TokenBucket in token_bucket;
    /// Permits are granted one at a time, with the same time between any two of them.
    LeakyBucket in leaky_bucket;
    /// At most `count` permits are granted in any window of one length, wherever the window starts.
    SlidingWindow in sliding_window;
    /// At most `count` permits are granted in each window of the store's clock, for example in each minute.
    FixedWindow in fixed_window;
    /// At most `count` permits are granted in each window of a calendar, for example in each month of a time zone.
    CalendarWindow in calendar_window;
    /// The rate rises from a cold rate to the full rate while the limiter is used.
    WarmUp in warm_up;
}

/// An algorithm answers all questions of a [`RateRule`].
impl Deref for Algorithm {
    type Target = dyn RateRule;

    fn deref(&self) -> &Self::Target {
        each!(Self, self, rule => rule)
    }
}

// === impl Algorithm ===

impl Algorithm {
    /// The greatest cost that one request can ever pay, in permits, and the most permits that exist at one time.
    pub fn capacity(&self) -> i64 {
        self.facts().capacity
    }

    /// Whether it is a token bucket from which blocks of permits save calls: one of 1,000/s or more.
    pub fn is_fast_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket(rule) if rule.is_fast())
    }

    /// The time in which so many permits flow in, µs, at most [`MAX_BUDGET`]. Both twins compute it in doubles and round up.
    pub(crate) fn time_of(&self, permits: i64) -> Micros {
        self.flow_of(permits).min(MAX_BUDGET as f64) as Micros
    }

    /// The time in which all permits of an empty limiter flow in, µs.
    pub fn refill_time(&self) -> Micros {
        self.flow_of(self.capacity()) as Micros
    }

    fn flow_of(&self, permits: i64) -> f64 {
        let [period, count] = self.facts().pace;
        (permits as f64 * period as f64 / count as f64).ceil()
    }
}

// === impl Open ===

impl Open {
    /// Whether it is this rule that lets a request wait until `at`, µs of the store's clock, with the permits that it has. The
    /// permits of a bucket for a request that another limiter delays lie among those of later ones, so that they tell no level.
    pub(crate) fn binds(&self, grant: Grant, cost: i64, at: Micros) -> bool {
        match self {
            Self::TokenBucket(open) => open.binds(grant, cost, at),
            _ => true,
        }
    }
}

// === impl State ===

impl State {
    /// When the state came into being, µs of the store's clock.
    pub(super) fn born(&self) -> Micros {
        each!(Self, self, state => state.born())
    }
}
