//! The gate of a paused limiter. Twin of `gate.lua`.
//!
//! An upstream that answers 429 with `Retry-After: 6` refuses every call of the next 6 s, whatever the rule
//! of the limiter allows. The *gate* is kept beside the limiter's state and closes it until an instant. From
//! that instant on it is a token bucket of the limiter's rate and capacity that holds one permit: of the
//! permits of cost 1 at most `1 + t·count/period` are granted in the first `t` µs, so that the waiting
//! requests are no burst. The rule of the limiter applies as well, and the later instant wins. When the bucket is full the
//! gate delays no request any more, and is removed; from then on fixed windows may again grant `count` at the end of one
//! window and `count` at the beginning of the next.
//!
//! A pause of a second says nothing about an hour: a limiter of 1000 an hour had lost all of them, and 18 of 20 later calls
//! were refused. So the bucket of a limiter whose period is more than [`MOST_PAUSES`] times the pause keeps its level: it holds
//! what it would hold without the pause, all of it if there was no gate before.
//!
//! A leaky bucket and a warm-up grant one permit at a time by themselves, so their gate ends with the pause.
//! The pause of a [`Concurrency`](super::Concurrency) is part of its state.

use super::{Algorithm, EXACT, Grant, Level, MAX_BUDGET, Micros, Open, OpenRate};

/// The longest pause, µs: 366 days. It keeps instants exact.
pub const MAX_PAUSE: Micros = 366 * 86_400 * 1_000_000;
/// A pause empties a limiter unless its period is longer than so many of the pause.
pub const MOST_PAUSES: i64 = 10;
/// The `spent` of a bucket that holds all permits at the end of its pause, whatever the rule is.
const FULL: i64 = 1 - EXACT;

/// Until when a limiter is paused, and what it has granted since.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gate {
    /// The end of the pause, µs of the store's clock.
    pub until: Micros,
    /// The time of the permits that were granted for instants from `until` on, each by the rule of its request, ns. A number of
    /// permits would become another time when the rate of the limiter changes. Below 0 it is the time of the permits that the
    /// bucket holds at `until` besides the first one.
    pub spent: i64,
    /// The status of the upstream's answer that caused the pause, such as 429.
    pub status: u16,
}

/// The token bucket that a gate is after its pause: a permit each `period / count` µs, and at most `most` of
/// them at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ramp {
    period: i64,
    count: i64,
    most: i64,
}

/// A gate while it is worked on, with the rule of its limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenGate {
    gate: Gate,
    ramp: Ramp,
    now: Micros,
}

// === impl Gate ===

impl Gate {
    /// The gate of a pause of `span` µs that begins `now`.
    pub fn new(now: Micros, span: Micros, status: u16) -> Self {
        Self { until: now + span.clamp(0, MAX_PAUSE), spent: 0, status }
    }

    /// The gate of a limiter that has promised permits for instants after the pause. These keep their slots, so they count as
    /// spent: the requests that ask again would get slots between theirs, with the permits that the pause has left unused.
    #[must_use]
    pub fn beside(self, open: &Open, rule: &Algorithm) -> Self {
        let spent = Ramp::of(rule).time(open.promised_after(self.until - 1));
        Self { spent: (spent as i64).min(EXACT - 1), ..self }
    }

    /// The gate of a pause that says nothing about the level of its limiter.
    #[must_use]
    pub fn keeping_level(self) -> Self {
        Self { spent: FULL, ..self }
    }

    /// The gate of two pauses: the one that ends later. Among equals the older one stays, with its grants.
    #[must_use]
    pub fn or_later(self, new: Self) -> Self {
        if new.until > self.until { new } else { self }
    }
}

// === impl Ramp ===

impl Ramp {
    fn of(rule: &Algorithm) -> Self {
        let facts = rule.facts();
        if facts.spaces_permits() {
            return Self { period: 0, count: 1, most: 1 };
        }
        let [period, count] = facts.pace;
        Self { period, count, most: facts.capacity }
    }

    /// The time in which `permits` flow in, ns. Both twins compute in doubles and round up.
    fn time(self, permits: i64) -> f64 {
        (permits as f64 * self.period as f64 * 1_000.0 / self.count as f64).ceil()
    }

