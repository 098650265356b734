//! The permits that a sliding window remembers, and the questions that the rule asks about them: how many there are up
//! to an instant, and when the permit of a number was granted. Twin of `sliding_window/state.lua`.

use crate::algorithm::{EXACT, MAX_HOLES, Micros, STATE_VERSION, ceil_div, stored::StoredBytes};
use std::{collections::VecDeque, mem};

/// How many rules are remembered beside the last one while their grants count. When one more is used, the rule that
/// was used longest ago is forgotten.
const MAX_OTHERS: usize = 3;
/// How long a state whose permits are all past still informs a rule with a longer window, µs: 5 s, because
/// stores keep every state for 5 s more than it matters.
const KNOWN_PAST: Micros = 5_000_000;

/// The state that a store keeps. An instant is µs of the store's clock; permits are numbered from 0 on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The instant at which the state came into being.
    pub(super) born: Micros,
    /// The instant of the last permit that is no longer kept.
    pub(super) floor: Micros,
    /// How many permits are no longer kept.
    pub(super) base: i64,
    /// The entries of the ring: an instant, and the number of permits up to it.
    pub(super) ring: VecDeque<(Micros, i64)>,
    /// The entries ahead of the ring: an instant and its permits, in order of time.
    pub(super) ahead: Vec<(Micros, i64)>,
    /// The longest span of the rules in use, µs; two rules are in use while gateways get a new configuration.
    pub(super) span: Micros,
    /// The greatest count of the rules in use.
    pub(super) most: i64,
    /// The rule under which the ring is closed.
    pub(super) closed_by: Law,
    /// The other rules in use, the last one first, each with the instant of its last grant.
    pub(super) others: Vec<(Law, Micros)>,
    /// The law that the permits which are no longer kept obey. It is used only with `others`; without them
    /// that law is the last rule.
    pub(super) past: Law,
}

/// A limit on windows: at most `count` permits in any window of `span` µs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Law {
    pub(super) count: i64,
    pub(super) span: Micros,
}

/// Finds permits of growing numbers, in the ring and ahead of it.
pub(super) struct Walk<'a> {
    pub(super) state: &'a State,
    pub(super) i: usize,
    /// The number of permits before the `i`th entry ahead.
    pub(super) number: i64,
}

// === impl Law ===

impl Law {
    /// How many permits the law allows in a window of `span` µs, or `least` if that is more. Both stay far
    /// below 2^53.
    pub(super) fn allows(self, span: Micros, least: i64) -> i64 {
        let windows = ceil_div(span, self.span);
        if windows > EXACT / 8 / self.count { EXACT / 8 } else { least.max(windows * self.count) }
    }

    /// The laws that grants under this rule keep beside it, so that they and the grants of `other` do not
    /// exceed what the laxer of both rules allows: in a window of `other`, and in the greatest multiple of
    /// the own window within it.
    pub(super) fn beside(self, other: Self) -> impl Iterator<Item = Self> {
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
    /// Reads a state as the Lua twin writes it. Slots after its last one are of former writes.
    pub(in crate::algorithm) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [version, _kind] = bytes.bytes()?;
        let [born, floor, base, _last, _total, span] = bytes.integers()?;
        let [most, count, closed_span, _lives] = bytes.integers()?;
        let (past, ring) = (bytes.count()?, bytes.count()?);
        let (ahead, others) = (usize::from(bytes.short()?), usize::from(bytes.short()?));
        bytes.skip(past.checked_mul(16)?)?;
        let ring = bytes.list(ring)?.into_iter().map(|[at, number]| (at, number)).collect();
        let ahead = bytes.list(ahead)?.into_iter().map(|[at, permits]| (at, permits)).collect();
        let law = |[count, span]: [i64; 2]| Law { count, span };
        let laws = bytes.list(others)?;
        let past = laws.first().copied().map(law).unwrap_or_default();
        let pairs = laws.get(1..).unwrap_or_default().as_chunks().0.iter();
        let others: Vec<_> = pairs.map(|[own, [last, _]]| (law(*own), *last)).collect();
        let closed_by = law([count, closed_span]);
        let is_law = |law: &Law| law.count >= 1 && law.span >= 1;
        let has_laws = is_law(&closed_by) && others.iter().all(|(law, _)| is_law(law));
        let is_one = version == STATE_VERSION && span >= 1 && base >= 0;
        let state = Self { born, floor, base, ring, ahead, span, most, closed_by, others, past };
        (is_one && has_laws).then_some(state)
    }

