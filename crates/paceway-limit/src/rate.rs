//! A rate: how many permits in which period. Reads no text.

use std::{fmt, time::Duration};

/// How many in which period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Permits, at least 1.
    pub count: u64,
    /// 1 ms to 366 days.
    pub period: Duration,
}

// === impl Rate ===

impl Rate {
    /// Whether who keeps this rate keeps `other` as well, wherever the windows of both start.
    pub fn implies(&self, other: &Self) -> bool {
        let (own, its) = (self.period.as_micros(), other.period.as_micros());
        let aligned = own.is_multiple_of(its) || its.is_multiple_of(own);
        // As many of our windows as one of its can touch.
        let touched = its.div_ceil(own) + u128::from(!aligned);
        u128::from(other.count) >= u128::from(self.count) * touched
    }

    /// As `(quota, window)` with a window of whole seconds, the unit of `RateLimit-Policy`.
    pub fn per_whole_seconds(&self) -> (u64, u64) {
        let micros = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let common = gcd(micros, 1_000_000);
        (self.count * (1_000_000 / common), micros / common)
    }

    /// What is left of it for one of `gateways`, at least one permit a period. `flows`: permits come one by one, so that
    /// parts of one in a period are something.
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

/// How many of the largest unit that fits.
#[doc(hidden)]
pub fn largest(span: Duration) -> (u64, &'static str) {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
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
