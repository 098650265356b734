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
//! another one doubles the depth, up to three times. Within the first unit it is what had flown of that unit, at least
//! seven tenths of the rate. Refusals of calls from before the pause only prolong it. After a pause that is shorter than the unit the
//! upstream still counts calls of before: a refusal by then shows nothing about the rate, and pauses for the rest of it. A model of 3 gateways at 30/s with a
//! stranger on a fifth of the quota found these numbers: 78 % of what the stranger leaves was used, with 0.5 % refused.
//!
//! A limiter that is refused some time after it had its written rate again may have been refused for its burst. Then the permits
//! flow one by one for as long again after the curve, and for twice as long with each further such refusal, at most a day. A
//! gate is remembered for as long as it had an effect.
//!
//! An answer may also say that so many permits remain until the quota begins again. Until then at most so many are granted; what
//! other answers say meanwhile only makes them fewer. Permits of that count come back to it but at a working rate.
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
mod count;
mod curve;
mod stored;

use super::{
    Algorithm, EXACT, Grant, Level, MAX_BUDGET, Micros, Open, OpenRate, nanohertz::Nanohertz,
};
pub use answers::{GateChange, Refusal, Remainder};
pub use bounds::Bounds;
use bounds::FOUND;
use count::{Flow, PART};
use curve::Curve;
pub(super) use stored::LETTER;

/// The longest pause, µs: 366 days. It keeps instants exact.
pub const MAX_PAUSE: Micros = 366 * 86_400 * 1_000_000;
/// A pause lowers the rate of a limiter unless its period is longer than so many of the pause.
pub const MOST_PAUSES: i64 = 10;
/// The knee moves by the part `STEP` towards the part `LESS` of a rate that is refused past it; that of a guess moves all of the way.
const LESS: f64 = 0.98;
const STEP: f64 = 0.4;

