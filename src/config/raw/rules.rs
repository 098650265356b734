//! The names of the algorithms in a configuration, and the rule that each makes from a rate. Reads no file.

use crate::{
    algorithm::{Algorithm, FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp},
    config::unit::Rate,
    suggest::suggest,
};
use std::time::Duration;

/// The algorithm that a limiter names, before its other keys are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TokenBucket,
    SlidingWindow,
    FixedWindow,
    LeakyBucket,
    WarmUp,
    Concurrency,
}

/// An algorithm with all its keys except the rate.
pub(super) enum Rule {
    /// A `burst` of `None` means the count of the rate.
    TokenBucket {
        burst: Option<i64>,
    },
    SlidingWindow {
        margin: Micros,
    },
    FixedWindow,
    /// A `capacity` of `None` means that only `max_wait` and `max_waiting` bound the queue.
    LeakyBucket {
        margin: Micros,
        capacity: Option<i64>,
    },
    WarmUp {
        warm_up: Micros,
        cold_factor: f64,
    },
    /// This is the only rule without a rate.
    Concurrency {
        max: i64,
        lease: Micros,
    },
}

// === impl Kind ===

impl Kind {
    /// All kinds, with their names in the configuration.
    pub(super) const NAMED: [(&str, Self); 6] = [
        ("token_bucket", Self::TokenBucket),
        ("sliding_window", Self::SlidingWindow),
        ("fixed_window", Self::FixedWindow),
        ("leaky_bucket", Self::LeakyBucket),
        ("warm_up", Self::WarmUp),
        ("concurrency", Self::Concurrency),
    ];

    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let found = Self::NAMED.iter().find(|(own, _)| *own == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            let names = Self::NAMED.map(|(name, _)| name);
            let hint = suggest(name, names.into_iter())
                .unwrap_or_else(|| format!("there are: {}", names.join(", ")));
            format!("is no algorithm; {hint}")
        })
    }

    pub(super) fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether the rate of a limiter of this kind can be learned.
    pub(super) fn has_auto_rate(self) -> bool {
        matches!(self, Self::TokenBucket | Self::SlidingWindow | Self::LeakyBucket)
    }

    /// Whether a limiter of this kind can keep several rates at once, such as `[5/s, 100/min]`.
    pub(super) fn takes_lists(self) -> bool {
        matches!(self, Self::TokenBucket | Self::SlidingWindow | Self::FixedWindow)
    }
}

// === impl Rule ===

impl Rule {
    /// Returns the rule at a rate. If the rule cannot be counted exactly, returns the key at fault and the reason.
    pub(super) fn at(&self, rate: Rate) -> Result<Algorithm, (&'static str, String)> {
        // A rate counts at most 10^9 in at most 366 days.
        let (count, period) = (i64::try_from(rate.count).unwrap_or(0), micros(rate.period));
        let inexact = |key, name| {
            let reason = "cannot be counted exactly; use a smaller count or a shorter period";
            (key, format!("a {name} of {rate} {reason}"))
        };
        match *self {
            Self::TokenBucket { burst } => {
                let permits = burst.unwrap_or(count);
                TokenBucket::new(count, period, permits).map(Algorithm::from).ok_or_else(|| {
                    let reason = format!(
                        "a bucket of {permits} takes more than 70 years to fill at {rate}; lower `burst`"
                    );
                    ("burst", reason)
                })
            }
            Self::SlidingWindow { margin } => SlidingWindow::new(count, period, margin)
                .map(Algorithm::from)
                .ok_or_else(|| inexact("rate", "sliding_window")),
            Self::FixedWindow => FixedWindow::new(count, period)
                .map(Algorithm::from)
                .ok_or_else(|| inexact("rate", "fixed_window")),
            Self::LeakyBucket { margin, capacity } => {
                LeakyBucket::new(count, period, margin, capacity)
                    .map(Algorithm::from)
                    .ok_or_else(|| inexact("capacity", "leaky_bucket"))
            }
            Self::WarmUp { warm_up, cold_factor } => {
                WarmUp::new(count, period, warm_up, cold_factor)
                    .map(Algorithm::from)
                    .ok_or_else(|| inexact("warm_up", "warm_up"))
            }
            Self::Concurrency { .. } => Err(("rate", "has no rate".into())),
        }
    }
}

/// A span in µs. The longest one in a limiter is a period of 366 days, which fits.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
