//! The bounds of a rate that is not known, as with `rate: auto`: the curve of its gate is a guess until the upstream refuses.
//! Twin of a part of `gate.lua`.

use super::{Curve, Gate, Micros, Nanohertz};

/// [`Gate::early`] of a guess.
pub(super) const GUESS: u8 = 4;
/// How many times the knee the rate at the end of a curve is at most.
const GROWTH: f64 = 2.0;
/// A guess is followed by a greater one if at least this part of its permits was taken.
const USED: f64 = 0.5;
/// How long a rate is remembered that is not used, µs: a day.
const REMEMBERED: Micros = 86_400_000_000;

/// The bounds of a rate that is found. The rule of the limiter is that of the highest rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The rate before anything is known.
    pub start: Nanohertz,
    /// The lowest rate.
    pub min: Nanohertz,
    /// The unit of time in which the rate grows, µs.
    pub unit: Micros,
}

/// The rate at the end of a curve with this knee, where the rule has the rate `written`.
pub(super) fn end(bounds: Option<Bounds>, knee: Nanohertz, written: f64) -> f64 {
    match bounds {
        Some(_) => (Curve::read(knee) * GROWTH).min(written),
        None => written,
    }
}

// === impl Gate ===

impl Gate {
    /// Where the curve begins, as a time of it, µs: a guess has no way back.
    pub(super) fn begins(&self) -> Micros {
        if self.early == GUESS { Curve::way_back(self.unit) } else { 0 }
    }
}

// === impl Bounds ===

impl Bounds {
    /// The bounds for one of `gateways` that decide alone.
    #[must_use]
    pub fn share(self, gateways: i64) -> Self {
        let [start, min] = [self.start, self.min].map(|rate| (rate / gateways).max(1));
        Self { start, min, ..self }
    }

    /// The gate by the curve as it continues: the next guess where nothing is known or the `curve` has ended.
    pub(super) fn guide(self, gate: Gate, curve: Option<Curve>, now: Micros) -> Gate {
        let knee = match curve {
            None => self.start,
            Some(_) if now - gate.from < Curve::length(gate.unit) => {
                return Gate { knee: gate.knee.max(self.min), ..gate };
            }
            Some(curve) => {
                let flown = curve.permits(now - gate.from) - curve.permits(gate.begins());
                if gate.used as f64 >= flown * USED { gate.written } else { gate.knee }
            }
        };
        let knee = knee.max(self.min);
        // The first guess has no cause.
        let (unit, status) =
            if knee == self.start { (self.unit, 0) } else { (gate.unit, gate.status) };
        let from = now - Curve::way_back(unit);
        Gate { from, used: 0, knee, unit, early: GUESS, status, ..gate }
    }

    /// How long after its end a curve is remembered, µs; negative for one that is the same as none. The first guess is one when it
    /// has ended for as long as it took: then half of it cannot have been used.
    pub(super) fn remembered(self, gate: &Gate) -> Micros {
        match gate.early == GUESS && gate.knee == self.start {
            true if gate.used == 0 => -1,
            true => Curve::length(gate.unit) - Curve::way_back(gate.unit),
            false => REMEMBERED,
        }
    }
}
