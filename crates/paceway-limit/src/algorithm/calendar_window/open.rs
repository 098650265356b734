//! The open state of windows of a calendar: finds slots, takes them, and takes them back. Its Lua half is in
//! `calendar_window.lua`.

use super::{CalendarWindow, FreeSlots, MAX_ROWS, MAX_WINDOWS, MOST, State, Window, Windows};
use crate::algorithm::{Grant, Level, Micros, OpenRate, RateFacts, RateRule};

/// The state of windows of a calendar while it is worked on, with the rule under which it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: CalendarWindow,
    now: Micros,
    /// `now`, or the clock of the state when that one is later.
    clock: Micros,
    /// The first instant at which permits may be granted, µs.
    floor: Micros,
    born: Micros,
    /// The last window that is past, while its end can matter.
    past: Option<Window>,
    /// In order, without overlaps.
    pub(super) windows: Windows,
    /// In the order of their starts.
    free: Vec<FreeSlots>,
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`. A state whose windows are all past equals an absent one.
    pub fn new(state: Option<&mut State>, now: Micros, rule: CalendarWindow) -> Self {
        let (windows, free) = (Windows::new(), Vec::new());
        let (clock, floor, born) = (now, now, now);
        let mut open = Self { rule, now, clock, floor, born, past: None, windows, free };
        let Some(state) = state else { return open };
        let clock = now.max(state.clock);
        let past = state.windows.iter().take_while(|window| window.end <= clock).last();
        open.past = past.filter(|window| clock < window.end + window.near()).copied();
        if state.windows.last().is_some_and(|last| last.end <= clock) {
            return open;
        }
        (open.clock, open.born) = (clock, state.born);
        for window in state.windows.iter().filter(|window| window.end > clock) {
            open.read(window);
        }
        if rule.is_even && state.windows.ends_with(&open.windows) {
            open.free.extend(state.free.iter().filter(|row| row.end() > clock));
        }
        if now < clock {
            open.floor = now.max(open.window(clock).start);
        }
        open
    }

    /// Takes over a window of the stored state, as it is or into one of the rule.
    fn read(&mut self, window: &Window) {
        let end = self.windows.last().map_or(0, |last| last.end);
        if window.start >= end && self.rule.means(window, self.clock) {
            self.windows.push(*window);
            return;
        }
        let own = self.window_in_use(window.start.max(self.clock));
        own.used = (own.used + window.used).min(MOST);
        own.next = own.next.max(window.next).min(own.end);
    }

    /// The index of the window in use that ends after an instant.
    fn place(&self, at: Micros) -> usize {
        self.windows.partition_point(|window| window.end <= at)
    }

    /// The window of an instant: one in use, or else an unused one of the rule between those in use.
    pub(super) fn window(&self, at: Micros) -> Window {
        let place = self.place(at);
        let after = self.windows.get(place);
        if let Some(window) = after.filter(|window| window.start <= at) {
            return *window;
        }
        let mut own = self.rule.window(at);
        let past = self.past.map_or(0, |past| past.end);
        let before = place.checked_sub(1).map_or(past, |before| self.windows[before].end);
        if own.start < before {
            // Another gateway has begun this window later. The rest of it is no window.
            if own.end - before <= own.near() {
                own.end = self.rule.window(own.end).end;
            }
            (own.start, own.next) = (before, before);
        }
        Window { end: after.map_or(own.end, |after| own.end.min(after.start)), ..own }
    }

    /// The same, to be changed.
    fn window_in_use(&mut self, at: Micros) -> &mut Window {
        let mut place = self.place(at);
        if self.windows.get(place).is_none_or(|window| window.start > at) {
            if self.windows.len() < MAX_WINDOWS {
                self.windows.insert(place, self.window(at));
            } else {
                place = MAX_WINDOWS - 1;
            }
        }
        &mut self.windows[place]
    }

    /// The first slot for `cost` permits in a window, from `at` on.
    fn slot(&self, window: &Window, at: Micros, cost: i64) -> Micros {
        let tail = window.next.max(at);
        let rows = self.free.iter().filter(|row| row.from >= window.start);
        rows.filter_map(|row| row.slot(at, cost)).fold(tail, Micros::min)
    }

    fn keep(&mut self, row: FreeSlots) {
        if row.count > 0 && row.length > 0 && self.free.len() < MAX_ROWS {
            let place = self.free.partition_point(|other| other.from <= row.from);
            self.free.insert(place, row);
        }
    }

    /// Takes a slot of `cost` intervals, and returns its end. A request that another limiter delays leaves free slots before it,
    /// whose permits are not left for later ones.
    fn take_slot(&mut self, start: Micros, cost: i64) -> Micros {
        let window = *self.window_in_use(start);
        if start < window.next {
            let place = self.free.iter().position(|row| row.slot(start, cost) == Some(start));
            return place.map_or(start, |place| self.take_free(place, start, cost));
        }
        let from = window.next.max(self.now);
        let rows = self.free.iter().filter(|row| (window.start..window.end).contains(&row.from));
        let free: i64 = rows.map(|row| row.count_from(self.now)).sum();
        let left = (self.rule.count - window.used - free).max(cost).max(1);
        let interval = (window.end - from) / left;
        let end = (start + cost * interval).min(window.end);
        let count = (start - from).checked_div(interval).unwrap_or(0);
        self.keep(FreeSlots { from, length: interval, count });
        self.window_in_use(start).next = end;
        end
    }

    /// Takes slots of a row, and returns their end.
    fn take_free(&mut self, place: usize, start: Micros, cost: i64) -> Micros {
        let row = self.free.remove(place);
        let before = row.count_before(start);
        let end = row.from + (before + cost) * row.length;
        self.keep(FreeSlots { count: before, ..row });
        self.keep(FreeSlots { from: end, count: row.count - before - cost, ..row });
        end
    }

    /// Takes slots back that end at `end`. The last ones of their window, and those that are free before them, move the next
    /// slot; also slots that the end of the window has cut short, as three in the last 2 µs.
    fn free_slots(&mut self, place: usize, slots: FreeSlots, end: Micros) {
        let Window { start, next, .. } = self.windows[place];
        if end != next {
            if slots.end() > self.clock {
                self.keep(slots);
            }
            return;
        }
        let mut next = slots.from;
        while let Some(row) =
            self.free.iter().rposition(|row| row.end() == next && row.from >= start)
        {
            next = self.free.remove(row).from;
        }
        self.windows[place].next = next;
    }

    /// The time until no permit is in use, µs.
    fn reset_after(&self) -> Micros {
        self.windows.last().map_or(0, |last| (last.end - self.now).max(0))
    }

    /// The time until the state equals an absent one, µs: the end of a window is known for as long as a rule may have moved it by.
    fn lasts(&self) -> Micros {
        let last = self.windows.last().or(self.past.as_ref());
        last.map_or(0, |last| (last.end + last.near() - self.now).max(0))
    }
}

// === impl FreeSlots ===

impl FreeSlots {
    fn end(&self) -> Micros {
        self.from + self.length * self.count
    }

    /// How many slots have ended by `at`.
    fn count_before(&self, at: Micros) -> i64 {
        (at - self.from).max(0) / self.length
    }

    /// How many slots have not ended.
    fn count_from(&self, now: Micros) -> i64 {
        (self.count - self.count_before(now)).max(0)
    }

    /// The first instant in `cost` slots from `at` on; `None` if the row has fewer. A request may come within its slot.
    fn slot(&self, at: Micros, cost: i64) -> Option<Micros> {
        let before = self.count_before(at);
        (before + cost <= self.count).then(|| at.max(self.from + before * self.length))
    }
}

// === impl OpenRate for Open ===

impl OpenRate for Open {
    type State = State;

    fn facts(&self) -> RateFacts {
        self.rule.facts()
    }

    fn earliest(&self, from: Micros, cost: i64, kept: i64) -> (Micros, i64) {
        let mut at = (self.now + from).max(self.floor);
        loop {
            let window = self.window(at);
            // An unused one ends the search, whatever the cost is.
            if window.used == 0 || window.used + cost + kept <= self.rule.count {
                let slot = if self.rule.is_even { self.slot(&window, at, cost) } else { at };
                if slot < window.end {
                    return (slot - self.now, slot);
                }
            }
            at = window.end;
        }
    }

    /// `aux` of the grant is the end of its slot.
    fn take(&mut self, start: i64, cost: i64) -> Grant {
        let end = if self.rule.is_even { self.take_slot(start, cost) } else { start };
        let window = self.window_in_use(start);
        window.used = (window.used + cost).min(MOST);
        Grant { whole: start, ticks: 0, born: self.born, aux: end }
    }

    /// A grant can be refunded until its window ends.
    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        let Grant { whole, aux, born, .. } = grant;
        let place = self.place(whole);
        let Some(window) = self.windows.get_mut(place).filter(|window| {
            born == self.born && window.start <= whole && (cost..MOST).contains(&window.used)
        }) else {
            return false;
        };
        window.used -= cost;
        let Window { start, end, used, .. } = *window;
        if used == 0 {
            self.windows.remove(place);
            self.free.retain(|row| row.from < start || row.from >= end);
        } else if self.rule.is_even && whole < aux && aux <= end {
            let length = (aux - whole) / cost.max(1);
            self.free_slots(place, FreeSlots { from: whole, length, count: cost }, aux);
        }
        if self.windows.is_empty() {
            *self = Self { past: self.past, ..Self::new(None, self.now, self.rule) };
        }
        true
    }

    fn promise(&mut self, _at: Micros, _start: i64, _kept: i64) {}

    /// A permit that flows does not remain before its slot.
    fn level(&self) -> Level {
        let (next, at) = self.earliest(0, 1, 0);
        let window = self.window(at);
        let mut remaining = if next == 0 { self.rule.count - window.used } else { 0 };
        if self.rule.is_even && remaining > 1 {
            // Several have one slot where less than a µs lies between two.
            let flow = if at < window.next { remaining } else { window.end - at };
            remaining = (remaining - flow + 1).clamp(1, remaining);
        }
        Level { remaining, next, reset_after: self.reset_after(), ..Level::default() }
    }

    fn close(self) -> Option<(State, Micros)> {
        let lasts = self.lasts();
        let Self { born, clock, mut windows, free, past, .. } = self;
        if windows.is_empty() {
            windows.extend(past);
        }
        (lasts > 0).then_some((State { born, clock, windows, free }, lasts))
    }

    fn put_back(self, _state: &mut State) {}
}
