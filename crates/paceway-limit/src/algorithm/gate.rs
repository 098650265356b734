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

mod bounds;
mod curve;

use super::{
    Algorithm, EXACT, Grant, Level, MAX_BUDGET, Micros, Open, OpenRate, nanohertz::Nanohertz,
};
pub use bounds::Bounds;
use bounds::{FOUND, GUESS};
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
/// The part of the rate that a refusal in the first unit leaves at least.
const KEPT: f64 = 0.7;
/// A knee is at least this part of the written rate: an upstream that is broken for a minute is no reason to learn of its return
/// an hour later.
const LEAST: f64 = 0.01;
/// The most refusals in a row that make the curve deeper.
const MOST_EARLY: u8 = 3;

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

/// A refusal by an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// How long nothing is granted, µs.
    pub span: Micros,
    /// The status of the answer, such as 429.
    pub status: u16,
    /// The unit of time of the curve, µs; 0 for a pause that says nothing about the rate.
    pub unit: Micros,
    /// How long ago the refused call was sent, µs.
    pub ago: Micros,
}

/// The rest of a quota, as an upstream says it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remainder {
    /// The permits that remain, without those of calls that are under way.
    pub permits: i64,
    /// The permits of this gateway's requests that wait for slots within `span`.
    pub waiting: i64,
    /// For how long that is so, µs: until the quota begins again. 0 where that is not known: then permits are taken now so that
    /// so many are left of those that could be taken now.
    pub span: Micros,
}

/// A gate after an answer of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateChange {
    /// The gate.
    pub gate: Gate,
    /// The working rate has fallen, or a count has begun: the requests of a gateway that wait ask again if they wait for more
    /// permits than this.
    pub recalls: Option<i64>,
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

    /// The gate after a refusal at `now`, where `old` is the gate before.
    pub fn refused(
        old: Option<&OpenGate>,
        now: Micros,
        refusal: Refusal,
        rule: &Algorithm,
    ) -> GateChange {
        let Refusal { span, status, unit, ago } = refusal;
        let new = Self::new(now, span, status);
        let gate = old.map_or(new, OpenGate::gate);
        let until = gate.until.max(new.until);
        let status = if new.until > gate.until { status } else { gate.status };
        if unit == 0 {
            return GateChange { gate: Self { until, status, ..gate }, recalls: None };
        }
        let curve = old.and_then(|old| old.curve);
        let sent = now - ago;
        if let Some(curve) = curve.filter(|_| sent < gate.until) {
            // It was sent before the refusal of the pause was known. Those with earlier slots ask again; the others keep theirs,
            // and count.
            let mut later = Self { until, status, ..gate };
            if until > gate.until {
                let covered = (gate.flown(curve, until - gate.from) * PART as f64).floor() as i64;
                later.from = until - gate.begins();
                later.spent = (gate.spent - covered).max(0);
            }
            return GateChange { gate: later, recalls: None };
        }
        let bounds = old.and_then(|old| old.bounds);
        let written = Curve::written(rule);
        let (mut knee, mut early) = (written, 0);
        if let Some(curve) = curve {
            let after = sent - gate.from;
            knee = gate.knee_after(curve, after);
            if gate.early < GUESS && (after < gate.unit || curve.is_early(after)) {
                early = (gate.early % FOUND + 1).min(MOST_EARLY);
            }
        }
        if bounds.is_some() {
            early += FOUND;
        }
        let least = match bounds {
            Some(bounds) => Curve::read(bounds.min) / (1.0 - Curve::depth(early)),
            None => (written * LEAST).max(1.0 / unit as f64),
        };
        let rate = knee.max(least).min(written);
        let knee = Curve::stored(rate);
        let written = Curve::stored(bounds::end(bounds, knee, written));
        // By a pause that is shorter than the time of a permit, each refusal would be followed by a call at once.
        let is_short = bounds.is_some() && (until - now) as f64 * rate < 1.0;
        let (from, spent, used) = (until, if is_short { PART } else { 0 }, 0);
        let gate = Self { until, from, spent, used, knee, written, unit, early, status, ..gate };
        GateChange { gate, recalls: Some(0) }
    }

    /// The knee after the refusal of a call that was sent at this time of the curve.
    fn knee_after(&self, curve: Curve, sent: Micros) -> f64 {
        if self.early == GUESS {
            // It may have been promised by the guess before.
            let sent = sent.max(self.begins());
            let passed = curve.permits(sent) - curve.permits(sent - self.unit);
            return passed / self.unit as f64 * LESS;
        }
        let rate = curve.rate(sent);
        if sent < self.unit {
            let passed = curve.permits(sent) / self.unit as f64;
            passed.max(rate * KEPT).min(rate)
        } else if curve.is_past_knee(sent) {
            curve.moved_knee(rate)
        } else {
            rate
        }
    }

    /// The gate of a limiter after an answer at `now` that says what remains; `None` if that is no news.
    ///
    /// A count begins with the requests that wait: they ask again, so that they are counted. At a working rate they do so only if
    /// more permits are promised than remain: each time they come later, since none moves up. A count only gets smaller, unless
    /// that is so again. Then a new one begins, which ends 1 µs later: permits of the count before do not come back to it.
    pub fn remaining(
        old: Option<&OpenGate>,
        open: &Open,
        now: Micros,
        told: Remainder,
    ) -> Option<GateChange> {
        let gate = old.map_or_else(Self::default, OpenGate::gate);
        let (left, span) = (told.permits.max(0), told.span.clamp(0, MAX_PAUSE));
        let is_short = told.waiting > left;
        let mut change = GateChange { gate: Self { left, ..gate }, recalls: Some(left) };
        if now >= gate.reset {
            let next = told.next(open.facts().capacity);
            if next > 0 && open.earliest(0, next).0 >= span {
                return None;
            }
            change.gate.reset = now + span;
            if !old.is_some_and(OpenGate::is_flowing) {
                change.recalls = Some(0);
            }
        } else if is_short {
            change.gate.reset += 1;
        } else if left >= gate.left {
            return None;
        }
        Some(change)
    }
}

// === impl Remainder ===

impl Remainder {
    /// The number of permits that a limiter with this `capacity` must not be able to grant in the span, beside those for which
    /// requests wait; 0 if it holds fewer. A limiter that is too slow for it needs no count.
    pub fn next(self, capacity: i64) -> i64 {
        let next = self.permits.max(0).saturating_sub(self.waiting).saturating_add(1);
        if (1..=capacity).contains(&next) { next } else { 0 }
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
