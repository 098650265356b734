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
    /// The working rates of the seconds that are looked at; of several runs those of the one in which they differ most.
    pub(super) working: Learned,
    /// When the written rate was reached again, µs after the first of these seconds; 0 if it was not. The last one of several.
    pub(super) returned: i64,
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
            working: if self.working.swing() > other.working.swing() {
                self.working
            } else {
                other.working
            },
            returned: self.returned.max(other.returned),
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
        format!("{:.1} % · {:.2} %", 100.0 * self.used(), 100.0 * self.refused_share())
    }

    /// How far the lowest working rate was below the highest one, and when the written rate was reached again.
    pub(super) fn working(self) -> String {
        let returned = match self.returned {
            0 => String::new(),
            after => format!(", written after {:.1} s", after as f64 / 1e6),
        };
        format!("{:.1} %{returned}", 100.0 * self.working.swing())
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

    /// The way from the most to the least, as a part of the most.
    pub(super) fn swing(self) -> f64 {
        1.0 - self.least as f64 / self.most.max(1) as f64
    }

    fn mean(self) -> f64 {
        self.sum as f64 / self.reports.max(1) as f64
    }
}
