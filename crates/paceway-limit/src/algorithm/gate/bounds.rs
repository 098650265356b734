//! The bounds of a rate that is not known, as with `rate: auto`: the curve of its gate is a guess until the upstream refuses.
//! Twin of a part of `gate.lua`.

use super::{Curve, Gate, Micros, Nanohertz};

/// [`Gate::early`] is greater by this where the rate has bounds, and this for a guess.
pub(super) const FOUND: u8 = 4;
pub(super) const GUESS: u8 = 8;
/// How many times the knee the rate at the end of a curve is at most.
const GROWTH: f64 = 2.0;
/// A guess continues, and is followed by a greater one, while at least this part of its permits but one is taken.
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
    /// The permits that have flown at a time of the curve since it began; none before it does.
    pub(super) fn flown(&self, curve: Curve, after: Micros) -> f64 {
        (curve.permits(after) - curve.permits(self.begins())).max(0.0)
    }

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

    fn first(self) -> Nanohertz {
        self.start.max(self.min)
    }

    /// The gate by the curve as it continues: the next guess where nothing is known, the curve has ended, its unit was another
    /// one, or past the way back its permits are not used. The same again at the same instant.
    pub(super) fn guide(self, gate: &Gate, now: Micros, written: f64) -> Gate {
        let next = if gate.knee == 0 || gate.early < FOUND {
            Some(self.first())
        } else {
            let end = end(Some(self), gate.knee, written);
            let (curve, at) = (Curve::new(gate, end), now - gate.from);
            let is_used = gate.used as f64 >= gate.flown(curve, at) * USED - 1.0;
            let is_same = gate.early < GUESS || gate.unit == self.unit;
            if is_used && at >= Curve::length(gate.unit) {
                Some(Curve::stored(end))
            } else if is_same && (is_used || at < Curve::way_back(gate.unit)) {
                None
            } else {
                Some(gate.knee)
            }
        };
        let Some(knee) = next else {
            return Gate { knee: gate.knee.max(self.min), ..gate.clone() };
        };
        let (from, knee) = (now - Curve::way_back(self.unit), knee.max(self.min));
        // A guess has no cause.
        Gate { from, used: 0, knee, unit: self.unit, early: GUESS, status: 0, ..gate.clone() }
    }

    /// How long after its end a curve is remembered, µs; negative for one that is the same as none. The first guess is one when it
    /// has ended for as long as it took: then half of it cannot have been used.
    pub(super) fn remembered(self, gate: &Gate) -> Micros {
        if gate.early < GUESS || gate.knee != self.first() {
            REMEMBERED
        } else if gate.used == 0 {
            -1
        } else {
            Curve::length(gate.unit) - Curve::way_back(gate.unit)
        }
    }
}
