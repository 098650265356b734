//! Windows of a calendar with reservations, whose permits may flow evenly. Twin of `calendar_window.lua`.
//!
//! The store knows no time zones. A rule therefore carries the start of the window that its gateway is in, that of the next one
//! and of the one after it; before and after them the windows are as long as the nearest. Gateways renew the rule when a window
//! has ended, long before its instants are used up.
//!
//! The instants of a window that has permits in use are part of the state, and the store decides by its own clock which window
//! it is in. So gateways with other zone data agree: the first one that uses a window says when it ends. A rule whose windows
//! are others, by more than zone data can differ, counts what is used of the present window in its own.
//!
//! A request gets the first window that has room for all of its permits. With [`CalendarWindow::even`] it gets a *slot* there:
//! after a grant of n permits the next one comes n times the *interval* later, which is the time to the end of the window by the
//! permits that are left. A slot that no request has used is lost, and later intervals are shorter. Those that come back in time,
//! or that a request left out because another limiter delayed it, are free slots for others. Windows bound the permits in all
//! cases; the slots only spread them.

use super::{
    Algorithm, DataLoss, EXACT, Grant, MAX_BUDGET, Micros, RateFacts, RateRule, Returns,
    STATE_VERSION,
    nanohertz::{Nanohertz, nanohertz},
    stored::StoredBytes,
};
pub use open::Open;
use smallvec::{SmallVec, smallvec};

/// How many windows a state keeps. Requests wait for at most an hour, and two windows of an hour begin meanwhile; more are kept
/// after changes of the rule. The last one then has the permits of all later ones.
const MAX_WINDOWS: usize = 64;
/// How many rows of free slots a state keeps. The permits of more flow in the rest of the window.
const MAX_ROWS: usize = 256;
/// By how much the end of a window may differ between gateways that mean the same one, µs: 3 h, or the eighth of a short window.
const NEAR: Micros = 10_800_000_000;
/// The most permits of a window, which charges above the count do not pass.
const MOST: i64 = 1_000_000_000_000;
const MAX_COUNT: i64 = 1_000_000_000;
const MIN_LENGTH: Micros = 1_000;
const MAX_LENGTH: Micros = 366 * 86_400 * 1_000_000;

/// The rule of windows of a calendar: at most `count` permits in each.
///
/// ```
/// use paceway_limit::algorithm::{CalendarWindow, RateRule};
///
/// // The quota of November 2026 and of December, from midnight to midnight UTC.
/// let months = [1_793_491_200_000_000, 1_796_083_200_000_000, 1_798_761_600_000_000];
/// let rule = CalendarWindow::new(10_000, months).expect("a legal rule");
/// assert_eq!(rule.facts().capacity, 10_000);
/// // Windows follow each other.
/// assert!(CalendarWindow::new(10_000, [2, 1, 3]).is_none());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarWindow {
    /// How many permits each window has room for.
    count: i64,
    /// Whether they flow until the end of the window, in place of being there at its start.
    is_even: bool,
    /// The starts of three windows, µs.
    resets: [Micros; 3],
}

/// The state that a store keeps: the windows that were not past when it was written, and the free slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// The instant at which the state came into being, µs.
    born: Micros,
    /// The greatest `now` that wrote the state, µs.
    clock: Micros,
    windows: Windows,
    /// In the order of their starts.
    free: Vec<FreeSlots>,
}

type Windows = SmallVec<[Window; 1]>;

/// A window that has permits in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    start: Micros,
    end: Micros,
    /// The permits that are granted or promised.
    used: i64,
    /// The slot after the last one that is taken; the start of a window without slots.
    next: Micros,
}

/// Free slots before the next slot of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeSlots {
    from: Micros,
    /// The length of each, µs.
    length: Micros,
    /// How many they are.
    count: i64,
}

// === impl CalendarWindow ===

impl CalendarWindow {
    /// `count` permits in each window, of which `resets` are three starts, µs since 1970. `None` unless `count` is 1 to 10^9, and
    /// the windows between the starts take 1 ms to 366 days.
    pub fn new(count: i64, resets: [Micros; 3]) -> Option<Self> {
        let lengths = [resets[1].checked_sub(resets[0])?, resets[2].checked_sub(resets[1])?];
        let fits = (1..=MAX_COUNT).contains(&count)
            && lengths.iter().all(|length| (MIN_LENGTH..=MAX_LENGTH).contains(length))
            && resets.iter().all(|reset| (0..EXACT - MAX_LENGTH).contains(reset));
        fits.then_some(Self { count, is_even: false, resets })
    }

    /// The same with permits that flow evenly.
    #[must_use]
    pub fn even(self) -> Self {
        Self { is_even: true, ..self }
    }

