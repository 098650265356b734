//! The algorithms as a configuration names them, and what each makes of a rate. Reads nothing.

use crate::{
    algorithm::{Algorithm, FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp},
    config::Rate,
    suggest::suggest,
};

/// Named, before anything else is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    SlidingWindow,
    FixedWindow,
    LeakyBucket,
    WarmUp,
    Concurrency,
}

/// With everything but the rate.
pub(super) enum Rule {
    /// `None`: the count of the rate.
    TokenBucket {
        burst: Option<i64>,
    },
    SlidingWindow {
        margin: Micros,
    },
    FixedWindow,
    /// `None`: as many as may wait.
    LeakyBucket {
        margin: Micros,
        capacity: Option<i64>,
    },
    WarmUp {
        warm_up: Micros,
        cold_factor: f64,
    },
    /// Has no rate.
    Concurrency {
        max: i64,
        lease: Micros,
    },
}

// === impl Kind ===

impl Kind {
    const ALL: [Self; 6] = [
        Self::TokenBucket,
        Self::SlidingWindow,
        Self::FixedWindow,
        Self::LeakyBucket,
        Self::WarmUp,
        Self::Concurrency,
    ];

    pub(super) fn parse(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = || Self::ALL.into_iter().map(Self::name);
            let hint = suggest(name, names()).unwrap_or_else(|| {
                format!("there are: {}", names().collect::<Vec<_>>().join(", "))
            });
            format!("is no algorithm; {hint}")
        })
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::SlidingWindow => "sliding_window",
            Self::FixedWindow => "fixed_window",
            Self::LeakyBucket => "leaky_bucket",
            Self::WarmUp => "warm_up",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether it can keep several rates at once.
    pub(super) fn takes_lists(self) -> bool {
        matches!(self, Self::TokenBucket | Self::SlidingWindow | Self::FixedWindow)
    }
}

// === impl Rule ===

impl Rule {
    /// The rule at a rate; else the key that is to blame, and what is wrong.
    pub(super) fn at(&self, rate: Rate) -> Result<Algorithm, (&'static str, String)> {
        let micros = i64::try_from(rate.period.as_micros());
        // A rate counts at most 10^9 in at most 366 days.
        let (count, period) = (i64::try_from(rate.count).unwrap_or(0), micros.unwrap_or(0));
        let inexact = |key, name| {
            let reason = "cannot be counted exactly; use a smaller count or a shorter period";
            (key, format!("a {name} of {rate} {reason}"))
        };
        match *self {
            Self::TokenBucket { burst } => {
                let permits = burst.unwrap_or(count);
                TokenBucket::new(count, period, permits).map(Algorithm::TokenBucket).ok_or_else(|| {
                    let reason = format!(
                        "a bucket of {permits} takes more than 70 years to fill at {rate}; lower `burst`"
                    );
                    ("burst", reason)
                })
            }
            Self::SlidingWindow { margin } => SlidingWindow::new(count, period, margin)
                .map(Algorithm::SlidingWindow)
                .ok_or_else(|| inexact("rate", "sliding_window")),
            Self::FixedWindow => FixedWindow::new(count, period)
                .map(Algorithm::FixedWindow)
                .ok_or_else(|| inexact("rate", "fixed_window")),
            Self::LeakyBucket { margin, capacity } => {
                LeakyBucket::new(count, period, margin, capacity)
                    .map(Algorithm::LeakyBucket)
                    .ok_or_else(|| inexact("capacity", "leaky_bucket"))
            }
            Self::WarmUp { warm_up, cold_factor } => {
                WarmUp::new(count, period, warm_up, cold_factor)
                    .map(Algorithm::WarmUp)
                    .ok_or_else(|| inexact("warm_up", "warm_up"))
            }
            Self::Concurrency { .. } => Err(("rate", "has no rate".into())),
        }
    }
}
