//! The count of the permits that flow at a working rate. Twin of a part of `gate.lua`.
//!
//! Permits own intervals of the count, as those of a bucket own intervals of time: the count is a line whose clock is the number of
//! permits that have flown. So a permit that comes back leaves a hole there, and a request that waits moves up. A hole of the unused
//! part of a call that was sent would serve few requests, and is past soon: what has flown of it is free for any request.

use super::{Curve, Gate};
use crate::algorithm::{
    EXACT, Grant, Micros, RateFacts,
    timeline::{Pace, Timeline},
};

/// The parts of a permit in which a gate counts: a day of 864 million permits and its curve of 28 days stay exact.
pub(super) const PART: i64 = 1_000;
/// The line of a count. Its clock shows no time but permits that have flown, one for each permit.
const COUNT: Pace = Pace::of_permits(PART, 1_000_000_000);
/// The least count.
const FIRST: i64 = 1_000_000_000_000_000;

/// The working rate, and the count of its permits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Flow {
    pub curve: Curve,
    pub count: Timeline,
    /// As [`Gate::unused`], as far as it still matters.
    pub unused: i64,
    /// The present instant on the line, rounded up: a permit that is granted now is followed by a whole gap.
    pub present: i64,
}

// === impl Gate ===

impl Gate {
    /// The first count depends on the µs, so that a grant of long ago is unlikely to lie within it.
    pub(super) fn first_count(now: Micros) -> i64 {
        FIRST + now % 999_983 * 1_000 * PART
    }

    /// The count that has flown at an instant, in parts of a permit, rounded up.
    pub(super) fn count(&self, curve: Curve, at: Micros) -> i64 {
        let flown = self.flown(curve, at - self.from) * PART as f64;
        self.origin + flown.ceil().min(EXACT as f64 / 4.0) as i64
    }

    /// The count at `now`. When no request waits, what calls left unused is no longer spent.
    pub(super) fn flow(&self, curve: Curve, now: Micros) -> Flow {
        // Instants are whole µs, so that a place may begin up to a µs before its own.
        let flown = self.count(curve, now - 1);
        let (mut tail, mut unused) = ((self.spent - flown).max(0), self.unused);
        if self.last <= flown {
            (tail, unused) = ((tail - unused).max(0), 0);
        }
        let holes = self.holes.iter().map(|(start, end)| (start - flown, end - flown));
        let count = Timeline::at(COUNT, flown, tail, holes);
        Flow { curve, count, unused: unused.min(tail), present: self.count(curve, now) - flown }
    }

    pub(super) fn keep(&mut self, Flow { count, unused, .. }: &Flow) {
        (self.spent, self.unused) = (count.now + count.tail, *unused);
        self.last = self.last.min(self.spent);
        self.holes = count.holes.iter().map(|(s, e)| (count.now + s, count.now + e)).collect();
    }

    /// The grant of the last permits of `grant`, of which `used` were used, by a rule whose gate takes them back.
    pub(in crate::algorithm) fn unused_of(rule: &RateFacts, mut grant: Grant, used: i64) -> Grant {
        if let Some(field) = rule.gate_field {
            let place = field(&mut grant);
            *place += if *place >= FIRST { used * PART } else { 0 };
        }
        grant
    }
}

// === impl Flow ===

impl Flow {
    /// The start of the first free permits, in the count from now.
    pub(super) fn free(&self, cost: i64) -> i64 {
        let length = cost * PART;
        if self.unused >= length {
            return -length;
        }
        let start = self.count.free(0, length);
        if start < self.count.tail { start } else { start.max(self.present) }
    }

    /// Takes the first free permits, and returns their start in the count.
    pub(super) fn take(&mut self, cost: i64) -> i64 {
        let start = self.free(cost);
        if start < 0 {
            self.unused -= cost * PART;
        } else {
            self.count.take(start, cost);
        }
        self.count.now + start
    }
}