    /// Whether the first of its windows is that of an instant, µs since 1970.
    pub fn begins_with(&self, at: Micros) -> bool {
        (self.resets[0]..self.resets[1]).contains(&at)
    }

    /// The window of an instant by this rule alone, unused.
    fn window(&self, at: Micros) -> Window {
        let [first, second, third] = self.resets;
        let (since, length) =
            if at < second { (first, second - first) } else { (second, third - second) };
        let start = since + (at - since).div_euclid(length) * length;
        Window { start, end: start + length, used: 0, next: start }
    }

    /// Whether `window` of a state can be the one that this rule means.
    fn means(&self, window: &Window, now: Micros) -> bool {
        // A gateway whose clock is wrong does not know better.
        let is_known = (self.resets[0]..self.resets[2]).contains(&now);
        let own = self.window(window.end);
        !is_known || (window.end - own.start).min(own.end - window.end) <= own.near()
    }
}

// === impl Window ===

impl Window {
    fn near(&self) -> Micros {
        ((self.end - self.start) / 8).min(NEAR)
    }
}

// === impl RateRule for CalendarWindow ===

impl RateRule for CalendarWindow {
    fn facts(&self) -> RateFacts {
        let [since, end, _] = self.resets;
        RateFacts {
            name: "fixed_window",
            letter: b'D',
            capacity: self.count,
            burst: None,
            pace: [end - since, self.count],
            margin: 0,
            longest_wait: MAX_BUDGET,
            returns: Returns::AtWindowEnd { since, period: end - since },
            debt: |_| 0,
            endless: (*self).into(),
            // As in a fixed window. Calls that were made already take no slots.
            spent: Self { count: MAX_COUNT, is_even: false, ..*self }.into(),
            gate_field: Some(|grant| &mut grant.ticks),
            spaces_permits: self.is_even,
        }
    }

    fn numbers(&self) -> SmallVec<[i64; 6]> {
        let [first, second, third] = self.resets;
        SmallVec::from_slice(&[self.count, self.is_even.into(), first, second, third])
    }

    fn rate(&self) -> Nanohertz {
        nanohertz(self.count, self.resets[1] - self.resets[0])
    }

    /// The windows stay, so that only a rate of about their length is one.
    fn with_rate(&self, count: i64, period: Micros, _margin: Micros) -> Option<Algorithm> {
        let length = self.resets[1] - self.resets[0];
        let is_own = (period - length).abs() <= length / 8;
        let rule = Self::new(count, self.resets).filter(|_| is_own)?;
        Some(Self { is_even: self.is_even, ..rule }.into())
    }

    fn at_rate(&self, _rate: Nanohertz) -> Option<Algorithm> {
        None
    }

    fn share(&self, gateways: i64, _period: Micros, cost: i64) -> Algorithm {
        Self { count: (self.count / gateways).max(cost).min(self.count), ..*self }.into()
    }

    /// `aux` of a grant is the end of its slot.
    fn unused_of(&self, grant: Grant, cost: i64, used: i64) -> Grant {
        Grant { whole: grant.whole + (grant.aux - grant.whole) / cost.max(1) * used, ..grant }
    }

    /// Each window in which a permit can have been promised before `loss` is full.
    fn used_up(&self, loss: DataLoss, now: Micros) -> super::State {
        let mut state = State { born: now, clock: now, windows: smallvec![], free: Vec::new() };
        let mut at = loss.at.max(self.window(now).start);
        while at <= loss.until() && state.windows.len() < MAX_WINDOWS {
            let own = self.window(at);
            state.windows.push(Window { used: self.count, next: own.end, ..own });
            at = own.end;
        }
        super::State::CalendarWindow(state)
    }

    fn longest_debt(&self, wait: Micros, _greatest_cost: i64) -> Micros {
        wait
    }
}

// === impl State ===

impl State {
    /// Reads a state as the Lua twin writes it.
    pub(super) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [version, _kind, windows] = bytes.bytes()?;
        let [born, clock] = bytes.integers()?;
        let windows =
            bytes.list(usize::from(windows))?.into_iter().map(|[start, end, used, next]| {
                (start < end && used >= 0).then_some(Window { start, end, used, next })
            });
        let windows = windows.collect::<Option<_>>()?;
        let free = bytes.rest()?.into_iter().map(|[from, length, count]| {
            (length >= 1 && count >= 1).then_some(FreeSlots { from, length, count })
        });
        let free = free.collect::<Option<_>>()?;
        (version == STATE_VERSION).then_some(Self { born, clock, windows, free })
    }

    pub(super) fn born(&self) -> Micros {
        self.born
    }
}

mod open;
#[cfg(test)]
mod tests;
