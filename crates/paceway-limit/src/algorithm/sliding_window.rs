//! Sliding window log with reservations. Twin of `sliding_window.lua`.
//!
//! At most `count` permits in any half-open window of `span` = period + margin µs, wherever it starts. A
//! request gets the first instant that this allows beside all permits that are already promised (first fit):
//! later requests delay no earlier one, and a small request may use room that is too small for a large one.
//!
//! With all permits in one order `v`, the law is `v[k] - v[k - count] >= span` for every `k`. So a grant at
//! `t` has to look at one instant before it, and at those later permits that are within a span of it.
//!
//! The grants are kept in two parts. The *ring* is closed: no instant before its last entry is free. The
//! entries *ahead* of it have free time before them, because their request waits for another limiter or
//! because another request left. If nothing is ahead, a decision appends one entry and reads one.
//!
//! While gateways with two rules use one state, each request also keeps a law that its own rule does not
//! imply when the other rule is the longer one: in that rule's window, at most its count or as many permits
//! as the own rule allows there, whichever is more. The times of permits that are no longer kept follow from
//! their rule: it says how late they can have been.
//!
//! Above 10,000 permits the instants are kept in grains of a ten thousandth of the period, rounded up, and
//! the span is one grain longer: the limit is still never exceeded, at the price of two parts in ten
//! thousand.

mod state;

pub use state::State;

use super::{
    Algorithm, DataLoss, EXACT, Grant, Level, MAX_BUDGET, MAX_HOLES, Micros, OpenRate, RateFacts,
    RateRule, Returns, ceil_div,
    nanohertz::{Nanohertz, nanohertz, permits_in, span_of},
};
use smallvec::{SmallVec, smallvec};
use state::{Law, Walk};
use std::{collections::VecDeque, mem};

/// The greatest count whose instants are kept exactly.
const MAX_STAMPS: i64 = 10_000;

/// The rule of a sliding window: at most `count` permits in any window of `span` µs.
///
/// ```
/// use paceway_limit::algorithm::{RateRule, SlidingWindow};
///
/// // 30 permits in any second, 50 ms of which are reserved for a travel time that varies.
/// let rule = SlidingWindow::new(30, 1_000_000, 50_000).expect("a legal rule");
/// assert_eq!((rule.facts().capacity, rule.facts().margin), (30, 50_000));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many permits a window has room for.
    count: i64,
    /// The length of a window, µs: period and margin in whole grains, and one grain more where a grain is
    /// more than a µs.
    span: Micros,
    /// The unit in which instants are kept, µs.
    grain: Micros,
    /// By how much the travel time to the upstream may vary, µs.
    margin: Micros,
}

/// The state of a sliding window while it is worked on, with the rule under which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: SlidingWindow,
    now: Micros,
    state: State,
    /// The rule, and the laws that its grants keep because of the other rules in use.
    laws: SmallVec<[Law; 2]>,
    /// The state as it was read, if this rule differs from the one before.
    before: Option<Box<State>>,
    /// Whether the state equals an absent one.
    fresh: bool,
}

// === impl SlidingWindow ===

impl SlidingWindow {
    /// At most `count` permits in any `period` µs, with `margin` µs for a travel time to the upstream that
    /// varies. `None` when `count` or `period` is not positive, `margin` is negative, or all together is
    /// beyond exact arithmetic.
    pub fn new(count: i64, period: Micros, margin: Micros) -> Option<Self> {
        if count < 1 || period < 1 || margin < 0 {
            return None;
        }
        let grain = if count > MAX_STAMPS { ceil_div(period, MAX_STAMPS) } else { 1 };
        let whole = ceil_div(period.checked_add(margin)?, grain).checked_mul(grain)?;
        let span = if grain > 1 { whole + grain } else { whole };
        // An instant of the store is below 2^51 until the year 2041, and a sum of two stays exact.
        let exact = span < EXACT / 8 && count < EXACT / 8;
        exact.then_some(Self { count, span, grain, margin })
    }

    /// The rule without its grain: its count and its span.
    fn law(&self) -> Law {
        Law { count: self.count, span: self.span }
    }

    /// An instant as it is kept: the end of its grain.
    fn grained(&self, instant: Micros) -> Micros {
        ceil_div(instant, self.grain) * self.grain
    }
}

// === impl RateRule for SlidingWindow ===

impl RateRule for SlidingWindow {
    fn facts(&self) -> RateFacts {
        RateFacts {
            name: "sliding_window",
            letter: b'S',
            capacity: self.count,
            burst: None,
            pace: [self.span, self.count],
            margin: self.margin,
            longest_wait: MAX_BUDGET,
            returns: Returns::AfterSpan(self.span),
            debt: |_| 0,
            endless: (*self).into(),
            spent: (*self).into(),
            gate_field: Some(|grant| &mut grant.aux),
            spaces_permits: false,
        }
    }

