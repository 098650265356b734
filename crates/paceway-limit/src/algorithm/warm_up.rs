//! A rate that rises from cold to full while it is used, with reservations. Twin of `warm_up.lua`.
//!
//! Source: Guava's `RateLimiter.SmoothWarmingUp` (`SmoothRateLimiter.java`). The reservation of future
//! permits, the holes and the integers are additions of Paceway.
//!
//! The limiter has a *coldness*, from 0 (warm) to `window` (cold, as long as the warm-up): idle time raises
//! it by as much, a permit lowers it by the time of `fall` permits. The coldness is Guava's `storedPermits`
//! times its `coolDownIntervalMicros`, which cancels half of the figures of the curve. A permit owns one
//! stable interval of a virtual timeline. While the coldness is above `threshold` it owns more, up to
//! `cold_factor` times as much when cold, so that the way from cold to the threshold takes exactly the
//! warm-up. As in Guava, a grant is made at the start of its interval, and the next one waits for the end.
//!
//! No two grants share a tick, and each owns at least a stable interval per permit: the limiter is never
//! faster than its rate. Free are all ticks after `tail`, and the *holes* before it, each with the coldness
//! at its start: the intervals that waiting requests refunded, and those that a request left free because
//! another limiter delayed it. A request that takes or refunds an interval changes the coldness of the later
//! holes; later grants stay as they are.
//!
//! A warm limiter computes in exact integers. The curve is in doubles, `+ - * /` in the same order in both
//! twins, rounded to the slower side.

mod curve;

use super::{
    Algorithm, DataLoss, EXACT, Grant, Level, MAX_BUDGET, Micros, OpenRate, RateFacts, RateRule,
    Returns, STATE_VERSION, ceil_div,
    nanohertz::Nanohertz,
    stored::StoredBytes,
    timeline::{Pace, drop_shortest_above_bound},
};
use curve::{Hole, converted, converted_holes};
use smallvec::SmallVec;

/// The rule of a limiter that warms up: its full rate, how long the warm-up takes, and how much slower a cold
/// limiter is.
///
/// ```
/// use paceway_limit::algorithm::{RateRule, WarmUp};
///
/// // 100 permits per second when warm, a third of that when cold, 10 s from cold to warm.
/// let rule = WarmUp::new(100, 1_000_000, 10_000_000, 3.0).expect("a legal rule");
/// assert_eq!(rule.facts().capacity, 100);
/// // A cold factor of 1 would be no warm-up.
/// assert!(WarmUp::new(100, 1_000_000, 10_000_000, 1.0).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmUp {
    /// The stable rate of a warm limiter.
    pace: Pace,
    /// The length of the warm-up, in ticks.
    window: i64,
    /// How much longer a permit takes when the limiter is cold, in thousandths.
    factor: i64,
}

/// The state that a store keeps: the reserved line, its holes, and the coldness at the end of the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    rule: WarmUp,
    whole: Micros,
    ticks: i64,
    born: Micros,
    written: Micros,
    cold: i64,
    /// The start and the end of each hole in ticks before the tail, earliest first.
    holes: Vec<Hole>,
}

/// A state while it is worked on: the tail and the holes are in ticks from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: WarmUp,
    now: Micros,
    born: Micros,
    tail: i64,
    /// The coldness at the tail, ticks.
    cold: i64,
    holes: Vec<Hole>,
}

// === impl WarmUp ===

impl WarmUp {
    /// `count` permits per `period` µs when warm, `cold_factor` times as long between two of them when cold,
    /// and `warm_up` µs from cold to warm. `None` when `count` or `period` is not positive, the rate is above
    /// one permit a µs, `count` permits take more than 2^52 µs, `warm_up` is not in (0, 1 h], or
    /// `cold_factor`, which counts in thousandths, is not in (1, 100].
    ///
    /// A rate whose arithmetic would leave the exact integers is replaced by a slightly slower one that stays
    /// exact, at most two parts in a million away.
    pub fn new(count: i64, period: Micros, warm_up: Micros, cold_factor: f64) -> Option<Self> {
        let factor = (cold_factor * 1000.0).round();
        if !(1..=MAX_BUDGET).contains(&warm_up) || !(1001.0..=100_000.0).contains(&factor) {
            return None;
        }
        let pace = Pace::new(count, period, count, warm_up)?;
        Some(Self::finer(pace, warm_up, factor as i64))
    }

