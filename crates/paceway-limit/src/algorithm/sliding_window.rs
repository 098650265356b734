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
//! While gateways with two rules use one state, each request also keeps a law that its own rule does not imply when the
//! other rule is the longer one: in that one's window, at most its count or what the own rule allows there, whichever is
//! more. Of permits that are no longer kept, their rule says how late they can have been.
//!
//! Above 10,000 permits the instants are kept in grains of a ten thousandth of the period, rounded up,
//! and the span is one grain longer: still never too many, at the price of two parts in ten thousand.

use super::{DataLoss, EXACT, Grant, Level, MAX_HOLES, Micros, ceil_div};
use smallvec::SmallVec;
use std::{collections::VecDeque, mem};

/// Instants kept exactly.
const MAX_STAMPS: i64 = 10_000;
/// Rules beside the last one that are remembered while their grants count; of more, the one used longest ago goes.
const MAX_OTHERS: usize = 3;
/// For so long, µs, a state whose permits are all past still tells a rule with a longer window of them: stores keep
/// every state for 5 s more than it matters.
const KNOWN_PAST: Micros = 5_000_000;

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
    /// Instant of the last permit that is not kept.
    floor: Micros,
    /// How many are not kept.
    base: i64,
    /// Instant, and how many there are up to it.
    ring: VecDeque<(Micros, i64)>,
    /// Instant and permits, in order.
    ahead: Vec<(Micros, i64)>,
    /// The longest span of the rules in use; a configuration that is being rolled out brings two.
    span: Micros,
    /// The greatest count.
    most: i64,
    /// The rule under which the ring is closed.
    closed_by: Law,
    /// The other rules in use, the last one first, each with the instant of its last grant.
    others: Vec<(Law, Micros)>,
    /// What the permits that are not kept obey; meaningless without `others`, then it is the last rule.
    past: Law,
}

/// At most `count` permits in any window of `span` µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Law {
    count: i64,
    span: Micros,
}

/// A state while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: SlidingWindow,
    now: Micros,
    state: State,
    /// What other rules ask of grants of this one.
    laws: SmallVec<[Law; 2]>,
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
    pub(super) fn used_up(&self, loss: DataLoss, now: Micros) -> State {
        State {
            born: now,
            ring: VecDeque::from([(self.grained(loss.until()), self.count)]),
            span: self.span,
            most: self.count,
            closed_by: self.law(),
            ..State::default()
        }
    }

    fn law(&self) -> Law {
        Law { count: self.count, span: self.span }
    }

    /// As it is kept: the end of its grain.
    fn grained(&self, instant: Micros) -> Micros {
        ceil_div(instant, self.grain) * self.grain
    }
}

// === impl Law ===

impl Law {
    /// How many permits it allows in a window of `span` µs, or `least` if that is more. Both stay far below 2^53.
    fn allows(self, span: Micros, least: i64) -> i64 {
        let windows = ceil_div(span, self.span);
        match windows > EXACT / 8 / self.count {
            true => EXACT / 8,
            false => least.max(windows * self.count),
        }
    }

