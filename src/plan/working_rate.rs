//! The rate of a limiter that refusals of the upstream have lowered, as people read it.

use crate::{
    algorithm::{
        Level,
        nanohertz::{Nanohertz, nanohertz},
    },
    config::Rate,
};

/// A rate that is less than this part of the written one is lowered. At the end of its way back it is nearly the written one.
const LOWERED: f64 = 0.999;

/// A rate that refusals have lowered, and the level of the bucket by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkingRate<'a> {
    /// The rate as the file or an override has it.
    pub written: &'a Rate,
    /// The level, with the working rate.
    pub level: Level,
}

// === impl WorkingRate ===

impl<'a> WorkingRate<'a> {
    /// The slowest of the rates that are lowered, where `each` has the level of a bucket by each rate, and then those of
    /// former states; `None` if no rate is lowered.
    pub fn of(rates: &'a [Rate], each: &[Level]) -> Option<Self> {
        let all = rates.iter().zip(each).map(|(written, level)| Self { written, level: *level });
        all.filter(Self::is_lowered).min_by_key(|working| working.level.rate)
    }

    /// Whether a refusal has lowered it: a rate that is found was never the highest one.
    fn is_lowered(&self) -> bool {
        let Level { rate, status, .. } = self.level;
        let is_lower = self.per_second() < LOWERED * written_per_second(self.written);
        rate > 0 && status > 0 && is_lower
    }

    /// In the period of the written rate, such as `27.3/s`.
    pub fn text(&self) -> String {
        rate_text(self.level.rate, self.written)
    }

    /// As permits a second.
    pub fn per_second(&self) -> f64 {
        per_second(self.level.rate)
    }
}

/// The permits a second of the slowest rate of a bucket, as refusals have lowered it; `None` without a rate.
pub fn slowest_per_second(rates: &[Rate], each: &[Level]) -> Option<f64> {
    let now = rates.iter().zip(each).map(|(rate, level)| match level.rate {
        0 => written_per_second(rate),
        lowered => per_second(lowered),
    });
    now.min_by(f64::total_cmp)
}

fn written_per_second(rate: &Rate) -> f64 {
    rate.count as f64 / rate.period.as_secs_f64()
}

/// Writes a rate in the period of another one, with up to three digits after the point, such as `23.45/s`.
pub fn rate_text(rate: Nanohertz, other: &Rate) -> String {
    let count = per_second(rate) * other.period.as_secs_f64();
    let text = other.to_string();
    let period = text.split_once('/').map_or("s", |(_, period)| period);
    format!("{}/{period}", (count * 1000.0).round() / 1000.0)
}

/// A rate as permits a second.
pub fn per_second(rate: Nanohertz) -> f64 {
    rate as f64 / nanohertz(1, 1_000_000) as f64
}

/// Why a limiter is paused or works at a lower rate, by the status of the upstream's answer; 0: not known.
pub fn reason(status: u16) -> String {
    match status {
        0 => "the upstream refused a request".into(),
        200..300 => "the upstream says that its quota is used up".into(),
        status => format!("the upstream answered {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(permits: i64, period: i64) -> Level {
        Level { rate: nanohertz(permits, period), status: 429, ..Level::default() }
    }

    #[test]
    fn the_slowest_lowered_rate_is_shown_in_its_own_period() {
        let rates = [Rate::per_second(5), Rate::per_hour(1000)];
        let full = Level::default();
        assert_eq!(WorkingRate::of(&rates, &[full, full]), None);
        assert_eq!(WorkingRate::of(&rates, &[at(49_999, 10_000_000_000), full]), None);
        // The level of a former state comes last, and has no rate.
        let working = WorkingRate::of(&rates, &[at(9, 2_000_000), full, at(1, 1_000_000)]);
        assert_eq!(working.map(|working| working.text()).as_deref(), Some("4.5/s"));
        let working = WorkingRate::of(&rates, &[at(9, 2_000_000), at(970, 3_600_000_000)]);
        assert_eq!(working.map(|working| working.text()).as_deref(), Some("970/h"));
    }

    #[test]
    fn the_metric_follows_the_slowest_rate_as_it_is_now() {
        let rates = [Rate::per_second(5), Rate::per_minute(240)];
        let full = Level::default();
        assert_eq!(slowest_per_second(&rates, &[full, full]), Some(4.0));
        assert_eq!(slowest_per_second(&rates, &[at(3, 1_000_000), full]), Some(3.0));
        assert_eq!(slowest_per_second(&[], &[full]), None);
    }
}
