//! The calls of a run, as a cell of the table.

use super::scenes::Strategy;

/// The calls of one run that were sent, and those that the upstream refused, and the quota that strangers left.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) sent: i64,
    pub(super) refused: i64,
    pub(super) strangers: i64,
    pub(super) wanted: f64,
    /// The rates, in permits in 10^9 s.
    pub(super) rates: Learned,
    /// The margins, in µs.
    pub(super) margins: Learned,
}

/// The values of a learned rate or margin after each report.
#[derive(Clone, Copy, Default)]
pub(super) struct Learned {
    least: i64,
    most: i64,
    sum: i128,
    reports: i64,
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            refused: self.refused + other.refused,
            strangers: self.strangers + other.strangers,
            wanted: self.wanted + other.wanted,
            rates: self.rates.and(other.rates),
            margins: self.margins.and(other.margins),
        }
    }

    pub(super) fn refused_share(self) -> f64 {
        self.refused as f64 / self.sent.max(1) as f64
    }

    pub(super) fn used(self) -> f64 {
        (self.sent - self.refused) as f64 / self.wanted.max(1.0)
    }

    /// The largest distance of the rate from its mean, as a part of the mean.
    pub(super) fn oscillation(self) -> f64 {
        let Learned { least, most, .. } = self.rates;
        let mean = self.rates.mean().max(1.0);
        (1.0 - least as f64 / mean).max(most as f64 / mean - 1.0)
    }

    pub(super) fn cell(self) -> String {
        format!("{:.1} % · {:.1} %", 100.0 * self.refused_share(), 100.0 * self.used())
    }

    /// The range and the mean of what was learned.
    pub(super) fn learned(self, strategy: Strategy) -> String {
        let (of, unit, name) = match strategy {
            Strategy::AutoMargin => (self.margins, 1e3, " ms"),
            _ => (self.rates, 1e9, "/s"),
        };
        let [least, most, mean] =
            [of.least as f64, of.most as f64, of.mean()].map(|value| value / unit);
        format!("{least:.1} to {most:.1}{name}, mean {mean:.1}")
    }
}

// === impl Learned ===

impl Learned {
    pub(super) fn is(&mut self, value: i64) {
        *self = self.and(Self { least: value, most: value, sum: i128::from(value), reports: 1 });
    }

    fn and(self, other: Self) -> Self {
        match (self.reports, other.reports) {
            (0, _) => other,
            (_, 0) => self,
            _ => Self {
                least: self.least.min(other.least),
                most: self.most.max(other.most),
                sum: self.sum + other.sum,
                reports: self.reports + other.reports,
            },
        }
    }

    fn mean(self) -> f64 {
        self.sum as f64 / self.reports.max(1) as f64
    }
}