    /// When the state came into being, µs of the store's clock.
    pub(in crate::algorithm) fn born(&self) -> Micros {
        self.born
    }

    /// How many permits are in the ring or before it.
    pub(super) fn total(&self) -> i64 {
        self.ring.back().map_or(self.base, |(_, cum)| *cum)
    }

    /// The instant of the last entry of the ring; no instant before it is free.
    pub(super) fn last(&self) -> Micros {
        self.ring.back().map_or(self.floor, |(at, _)| *at)
    }

    /// The instant of the last permit, in the ring or ahead of it.
    pub(super) fn last_of_all(&self) -> Micros {
        self.ahead.last().map_or(self.last(), |(at, _)| *at)
    }

    /// Whether the past permits are still remembered for a rule with a longer window.
    pub(super) fn tells(&self, now: Micros) -> bool {
        self.last_of_all() + self.span + KNOWN_PAST > now
    }

    /// Whether the state equals an absent one at `now`: all windows with its permits are past.
    pub(super) fn is_past(&self, now: Micros) -> bool {
        self.last_of_all() + self.span <= now
    }

    /// How many permits there are, kept or not.
    pub(super) fn number(&self) -> i64 {
        self.total() + self.ahead.iter().map(|(_, permits)| permits).sum::<i64>()
    }

    /// Drops all entries, and keeps only how many permits there were and when the last one was.
    pub(super) fn forget_all(&mut self) {
        (self.floor, self.base) = (self.last_of_all(), self.number());
        self.ring.clear();
        self.ahead.clear();
    }

    /// The rules in use, each with the instant of its last grant as far as that is known.
    pub(super) fn rules(&self) -> impl Iterator<Item = (Law, Micros)> {
        std::iter::once((self.closed_by, self.last_of_all())).chain(self.others.iter().copied())
    }

    /// The law that all permits of the rules in use obey: the greatest count in the shortest window.
    pub(super) fn common(&self) -> Law {
        let all = self.rules().map(|(law, _)| law);
        all.reduce(|a, b| Law { count: a.count.max(b.count), span: a.span.min(b.span) })
            .unwrap_or_default()
    }

    /// The law that the permits which are no longer kept obey, as far as a rule of `span` needs it.
    pub(super) fn past(&self, span: Micros) -> Law {
        match (span > self.span, self.others.is_empty()) {
            (true, _) => self.common(),
            (false, true) => self.closed_by,
            (false, false) => self.past,
        }
    }