/// Until when a limiter is paused, the working rate from then on, and what it has granted since.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gate {
    /// The end of the pause, µs of the store's clock.
    pub until: Micros,
    /// The instant at which the working rate begins, µs of the store's clock.
    pub from: Micros,
    /// The count at which the curve begins, in parts of a permit.
    pub origin: i64,
    /// The count of the first permit since the rate fell, in parts of a permit. All curves share one line: a place below it is
    /// from before the fall, and owns nothing.
    pub first: i64,
    /// The end of the count that is granted, in parts of a permit.
    pub spent: i64,
    /// The start and the end of each part before it that is free, in order.
    pub holes: Vec<(i64, i64)>,
    /// The greatest start of a grant.
    pub last: i64,
    /// The parts that have flown and that calls have left unused, while others wait.
    pub unused: i64,
    /// The rate that the upstream accepted lately; 0 where the limiter has no working rate.
    pub knee: Nanohertz,
    /// The permits that were granted by this curve.
    pub used: i64,
    /// The rate at the end of the curve by which `spent` counts.
    pub written: Nanohertz,
    /// The unit of time of the curve, µs.
    pub unit: Micros,
    /// Until when the upstream may still count calls of before the fall, µs of the store's clock.
    pub clear: Micros,
    /// For how long permits flow one by one after the curve has come to the written rate, µs.
    pub even: Micros,
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
    flow: Option<Flow>,
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
        let learned = match bounds {
            Some(bounds) if knee > 0 && !self.is_none(Some(bounds)) => {
                from + Curve::length(unit) + bounds.remembered(self)
            }
            Some(_) => 0,
            None => 2 * self.flows_until() - from,
        };
        until.max(learned).max(reset)
    }

    /// Until when the permits of a written rate flow one by one.
    fn flows_until(&self) -> Micros {
        self.from + Curve::length(self.unit) + self.even
    }

    /// Whether it is the same as no gate at all, for all that is known of the rate.
    fn is_none(&self, bounds: Option<Bounds>) -> bool {
        bounds.is_some_and(|bounds| bounds.remembered(self) < 0)
    }

    /// The same without a working rate: one that had bounds says nothing about a written rate.
    fn without_curve(self) -> Self {
        let Self { until, left, reset, status, .. } = self;
        Self { until, from: until, left, reset, status, ..Self::default() }
    }

    /// The same when its permits flow no longer, but by what it remembers.
    fn ended(&self) -> Self {
        let Self { until, from, unit, even, left, reset, status, .. } = *self;
        Self { until, from, unit, even, left, reset, status, ..Self::default() }
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
        let mut open = Self { gate, flow: None, bounds, written: Curve::written(rule), now };
        open.follow();
        Some(open)
    }

    /// Follows the curve by the rule as it is now. Where it is another one, the count continues: promised permits are still ahead.
    fn follow(&mut self) {
        let (before, now) = (self.gate.clone(), self.now);
        let former = (before.knee > 0).then(|| Curve::new(&before, Curve::read(before.written)));
        let mut flown = former.map_or(0, |former| before.count(former, now));
        if let Some(bounds) = self.bounds {
            self.gate = bounds.guide(&before, now, self.written);
        } else if before.knee > 0 && now >= before.flows_until() {
            self.gate = before.ended();
        }
        if self.gate.knee == 0 {
            return;
        }
        let end = bounds::end(self.bounds, self.gate.knee, self.written);
        self.gate.written = Curve::stored(end);
        // As the next one reads it: the same has flown then.
        let curve = Curve::new(&self.gate, Curve::read(self.gate.written));
        if self.gate != before {
            // A guess that has promised permits is not the same as none.
            let is_promised = former.is_some() && self.gate.spent > flown;
            self.gate.used = self.gate.used.max(i64::from(is_promised));
            // After years the count of a found rate begins again, so that its numbers stay exact.
            if former.is_none() || self.gate.is_none(self.bounds) || flown > EXACT / 2 {
                flown = Gate::first_count(now);
                (self.gate.first, self.gate.spent, self.gate.last) = (flown, flown, flown);
                (self.gate.unused, self.gate.holes) = (0, Vec::new());
            }
            self.gate.origin += flown - self.gate.count(curve, now);
        }
        self.flow = Some(self.gate.flow(curve, now));
    }

    /// The gate as the store keeps it.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The instant from which the gate delays no request any more, µs of the store's clock.
    pub fn ends(&self) -> Micros {
        self.gate.ends(self.bounds)
    }

    /// How long the pause still takes, µs.
    pub fn paused(&self) -> Micros {
        (self.gate.until - self.now).max(0)
    }

    /// The first instant at which permits flow at the working rate, µs from now; it may be past.
    fn flows_at(&self, cost: i64) -> Micros {
        let Some(flow) = &self.flow else { return 0 };
        let start = flow.free(cost);
        if start <= flow.present {
            self.gate.from.min(self.now) - self.now
        } else {
            self.time(flow, start)
        }
    }

    /// The instant of a place on the line of the count, µs from now.
    fn time(&self, Flow { curve, count, .. }: &Flow, start: i64) -> Micros {
        let place = (count.now + start - self.gate.origin) as f64 / PART as f64;
        self.gate.from + curve.time(place + curve.permits(self.gate.begins())) - self.now
    }

    /// The same as [`OpenRate::earliest`] for a limiter with this gate. A request that takes many permits at once is followed by a
    /// longer gap. While permits flow at the working rate, none are kept.
    pub fn earliest(&self, open: &Open, from: Micros, cost: i64, kept: i64) -> (Micros, i64) {
        let kept = if self.is_flowing() { 0 } else { kept };
        let mut at = from.max(self.gate.until - self.now).max(self.flows_at(cost));
        if self.is_within_reset(at) && self.gate.left < cost + kept {
            at = self.gate.reset - self.now;
        }
        // Later than the longest budget only the time of the refusal is computed.
        let (earliest, start) = open.earliest(at.min(MAX_BUDGET), cost, kept);
        (earliest.max(at), start)
    }

    /// Whether an instant, µs from now, comes before the quota begins again.
    fn is_within_reset(&self, at: Micros) -> bool {
        self.now + at < self.gate.reset
    }

    /// Whether permits flow at the working rate.
    pub fn is_flowing(&self) -> bool {
        self.flow.is_some()
    }

    /// Whether it delays no request, and only remembers.
    pub fn is_idle(&self) -> bool {
        !self.is_flowing() && self.gate.until.max(self.gate.reset) <= self.now
    }

    /// Whether requests that wait may move up: not at a working rate of a rule whose grants name no place, or with a remainder,
    /// which does not know whether it has counted them.
    pub fn takes_back(&self, open: &Open) -> bool {
        !self.is_flowing() || open.facts().gate_field.is_some() && !self.is_within_reset(0)
    }

    /// The same as [`OpenRate::take`] for a limiter with this gate, of permits for the instant `at`, µs from now. The grant names
    /// their place in the count, or the end of the remainder as a negative number.
    pub fn take(&mut self, open: &mut Open, start: i64, cost: i64, at: Micros) -> Grant {
        let mut grant = open.take(start, cost);
        let mut place = None;
        if self.is_within_reset(at) {
            self.gate.left = (self.gate.left - cost).max(0);
            place = Some(-self.gate.reset);
        }
        if let Some(flow) = &mut self.flow {
            // The first free place, even if another limiter delays the request: a later one would leave gaps in which no
            // request fits.
            let start = flow.take(cost).max(self.gate.first);
            place = Some(start);
            self.gate.last = self.gate.last.max(start);
            self.gate.keep(flow);
            self.gate.used = (self.gate.used + cost).min(EXACT - 1);
        }
        if let (Some(field), Some(place)) = (open.facts().gate_field, place) {
            *field(&mut grant) = place;
        }
        grant
    }

    /// Returns `cost` permits of a grant to the gate, if they were taken through it: otherwise every request
    /// that leaves after a pause would slow the limiter for as long as it is busy. The state of the limiter
    /// may have no use for them, because it was full again meanwhile; the gate has. Those that have flown are free for any
    /// request that waits, at once. Returns whether it has taken them back.
    pub fn refund(&mut self, open: &Open, mut grant: Grant, cost: i64) -> bool {
        let Some(field) = open.facts().gate_field else { return false };
        let place = *field(&mut grant);
        let Some(flow) = &mut self.flow else {
            let is_of_remainder = place < 0 && place == -self.gate.reset;
            if is_of_remainder {
                self.gate.left = (self.gate.left + cost).min(EXACT - 1);
            }
            return is_of_remainder;
        };
        let (start, length) = (place - flow.count.now, cost * PART);
        if place < self.gate.first {
            return false;
        }
        let past = (-start).clamp(0, length);
        let unused = (flow.unused + past).min(flow.count.tail);
        let is_left = past < length && flow.count.leave(start + past, start + length);
        if !is_left && unused == flow.unused {
            return false;
        }
        flow.unused = unused;
        self.gate.keep(flow);
        *flow = self.gate.flow(flow.curve, self.now);
        // It stays one that was used.
        self.gate.used = (self.gate.used - cost).max(1);
        if self.bounds.is_some() {
            // As if it was read again.
            self.follow();
        }
        true
    }

    /// How full a limiter with this gate is.
    pub fn level(&self, open: &Open) -> Level {
        let Level { remaining, reset_after, .. } = open.level();
        let curve = self.flow.as_ref().map(|flow| flow.curve);
        let flows = if curve.is_some() { 1 } else { remaining };
        let left = if self.is_within_reset(0) { self.gate.left } else { remaining };
        let (paused, since) = (self.paused(), self.now - self.gate.from);
        let is_refused = paused > 0 || curve.is_some();
        Level {
            remaining: if paused.max(self.flows_at(1)) > 0 {
                0
            } else {
                remaining.min(flows).min(left)
            },
            next: self.earliest(open, 0, 1, 0).0,
            reset_after: reset_after.max(paused),
            paused,
            rate: curve.map_or(0, |curve| Curve::stored(curve.rate(since))),
            since: curve.map_or(0, |_| since - self.gate.begins()),
            status: if is_refused { self.gate.status } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests;
