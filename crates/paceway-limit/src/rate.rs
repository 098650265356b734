//! A rate: how many permits in which period. Reads no text.

use crate::algorithm::nanohertz::{MAX_RATE, MIN_RATE, Nanohertz, nanohertz};
use std::{fmt, time::Duration};

/// The period of a rate per month of the calendar: the mean of the Gregorian calendar, which no other rate has.
#[doc(hidden)]
pub const MONTH: Duration = Duration::from_secs(2_629_746);

/// A number of permits in a period, such as 600 in a minute.
///
/// ```
/// use paceway_limit::Rate;
/// use std::time::Duration;
///
/// assert_eq!(Rate::per_minute(600), Rate::new(600, Duration::from_secs(60)));
/// assert_eq!(Rate::per_minute(600).to_string(), "600/min");
/// // At most 10 in any second are at most 600 in any minute, but not the other way round.
/// assert!(Rate::per_second(10).implies(&Rate::per_minute(600)));
/// assert!(!Rate::per_minute(600).implies(&Rate::per_second(10)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The permits of one period, at least 1.
    pub count: u64,
    /// The length of the period, 1 ms to 366 days in a configuration.
    pub period: Duration,
}

// === impl Rate ===

impl Rate {
    /// `count` permits in each `period`.
    pub const fn new(count: u64, period: Duration) -> Self {
        Self { count, period }
    }

    /// `count` permits in each second.
    pub const fn per_second(count: u64) -> Self {
        Self::new(count, Duration::from_secs(1))
    }

    /// `count` permits in each minute.
    pub const fn per_minute(count: u64) -> Self {
        Self::new(count, Duration::from_secs(60))
    }

    /// `count` permits in each hour.
    pub const fn per_hour(count: u64) -> Self {
        Self::new(count, Duration::from_secs(3600))
    }

    /// `count` permits in 24 hours.
    pub const fn per_day(count: u64) -> Self {
        Self::new(count, Duration::from_secs(86_400))
    }

    /// The period in µs.
    #[doc(hidden)]
    pub fn period_micros(&self) -> i64 {
        i64::try_from(self.period.as_micros()).unwrap_or(i64::MAX)
    }

    /// The rate in permits in 10^9 s.
    #[doc(hidden)]
    pub fn nanohertz(&self) -> Nanohertz {
        let count = i64::try_from(self.count).unwrap_or(i64::MAX);
        nanohertz(count, self.period_micros()).clamp(MIN_RATE, MAX_RATE)
    }

    /// Whether it is slower than the slowest rate that can be learned, a permit in 11.6 days.
    #[doc(hidden)]
    pub fn is_too_slow_to_learn(&self) -> bool {
        let count = i64::try_from(self.count).unwrap_or(i64::MAX);
        nanohertz(count, self.period_micros()) < MIN_RATE
    }

    /// Whether calls that keep this rate keep `other` as well, wherever the windows of both begin.
    pub fn implies(&self, other: &Self) -> bool {
        let (own, its) = (self.period.as_micros(), other.period.as_micros());
        let aligned = own.is_multiple_of(its) || its.is_multiple_of(own);
        // As many windows of this rate as one window of the other can touch.
        let touched = its.div_ceil(own) + u128::from(!aligned);
        u128::from(other.count) >= u128::from(self.count) * touched
    }

    /// The rate as `(quota, window)` with a window of whole seconds, the unit of `RateLimit-Policy`.
    pub fn per_whole_seconds(&self) -> (u64, u64) {
        let micros = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let common = gcd(micros, 1_000_000);
        (self.count * (1_000_000 / common), micros / common)
    }

    /// The rate that one of `gateways` may use, at least one permit a period. `flows` is true for an
    /// algorithm whose permits come one by one: then a part of a permit in a period counts.
    pub fn share(self, gateways: u64, flows: bool) -> Self {
        let gateways = gateways.max(1);
        let (count, rest) = (self.count / gateways, self.count % gateways);
        let slower = u32::try_from(gateways).ok().and_then(|n| self.period.checked_mul(n));
        match slower.filter(|_| flows && count > 0 && rest > 0) {
            Some(period) => {
                let common = gcd(self.count, gateways);
                let period = u32::try_from(common).map_or(period, |common| period / common);
                Self { count: self.count / common, period }
            }
            None => Self { count: count.max(1), ..self },
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match largest(self.period) {
            (1, name) => write!(f, "{}/{name}", self.count),
            (n, name) => write!(f, "{}/{n}{name}", self.count),
        }
    }
}

/// A span as a number of the largest unit that it is a multiple of: 60 s is `(1, "min")`.
#[doc(hidden)]
pub fn largest(span: Duration) -> (u64, &'static str) {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    if span == MONTH {
        return (1, "month");
    }
    let names = [("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000)];
    let names = names.into_iter().chain([("s", 1_000_000), ("ms", 1_000), ("us", 1)]);
    let mut fitting = names.filter(|(_, unit)| micros.is_multiple_of(*unit));
    let (name, unit) = fitting.next().unwrap_or(("us", 1));
    (micros / unit, name)
}

#[doc(hidden)]
pub fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
