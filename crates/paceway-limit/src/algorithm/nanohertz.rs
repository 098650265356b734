//! Rates as whole numbers.

use super::Micros;

/// A rate as the number of permits in 10^9 s: one permit a day is 11,574 of them.
pub type Nanohertz = i64;

/// The highest automatic rate: 1,000,000/s.
pub const MAX_RATE: Nanohertz = 1_000_000 * PER_SECOND;

/// The lowest automatic rate: a permit in 11.6 days.
pub const MIN_RATE: Nanohertz = 1_000;

const PER_SECOND: Nanohertz = 1_000_000_000;

/// `count` permits per `period` µs, as permits in 10^9 s, rounded down.
pub fn nanohertz(count: i64, period: Micros) -> Nanohertz {
    let rate = i128::from(count) * 1_000_000_000_000_000 / i128::from(period.max(1));
    i64::try_from(rate).unwrap_or(MAX_RATE)
}

/// The time in which `count` permits flow in at a rate, µs, rounded up, so that the rule is never faster; `None` beyond exact
/// integers.
pub(super) fn span_of(count: i64, rate: Nanohertz) -> Option<Micros> {
    let rate = i128::from(rate.clamp(MIN_RATE, MAX_RATE));
    i64::try_from((i128::from(count) * 1_000_000_000_000_000 + rate - 1) / rate).ok()
}

/// How many permits flow in during `span` µs at a rate, rounded down; `None` beyond exact integers.
pub(super) fn permits_in(span: Micros, rate: Nanohertz) -> Option<i64> {
    let rate = i128::from(rate.clamp(MIN_RATE, MAX_RATE));
    i64::try_from(rate * i128::from(span) / 1_000_000_000_000_000).ok()
}
