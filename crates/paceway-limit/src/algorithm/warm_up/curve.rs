//! The curve of a limiter that warms up: how long a permit takes at a coldness, and the coldness after it. Pure
//! arithmetic on one interval; it knows no state.

use super::WarmUp;
use crate::algorithm::{MAX_BUDGET, Micros};

/// A free interval before the tail, with the coldness that a grant in it begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) start: i64,
    pub(super) end: i64,
    /// The coldness at the start of the hole, ticks.
    pub(super) cold: i64,
}

// === impl WarmUp ===

impl WarmUp {
    /// By how many stable intervals a permit lowers the coldness: Guava's cool-down interval.
    pub(super) fn fall(&self) -> f64 {
        2.0 * (1000 + self.factor) as f64 / (5000 + self.factor) as f64
    }

    /// The coldness above which permits take longer, ticks.
    pub(super) fn threshold(&self) -> f64 {
        self.window as f64 * self.fall() / 2.0
    }

    /// The factor of the curve: a coldness above the threshold costs its square times this, ticks; Guava's
    /// slope.
    pub(super) fn steep(&self) -> f64 {
        let factor = self.factor as f64 / 1000.0;
        (factor * factor - 1.0) / (4.0 * self.fall() * self.fall()) / self.window as f64
    }

    /// How many ticks `cost` permits take that begin at a coldness, and the coldness after them.
    pub(super) fn spend(&self, cold: i64, cost: i64) -> (i64, i64) {
        let stable = cost * self.pace.per;
        let (used, threshold) = (stable as f64 * self.fall(), self.threshold());
        let above = (cold as f64 - threshold).max(0.0);
        let left = (cold as f64 - used - threshold).max(0.0);
        let extra = (above - left) * (above + left) * self.steep();
        (stable + extra.ceil() as i64, (cold - used.floor() as i64).max(0))
    }

    /// The coldness after `span` idle ticks, at most that of a cold limiter.
    pub(super) fn idle(&self, cold: i64, span: i64) -> i64 {
        (cold + span).min(self.window)
    }

    /// The coldness after `busy` ticks of grants when the coldness before them changes from `was` to `is`.
    pub(super) fn coldness_after(&self, cold: i64, busy: i64, was: i64, is: i64) -> i64 {
        let mut shifted = cold + is - was;
        if cold == 0 && is > was {
            // The grants had warmth to spare: the coldness that they could use up beyond `was` does not
            // arrive here.
            let above = (was as f64 - self.threshold()).max(0.0);
            let used = (busy as f64 - above * above * self.steep()) * self.fall();
            shifted = shifted.min(is - used.floor() as i64);
        }
        shifted.clamp(0, self.window)
    }

    /// Where `cost` permits start in a hole, from `from` µs on; `None` when the hole has no room for them.
    pub(super) fn place(&self, hole: &Hole, from: Micros, cost: i64) -> Option<i64> {
        let start = self.pace.clip(hole.start, from);
        (self.end(hole, start, cost) <= hole.end).then_some(start)
    }

    /// Where `cost` permits end that start at `start` within a hole.
    pub(super) fn end(&self, hole: &Hole, start: i64, cost: i64) -> i64 {
        start + self.spend(self.idle(hole.cold, start - hole.start), cost).0
    }
}

// === impl Hole ===

impl Hole {
    /// The length of the hole, ticks.
    pub(super) fn span(&self) -> i64 {
        self.end - self.start
    }

    /// Converts between ticks from now and ticks before the tail; the conversion is its own inverse.
    pub(super) fn before(&self, tail: i64) -> Self {
        Self { start: tail - self.start, end: tail - self.end, cold: self.cold }
    }
}

/// The tail and its coldness under `new` of a state of `old`: as many permits are owed, and as great a part
/// of the warm-up is left. Rounded up, to the slower side.
pub(super) fn converted(tail: i64, cold: i64, old: WarmUp, new: WarmUp) -> (i64, i64) {
    let cold = old.idle(cold, (-tail).max(0));
    let owed = tail as f64 / old.pace.per as f64;
    let most = new.pace.full() + new.window + MAX_BUDGET * new.pace.den;
    let tail = ((owed * new.pace.per as f64).ceil().max(0.0) as i64).min(most);
    let cold = (cold as f64 / old.window as f64 * new.window as f64).ceil() as i64;
    (tail, cold.min(new.window))
}

/// Converts the holes of a line of `old` (before its tail) to a line of `new` (from now). Each is as many
/// warm permits long and as many before the tail as it was, with the same part of the coldness.
pub(super) fn converted_holes(holes: &[Hole], tail: i64, old: WarmUp, new: WarmUp) -> Vec<Hole> {
    let mut kept = Vec::new();
    let mut free = i64::MIN;
    for hole in holes {
        let (wide, narrow) = (new.pace.per as f64, old.pace.per as f64);
        let after = (hole.end as f64 / narrow * wide).floor() as i64;
        // No permit begins in the past. Those that waited for an hour at a fast rate take ages at a slow one, more than fits
        // into exact integers; a hole is as cold now as it was a whole warm-up ago.
        if after >= tail {
            continue;
        }
        let length = ((hole.start - hole.end) as f64 / narrow * wide).ceil() as i64;
        let length = length.min(tail - after + new.window);
        let start = (tail - after - length).max(free);
        let cold = (hole.cold as f64 / old.window as f64 * new.window as f64).ceil() as i64;
        let hole = Hole { start, end: start + length, cold: cold.min(new.window) };
        if hole.end <= tail && new.place(&hole, 0, 1).is_some() {
            kept.push(hole);
            free = hole.end;
        }
    }
    kept
}
