//! Fixed windows of the store's clock with reservations. Twin of `fixed_window.lua`.
//!
//! Window `k` of a period is `[k·period, (k+1)·period)` since the epoch and has room for `count` permits. A
//! request gets the first window that has room for all of its permits beside the permits that are already
//! promised (first fit): it is granted at once when that is the present window, else at the start of that
//! window. No promise is ever delayed, so no mix of costs can starve a request.
//!
//! The state keeps the permits of each window that is not past, as *runs* of equal windows: a queue of full
//! windows is one run, however long. A rule may change while gateways with the old one still ask. Therefore
//! the permits are kept in *sections*, one per period in use, and every grant is charged to all of them: each
//! rule counts the grants of the others. Beside its own law each rule ensures that no window of another
//! period gets more than the laxer of both rules allows there. A window with more permits than its count is
//! simply full.
//!
//! When the clock is set back, windows that were past stay past: instants before the windows of the greatest
//! `now` that wrote the state are never granted.

use super::{
    Algorithm, DataLoss, Grant, Level, MAX_BUDGET, Micros, OpenRate, RateFacts, RateRule, Returns,
    STATE_VERSION,
    nanohertz::{Nanohertz, nanohertz},
    stored::StoredBytes,
};
use section::Section;
use smallvec::{SmallVec, smallvec};

/// How many periods a state keeps at once. When one more is used, the section that was unused for the longest
/// time is dropped. If its period is used again, its section begins with the permits of the others.
const MAX_SECTIONS: usize = 4;
/// How much longer than its period a section is kept without a grant or a refund of its own, µs: 60 s. A
/// request that found the window full comes back after one period at the latest; this is the extra time for
/// rarer requests.
const UNUSED: Micros = 60_000_000;
/// How long a state whose windows are all past still informs a rule with longer windows, µs: 5 s, because
/// stores keep every state for 5 s more than it matters.
const KNOWN_PAST: Micros = 5_000_000;
const MAX_COUNT: i64 = 1_000_000_000;
const MIN_PERIOD: Micros = 1_000;
const MAX_PERIOD: Micros = 366 * 86_400 * 1_000_000;

/// The rule of a fixed window: at most `count` permits in each window of `period` µs.
///
/// ```
/// use paceway_limit::algorithm::{FixedWindow, RateRule};
///
/// // 1000 permits in each hour of the store's clock.
/// let rule = FixedWindow::new(1000, 3_600_000_000).expect("a legal rule");
/// assert_eq!(rule.facts().capacity, 1000);
/// // Periods from 1 ms to 366 days are legal.
/// assert!(FixedWindow::new(1000, 10).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedWindow {
    /// How many permits each window has room for.
    count: i64,
    /// The length of a window, µs.
    period: Micros,
}

/// The state that a store keeps: the permits of all windows that were not past when it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The instant at which the state came into being, µs. It survives up to 5 s without any permit in use.
    born: Micros,
    /// The greatest `now` that wrote the state, µs.
    clock: Micros,
    /// One section for each period in use; the period that was used last comes first.
    sections: SmallVec<[Section; 1]>,
}

/// The state of a fixed window while it is worked on, with the rule under which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: FixedWindow,
    now: Micros,
    /// `now`, or the clock of the state when that one is later.
    clock: Micros,
    /// The first instant at which permits may be granted, µs.
    floor: Micros,
    born: Micros,
    /// The section of the rule's own period.
    own: Section,
    /// The sections of the other periods in use.
    others: Vec<Section>,
}

// === impl FixedWindow ===

impl FixedWindow {
    /// `count` permits in each window of `period` µs. `None` unless `count` is 1 to 10^9 and `period` is 1 ms
    /// to 366 days.
    pub fn new(count: i64, period: Micros) -> Option<Self> {
        let fits = (1..=MAX_COUNT).contains(&count) && (MIN_PERIOD..=MAX_PERIOD).contains(&period);
        fits.then_some(Self { count, period })
    }
}

// === impl RateRule for FixedWindow ===

impl RateRule for FixedWindow {
    fn facts(&self) -> RateFacts {
        RateFacts {
            name: "fixed_window",
            letter: b'F',
            capacity: self.count,
            burst: None,
            pace: [self.period, self.count],
            margin: 0,
            longest_wait: MAX_BUDGET,
            returns: Returns::AtWindowEnd { since: 0, period: self.period },
            debt: |_| 0,
            endless: (*self).into(),
            // `count` is not part of the state, so a window may have more permits than the rule allows, and is full then.
            spent: Self { count: MAX_COUNT, ..*self }.into(),
            gate_field: Some(|grant| &mut grant.ticks),
            spaces_permits: false,
        }
    }

