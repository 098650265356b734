//! The record of what the upstream has refused of a limiter, beside the limiter's state. Twin of `gate.lua`.
//!
//! An upstream that answers 429 with `Retry-After: 6` refuses every call of the next 6 s, whatever the rule of the limiter
//! allows. The *gate* closes the limiter until an instant. Then the limiter has the level that its rule gives it, but the calls
//! that waited are no burst: permits flow one by one at the *working rate*. The rule applies as well, and the later instant
//! wins, so the written rate is never exceeded.
//!
//! The working rate is a function of the time since the pause alone, as in CUBIC (RFC 9438): nothing has to tick. With t in
//! units of the period or of the pause, whichever is longer, and the *knee*, the rate that the upstream accepted lately:
//!
//! ```text
//! t <= 22        knee · (1 - depth · (1 - t/22)³)                        back to the neighbourhood of the knee
//! 22 <= t <= 28  knee + (written - knee) · ((t - 22)/6)²                 slowly past it, then faster
//! ```
//!
//! A refusal lowers the knee. The first one may have no cause in the rate: the knee is the written rate, of which 1.5 % are
//! given up for a while. If the rate had come past its knee when the refused call was sent, the knee moves by two fifths towards
//! 2 % below that rate: one lucky minute says little about the next one. Before, it is that rate; and each refusal soon after
//! another one doubles the depth, up to three times. Within the first unit it is what was granted in that unit, at least
//! seven tenths of the rate. Refusals of calls from before the pause only prolong it. A model of 3 gateways at 30/s with a
//! stranger on a fifth of the quota found these numbers: 78 % of what the stranger leaves was used, with 0.5 % refused.
//!
//! An answer may also say that so many permits remain until the quota begins again. Until then at most so many are granted; what
//! other answers say meanwhile only makes them fewer. Permits of that count come back to it.
//!
//! A limiter may also have no rate but [`Bounds`], between which it is found. Its rule is that of the highest rate, and it always
//! has a curve: a *guess*, which begins at t = 22 and at whose end the rate is twice the knee. While half of its permits are taken it
//! continues, and its end is the knee of the next guess; otherwise it begins again at its knee. The refusal of a guess shows that
//! the knee is 2 % below what flowed in the unit before it, and then the curve is as above until its end.
//!
//! A pause of a second says nothing about an hour: a limiter whose period is more than [`MOST_PAUSES`] times the pause keeps its
//! level and its rate. The pause of a [`Concurrency`](super::Concurrency) is part of its state, and it has no rate.

mod answers;
mod bounds;
mod curve;

use super::{
    Algorithm, EXACT, Grant, Level, MAX_BUDGET, Micros, Open, OpenRate, nanohertz::Nanohertz,
};
pub use answers::{GateChange, Refusal, Remainder};
pub use bounds::Bounds;
use bounds::FOUND;
use curve::Curve;

/// The longest pause, µs: 366 days. It keeps instants exact.
pub const MAX_PAUSE: Micros = 366 * 86_400 * 1_000_000;
/// A pause lowers the rate of a limiter unless its period is longer than so many of the pause.
pub const MOST_PAUSES: i64 = 10;
/// The parts of a permit in which a gate counts.
const PART: i64 = 1_000_000;
/// The knee moves by the part `STEP` towards the part `LESS` of a rate that is refused past it; that of a guess moves all of the way.
const LESS: f64 = 0.98;
const STEP: f64 = 0.4;
/// Until when a limiter is paused, the working rate from then on, and what it has granted since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gate {
    /// The end of the pause, µs of the store's clock.
    pub until: Micros,
    /// The instant at which the working rate begins, µs of the store's clock. It names the curve in grants.
    pub from: Micros,
    /// The permits that were granted for instants from `from` on, in millionths. Permits that were left unused count as granted.
    pub spent: i64,
    /// The rate that the upstream accepted lately; 0 where the limiter has no working rate.
    pub knee: Nanohertz,
    /// The permits that were granted by this curve.
    pub used: i64,
    /// The rate at the end of the curve by which `spent` counts.
    pub written: Nanohertz,
    /// The unit of time of the curve, µs.
    pub unit: Micros,
    /// How many refusals in a row came soon after another one, at most 3; 4 more if the rate has bounds, and 8 for a guess.
    pub early: u8,
    /// The permits that may be granted until `reset`, whatever the rule allows.
    pub left: i64,
    /// Until when that is so, µs of the store's clock.
    pub reset: Micros,
    /// The status of the upstream's answer that caused the pause, such as 429.
    pub status: u16,
}

