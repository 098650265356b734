//! Sliding window log with reservations. Twin of `sliding_window.lua`.
//!
//! At most `count` permits in any half-open window of `span` = period + margin µs, wherever it starts. A
//! caller gets the first instant that this allows, given everything that is promised already (first fit):
//! nobody is delayed by who comes later, and a small request may use room that a large one cannot.
//!
//! With all permits in one order `v`, the law is `v[k] - v[k - count] >= span` for every `k`. So a grant at
//! `t` has to look at one instant before it, and at those of the later ones that are within a span of it.
//!
//! The grants are kept as the *ring*, which is closed (nothing earlier than its last entry is free), and
//! what lies *ahead* of it: grants with free time before them, because their request waits for another
//! limiter or because somebody left. Without those, a decision appends one entry and reads one.
//!
//! Above 10,000 permits the instants are kept in grains of a ten thousandth of the period, rounded up,
//! and the span is one grain longer: still never too many, at the price of two parts in ten thousand.

use super::{EXACT, Grant, Level, Loss, MAX_HOLES, Micros, ceil_div};
use std::{collections::VecDeque, mem};

/// Instants kept exactly.
const MAX_STAMPS: i64 = 10_000;

/// The rule: at most `count` in any window of `span` µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    count: i64,
    /// Period and margin in whole grains, and one more where a grain is more than a µs.
    span: Micros,
    /// µs.
    grain: Micros,
    margin: Micros,
}

/// What is remembered. An instant is µs of the store's clock; permits are numbered from 0 on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    born: Micros,
    /// Instant of the last permit that is not kept though it was not past.
    floor: Micros,
    /// How many are not kept.
    base: i64,
    /// Instant, and how many there are up to it.
    ring: VecDeque<(Micros, i64)>,
    /// Instant and permits, in order.
    ahead: Vec<(Micros, i64)>,
    /// The longest span that has been asked about; a configuration that is being rolled out brings two.
    span: Micros,
    /// The greatest count.
    most: i64,
    /// Count and span of the rule under which the ring is closed.
    closed_by: (i64, Micros),
}

/// A state while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: SlidingWindow,
    now: Micros,
    state: State,
    /// As it was, where this rule is another than the one before.
    before: Option<Box<State>>,
    /// The state equals an absent one.
    fresh: bool,
}

/// Finds permits of growing numbers, also among those ahead.
struct Walk<'a> {
    state: &'a State,
    i: usize,
    /// Permits before the `i`th ahead.
    number: i64,
}

// === impl SlidingWindow ===

impl SlidingWindow {
    /// At most `count` permits in any `period` µs, with `margin` µs for the way upstream that varies. `None`
    /// when `count` or `period` is not positive, `margin` is negative, or all together is beyond exact
    /// arithmetic.
    pub fn new(count: i64, period: Micros, margin: Micros) -> Option<Self> {
        if count < 1 || period < 1 || margin < 0 {
            return None;
        }
        let grain = if count > MAX_STAMPS { ceil_div(period, MAX_STAMPS) } else { 1 };
        let whole = ceil_div(period.checked_add(margin)?, grain).checked_mul(grain)?;
        let span = if grain > 1 { whole + grain } else { whole };
        // An instant of the store is below 2^51 until the year 2041, and a sum stays exact.
        let exact = span < EXACT / 8 && count < EXACT / 8;
        exact.then_some(Self { count, span, grain, margin })
    }

    /// The greatest cost.
    pub fn capacity(&self) -> i64 {
        self.count
    }

    /// Extra spacing, µs.
    pub fn margin(&self) -> Micros {
        self.margin
    }

    /// How long a window is, µs, as it is kept.
    pub(super) fn span(&self) -> Micros {
        self.span
    }

    /// One gateway's share of it, see [`Algorithm::share`](super::Algorithm::share).
    pub(super) fn share(&self, gateways: i64, cost: i64) -> Self {
        Self { count: (self.count / gateways).max(cost).min(self.count), ..*self }
    }

    /// The arguments of the script, in its order.
    pub fn args(&self) -> [i64; 3] {
        [self.count, self.span, self.grain]
    }

    /// As many as may be, all at the last instant that can have been promised before `loss`.
    pub(super) fn used_up(&self, loss: Loss, now: Micros) -> State {
        State {
            born: now,
            ring: VecDeque::from([(self.grained(loss.until()), self.count)]),
            span: self.span,
            most: self.count,
            closed_by: (self.count, self.span),
            ..State::default()
        }
    }

    /// As it is kept: the end of its grain.
    fn grained(&self, instant: Micros) -> Micros {
        ceil_div(instant, self.grain) * self.grain
    }
}

// === impl State ===

impl State {
    pub(super) fn born(&self) -> Micros {
        self.born
    }

    /// How many permits stand in the ring or before it.
    fn total(&self) -> i64 {
        self.ring.back().map_or(self.base, |(_, cum)| *cum)
    }

