//! Token bucket as a generic cell rate algorithm with reservations. Twin of `token_bucket.lua`.
//!
//! Source: ITU-T I.371 Annex A (virtual scheduling). Reserving ahead and the holes are ours.
//!
//! A grant of `n` permits owns an interval of `n·per` ticks on a virtual timeline, and no two grants
//! share a tick. A grant at instant `at` whose interval `[v, v + n·per)` lies in `[at, at + burst·per)`
//! keeps the law: all grants of `[a, a + t)` own disjoint intervals of `[a, a + t + burst·per)`, which
//! has room for `burst + t/per` permits. So a caller gets the first free interval that is long enough,
//! at the first instant from which it is in reach. Free is everything behind `tail` (the theoretical
//! arrival time), and the *holes* before it: what waiters gave back, and what a request left free
//! that must come later because of another limiter.
//!
//! Instants are whole µs and intervals are not, so `at` is rounded up, and an interval that starts less
//! than a µs before `at` still counts as starting at it: nothing drifts, and the law holds for every
//! half-open interval of whole µs.

use super::{EXACT, Grant, Level, MAX_BUDGET, Micros};
use std::cmp::Reverse;

/// Holes kept per bucket; beyond it the shortest (of equals the last) is dropped, which is safe and wastes its
/// permits. Only waiters make holes: those who leave, and those who wait for another limiter.
pub const MAX_HOLES: usize = 2048;

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

/// What is remembered: the end of the reserved timeline, and the holes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    rule: TokenBucket,
    whole: Micros,
    ticks: i64,
    born: Micros,
    /// Start and end in ticks before the tail, earliest first.
    holes: Vec<(i64, i64)>,
}