/// A gate while it is worked on, with the rule of its limiter.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenGate {
    gate: Gate,
    /// `None` for a pause that leaves the rate as it is.
    curve: Option<Curve>,
    bounds: Option<Bounds>,
    /// The rate of the rule, permits a µs.
    written: f64,
    now: Micros,
}

// === impl Gate ===

impl Gate {
    /// The gate of a pause of `span` µs that begins `now` and leaves the rate as it is.
    pub fn new(now: Micros, span: Micros, status: u16) -> Self {
        let until = now + span.clamp(0, MAX_PAUSE);
        Self { until, from: until, status, ..Self::default() }
    }

    fn ends(&self, bounds: Option<Bounds>) -> Micros {
        let Self { until, from, knee, unit, reset, .. } = *self;
        let learned = bounds.map_or(0, |bounds| bounds.remembered(self));
        let working =
            if knee > 0 && learned >= 0 { from + Curve::length(unit) + learned } else { 0 };
        until.max(working).max(reset)
    }

    /// The same without a working rate: one that had bounds says nothing about a written rate.
    fn without_curve(self) -> Self {
        let Self { until, left, reset, status, .. } = self;
        Self { until, from: until, left, reset, status, ..Self::default() }
    }

    /// The gate of two pauses: the one that ends later. Among equals the older one stays.
    #[must_use]
    pub fn or_later(self, new: Self) -> Self {
        if new.until > self.until { new } else { self }
    }
}

// === impl OpenGate ===

impl OpenGate {
    /// Reads the gate of a limiter at `now`, of which the store may have none; `None` when it delays no request any more. A limiter
    /// with `bounds` always has one.
    pub fn new(
        gate: Option<Gate>,
        now: Micros,
        rule: &Algorithm,
        bounds: Option<Bounds>,
    ) -> Option<Self> {
        let is_other = |gate: &Gate| bounds.is_none() && gate.early >= FOUND;
        let gate = gate.map(|gate| if is_other(&gate) { gate.without_curve() } else { gate });
        let kept = gate.filter(|gate| gate.ends(bounds) > now);
        let gate = kept.or(bounds.map(|_| Gate::default()))?;
        let mut open = Self { gate, curve: None, bounds, written: Curve::written(rule), now };
        open.follow();
        Some(open)
    }

    /// Follows the curve by the rule as it is now. Where it is another one, promised permits are still ahead, and those that have
    /// flown by the former one are not.
    fn follow(&mut self) {
        let before = self.gate;
        let former = (before.knee > 0).then(|| Curve::new(&before, Curve::read(before.written)));
        let promised = former.map_or(0, |former| (before.spent - self.flown(former)).max(0));
        if let Some(bounds) = self.bounds {
            self.gate = bounds.guide(before, self.now, self.written);
        }
        if self.gate.knee == 0 {
            return;
        }
        let end = bounds::end(self.bounds, self.gate.knee, self.written);
        let curve = Curve::new(&self.gate, end);
        self.gate.written = Curve::stored(end);
        if self.gate != before {
            self.gate.spent = (self.flown(curve) + promised).min(EXACT - 1);
            // A guess that has promised permits is not the same as none.
            self.gate.used = self.gate.used.max(i64::from(promised > 0));
        }
        self.curve = Some(curve);
    }

    /// The gate as the store keeps it.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The instant from which the gate delays no request any more, µs of the store's clock.
    pub fn ends(&self) -> Micros {
        self.gate.ends(self.bounds)
    }

    /// How long the pause still takes, µs.
    pub fn paused(&self) -> Micros {
        (self.gate.until - self.now).max(0)
    }

    /// The permits that count as granted by now, in millionths: unused ones are not saved.
    fn spent(&self, curve: Curve) -> i64 {
        self.gate.spent.max(self.flown(curve))
    }