    /// The time of `spent` ns and of `permits` more, µs; 0 for permits that the bucket holds.
    fn span(self, spent: i64, permits: i64) -> Micros {
        ((spent as f64 + self.time(permits)) / 1_000.0).ceil().max(0.0) as Micros
    }
}

// === impl OpenGate ===

impl OpenGate {
    /// Reads the gate of a limiter at `now`; `None` when the gate delays no request any more.
    pub fn new(gate: Gate, now: Micros, rule: &Algorithm) -> Option<Self> {
        let open = Self { gate, ramp: Ramp::of(rule), now };
        (open.ends() > now).then_some(open)
    }

    /// The gate as the store keeps it.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// The instant from which the gate delays no request any more, µs of the store's clock.
    pub fn ends(&self) -> Micros {
        self.gate.until + self.ramp.span(self.gate.spent, self.ramp.most - 1)
    }

    /// The gate of this pause and another one: the one that ends later. Permits that were granted for instants after the later
    /// end keep their slots, so they count as spent through the new gate: otherwise their slots would be granted twice. A new
    /// gate that keeps the level holds what this one would hold by then.
    #[must_use]
    pub fn or_later(&self, new: Gate) -> Gate {
        let later = new.until - self.gate.until;
        if later > 0 {
            Gate { spent: (self.gate.spent - later * 1_000).max(new.spent), ..new }
        } else {
            self.gate
        }
    }

    /// How long the pause still takes, µs.
    pub fn paused(&self) -> Micros {
        (self.gate.until - self.now).max(0)
    }

    /// The first instant at which the gate grants `cost` permits, µs from now; it may be past.
    fn at(&self, cost: i64) -> Micros {
        self.gate.until + self.ramp.span(self.gate.spent, cost - 1) - self.now
    }

    /// The same as [`OpenRate::earliest`] for a limiter with this gate.
    pub fn earliest(&self, open: &Open, from: Micros, cost: i64) -> (Micros, i64) {
        let at = self.at(cost).max(from);
        // Later than the longest budget only the time of the refusal is computed.
        let (earliest, start) = open.earliest(at.min(MAX_BUDGET), cost);
        (earliest.max(at), start)
    }

    /// The same as [`OpenRate::take`] for a limiter with this gate. The grant names the gate.
    pub fn take(&mut self, open: &mut Open, start: i64, cost: i64) -> Grant {
        let mut grant = open.take(start, cost);
        let spent = self.gate.spent as f64 + self.ramp.time(cost);
        self.gate.spent = (spent as i64).min(EXACT - 1);
        if let Some(field) = open.facts().gate_field {
            *field(&mut grant) = self.gate.until;
        }
        grant
    }

    /// Returns `cost` permits of a grant to the gate, if they were taken through it: otherwise every request
    /// that leaves after a pause would slow the limiter for as long as it is busy. The state of the limiter
    /// may have no use for them, because it was full again meanwhile; the gate has.
    pub fn refund(&mut self, open: &Open, mut grant: Grant, cost: i64) {
        let field = open.facts().gate_field;
        if field.is_some_and(|field| *field(&mut grant) == self.gate.until) {
            let spent = self.gate.spent as f64 - self.ramp.time(cost);
            let least = if self.gate.spent < 0 { FULL } else { 0 };
            self.gate.spent = spent.max(least as f64) as i64;
        }
    }

    /// How full a limiter with this gate is.
    pub fn level(&self, open: &Open) -> Level {
        let Level { remaining, reset_after, .. } = open.level();
        Level {
            remaining: remaining.min(self.remaining()),
            next: self.earliest(open, 0, 1).0,
            reset_after: reset_after.max(self.ends() - self.now),
            paused: self.paused(),
        }
    }

    /// How many permits of cost 1 the gate grants now.
    fn remaining(&self) -> i64 {
        let Self { gate, ramp, now } = *self;
        if now < gate.until {
            return 0;
        }
        let room = ((now - gate.until) * 1_000 - gate.spent) as f64;
        ((room * ramp.count as f64 / (ramp.period as f64 * 1_000.0)).floor() as i64 + 1).max(0)
    }
}

#[cfg(test)]
mod tests;