    /// The same rule with ticks as fine as exact integers allow, because each rounding of the curve costs up
    /// to a tick.
    fn finer(pace: Pace, warm_up: Micros, factor: i64) -> Self {
        let Pace { per, den, most } = pace;
        let longest = per * most + den * (MAX_BUDGET + warm_up);
        let finer = (EXACT / 2 - 1) / longest;
        let pace = Pace { per: per * finer, den: den * finer, most };
        Self { pace, window: warm_up * pace.den, factor }
    }

    /// The greatest distance between a state of this rule and now, µs.
    fn far(&self) -> Micros {
        (self.pace.full() + self.window) / self.pace.den + 2 * MAX_BUDGET
    }
}

// === impl RateRule for WarmUp ===

impl RateRule for WarmUp {
    fn facts(&self) -> RateFacts {
        RateFacts {
            name: "warm_up",
            letter: b'W',
            capacity: self.pace.most,
            burst: None,
            pace: [self.pace.per, self.pace.den],
            margin: 0,
            longest_wait: MAX_BUDGET,
            returns: Returns::OneByOne,
            // `reset_after` is the time until the limiter is cold, and cold time is no debt.
            debt: |level| level.next,
            endless: (*self).into(),
            spent: (*self).into(),
            gate_field: None,
            spaces_permits: true,
        }
    }

    fn numbers(&self) -> SmallVec<[i64; 6]> {
        let Pace { per, den, most } = self.pace;
        SmallVec::from_slice(&[per, den, most, self.window, self.factor])
    }

    fn rate(&self) -> Nanohertz {
        0
    }

    fn with_rate(&self, count: i64, period: Micros, _margin: Micros) -> Option<Algorithm> {
        let warm_up = self.window / self.pace.den;
        Self::new(count, period, warm_up, self.factor as f64 / 1000.0).map(Into::into)
    }

    fn at_rate(&self, _rate: Nanohertz) -> Option<Algorithm> {
        None
    }

    fn share(&self, gateways: i64, period: Micros, _cost: i64) -> Algorithm {
        let warm_up = self.window / self.pace.den;
        let pace = self.pace.share(gateways, period, self.pace.most, warm_up);
        let slower = pace.filter(|_| gateways > 1);
        slower.map_or(*self, |pace| Self::finer(pace, warm_up, self.factor)).into()
    }

    /// `aux` of a grant is the coldness at its start.
    fn unused_of(&self, grant: Grant, cost: i64, used: i64) -> Grant {
        let all = self.spend(grant.aux, cost).0;
        let (before, mut left) = self.spend(grant.aux, used);
        // Both parts are rounded up. Together they must not be longer than the whole.
        let mut less = 1;
        while left > 0 && before + self.spend(left, cost - used).0 > all {
            left = (left - less).max(0);
            less *= 2;
        }
        Grant { aux: left, ..grant.after(before, self.pace.den) }
    }

    /// The limiter is cold, and nothing from before `loss` reaches beyond the end of its horizon.
    fn used_up(&self, loss: DataLoss, now: Micros) -> super::State {
        let (whole, ticks, cold, holes) = (loss.until(), 0, self.window, Vec::new());
        let (rule, born, written) = (*self, now, now);
        super::State::WarmUp(State { rule, whole, ticks, born, written, cold, holes })
    }

    fn longest_debt(&self, wait: Micros, greatest_cost: i64) -> Micros {
        let (ticks, _) = self.spend(self.window, greatest_cost.min(self.pace.most));
        wait + ceil_div(ticks, self.pace.den)
    }
}

// === impl State ===