    /// The permits that have flown by now, in millionths.
    fn flown(&self, curve: Curve) -> i64 {
        let flown = self.gate.flown(curve, self.now - self.gate.from) * PART as f64;
        flown.floor().min(EXACT as f64 - 1.0) as i64
    }

    /// The first instant at which the gate grants a permit, µs from now; it may be past. A request that takes many at
    /// once is followed by a longer gap.
    fn at(&self) -> Micros {
        let opens = self.gate.until - self.now;
        let Some(curve) = self.curve.filter(|curve| self.gate.spent > self.flown(*curve)) else {
            return opens;
        };
        let begun = curve.permits(self.gate.begins());
        let after = curve.time(self.gate.spent as f64 / PART as f64 + begun);
        opens.max(self.gate.from + after - self.now)
    }

    /// The same as [`OpenRate::earliest`] for a limiter with this gate.
    pub fn earliest(&self, open: &Open, from: Micros, cost: i64) -> (Micros, i64) {
        let mut at = self.at().max(from);
        if self.is_within_reset(at) && self.gate.left < cost {
            at = self.gate.reset - self.now;
        }
        // Later than the longest budget only the time of the refusal is computed.
        let (earliest, start) = open.earliest(at.min(MAX_BUDGET), cost);
        (earliest.max(at), start)
    }

    /// Whether an instant, µs from now, comes before the quota begins again.
    fn is_within_reset(&self, at: Micros) -> bool {
        self.now + at < self.gate.reset
    }

    /// Whether permits flow at the working rate. The gate counts them, and knows no free ones before others: requests that
    /// wait do not move up.
    pub fn is_flowing(&self) -> bool {
        self.curve.is_some()
    }

    /// The same as [`OpenRate::take`] for a limiter with this gate, of permits for the instant `at`, µs from now. The grant names
    /// the count from which they were taken.
    pub fn take(&mut self, open: &mut Open, start: i64, cost: i64, at: Micros) -> Grant {
        let mut grant = open.take(start, cost);
        let mut count = None;
        if self.is_within_reset(at) {
            self.gate.left = (self.gate.left - cost).max(0);
            count = Some(self.gate.reset);
        }
        if let Some(curve) = self.curve {
            self.gate.spent = (self.spent(curve) + cost * PART).min(EXACT - 1);
            self.gate.used = (self.gate.used + cost).min(EXACT - 1);
            count = Some(self.gate.from);
        }
        if let (Some(field), Some(count)) = (open.facts().gate_field, count) {
            *field(&mut grant) = count;
        }
        grant
    }

    /// Returns `cost` permits of a grant to the gate, if they were taken through it: otherwise every request
    /// that leaves after a pause would slow the limiter for as long as it is busy. The state of the limiter
    /// may have no use for them, because it was full again meanwhile; the gate has.
    pub fn refund(&mut self, open: &Open, mut grant: Grant, cost: i64) {
        let Some(field) = open.facts().gate_field else { return };
        let count = *field(&mut grant);
        if self.curve.is_some() {
            if count == self.gate.from {
                self.gate.spent = (self.gate.spent - cost * PART).max(0);
                // It stays one that was used.
                self.gate.used = (self.gate.used - cost).max(1);
                if self.bounds.is_some() {
                    // As if it was read again.
                    self.follow();
                }
            }
        } else if count == self.gate.reset {
            self.gate.left = (self.gate.left + cost).min(EXACT - 1);
        }
    }

    /// How full a limiter with this gate is.
    pub fn level(&self, open: &Open) -> Level {
        let Level { remaining, reset_after, .. } = open.level();
        let flows = if self.curve.is_some() { 1 } else { remaining };
        let left = if self.is_within_reset(0) { self.gate.left } else { remaining };
        let (paused, since) = (self.paused(), self.now - self.gate.from);
        let is_refused = paused > 0 || self.curve.is_some();
        Level {
            remaining: if self.at() > 0 { 0 } else { remaining.min(flows).min(left) },
            next: self.earliest(open, 0, 1).0,
            reset_after: reset_after.max(paused),
            paused,
            rate: self.curve.map_or(0, |curve| Curve::stored(curve.rate(since))),
            since: self.curve.map_or(0, |_| since - self.gate.begins()),
            status: if is_refused { self.gate.status } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests;