    fn numbers(&self) -> SmallVec<[i64; 6]> {
        SmallVec::from_slice(&[self.count, self.span, self.grain])
    }

    fn rate(&self) -> Nanohertz {
        nanohertz(self.count, self.span - self.margin)
    }

    fn with_rate(&self, count: i64, period: Micros, margin: Micros) -> Option<Algorithm> {
        Self::new(count, period, margin).map(Into::into)
    }

    fn at_rate(&self, rate: Nanohertz) -> Option<Algorithm> {
        let count = permits_in(self.span - self.margin, rate)?.max(1);
        self.with_rate(count, span_of(count, rate)?, self.margin)
    }

    fn share(&self, gateways: i64, _period: Micros, cost: i64) -> Algorithm {
        Self { count: (self.count / gateways).max(cost).min(self.count), ..*self }.into()
    }

    fn unused_of(&self, grant: Grant, _cost: i64, _used: i64) -> Grant {
        // Each of the permits is at the instant of the grant.
        grant
    }

    /// All permits are at the last instant that can have been promised before `loss`.
    fn used_up(&self, loss: DataLoss, now: Micros) -> super::State {
        super::State::SlidingWindow(State {
            born: now,
            ring: VecDeque::from([(self.grained(loss.until()), self.count)]),
            span: self.span,
            most: self.count,
            closed_by: self.law(),
            ..State::default()
        })
    }

    fn longest_debt(&self, wait: Micros, _greatest_cost: i64) -> Micros {
        wait
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. The entries move out of `state` until [`Self::put_back`] or [`Self::close`].
    /// The instants are the same under every rule.
    pub fn new(state: Option<&mut State>, now: Micros, rule: SlidingWindow) -> Self {
        let mut state = state.map(mem::take).unwrap_or_default();
        let (mut fresh, mut before, law) = (state.is_past(now), None, rule.law());
        let mut laws = smallvec![law];
        let is_another = state.closed_by != law || !state.others.is_empty();
        if fresh && is_another && state.last_of_all() + rule.span > now && state.tells(now) {
            // The state is past for the rules that wrote it, and not for this one with its longer window.
            fresh = false;
            before = Some(Box::new(state.clone()));
            state.forget_all();
        } else if !fresh && is_another {
            if state.closed_by != law {
                before = Some(Box::new(state.clone()));
                // Under another rule there may be room between the requests that wait.
                state.open_end(|last| last > now);
            }
            let others = state.rules().filter(|(other, last)| last + other.span > now);
            laws.extend(others.flat_map(|(other, _)| law.beside(other)));
        }
        Self { rule, now, state, laws, before, fresh }
    }

    /// The last entry ahead (from the `i`th on) that `cost` permits at `at`, numbered from `number` on, would
    /// make one too many under `law`.
    fn last_broken(
        &self,
        law: Law,
        i: usize,
        at: Micros,
        number: i64,
        cost: i64,
    ) -> Option<Micros> {
        let state = &self.state;
        let (mut broken, mut end, mut walk) = (None, number, Walk::new(state));
        for (later, permits) in state.ahead[i..].iter().take_while(|(l, _)| *l < at + law.span) {
            end += permits;
            let last = end + cost - 1;
            // The permits from `number` on are at `at` itself: within a span of the entry.
            if last - law.count >= number || walk.free(law, last, self.now) > *later {
                broken = Some(*later);
            }
        }
        broken
    }

    /// The permits that could be taken now, one by one.
    fn remaining(&self) -> i64 {
        let (rule, state) = (self.rule, &self.state);
        if self.fresh {
            return rule.count;
        }
        let at = rule.grained(self.now);
        if state.last() > at {
            return 0;
        }
        // The entries ahead whose instant has come are not in the ring yet.
        let come = state.ahead.partition_point(|(other, _)| *other <= at);
        let start = state.total() + state.ahead[..come].iter().map(|(_, n)| n).sum::<i64>();
        let room = |law: Law| {
            let (mut end, mut room) = (start, state.room(law, at - law.span) - start);
            for (later, permits) in
                state.ahead[come..].iter().take_while(|(l, _)| *l < at + law.span)
            {
                end += permits;
                room = room.min(state.room(law, later - law.span) - end);
            }
            room
        };
        self.laws.iter().map(|law| room(*law)).min().unwrap_or_default().max(0)
    }
}

// === impl OpenRate for Open ===

impl OpenRate for Open {
    type State = State;

    fn facts(&self) -> RateFacts {
        self.rule.facts()
    }