impl State {
    /// Reads a state as the Lua twin writes it.
    pub(super) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [version, _kind] = bytes.bytes()?;
        let [per, den, most, window, factor] = bytes.integers()?;
        let [whole, ticks, born, written, cold] = bytes.integers()?;
        let holes = bytes.rest()?.into_iter().map(|[start, end, cold]| Hole { start, end, cold });
        let holes = holes.collect();
        let rule = WarmUp { pace: Pace::stored(per, den, most)?, window, factor };
        let is_one = version == STATE_VERSION && (0..den).contains(&ticks);
        let has_curve = window >= 1 && factor > 1000 && (0..=window).contains(&cold);
        (is_one && has_curve).then_some(Self { rule, whole, ticks, born, written, cold, holes })
    }

    /// When the state came into being, µs of the store's clock.
    pub(super) fn born(&self) -> Micros {
        self.born
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. A limiter that is cold again equals an absent one. A state that another rule
    /// wrote keeps the permits that it owes and its part of the coldness; since it was written the permits
    /// have flowed at the faster rate of both, as on a [`Timeline`](super::timeline::Timeline).
    pub fn new(state: Option<&mut State>, now: Micros, rule: WarmUp) -> Self {
        let fresh = Self { rule, now, born: now, tail: 0, cold: rule.window, holes: Vec::new() };
        let Some(state) = state else { return fresh };
        let (old, far) = (state.rule, state.rule.far());
        let (cold, den) = (state.cold, old.pace.den);
        let tail_at =
            |instant: Micros| (state.whole - instant).clamp(-far, far) * den + state.ticks;
        let tail = tail_at(now);
        if tail <= -den && cold - tail >= old.window {
            return fresh;
        }
        if old != rule {
            let since = (now - state.written).clamp(0, rule.far());
            let (before, _) = converted(tail_at(state.written.min(now)), cold, old, rule);
            let (mut tail, cold) = converted(tail, cold, old, rule);
            if tail > 0 {
                tail = tail.min(before - since * rule.pace.den);
            }
            if tail <= -rule.pace.den && cold - tail >= rule.window {
                return fresh;
            }
            let holes = converted_holes(&state.holes, tail, old, rule);
            return Self { tail, cold, born: state.born, holes, ..fresh };
        }
        let holes = state.holes.iter().map(|hole| hole.before(tail));
        let holes = holes.filter(|hole| rule.place(hole, 0, 1).is_some()).collect();
        Self { tail, cold, born: state.born, holes, ..fresh }
    }

    /// The time until the state equals an absent one, which is cold and also forgets a part of a µs.
    fn reset_after(&self) -> Micros {
        let Pace { den, .. } = self.rule.pace;
        let part = i64::from(self.tail.rem_euclid(den) != 0);
        let cold = ceil_div(self.tail + self.rule.window - self.cold, den);
        cold.max(ceil_div(self.tail, den) + part).max(0)
    }

    /// Changes the coldness of all holes from `first` on, and of the tail, when the coldness at `end` changes
    /// from `was` to `is`.
    fn spread(&mut self, first: usize, mut end: i64, mut was: i64, mut is: i64) {
        let rule = self.rule;
        for hole in &mut self.holes[first..] {
            let cold = rule.coldness_after(hole.cold, hole.start - end, was, is);
            (was, is) = (rule.idle(hole.cold, hole.span()), rule.idle(cold, hole.span()));
            (hole.cold, end) = (cold, hole.end);
        }
        self.cold = rule.coldness_after(self.cold, self.tail - end, was, is);
    }

    /// Keeps the holes that have room for a permit, at most [`MAX_HOLES`](super::MAX_HOLES) of them.
    fn tidy(&mut self) {
        let rule = self.rule;
        self.holes.retain(|hole| rule.place(hole, 0, 1).is_some());
        drop_shortest_above_bound(&mut self.holes, Hole::span);
    }
}

// === impl OpenRate for Open ===

impl OpenRate for Open {
    type State = State;

    fn facts(&self) -> RateFacts {
        self.rule.facts()
    }

    fn earliest(&self, from: Micros, cost: i64, _kept: i64) -> (Micros, i64) {
        let rule = self.rule;
        let hole = self.holes.iter().find_map(|hole| rule.place(hole, from, cost));
        let start = hole.unwrap_or_else(|| rule.pace.clip(self.tail, from));
        (ceil_div(start, rule.pace.den).max(from), start)
    }