    /// Notes a grant under `rule` at `now`, and drops the rules whose grants no longer count.
    pub(super) fn used_by(&mut self, rule: Law, now: Micros) {
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

    /// Until when `law` delays the permit numbered `number` because of a permit that is no longer kept. Those
    /// permits obey [`Self::past`], so none of them was later than the instant that is assumed here.
    pub(super) fn forgotten(&self, law: Law, number: i64, now: Micros) -> Micros {
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

    /// The number of the first permit that `law` delays at an instant which is its span after `x`.
    pub(super) fn room(&self, law: Law, x: Micros) -> i64 {
        if self.base == 0 || self.floor <= x {
            return self.first_after(x) + law.count;
        }
        let past = self.past(law.span);
        let later = ceil_div(self.floor - x, past.span).min(ceil_div(self.base, past.count));
        let first = (self.base - later * past.count).max(0);
        (self.base + law.count).min(first + past.allows(law.span, law.count))
    }

    /// The instant of the permit numbered `j`, which is in the ring.
    pub(super) fn instant(&self, j: i64) -> Micros {
        self.ring[self.ring.partition_point(|(_, cum)| *cum <= j)].0
    }

    /// The number of the first permit that is later than `x`.
    pub(super) fn first_after(&self, x: Micros) -> i64 {
        let first = match self.ring.partition_point(|(at, _)| *at <= x) {
            0 => self.base,
            i => self.ring[i - 1].1,
        };
        if first < self.total() {
            return first;
        }
        first + self.ahead.iter().take_while(|(at, _)| *at <= x).map(|(_, n)| n).sum::<i64>()
    }

    /// Appends permits to the ring; an entry with the same instant takes them in.
    pub(super) fn push(&mut self, at: Micros, permits: i64) {
        let total = self.total() + permits;
        match self.ring.back_mut() {
            Some((last, cum)) if *last == at => *cum = total,
            _ => self.ring.push_back((at, total)),
        }
    }

    /// Removes the last entry of the ring, and returns its instant and its permits.
    pub(super) fn pop(&mut self) -> Option<(Micros, i64)> {
        let (at, cum) = self.ring.pop_back()?;
        Some((at, cum - self.total()))
    }

    /// Opens the end of the ring, the last entry first, as far as entries may be kept ahead.
    pub(super) fn pop_while(&mut self, open: impl Fn(Micros) -> bool) -> Vec<(Micros, i64)> {
        let mut popped = Vec::new();
        while popped.len() + self.ahead.len() < MAX_HOLES
            && self.ring.back().is_some_and(|(last, _)| open(*last))
            && let Some(entry) = self.pop()
        {
            popped.push(entry);
        }
        popped
    }

    /// Opens the end of the ring, and keeps its entries ahead: there may be room between them.
    pub(super) fn open_end(&mut self, open: impl Fn(Micros) -> bool) {
        for (at, permits) in self.pop_while(open) {
            self.insert_ahead(at, permits);
        }
    }

    /// Drops the entries that are past at `now`, and the first ones above `most` entries.
    pub(super) fn prune(&mut self, now: Micros, most: usize) {
        while let Some((at, cum)) = self.ring.front().copied() {
            if at + self.span > now && self.ring.len() <= most {
                return;
            }
            (self.floor, self.base) = (at, cum);
            self.ring.pop_front();
        }
    }

    /// Moves the entries ahead up to `instant` into the ring, and the first ones above [`MAX_HOLES`].
    pub(super) fn absorb(&mut self, instant: Micros) {
        let until = self.ahead.partition_point(|(at, _)| *at <= instant);
        let until = until.max(self.ahead.len().saturating_sub(MAX_HOLES));
        let mut ahead = mem::take(&mut self.ahead);
        ahead.drain(..until).for_each(|(at, permits)| self.push(at, permits));
        self.ahead = ahead;
    }

    /// Adds permits ahead of the ring; an entry with the same instant takes them in.
    pub(super) fn insert_ahead(&mut self, at: Micros, permits: i64) {
        let i = self.ahead.partition_point(|(other, _)| *other < at);
        match self.ahead.get_mut(i) {
            Some((other, there)) if *other == at => *there += permits,
            _ => self.ahead.insert(i, (at, permits)),
        }
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    pub(super) fn new(state: &'a State) -> Self {
        Self { state, i: 0, number: state.total() }
    }

    /// The instant of the permit numbered `j`; the numbers of successive calls do not fall.
    pub(super) fn instant(&mut self, j: i64) -> Micros {
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

    /// The first instant at which `law` allows the permit numbered `number`; the numbers of successive calls
    /// do not fall.
    pub(super) fn free(&mut self, law: Law, number: i64, now: Micros) -> Micros {
        match number - law.count {
            before if before < self.state.base => self.state.forgotten(law, number, now),
            before => self.instant(before) + law.span,
        }
    }
}
