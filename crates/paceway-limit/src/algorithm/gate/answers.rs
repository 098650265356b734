//! The gate after an answer of the upstream: one that refuses a call, or says what remains of a quota. Twin of a part of `gate.lua`.

use super::{
    Curve, Gate, LESS, MAX_PAUSE, OpenGate, PART,
    bounds::{self, FOUND, GUESS},
};
use crate::algorithm::{Algorithm, Micros, Open, OpenRate};

/// The part of the rate that a refusal in the first unit leaves at least.
const KEPT: f64 = 0.7;
/// A knee is at least this part of the written rate: an upstream that is broken for a minute is no reason to learn of its return
/// an hour later.
const LEAST: f64 = 0.01;
/// The most refusals in a row that make the curve deeper.
const MOST_EARLY: u8 = 3;

/// Permits flow one by one at the written rate for at most so long, µs: a day.
const EVEN: Micros = 86_400_000_000;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateChange {
    /// The gate.
    pub gate: Gate,
    /// The working rate has fallen, or a count has begun: the requests that wait ask again.
    pub recalls: bool,
}

// === impl Gate ===

impl Gate {
    /// The gate after a refusal at `now`, where `old` is the gate before.
    pub fn refused(
        old: Option<&OpenGate>,
        now: Micros,
        refusal: Refusal,
        rule: &Algorithm,
    ) -> GateChange {
        let Refusal { span, status, unit, ago } = refusal;
        let new = Self::new(now, span, status);
        let gate = old.map_or_else(|| new.clone(), |old| old.gate.clone());
        let until = gate.until.max(new.until);
        let status = if new.until > gate.until { status } else { gate.status };
        if unit == 0 {
            return GateChange { gate: Self { until, status, ..gate }, recalls: false };
        }
        let curve = old.and_then(|old| old.flow.as_ref()).map(|flow| flow.curve);
        let sent = now - ago;
        if let Some(curve) = curve.filter(|_| sent < gate.until.max(gate.clear)) {
            // It was sent before the refusal of the pause was known, or beside calls of that time. Those with earlier slots ask
            // again; the others keep theirs, and count.
            let until = if sent < gate.until { until } else { until.max(gate.clear) };
            let is_longer = until > gate.until;
            let mut later = Self { until, status, ..gate };
            if is_longer {
                (later.from, later.origin) = (until - later.begins(), later.count(curve, until));
                (later.first, later.unused) = (later.first.max(later.origin), 0);
            }
            return GateChange { gate: later, recalls: false };
        }
        let bounds = old.and_then(|old| old.bounds);
        let written = Curve::written(rule);
        let even = if curve.is_some() { gate.even } else { gate.even_after() };
        let after = sent - gate.from;
        // At the written rate it is a first one again.
        let lowered = curve.filter(|_| after < Curve::length(gate.unit));
        let knee = lowered.map_or(written, |curve| gate.knee_after(curve, after));
        let mut early = lowered.map_or(0, |curve| gate.early_after(curve, after));
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
        let origin = match curve {
            Some(curve) => gate.spent.max(gate.count(curve, now)),
            None => Self::first_count(now),
        };
        let spent = if is_short { origin + PART } else { origin };
        let count = Self { origin, first: origin, spent, last: origin, ..Self::default() };
        let (from, clear, left, reset) = (until, now + unit, gate.left, gate.reset);
        let curve = Self { from, knee, written, unit, clear, even, early, ..count };
        let gate = Self { until, left, reset, status, ..curve };
        GateChange { gate, recalls: true }
    }

    /// Whether an answer has said that nothing remains: then a count ends at an odd µs, and otherwise at an even one.
    fn is_empty(&self) -> bool {
        self.left == 0 && self.reset % 2 == 1
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

    /// For how long permits flow one by one after a refusal when they no longer did.
    fn even_after(&self) -> Micros {
        let length = Curve::length(self.unit);
        (2 * self.even).max(length).min(length.max(EVEN))
    }

    /// How many refusals in a row came early, with that of a call that was sent at this time of the curve.
    fn early_after(&self, curve: Curve, sent: Micros) -> u8 {
        if self.early < GUESS && (sent < self.unit || curve.is_early(sent)) {
            (self.early % FOUND + 1).min(MOST_EARLY)
        } else {
            0
        }
    }

    /// The gate of a limiter after an answer at `now` that says what remains; `None` if that is no news.
    ///
    /// A count begins where the rule could grant more than remains, and the requests that wait ask again, so that they are counted. At
    /// a working rate they keep their slots, unless more wait than remain. A count only gets smaller, unless that is so again, or
    /// nothing remains. Then a new one begins, which ends 1 or 2 µs later: permits of the count before do not come back to it.
    /// Where nothing remains, an answer that names more is one of before, told late by another gateway.
    ///
    /// The slots that other gateways have promised stay: an upstream with a sliding window has permits again by then, which it does
    /// not tell. With those taken off, 15 % of a quota of 50/s stayed unused.
    pub fn remaining(
        old: Option<&OpenGate>,
        open: &Open,
        now: Micros,
        told: Remainder,
    ) -> Option<GateChange> {
        let gate = old.map_or_else(Self::default, |old| old.gate.clone());
        let (left, span) = (told.permits.max(0), told.span.clamp(0, MAX_PAUSE));
        let (before, reset, is_counting) = (gate.left, gate.reset, now < gate.reset);
        if is_counting && gate.is_empty() {
            return None;
        }
        let recalls = left == 0 || told.waiting > left;
        let mut change = GateChange { gate: Self { left, ..gate }, recalls };
        if is_counting && recalls {
            change.gate.reset = (reset + 2) / 2 * 2;
        } else if is_counting {
            if left >= before {
                return None;
            }
        } else {
            let next = told.next(open.facts().capacity);
            // Slots that were promised before come back when their requests leave, and are none any more where nothing remains.
            if left > 0 && next > 0 && open.earliest(0, next, 0).0 >= span {
                return None;
            }
            change.gate.reset = (now + span + 1) / 2 * 2;
            change.recalls |= !old.is_some_and(OpenGate::is_flowing);
        }
        if left == 0 {
            change.gate.reset |= 1;
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