    /// The last instant of the ring; nothing before it is free.
    fn last(&self) -> Micros {
        self.ring.back().map_or(self.floor, |(at, _)| *at)
    }

    fn last_of_all(&self) -> Micros {
        self.ahead.last().map_or(self.last(), |(at, _)| *at)
    }

    /// Whether it equals an absent one at `now`.
    fn is_past(&self, now: Micros) -> bool {
        self.last_of_all() + self.span <= now
    }

    /// Instant of the permit numbered `j`, one of the ring or before it.
    fn instant(&self, j: i64) -> Micros {
        if j < self.base {
            return self.floor;
        }
        self.ring[self.ring.partition_point(|(_, cum)| *cum <= j)].0
    }

    /// Number of the first permit that is later than `x`.
    fn first_after(&self, x: Micros) -> i64 {
        let first = match self.ring.partition_point(|(at, _)| *at <= x) {
            0 => self.base,
            i => self.ring[i - 1].1,
        };
        if first < self.total() {
            return first;
        }
        first + self.ahead.iter().take_while(|(at, _)| *at <= x).map(|(_, n)| n).sum::<i64>()
    }

    fn push(&mut self, at: Micros, permits: i64) {
        let total = self.total() + permits;
        match self.ring.back_mut() {
            Some((last, cum)) if *last == at => *cum = total,
            _ => self.ring.push_back((at, total)),
        }
    }

    fn pop(&mut self) -> Option<(Micros, i64)> {
        let (at, cum) = self.ring.pop_back()?;
        Some((at, cum - self.total()))
    }

    /// Opens the end of the ring, the last first, up to what may lie ahead.
    fn pop_while(&mut self, open: impl Fn(Micros) -> bool) -> Vec<(Micros, i64)> {
        let mut popped = Vec::new();
        while popped.len() + self.ahead.len() < MAX_HOLES
            && self.ring.back().is_some_and(|(last, _)| open(*last))
            && let Some(entry) = self.pop()
        {
            popped.push(entry);
        }
        popped
    }

    /// Forgets what is past at `now`, and what is more than `most` entries.
    fn prune(&mut self, now: Micros, most: usize) {
        while let Some((at, cum)) = self.ring.front().copied() {
            if at + self.span > now {
                if self.ring.len() <= most {
                    return;
                }
                self.floor = at;
            }
            self.base = cum;
            self.ring.pop_front();
        }
    }

    /// Closes the ring behind what lies ahead up to `instant`, and behind what is too much.
    fn absorb(&mut self, instant: Micros) {
        let until = self.ahead.partition_point(|(at, _)| *at <= instant);
        let until = until.max(self.ahead.len().saturating_sub(MAX_HOLES));
        let mut ahead = mem::take(&mut self.ahead);
        ahead.drain(..until).for_each(|(at, permits)| self.push(at, permits));
        self.ahead = ahead;
    }