/// A state while it is worked on: everything in ticks from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: TokenBucket,
    now: Micros,
    born: Micros,
    tail: i64,
    holes: Vec<(i64, i64)>,
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
        if count < 1 || period < count || burst < 1 {
            return None;
        }
        let gcd = gcd(count, period);
        let (per, den) = (period / gcd, count / gcd);
        let fits = |per: i64, den: i64| {
            let full = i128::from(per) * i128::from(burst);
            2 * (full + i128::from(den) * i128::from(MAX_BUDGET)) < i128::from(EXACT)
        };
        if fits(per, den) {
            return Some(Self { per, den, burst });
        }
        // The same span on a coarser tick, rounded up: slower, never faster.
        (0..).map(|halvings| den >> halvings).take_while(|coarse| *coarse > 0).find_map(|coarse| {
            let scaled =
                (i128::from(per) * i128::from(coarse) + i128::from(den) - 1) / i128::from(den);
            let scaled = i64::try_from(scaled).ok()?;
            fits(scaled, coarse).then_some(Self { per: scaled, den: coarse, burst })
        })
    }

    /// Permits that a full bucket holds; a greater cost can never be paid.
    pub fn burst(&self) -> i64 {
        self.burst
    }

    /// The arguments of the script, in its order.
    pub fn args(&self) -> [i64; 3] {
        [self.per, self.den, self.burst]
    }

    fn full(&self) -> i64 {
        self.burst * self.per
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. One that is full again equals an absent one; one that another rule wrote
    /// keeps its level.
    pub fn new(state: Option<&State>, now: Micros, rule: TokenBucket) -> Self {
        let fresh = Self { rule, now, born: now, tail: 0, holes: Vec::new() };
        let Some(state) = state else { return fresh };
        let old = state.rule;
        // A clock far behind the state's: the clamp keeps the arithmetic exact and still refuses.
        let far = old.full() / old.den + 2 * MAX_BUDGET;
        let tail = (state.whole - now).clamp(-far, far) * old.den + state.ticks;
        if tail <= -old.den {
            return fresh;
        }
        if old != rule {
            return Self { tail: converted(tail, old, rule), ..fresh };
        }
        let holes = state.holes.iter().map(|(start, end)| (tail - start, tail - end));
        let holes = holes.filter(|(start, end)| rule.clip(*start, 0) + rule.per <= *end).collect();
        Self { tail, born: state.born, holes, ..fresh }
    }

    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and the
    /// start of their interval.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        let rule = self.rule;
        let length = cost * rule.per;
        let hole = self.holes.iter().find_map(|(start, end)| {
            let start = rule.clip(*start, from);
            (start + length <= *end).then_some(start)
        });
        let start = hole.unwrap_or_else(|| rule.clip(self.tail, from));
        let at = ceil_div(start + length - rule.full(), rule.den);
        (at.max(from), start)
    }

    /// Takes the interval that [`Self::earliest`] found.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        let (per, end) = (self.rule.per, start + cost * self.rule.per);
        if let Some(i) = self.holes.iter().position(|(s, e)| *s <= start && end <= *e) {
            let (hole_start, hole_end) = self.holes.remove(i);
            if hole_end - end >= per {
                self.holes.insert(i, (end, hole_end));
            }
            if start - hole_start >= per {
                self.holes.insert(i, (hole_start, start));
            }
        } else {
            if start - self.tail >= per {
                self.holes.push((self.tail, start));
            }
            self.tail = end;
        }
        self.drop_shortest_hole_above_bound();
        let (whole, ticks) = self.absolute(start);
        Grant { whole, ticks, born: self.born }
    }

    /// Gives an unused grant back; false when there is nothing (left) to give back.
    pub fn give_back(&mut self, grant: Grant, cost: i64) -> bool {
        let rule = self.rule;
        let far = rule.full() / rule.den + 2 * MAX_BUDGET;
        let start = (grant.whole - self.now).clamp(-far, far) * rule.den + grant.ticks;
        let end = start + cost * rule.per;
        if grant.born != self.born || end > self.tail {
            return false;
        }
        if end == self.tail {
            // The last grant is undone as if it had never been, however late.
            self.tail = start;
            if self.holes.last().is_some_and(|(_, hole_end)| *hole_end == start)
                && let Some((hole_start, _)) = self.holes.pop()
            {
                self.tail = hole_start;
            }
            if self.reset_after() == 0 {
                *self = Self::new(None, self.now, rule);
            }
            return true;
        }
        if rule.clip(start, 0) + rule.per > end {
            return false;
        }
        let at = self.holes.iter().position(|(s, _)| *s >= start).unwrap_or(self.holes.len());
        let overlaps = (at > 0 && self.holes[at - 1].1 > start)
            || self.holes.get(at).is_some_and(|(s, _)| *s < end);
        if overlaps {
            return false;
        }
        self.holes.insert(at, (start, end));
        if self.holes.get(at + 1).is_some_and(|(s, _)| *s == end) {
            self.holes[at].1 = self.holes.remove(at + 1).1;
        }
        if at > 0 && self.holes[at - 1].1 == start {
            self.holes[at - 1].1 = self.holes.remove(at).1;
        }
        self.drop_shortest_hole_above_bound();
        true
    }

    /// How full the bucket is.
    pub fn level(&self) -> Level {
        let rule = self.rule;
        let permits = |start: i64, end: i64| {
            let span = end.min(rule.full()) - rule.clip(start, 0);
            if span > 0 { span / rule.per } else { 0 }
        };
        let holes: i64 = self.holes.iter().map(|(start, end)| permits(*start, *end)).sum();
        Level {
            remaining: holes + permits(self.tail, rule.full()),
            next: self.earliest(0, 1).0,
            reset_after: self.reset_after(),
        }
    }

    /// The state to keep and how long it matters, µs; `None` when it equals an absent one.
    pub fn close(self) -> Option<(State, Micros)> {
        let reset_after = self.reset_after();
        if reset_after <= 0 {
            return None;
        }
        let (whole, ticks) = self.absolute(self.tail);
        let holes = self.holes.iter().map(|(s, e)| (self.tail - s, self.tail - e)).collect();
        Some((State { rule: self.rule, whole, ticks, born: self.born, holes }, reset_after))
    }

    /// Until the state equals an absent one, which also forgets a part of a µs.
    fn reset_after(&self) -> Micros {
        let part = i64::from(self.tail.rem_euclid(self.rule.den) != 0);
        (ceil_div(self.tail, self.rule.den) + part).max(0)
    }

    fn absolute(&self, tick: i64) -> (Micros, i64) {
        let den = self.rule.den;
        (self.now + tick.div_euclid(den), tick.rem_euclid(den))
    }

    fn drop_shortest_hole_above_bound(&mut self) {
        while self.holes.len() > MAX_HOLES {
            let lengths = self.holes.iter().enumerate().map(|(i, (s, e))| (e - s, Reverse(i)));
            let Some((_, Reverse(shortest))) = lengths.min() else { return };
            self.holes.remove(shortest);
        }
    }
}

impl TokenBucket {
    /// `start`, or `from` (µs) when `start` is a µs or more before it.
    fn clip(&self, start: i64, from: Micros) -> i64 {
        let from = from * self.den;
        if start <= from - self.den { from } else { start }
    }
}

/// The tail under `new` of a bucket whose tail under `old` is `tail`: the permits in it stay, so a greater
/// burst starts empty, and a smaller one keeps what it can hold. The only place with fractions: in
/// doubles on both sides, rounded up.
fn converted(tail: i64, old: TokenBucket, new: TokenBucket) -> i64 {
    let owed = tail as f64 / old.per as f64 + (new.burst - old.burst) as f64;
    let most = new.full() + MAX_BUDGET * new.den;
    ((owed * new.per as f64).ceil().max(0.0) as i64).min(most)
}

fn ceil_div(a: i64, b: i64) -> i64 {
    -(-a).div_euclid(b)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