    fn earliest(&self, from: Micros, cost: i64, kept: i64) -> (Micros, i64) {
        let (rule, state) = (self.rule, &self.state);
        let cost = (cost + kept).min(rule.count).max(cost);
        let mut at = rule.grained(self.now + from);
        if self.fresh {
            return (from, at);
        }
        at = at.max(state.last());
        // The first entry ahead that is later than `at`, and the number that the first permit at `at` gets.
        let (mut i, mut number) = (0, state.total());
        let mut walks: SmallVec<[_; 2]> = self.laws.iter().map(|_| Walk::new(state)).collect();
        loop {
            while let Some((_, permits)) = state.ahead.get(i).filter(|(other, _)| *other <= at) {
                number += permits;
                i += 1;
            }
            let last = number + cost - 1;
            let walked = self.laws.iter().zip(&mut walks);
            let full =
                walked.map(|(law, walk)| walk.free(*law, last, self.now)).max().unwrap_or(at);
            if full > at {
                at = full;
                continue;
            }
            let broken = |law: &Law| self.last_broken(*law, i, at, number, cost);
            match self.laws.iter().filter_map(broken).max() {
                Some(broken) => at = broken,
                None => break,
            }
        }
        (from.max(at - rule.grain + 1 - self.now), at)
    }

    fn take(&mut self, at: i64, cost: i64) -> Grant {
        if self.fresh {
            let mut state = State { born: self.now, ..State::default() };
            if self.state.tells(self.now) {
                // A rule with a longer window that is used later counts these permits.
                (state.floor, state.base) = (self.state.last_of_all(), self.state.number());
            }
            self.state = state;
            self.fresh = false;
        }
        // When no instant before it is free, the ring is closed up to it.
        let closed = self.earliest(0, 1, 0).1 >= at;
        let (rule, state) = (self.rule, &mut self.state);
        state.used_by(rule.law(), self.now);
        state.absorb(if closed { at } else { self.now });
        if closed {
            state.push(at, cost);
        } else {
            state.insert_ahead(at, cost);
            state.absorb(self.now);
        }
        let most = state.most.min(MAX_STAMPS) as usize + 2 + MAX_HOLES;
        state.prune(self.now, most);
        Grant { whole: at, ticks: 0, born: state.born, aux: 0 }
    }

    /// Also a late grant is refunded: it was never used. Not if [`MAX_HOLES`] entries are later than it.
    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        let (span, now, state) = (self.rule.span.max(self.state.span), self.now, &mut self.state);
        let at = grant.whole;
        if self.fresh || grant.born != state.born {
            return false;
        }
        // An entry in the future and within a span of the refunded one may have been delayed by it.
        if let Ok(i) = state.ahead.binary_search_by_key(&at, |(at, _)| *at)
            && state.ahead[i].1 >= cost
        {
            state.ahead[i].1 -= cost;
            if state.ahead[i].1 == 0 {
                state.ahead.remove(i);
            }
            state.open_end(|last| last > now && last > at - span);
            self.fresh = state.is_past(now);
            return true;
        }
        let open = |last: Micros| last >= at || (last > now && last > at - span);
        let mut popped = state.pop_while(open);
        let found = popped.iter().position(|(other, n)| *other == at && *n >= cost);
        if let Some(i) = found {
            popped[i].1 -= cost;
        }
        let mut ahead = Vec::new();
        for (at, permits) in popped.into_iter().rev().filter(|(_, permits)| *permits > 0) {
            if found.is_none() || at <= now {
                state.push(at, permits);
            } else {
                ahead.push((at, permits));
            }
        }
        if !ahead.is_empty() {
            ahead.append(&mut state.ahead);
            state.ahead = ahead;
            // The ring may end at the instant at which the rest begins.
            state.absorb(now);
        }
        self.fresh = state.is_past(now);
        found.is_some()
    }

    fn promise(&mut self, _at: Micros, _start: i64, _kept: i64) {}

    fn level(&self) -> Level {
        let last = self.state.last_of_all() + self.rule.span;
        let reset_after = if self.fresh { 0 } else { (last - self.now).max(0) };
        let next = self.earliest(0, 1, 0).0;
        Level { remaining: self.remaining(), next, reset_after, ..Level::default() }
    }

    fn close(self) -> Option<(State, Micros)> {
        if self.fresh {
            return None;
        }
        let ttl = self.state.last_of_all() + self.state.span - self.now;
        (ttl > 0).then_some((self.state, ttl))
    }

    fn put_back(self, state: &mut State) {
        // The next request may come under the earlier rule.
        *state = self.before.map_or(self.state, |before| *before);
    }
}

#[cfg(test)]
mod tests;