    fn insert_ahead(&mut self, at: Micros, permits: i64) {
        let i = self.ahead.partition_point(|(other, _)| *other < at);
        match self.ahead.get_mut(i) {
            Some((other, there)) if *other == at => *there += permits,
            _ => self.ahead.insert(i, (at, permits)),
        }
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(state: &'a State) -> Self {
        Self { state, i: 0, number: state.total() }
    }

    /// Instant of the permit numbered `j`, which is not less than it was before.
    fn instant(&mut self, j: i64) -> Micros {
        let state = self.state;
        if j < state.total() {
            return state.instant(j);
        }
        while let Some((at, permits)) = state.ahead.get(self.i) {
            if self.number + permits > j {
                return *at;
            }
            self.number += permits;
            self.i += 1;
        }
        state.last_of_all()
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`; it moves out of `state` until [`Self::put_back`] or [`Self::close`]. The
    /// instants are the same under every rule.
    pub fn new(state: Option<&mut State>, now: Micros, rule: SlidingWindow) -> Self {
        let mut state = state.map(mem::take).unwrap_or_default();
        let fresh = state.is_past(now);
        let mut before = None;
        if !fresh && state.closed_by != (rule.count, rule.span) {
            before = Some(Box::new(state.clone()));
            // Under another rule there may be room between those who wait.
            let popped = state.pop_while(|last| last > now);
            popped.into_iter().for_each(|(at, permits)| state.insert_ahead(at, permits));
        }
        Self { rule, now, state, before, fresh }
    }

    /// The first instant from `from` on (µs from now) at which `cost` permits may be granted, and how it is
    /// kept.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        let (rule, state) = (self.rule, &self.state);
        let mut at = rule.grained(self.now + from);
        if self.fresh {
            return (from, at);
        }
        at = at.max(state.last());
        // The first ahead that is later than `at`, and the number that the first permit at `at` gets.
        let (mut i, mut number) = (0, state.total());
        let mut walk = Walk::new(state);
        loop {
            while let Some((_, permits)) = state.ahead.get(i).filter(|(other, _)| *other <= at) {
                number += permits;
                i += 1;
            }
            let full = walk.instant(number + cost - 1 - rule.count) + rule.span;
            if full > at {
                at = full;
                continue;
            }
            match self.last_broken(i, at, number, cost) {
                Some(broken) => at = broken,
                None => break,
            }
        }
        (from.max(at - rule.grain + 1 - self.now), at)
    }

    /// The last of those ahead (from the `i`th on) that `cost` permits at `at`, numbered from `number` on, would
    /// make one too many.
    fn last_broken(&self, i: usize, at: Micros, number: i64, cost: i64) -> Option<Micros> {
        let (rule, state) = (self.rule, &self.state);
        let (mut broken, mut end, mut walk) = (None, number, Walk::new(state));
        for (later, permits) in state.ahead[i..].iter().take_while(|(l, _)| *l < at + rule.span) {
            end += permits;
            let before = end + cost - 1 - rule.count;
            // From `number` on stand those at `at` itself: within a span of it.
            if before >= number || walk.instant(before) + rule.span > *later {
                broken = Some(*later);
            }
        }
        broken
    }

    /// Takes what [`Self::earliest`] found.
    pub fn take(&mut self, at: i64, cost: i64) -> Grant {
        if self.fresh {
            self.state = State { born: self.now, ..State::default() };
            self.fresh = false;
        }
        // When nothing is free before it, the ring is closed up to it.
        let closed = self.earliest(0, 1).1 >= at;
        let (rule, state) = (self.rule, &mut self.state);
        state.span = state.span.max(rule.span);
        state.most = state.most.max(rule.count);
        state.closed_by = (rule.count, rule.span);
        state.absorb(if closed { at } else { self.now });
        match closed {
            true => state.push(at, cost),
            false => {
                state.insert_ahead(at, cost);
                state.absorb(self.now);
            }
        }
        let most = state.most.min(MAX_STAMPS) as usize + 2 + MAX_HOLES;
        state.prune(self.now, most);
        Grant { whole: at, ticks: 0, born: state.born, aux: 0 }
    }

    /// Gives an unused grant back, also a late one: it was never used. False when there is nothing to give
    /// back, or when as many as [`MAX_HOLES`] lie behind it.
    pub fn give_back(&mut self, grant: Grant, cost: i64) -> bool {
        let (span, now, state) = (self.rule.span.max(self.state.span), self.now, &mut self.state);
        let at = grant.whole;
        if self.fresh || grant.born != state.born {
            return false;
        }
        // What is in the future and within a span of it may have been placed because of it.
        if let Ok(i) = state.ahead.binary_search_by_key(&at, |(at, _)| *at)
            && state.ahead[i].1 >= cost
        {
            state.ahead[i].1 -= cost;
            if state.ahead[i].1 == 0 {
                state.ahead.remove(i);
            }
            let popped = state.pop_while(|last| last > now && last > at - span);
            popped.into_iter().for_each(|(at, permits)| state.insert_ahead(at, permits));
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
            match found.is_none() || at <= now {
                true => state.push(at, permits),
                false => ahead.push((at, permits)),
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

    /// How full the window is.
    pub fn level(&self) -> Level {
        let reset_after = match self.fresh {
            true => 0,
            false => (self.state.last_of_all() + self.rule.span - self.now).max(0),
        };
        Level { remaining: self.remaining(), next: self.earliest(0, 1).0, reset_after }
    }

    fn remaining(&self) -> i64 {
        let (rule, state) = (self.rule, &self.state);
        if self.fresh {
            return rule.count;
        }
        let at = rule.grained(self.now);
        if state.last() > at || state.floor > at - rule.span {
            return 0;
        }
        // What lies ahead and has come is not in the ring yet.
        let come = state.ahead.partition_point(|(other, _)| *other <= at);
        let mut end = state.total() + state.ahead[..come].iter().map(|(_, n)| n).sum::<i64>();
        let mut room = state.first_after(at - rule.span) + rule.count - end;
        for (later, permits) in state.ahead[come..].iter().take_while(|(l, _)| *l < at + rule.span)
        {
            end += permits;
            room = room.min(state.first_after(later - rule.span) + rule.count - end);
        }
        room.max(0)
    }

    /// The state to keep and how long it matters, µs; `None` when it equals an absent one.
    pub fn close(self) -> Option<(State, Micros)> {
        if self.fresh {
            return None;
        }
        let ttl = self.state.last_of_all() + self.state.span - self.now;
        (ttl > 0).then_some((self.state, ttl))
    }

    /// Nothing was taken: the next one may come under the earlier rule.
    pub fn put_back(self, state: &mut State) {
        *state = self.before.map_or(self.state, |before| *before);
    }
}

#[cfg(test)]
mod tests;