    /// What grants under this rule have to keep beside it, so that those of `other` do not add up with them beyond what
    /// the laxer of both rules allows, in a window of `other` and in the greatest multiple of the own one within it.
    fn beside(self, other: Self) -> impl Iterator<Item = Self> {
        let whole = other.span / self.span * self.span;
        let in_whole = Self { count: self.allows(whole.max(1), other.count), span: whole };
        let in_other = Self { count: self.allows(other.span, other.count), span: other.span };
        let is_longer = other.span > self.span;
        let first = (is_longer && in_whole != self).then_some(in_whole);
        let second = (is_longer && whole < other.span).then_some(in_other);
        first.into_iter().chain(second)
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

    /// Whether what is past is still known to whom it concerns.
    fn tells(&self, now: Micros) -> bool {
        self.last_of_all() + self.span + KNOWN_PAST > now
    }

    /// Whether it equals an absent one at `now`.
    fn is_past(&self, now: Micros) -> bool {
        self.last_of_all() + self.span <= now
    }

    /// How many permits there are.
    fn number(&self) -> i64 {
        self.total() + self.ahead.iter().map(|(_, permits)| permits).sum::<i64>()
    }

    /// Keeps none, only how many there were and when the last one was.
    fn forget_all(&mut self) {
        (self.floor, self.base) = (self.last_of_all(), self.number());
        self.ring.clear();
        self.ahead.clear();
    }

    /// The rules in use, each with the instant of its last grant as far as that is known.
    fn rules(&self) -> impl Iterator<Item = (Law, Micros)> {
        std::iter::once((self.closed_by, self.last_of_all())).chain(self.others.iter().copied())
    }

    /// What all permits obey that were granted under the rules in use: in the shortest window the greatest count.
    fn common(&self) -> Law {
        let all = self.rules().map(|(law, _)| law);
        all.reduce(|a, b| Law { count: a.count.max(b.count), span: a.span.min(b.span) })
            .unwrap_or_default()
    }

    /// What the permits that are not kept obey, for a rule of `span`.
    fn past(&self, span: Micros) -> Law {
        match (span > self.span, self.others.is_empty()) {
            (true, _) => self.common(),
            (false, true) => self.closed_by,
            (false, false) => self.past,
        }
    }

    /// A grant under `rule` at `now`.
    fn used_by(&mut self, rule: Law, now: Micros) {
        if self.closed_by == rule && self.others.is_empty() {
            return;
        }
        if self.closed_by.count > 0 && self.closed_by != rule {
            self.past = self.past(rule.span);
            self.others.insert(0, (self.closed_by, self.last_of_all()));
        }
        self.closed_by = rule;
        let span = self.span.max(rule.span);
        self.others.retain(|(law, last)| *law != rule && last + span > now);
        self.others.truncate(MAX_OTHERS);
        self.span = self.others.iter().map(|(law, _)| law.span).fold(rule.span, Micros::max);
        self.most = self.others.iter().map(|(law, _)| law.count).fold(rule.count, i64::max);
    }

    /// Until when `law` keeps the permit numbered `number` out because of one that is not kept: no permit obeys
    /// [`Self::past`] and is later than this says.
    fn forgotten(&self, law: Law, number: i64, now: Micros) -> Micros {
        if self.base == 0 || self.floor + law.span <= now {
            return 0;
        }
        let past = self.past(law.span);
        let before = number - past.allows(law.span, law.count);
        if before < 0 {
            return 0;
        }
        self.floor - (ceil_div(self.base - before, past.count) - 1) * past.span + law.span
    }

    /// The number of the first permit that `law` keeps out at an instant that is its span behind `x`.
    fn room(&self, law: Law, x: Micros) -> i64 {
        if self.base == 0 || self.floor <= x {
            return self.first_after(x) + law.count;
        }
        let past = self.past(law.span);
        let later = ceil_div(self.floor - x, past.span).min(ceil_div(self.base, past.count));
        let first = (self.base - later * past.count).max(0);
        (self.base + law.count).min(first + past.allows(law.span, law.count))
    }

    /// Instant of the permit numbered `j`, one of the ring.
    fn instant(&self, j: i64) -> Micros {
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
            if at + self.span > now && self.ring.len() <= most {
                return;
            }
            (self.floor, self.base) = (at, cum);
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

    /// The first instant at which `law` allows the permit numbered `number`, which is not less than it was before.
    fn free(&mut self, law: Law, number: i64, now: Micros) -> Micros {
        match number - law.count {
            before if before < self.state.base => self.state.forgotten(law, number, now),
            before => self.instant(before) + law.span,
        }
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`; it moves out of `state` until [`Self::put_back`] or [`Self::close`]. The
    /// instants are the same under every rule.
    pub fn new(state: Option<&mut State>, now: Micros, rule: SlidingWindow) -> Self {
        let mut state = state.map(mem::take).unwrap_or_default();
        let (mut fresh, mut before, mut laws) = (state.is_past(now), None, SmallVec::new());
        let law = rule.law();
        let is_another = state.closed_by != law || !state.others.is_empty();
        if fresh && is_another && state.last_of_all() + rule.span > now && state.tells(now) {
            // Past for the rules that know it, and not for a longer one.
            fresh = false;
            before = Some(Box::new(state.clone()));
            state.forget_all();
        } else if !fresh && is_another {
            if state.closed_by != law {
                before = Some(Box::new(state.clone()));
                // Under another rule there may be room between those who wait.
                let popped = state.pop_while(|last| last > now);
                popped.into_iter().for_each(|(at, permits)| state.insert_ahead(at, permits));
            }
            let others = state.rules().filter(|(other, last)| last + other.span > now);
            laws = others.flat_map(|(other, _)| law.beside(other)).collect();
        }
        Self { rule, now, state, laws, before, fresh }
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
        let mut walks: SmallVec<[_; 2]> = self.laws.iter().map(|_| Walk::new(state)).collect();
        loop {
            while let Some((_, permits)) = state.ahead.get(i).filter(|(other, _)| *other <= at) {
                number += permits;
                i += 1;
            }
            let last = number + cost - 1;
            let mut full = walk.free(rule.law(), last, self.now);
            for (law, walk) in self.laws.iter().zip(&mut walks) {
                full = full.max(walk.free(*law, last, self.now));
            }
            if full > at {
                at = full;
                continue;
            }
            let laws = std::iter::once(rule.law()).chain(self.laws.iter().copied());
            match laws.filter_map(|law| self.last_broken(law, i, at, number, cost)).max() {
                Some(broken) => at = broken,
                None => break,
            }
        }
        (from.max(at - rule.grain + 1 - self.now), at)
    }

    /// The last of those ahead (from the `i`th on) that `cost` permits at `at`, numbered from `number` on, would
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
            // From `number` on stand those at `at` itself: within a span of it.
            if last - law.count >= number || walk.free(law, last, self.now) > *later {
                broken = Some(*later);
            }
        }
        broken
    }

    /// Takes what [`Self::earliest`] found.
    pub fn take(&mut self, at: i64, cost: i64) -> Grant {
        if self.fresh {
            let mut state = State { born: self.now, ..State::default() };
            if self.state.tells(self.now) {
                // A longer rule that comes later counts them.
                (state.floor, state.base) = (self.state.last_of_all(), self.state.number());
            }
            self.state = state;
            self.fresh = false;
        }
        // When nothing is free before it, the ring is closed up to it.
        let closed = self.earliest(0, 1).1 >= at;
        let (rule, state) = (self.rule, &mut self.state);
        state.used_by(rule.law(), self.now);
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
    pub fn refund(&mut self, grant: Grant, cost: i64) -> bool {
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
        if state.last() > at {
            return 0;
        }
        // What lies ahead and has come is not in the ring yet.
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
        let room = self.laws.iter().map(|law| room(*law)).fold(room(rule.law()), i64::min);
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
