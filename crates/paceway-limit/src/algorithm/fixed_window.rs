//! Fixed windows of the store's clock with reservations. Twin of `fixed_window.lua`.
//!
//! Window `k` of a period is `[k·period, (k+1)·period)` since the epoch and has room for `count` permits.
//! A caller gets the first window that has room for all of its permits beside what is promised already
//! (first fit): at once when that is the window it asked in, else at its start. Nobody who has a promise
//! is ever delayed, so no mix of costs can starve anyone.
//!
//! Kept are the permits of each window that is not past, as *runs* of equal windows: a queue of full
//! windows is one run, however long. A rule may change while gateways with the old one still ask, so the
//! permits are kept in *sections*, one per period in use, and every grant is charged to all of them: each
//! rule counts what the others granted, and keeps beside its own law that no window of another period gets more than
//! the laxer of both rules allows there. What is above a count is just full.
//!
//! When the clock goes back, windows that were past stay so: instants before the windows of the greatest
//! `now` that wrote the state are never granted.

use super::{Grant, Level, Loss, Micros};
use section::Section;
use smallvec::{SmallVec, smallvec};

/// Periods in use at once; beyond it the one unused longest goes, and starts from the others' permits
/// should it come back.
const MAX_SECTIONS: usize = 4;
/// How much longer than its period a section stays without a grant or a gift of its own. Whoever found the
/// window full comes back a period later at the latest; those who come seldom get this time more.
const UNUSED: Micros = 60_000_000;
/// For so long, µs, a state whose windows are all past still tells a rule with longer ones of them: stores keep every
/// state for 5 s more than it matters.
const KNOWN_PAST: Micros = 5_000_000;
const MAX_COUNT: i64 = 1_000_000_000;
const MIN_PERIOD: Micros = 1_000;
const MAX_PERIOD: Micros = 366 * 86_400 * 1_000_000;

/// The rule: at most `count` permits in each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindow {
    /// Permits.
    count: i64,
    /// µs.
    period: Micros,
}

/// What is remembered: the permits of all windows that were not past when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Since when there has been a state, or a moment ago had been one.
    born: Micros,
    /// The greatest `now` that wrote it.
    clock: Micros,
    /// The period used last comes first.
    sections: SmallVec<[Section; 1]>,
}

/// A state while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: FixedWindow,
    now: Micros,
    /// `now`, or what a state from the future says.
    clock: Micros,
    /// Nothing is granted before it.
    floor: Micros,
    born: Micros,
    /// Of the rule's period.
    own: Section,
    others: Vec<Section>,
}

// === impl FixedWindow ===

impl FixedWindow {
    /// `count` permits in each window of `period` µs. `None` unless `count` is 1 to 10^9 and `period` 1 ms to
    /// 366 days.
    pub fn new(count: i64, period: Micros) -> Option<Self> {
        let fits = (1..=MAX_COUNT).contains(&count) && (MIN_PERIOD..=MAX_PERIOD).contains(&period);
        fits.then_some(Self { count, period })
    }

    /// Permits of an empty window; a greater cost can never be paid.
    pub fn capacity(&self) -> i64 {
        self.count
    }

    /// No room in any window in which something can have been promised before `loss`.
    pub(super) fn used_up(&self, loss: Loss, now: Micros) -> State {
        let own = Section::full(self.period, now, self.count, [loss.at, loss.until()]);
        State { born: now, clock: now, sections: smallvec![own] }
    }

    /// How long a window is, µs.
    pub(super) fn period(&self) -> Micros {
        self.period
    }

    /// One gateway's share of it, see [`Algorithm::share`](super::Algorithm::share).
    pub(super) fn share(&self, gateways: i64, cost: i64) -> Self {
        Self { count: (self.count / gateways).max(cost).min(self.count), ..*self }
    }

    /// The same windows without a limit, see [`Algorithm::spent`](super::Algorithm::spent). `count` is not part of the
    /// state, so a window may have more permits than the rule allows, and is full then.
    pub(super) fn spent(&self) -> Self {
        Self { count: MAX_COUNT, ..*self }
    }

    /// The arguments of the script, in its order.
    pub fn args(&self) -> [i64; 2] {
        [self.count, self.period]
    }
}

// === impl State ===

