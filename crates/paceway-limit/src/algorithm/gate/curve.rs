//! The working rate after a refusal, as a function of the time since: `gate.rs` explains it. Times are µs since it begins, and
//! rates permits a µs. Twin of the first part of `gate.lua`: both compute in doubles, in the same order.

use super::{Algorithm, FOUND, Gate, LESS, Micros, STEP};
use crate::algorithm::nanohertz::Nanohertz;

/// The units after which the rate is that of the knee again, and those after which it is the written one.
const BACK: f64 = 22.0;
const WHOLE: f64 = 28.0;
/// Before this part of the way back a refusal makes the curve deeper.
const EARLY: f64 = 0.25;
/// By which part the rate begins below the knee.
const DEPTH: f64 = 0.015;
/// A permit a µs in nanohertz.
const PER_MICRO: f64 = 1e15;
/// Newton's method ends when it moves by less than this, µs, and at the latest after so many steps.
const PRECISE: f64 = 0.25;
const STEPS: usize = 64;
/// The longest time that is computed, µs: 70 years, so that instants are exact.
const LONGEST: f64 = 2.2e15;
/// A time that is a whole µs except for the rounding of doubles is that µs: a caller comes back then.
const ROUNDING: f64 = 1e-3;

/// The working rate of a gate whose limiter has some rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Curve {
    knee: f64,
    written: f64,
    unit: f64,
    depth: f64,
}

// === impl Curve ===

impl Curve {
    pub(super) fn new(gate: &Gate, written: f64) -> Self {
        let knee = Self::read(gate.knee).min(written);
        Self { knee, written, unit: gate.unit as f64, depth: Self::depth(gate.early) }
    }

    /// By which part the rate begins below the knee, after so many early refusals in a row.
    pub(super) fn depth(early: u8) -> f64 {
        DEPTH * f64::from(1_u32 << (early % FOUND))
    }

    /// The rate of a rule as it is written.
    pub(super) fn written(rule: &Algorithm) -> f64 {
        let [period, count] = rule.facts().pace;
        count as f64 / period as f64
    }

    /// A rate of a record.
    pub(super) fn read(rate: Nanohertz) -> f64 {
        rate as f64 / PER_MICRO
    }

    /// A rate as a record has it.
    pub(super) fn stored(rate: f64) -> Nanohertz {
        (rate * PER_MICRO).floor() as Nanohertz
    }

    /// The time until the rate is that of the knee again, by this unit.
    pub(super) fn way_back(unit: Micros) -> Micros {
        (unit as f64 * BACK) as Micros
    }

    /// The time until the rate is the written one.
    pub(super) fn length(unit: Micros) -> Micros {
        (unit as f64 * WHOLE) as Micros
    }

    pub(super) fn is_early(self, after: Micros) -> bool {
        (after as f64) < EARLY * BACK * self.unit
    }

    pub(super) fn is_past_knee(self, after: Micros) -> bool {
        after as f64 >= BACK * self.unit
    }

    /// The knee after a refusal past it, at this rate.
    pub(super) fn moved_knee(self, rate: f64) -> f64 {
        self.knee + (rate * LESS - self.knee) * STEP
    }

    /// The rate at a time.
    pub(super) fn rate(self, after: Micros) -> f64 {
        self.rate_at(after.max(0) as f64 / self.unit)
    }

    /// How many permits flow until a time.
    pub(super) fn permits(self, after: Micros) -> f64 {
        self.permits_at(after.max(0) as f64 / self.unit)
    }

    fn rate_at(self, x: f64) -> f64 {
        let Self { knee, written, depth, .. } = self;
        if x < BACK {
            let y = 1.0 - x / BACK;
            return knee * (1.0 - depth * y * y * y);
        }
        let z = ((x - BACK) / (WHOLE - BACK)).min(1.0);
        knee + (written - knee) * z * z
    }

    fn permits_at(self, x: f64) -> f64 {
        let Self { knee, written, unit, depth } = self;
        if x < BACK {
            let y = 1.0 - x / BACK;
            return knee * unit * (x + depth * BACK / 4.0 * (y * y * y * y - 1.0));
        }
        let past = (x - BACK).min(WHOLE - BACK);
        let (z, over) = (past / (WHOLE - BACK), x - BACK - past);
        let more = (written - knee) * z * z * past / 3.0;
        unit * (knee * (BACK - depth * BACK / 4.0 + past) + more + written * over)
    }

    /// The time until `permits` have flown, rounded up and at most [`LONGEST`]. The rate never falls, so that Newton's method
    /// comes to it from above.
    pub(super) fn time(self, permits: f64) -> Micros {
        if permits <= 0.0 {
            return 0;
        }
        let least = PRECISE / self.unit;
        let mut x = permits / (self.knee * (1.0 - self.depth)) / self.unit;
        for _ in 0..STEPS {
            let step = (self.permits_at(x) - permits) / (self.rate_at(x) * self.unit);
            x -= step;
            if step < least {
                break;
            }
        }
        (x * self.unit - ROUNDING).ceil().min(LONGEST) as Micros
    }
}
