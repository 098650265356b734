//! The rule that each algorithm makes from a rate. Reads no file.

use crate::{
    algorithm::{Algorithm, FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp},
    config::{calendar::Calendar, unit::Rate},
};
use jiff::Timestamp;
use std::time::Duration;

/// An algorithm with all its keys except the rate.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::config) enum Rule {
    /// A `burst` of `None` means the count of the rate.
    TokenBucket {
        burst: Option<i64>,
    },
    SlidingWindow {
        margin: Micros,
    },
    /// A `calendar` of `None` means windows of the store's clock.
    FixedWindow {
        calendar: Option<Calendar>,
    },
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

/// Its only float was read as a number, so that it equals itself.
impl Eq for Rule {}

/// Why a rate makes no rule.
pub(in crate::config) struct NoRule {
    /// The key at fault.
    pub(in crate::config) key: &'static str,
    pub(in crate::config) reason: String,
}

// === impl Rule ===

impl Rule {
    /// Returns the rule at a rate. If the rule cannot be counted exactly, returns the key at fault and the reason.
    pub(in crate::config) fn at(&self, rate: Rate) -> Result<Algorithm, NoRule> {
        // A rate counts at most 10^9 in at most 366 days.
        let (count, period) = (i64::try_from(rate.count).unwrap_or(0), micros(rate.period));
        let inexact = |key, name| {
            let reason = "cannot be counted exactly; use a smaller count or a shorter period";
            NoRule { key, reason: format!("a {name} of {rate} {reason}") }
        };
        match *self {
            Self::TokenBucket { burst } => {
                let permits = burst.unwrap_or(count);
                TokenBucket::new(count, period, permits).map(Algorithm::from).ok_or_else(|| {
                    let reason = format!(
                        "a bucket of {permits} takes more than 70 years to fill at {rate}; lower `burst`"
                    );
                    NoRule { key: "burst", reason }
                })
            }
            Self::SlidingWindow { margin } => SlidingWindow::new(count, period, margin)
                .map(Algorithm::from)
                .ok_or_else(|| inexact("rate", "sliding_window")),
            Self::FixedWindow { calendar: Some(ref calendar) } if !calendar.has(rate.period) => {
                Err(NoRule {
                    key: "rate",
                    reason: format!(
                        "{rate} has another period than the limiter, whose windows are those of a calendar"
                    ),
                })
            }
            Self::FixedWindow { calendar: Some(ref calendar) } => calendar
                .rule(count, Timestamp::now())
                .map(Algorithm::from)
                .ok_or_else(|| inexact("rate", "fixed_window")),
            Self::FixedWindow { calendar: None } => FixedWindow::new(count, period)
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
            Self::Concurrency { .. } => Err(NoRule { key: "rate", reason: "has no rate".into() }),
        }
    }
}

/// A span in µs. The longest one in a limiter is a period of 366 days, which fits.
pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