    fn numbers(&self) -> SmallVec<[i64; 6]> {
        SmallVec::from_slice(&[self.count, self.period])
    }

    fn rate(&self) -> Nanohertz {
        nanohertz(self.count, self.period)
    }

    fn with_rate(&self, count: i64, period: Micros, _margin: Micros) -> Option<Algorithm> {
        Self::new(count, period).map(Into::into)
    }

    fn at_rate(&self, _rate: Nanohertz) -> Option<Algorithm> {
        None
    }

    fn share(&self, gateways: i64, _period: Micros, cost: i64) -> Algorithm {
        Self { count: (self.count / gateways).max(cost).min(self.count), ..*self }.into()
    }

    fn unused_of(&self, grant: Grant, _cost: i64, _used: i64) -> Grant {
        // Each of the permits is at the instant of the grant.
        grant
    }

    /// Each window in which a permit can have been promised before `loss` is full.
    fn used_up(&self, loss: DataLoss, now: Micros) -> super::State {
        let own = Section::full(self.period, now, self.count, [loss.at, loss.until()]);
        super::State::FixedWindow(State { born: now, clock: now, sections: smallvec![own] })
    }

    fn longest_debt(&self, wait: Micros, _greatest_cost: i64) -> Micros {
        wait
    }
}

// === impl State ===

impl State {
    /// Reads a state as the Lua twin writes it.
    pub(super) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [version, _kind, sections] = bytes.bytes()?;
        let [born, clock] = bytes.integers()?;
        let sections = (0..sections).map(|_| Section::read(bytes)).collect::<Option<_>>()?;
        (version == STATE_VERSION).then_some(Self { born, clock, sections })
    }

    pub(super) fn born(&self) -> Micros {
        self.born
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. A state whose windows are all past equals an absent one.
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

    /// The time until the state equals an absent one, µs.
    fn reset_after(&self) -> Micros {
        let end = self.others.iter().map(Section::end).fold(self.own.end(), Micros::max);
        (end - self.now).max(0)
    }

    /// Notes a grant or a refund under this rule, and drops the sections that were unused for a long time.
    fn used(&mut self) {
        self.own.asked = self.clock;
        // A charge by [`RateFacts::spent`] is no rule: the last rule still decides what other periods may
        // allow in these windows.
        if self.rule.count < MAX_COUNT {
            self.own.limit = self.rule.count;
        }
        self.others.retain(|section| self.clock - section.asked <= section.period + UNUSED);
        self.others.truncate(MAX_SECTIONS - 1);
    }
}

// === impl OpenRate for Open ===

impl OpenRate for Open {
    type State = State;

    fn facts(&self) -> RateFacts {
        self.rule.facts()
    }

    fn earliest(&self, from: Micros, cost: i64, kept: i64) -> (Micros, i64) {
        let cost = (cost + kept).min(self.rule.count).max(cost);
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

    /// `aux` of the grant is the instant at which it was made.
    fn take(&mut self, start: i64, cost: i64) -> Grant {
        self.used();
        for section in [&mut self.own].into_iter().chain(&mut self.others) {
            section.add(section.window(start), cost);
            section.bound();
        }
        Grant { whole: start, ticks: 0, born: self.born, aux: self.clock }
    }

    /// A grant can be refunded until its window ends.
    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
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

    fn promise(&mut self, _at: Micros, _start: i64, _kept: i64) {}

    fn level(&self) -> Level {
        let (next, _) = self.earliest(0, 1, 0);
        let mut room = self.rule.count - self.own.count(self.own.window(self.now));
        for other in &self.others {
            let all = other.allows(&self.own, self.rule.count);
            room = room.min(all - other.count(other.window(self.now)));
        }
        let remaining = if next == 0 { room } else { 0 };
        Level { remaining, next, reset_after: self.reset_after(), ..Level::default() }
    }

    fn close(self) -> Option<(State, Micros)> {
        let reset_after = self.reset_after();
        if reset_after <= 0 {
            return None;
        }
        // Empty sections are kept, too: a rule that comes back to one must not start from the permits of the
        // others.
        let mut sections = smallvec![self.own];
        sections.extend(self.others);
        Some((State { born: self.born, clock: self.clock, sections }, reset_after))
    }

    fn put_back(self, _state: &mut State) {}
}

mod section;
#[cfg(test)]
mod tests;
