//! The calls of a run, as a cell of the table.

/// The calls of one run that were sent, and those that the upstream refused, and the quota that strangers left.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcome {
    pub(super) sent: i64,
    pub(super) refused: i64,
    pub(super) strangers: i64,
    pub(super) wanted: f64,
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            refused: self.refused + other.refused,
            strangers: self.strangers + other.strangers,
            wanted: self.wanted + other.wanted,
        }
    }

    pub(super) fn refused_share(self) -> f64 {
        self.refused as f64 / self.sent.max(1) as f64
    }

    pub(super) fn used(self) -> f64 {
        (self.sent - self.refused) as f64 / self.wanted.max(1.0)
    }

    pub(super) fn cell(self) -> String {
        format!("{:.1} % · {:.1} %", 100.0 * self.refused_share(), 100.0 * self.used())
    }
}
