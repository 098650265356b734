//! Token bucket as a generic cell rate algorithm with reservations. Twin of `token_bucket.lua`.
//!
//! Source: ITU-T I.371 Annex A (virtual scheduling). Reserving ahead and the holes are ours.
//!
//! A grant of `n` permits owns an interval of `n·per` ticks of a [`Timeline`], and no two grants
//! share a tick. A grant at instant `at` whose interval `[v, v + n·per)` lies in `[at, at + burst·per)`
//! keeps the law: all grants of `[a, a + t)` own disjoint intervals of `[a, a + t + burst·per)`, which
//! has room for `burst + t/per` permits. So a caller gets the first free interval that is long enough,
//! at the first instant from which it is in reach. The tail of the timeline is the theoretical arrival time.
//!
//! Instants are whole µs and intervals are not, so `at` is rounded up, and the law holds for every half-open
//! interval of whole µs.

pub use super::timeline::State;

use super::{
    Grant, Level, Loss, MAX_BUDGET, Micros, ceil_div,
    timeline::{Pace, Timeline},
};

/// The rule: a permit costs `per / den` µs, and at most `burst` are saved up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Ticks per permit; at least `den`.
    pub(super) per: i64,
    /// Ticks per µs.
    pub(super) den: i64,
    /// Permits.
    pub(super) burst: i64,
}

/// A state while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: TokenBucket,
    line: Timeline,
}

// === impl TokenBucket ===

impl TokenBucket {
    /// One permit a second, one at once.
    pub const ONE_A_SECOND: Self = Self { per: 1_000_000, den: 1, burst: 1 };

    /// `count` permits per `period` µs, at most `burst` at once. `None` when one of them is not positive,
    /// when more than one permit a µs is asked for, or when the bucket takes more than 2^52 µs to fill.
    ///
    /// A rate whose arithmetic would leave the exact integers (such as 123457 a day) is taken as a slower
    /// one that does not, at most two parts in a million away.
    pub fn new(count: i64, period: Micros, burst: i64) -> Option<Self> {
        let Pace { per, den, most: burst } = Pace::new(count, period, burst, 0)?;
        Some(Self { per, den, burst })
    }

    /// Permits that a full bucket holds; a greater cost can never be paid.
    pub fn capacity(&self) -> i64 {
        self.burst
    }

    /// One gateway's share of it, see [`Algorithm::share`](super::Algorithm::share).
    pub(super) fn share(&self, gateways: i64, period: Micros, cost: i64) -> Self {
        let burst = (self.burst / gateways).max(cost).min(self.burst);
        match self.pace().share(gateways, period, burst, 0) {
            Some(Pace { per, den, most: burst }) => Self { per, den, burst },
            None => Self { burst, ..*self },
        }
    }

    /// How many permits take so long, µs.
    pub(super) fn permits(&self, span: Micros) -> i64 {
        self.pace().permits(span)
    }

    /// The arguments of the script, in its order.
    pub fn args(&self) -> [i64; 3] {
        [self.per, self.den, self.burst]
    }

    /// No state of this rule is farther from now than this, µs.
    pub(crate) fn far(&self) -> Micros {
        self.pace().far()
    }

    /// How far ahead of its instant a grant's interval can end, µs.
    pub(super) fn longest_debt(&self) -> Micros {
        ceil_div(self.pace().full(), self.den)
    }

    pub(super) fn used_up(&self, loss: Loss, now: Micros) -> State {
        State::used_up(self.pace(), loss, now)
    }

    fn pace(&self) -> Pace {
        Pace { per: self.per, den: self.den, most: self.burst }
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. One that is full again equals an absent one; one that another rule wrote
    /// keeps its level.
    pub fn new(state: Option<&mut State>, now: Micros, rule: TokenBucket) -> Self {
        Self { rule, line: Timeline::new(state, now, rule.pace(), converted) }
    }

    /// A bucket without holes as `plain.lua` found it, `None` when it finds none so.
    pub fn plain(rule: TokenBucket, now: Micros, tail: i64, born: Micros) -> Option<Self> {
        let line = Timeline::without_holes(rule.pace(), now, tail, born)?;
        Some(Self { rule, line })
    }

    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and the
    /// start of their interval.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        let rule = self.rule;
        let length = cost * rule.per;
        let start = self.line.free(from, length);
        let at = ceil_div(start + length - rule.pace().full(), rule.den);
        (at.max(from), start)
    }

    /// Takes the interval that [`Self::earliest`] found.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.line.take(start, cost)
    }

    /// Gives an unused grant back; false when there is nothing (left) to give back.
    pub fn give_back(&mut self, grant: Grant, cost: i64) -> bool {
        self.line.give_back(grant, cost)
    }

    /// How full the bucket is.
    pub fn level(&self) -> Level {
        let pace = self.rule.pace();
        let permits = |start: i64, end: i64| {
            let end = end.min(pace.full());
            // One by one from now on, and where not even one fits so, one that ends with the room.
            let last = i64::from(pace.left(start, end) >= pace.per);
            ((end - pace.clip(start, 0)) / pace.per).max(last)
        };
        let holes: i64 = self.line.holes.iter().map(|(start, end)| permits(*start, *end)).sum();
        Level {
            remaining: holes + permits(self.line.tail, pace.full()),
            next: self.earliest(0, 1).0,
            reset_after: self.line.reset_after(),
        }
    }

    /// The state to keep and how long it matters, µs; `None` when it equals an absent one.
    pub fn close(self) -> Option<(State, Micros)> {
        self.line.close()
    }
}

/// The tail under `new` of a bucket whose tail under `old` is `tail`: the permits in it stay, so a greater
/// burst starts empty, and a smaller one keeps what it can hold. The only place with fractions: in
/// doubles on both sides, rounded up.
fn converted(tail: i64, old: Pace, new: Pace) -> i64 {
    let owed = tail as f64 / old.per as f64 + (new.most - old.most) as f64;
    let most = new.full() + MAX_BUDGET * new.den;
    ((owed * new.per as f64).ceil().max(0.0) as i64).min(most)
}

#[cfg(test)]
mod tests;