    /// `aux` of the grant is the coldness at its start.
    fn take(&mut self, start: i64, cost: i64) -> Grant {
        let rule = self.rule;
        let inside = |hole: &Hole| hole.start <= start && rule.end(hole, start, cost) <= hole.end;
        let aux;
        if let Some(i) = self.holes.iter().position(inside) {
            let hole = self.holes.remove(i);
            aux = rule.idle(hole.cold, start - hole.start);
            let (length, cold) = rule.spend(aux, cost);
            let rest = Hole { start: start + length, cold, ..hole };
            self.spread(
                i,
                hole.end,
                rule.idle(hole.cold, hole.span()),
                rule.idle(cold, rest.span()),
            );
            self.holes.insert(i, rest);
            self.holes.insert(i, Hole { end: start, ..hole });
        } else {
            let gap = Hole { start: self.tail, end: start, cold: self.cold };
            if rule.place(&gap, 0, 1).is_some() {
                self.holes.push(gap);
            }
            aux = rule.idle(self.cold, start - self.tail);
            let (length, cold) = rule.spend(aux, cost);
            (self.tail, self.cold) = (start + length, cold);
        }
        self.tidy();
        let (whole, ticks) = rule.pace.absolute(self.now, start);
        Grant { whole, ticks, born: self.born, aux }
    }

    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        let (rule, far) = (self.rule, self.rule.far());
        let mut start = (grant.whole - self.now).clamp(-far, far) * rule.pace.den + grant.ticks;
        let mut cold = grant.aux.clamp(0, rule.window);
        let (length, left) = rule.spend(cold, cost);
        let mut end = start + length;
        if grant.born != self.born || end > self.tail {
            return false;
        }
        let slack = rule.pace.slack();
        if self.tail - end <= slack {
            // The last grant is undone as if it had never been made, however late the refund is.
            (self.tail, self.cold) = (start, (cold + self.cold - left).clamp(0, rule.window));
            if self.holes.last().is_some_and(|hole| hole.end + slack >= start)
                && let Some(hole) = self.holes.pop()
            {
                (self.tail, self.cold) = (hole.start, hole.cold);
            }
            if self.reset_after() == 0 {
                *self = Self::new(None, self.now, rule);
            }
            return true;
        }
        if rule.place(&Hole { start, end, cold }, 0, 1).is_none() {
            return false;
        }
        let at = self.holes.iter().position(|hole| hole.start >= start).unwrap_or(self.holes.len());
        let before = at.checked_sub(1).map_or(start, |i| self.holes[i].end);
        let after = self.holes.get(at).map_or(end, |hole| hole.start);
        if before > start + slack || after < end - slack {
            return false;
        }
        (start, end) = (start.max(before), end.min(after));
        let joins = at > 0 && self.holes[at - 1].end == start;
        if joins {
            cold = rule.idle(self.holes[at - 1].cold, self.holes[at - 1].span());
        }
        self.spread(at, end, rule.spend(cold, cost).1, rule.idle(cold, length));
        self.holes.insert(at, Hole { start, end, cold });
        if self.holes.get(at + 1).is_some_and(|hole| hole.start == end) {
            self.holes[at].end = self.holes.remove(at + 1).end;
        }
        if joins {
            self.holes[at - 1].end = self.holes.remove(at).end;
        }
        self.tidy();
        true
    }

    fn promise(&mut self, _at: Micros, _start: i64, _kept: i64) {}

    /// One permit can be taken now, or none.
    fn level(&self) -> Level {
        let next = self.earliest(0, 1, 0).0;
        let reset_after = self.reset_after();
        Level { remaining: i64::from(next == 0), next, reset_after, ..Level::default() }
    }

    fn close(self) -> Option<(State, Micros)> {
        let reset_after = self.reset_after();
        if reset_after <= 0 {
            return None;
        }
        let (rule, born, written, cold) = (self.rule, self.born, self.now, self.cold);
        let (whole, ticks) = rule.pace.absolute(self.now, self.tail);
        let holes = self.holes.iter().map(|hole| hole.before(self.tail)).collect();
        Some((State { rule, whole, ticks, born, written, cold, holes }, reset_after))
    }

    fn put_back(self, _state: &mut State) {}
}

#[cfg(test)]
mod tests;