impl State {
    pub(super) fn born(&self) -> Micros {
        self.born
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. One whose windows are all past equals an absent one.
    pub fn new(state: Option<&mut State>, now: Micros, rule: FixedWindow) -> Self {
        let period = rule.period;
        let fresh = || {
            let (own, others) = (Section::new(period, now), Vec::new());
            Self { rule, now, clock: now, floor: now, born: now, own, others }
        };
        let Some(state) = state else { return fresh() };
        let clock = now.max(state.clock);
        let own = state.sections.iter().find(|section| section.period == period);
        let end = state.sections.iter().map(Section::end).fold(0, Micros::max);
        let is_known = clock < end + KNOWN_PAST;
        if end <= clock && (own.is_some() || !is_known) {
            let born = if is_known { state.born } else { now };
            return Self { born, ..fresh() };
        }
        let mut own = own.cloned().unwrap_or_else(|| {
            Section::converted(period, rule.count, &state.sections, [state.born, state.clock])
        });
        let others = state.sections.iter().filter(|section| section.period != period);
        let mut others: Vec<_> = others.cloned().collect();
        let mut floor = now;
        for section in [&mut own].into_iter().chain(&mut others) {
            section.forget_past(clock);
            if now < clock {
                floor = floor.max(section.window(clock) * section.period);
            }
        }
        Self { rule, now, clock, floor, born: state.born, own, others }
    }

    /// The first instant from `from` on (µs from now) whose window has room for `cost` permits, and the
    /// same since the epoch.
    pub fn earliest(&self, from: Micros, cost: i64) -> (Micros, i64) {
        let mut at = (self.now + from).max(self.floor);
        let most = self.rule.count - cost;
        loop {
            let before = at;
            at = self.own.first_room(at, most);
            for other in &self.others {
                at = other.first_room(at, other.allows(&self.own, self.rule.count) - cost);
            }
            if at == before || self.others.is_empty() {
                return (at - self.now, at);
            }
        }
    }

    /// Takes the permits at the instant that [`Self::earliest`] found. The grant's `aux` is when it was made.
    pub fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.used();
        for section in [&mut self.own].into_iter().chain(&mut self.others) {
            section.add(section.window(start), cost);
            section.bound();
        }
        Grant { whole: start, ticks: 0, born: self.born, aux: self.clock }
    }

    /// Gives an unused grant back, until its window ends; false when there is nothing (left) to give back.
    pub fn give_back(&mut self, grant: Grant, cost: i64) -> bool {
        let (clock, period) = (self.clock, self.rule.period);
        if grant.born != self.born || !self.own.holds(&grant, period, cost, clock) {
            return false;
        }
        self.used();
        for section in [&mut self.own].into_iter().chain(&mut self.others) {
            if section.holds(&grant, period, cost, clock) {
                section.add(section.window(grant.whole), -cost);
                section.bound();
            }
        }
        if self.reset_after() == 0 {
            *self = Self::new(None, self.now, self.rule);
        }
        true
    }

    /// How full the present window is.
    pub fn level(&self) -> Level {
        let (next, _) = self.earliest(0, 1);
        let mut room = self.rule.count - self.own.count(self.own.window(self.now));
        for other in &self.others {
            let all = other.allows(&self.own, self.rule.count);
            room = room.min(all - other.count(other.window(self.now)));
        }
        let remaining = if next == 0 { room } else { 0 };
        Level { remaining, next, reset_after: self.reset_after() }
    }

    /// The state to keep and how long it matters, µs; `None` when it equals an absent one.
    pub fn close(self) -> Option<(State, Micros)> {
        let reset_after = self.reset_after();
        if reset_after <= 0 {
            return None;
        }
        // Empty sections too: who comes back to one must not start from the others' permits.
        let mut sections = smallvec![self.own];
        sections.extend(self.others);
        Some((State { born: self.born, clock: self.clock, sections }, reset_after))
    }

    /// Until the state equals an absent one.
    fn reset_after(&self) -> Micros {
        let end = self.others.iter().map(Section::end).fold(self.own.end(), Micros::max);
        (end - self.now).max(0)
    }

    /// Something is written under this rule: sections that nobody used for long go.
    fn used(&mut self) {
        self.own.asked = self.clock;
        // A charge is no rule: what other periods allow in these windows is still up to the last one.
        if self.rule.count < MAX_COUNT {
            self.own.limit = self.rule.count;
        }
        self.others.retain(|section| self.clock - section.asked <= section.period + UNUSED);
        self.others.truncate(MAX_SECTIONS - 1);
    }
}

mod section;
#[cfg(test)]
mod tests;
