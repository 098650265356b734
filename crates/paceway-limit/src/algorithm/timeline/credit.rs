//! Permits that requests reserved and did not use, while others wait for theirs. Twin of `timeline/credit.lua`. Never changes
//! the instant of a grant.
//!
//! Each grant keeps its interval of the line. A hole of the unused part would serve only requests that fit into it: with
//! 1000 reserved and 300 used by each, no hole of 700 would ever be used. So the unused parts are counted together. They are
//! the last taken ticks of the line before [`Credit::until`], where all ticks are those of requests that were sent, and
//! those may lie anywhere after the request: the ones that are in use lie before.
//!
//! A request that waits keeps its instant, and its permits begin at least [`Timeline::usual_gap`] after it, because the line
//! is that far ahead of the instants that it grants. A request with a great cost, or one that another limiter delays, may be
//! nearer; the credit then remembers the latest of them and the least gap. From now until a gap after now, no tick is
//! therefore that of a request that waits, whatever longest wait the gateways believe in.
//!
//! When no request waits any more, the tail moves back by the credit.

use super::{EXACT, Grant, Micros, Pace, State, StoredBytes, Timeline, ceil_div};

/// The starts of permits that are taken from the credit are below this, so that none can be mistaken for one on the line.
const FROM_CREDIT: i64 = -EXACT / 4;
/// How much came back before the count begins again, ticks. The grants from before that are not refunded any more.
const MOST_MOVED: i64 = EXACT / 8;

/// The permits that came back to a line, and what is promised on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Credit {
    /// The ticks that the line shows as taken and that are free.
    free: i64,
    /// The instant up to which they lie, µs of the store's clock.
    until: Micros,
    /// The latest `until` so far. Permits from there on lie where they were made.
    reach: Micros,
    /// The ticks that came back since the line came into being, without `free`. A later grant may lie by so many ticks before the
    /// place that it names. It only grows, and may be rounded up.
    moved: i64,
    /// `moved` when the tail was last moved back. Grants from before do not know their place any more.
    mark: i64,
    /// The latest instant that was promised with less than the usual gap, µs of the store's clock.
    promised: Micros,
    /// The least gap of these promises, ticks.
    gap: i64,
}

// === impl Credit ===

impl Credit {
    /// Reads a credit as the Lua twin writes it.
    pub(super) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [moved, promised, with_gap, mark, with_free, until, reach] = bytes.integers()?;
        let (gap, free) = (with_gap - promised, with_free - mark);
        let is_one = gap >= 0 && free >= 0 && reach >= until;
        is_one.then_some(Self { free, until, reach, moved, mark, promised, gap })
    }

    pub(super) fn has_moved(credit: Option<&Self>) -> bool {
        credit.is_some_and(|credit| credit.moved + credit.free > 0)
    }

    /// The latest instant that was promised on a line with this `tail`, µs of the store's clock.
    pub(super) fn promised(state: &State, tail: i64, now: Micros) -> Micros {
        let known = state.credit.as_ref().map_or(0, |credit| credit.promised);
        known.max(now + ceil_div(tail - state.pace.usual_gap(), state.pace.den))
    }

    /// The part that a line of another pace keeps: the promises up to `promised`, which may lie anywhere by now.
    pub(super) fn after_change(promised: Micros, now: Micros) -> Option<Box<Self>> {
        (promised > now).then(|| Box::new(Self { promised, ..Self::default() }))
    }

    /// The instant up to which no tick is that of a request that waits, µs of the store's clock.
    fn sent_until(&self, pace: Pace, now: Micros) -> Micros {
        let usual = pace.usual_gap();
        let gap = if self.promised > now { self.gap.min(usual) } else { usual };
        now + gap.div_euclid(pace.den)
    }

    /// Whether a line without it would not be the same.
    pub(super) fn is_needed(&self, now: Micros) -> bool {
        self.moved + self.free > 0 || self.promised > now
    }
}

// === impl Timeline ===

impl Timeline {
    /// Whether permits have come back to it that requests did not use.
    pub(in crate::algorithm) fn has_moved(&self) -> bool {
        Credit::has_moved(self.credit.as_deref())
    }

    /// How many ticks came back and can be taken now.
    pub(in crate::algorithm) fn credit(&self) -> i64 {
        self.credit.as_ref().map_or(0, |credit| credit.free)
    }

    /// The start by which [`Self::take`] takes `length` ticks of those that came back; `None` if there are not as many.
    pub(in crate::algorithm) fn free_in_credit(&self, length: i64) -> Option<i64> {
        let credit = self.credit.as_ref().filter(|credit| credit.free >= length)?;
        Some(2 * FROM_CREDIT + self.taken_until(credit.until) - credit.free)
    }

    /// Notes that a request with the permits at `start` waits until `at`, µs from now.
    pub(in crate::algorithm) fn promise(&mut self, at: Micros, start: i64) {
        let (gap, usual) = (start - at * self.pace.den, self.pace.usual_gap());
        if gap >= usual || start < FROM_CREDIT {
            return;
        }
        let now = self.now;
        let credit = self.credit.get_or_insert_default();
        if credit.promised <= now {
            (credit.promised, credit.gap) = (0, usual);
        }
        credit.promised = credit.promised.max(now + at);
        credit.gap = credit.gap.min(gap).max(0);
        credit.until = credit.until.min(now + start.div_euclid(self.pace.den));
        self.tidy();
    }

    /// Counts the holes among the permits of requests that were sent from now on together with those that came back: `kept`
    /// ticks that are kept back must not pass with the time. A bucket that has few permits more has no room for that.
    pub(in crate::algorithm) fn float(&mut self, kept: i64) {
        let Pace { per, den, .. } = self.pace;
        if self.pace.usual_gap() < kept + per + per / 2 {
            return;
        }
        let credit = self.credit.get_or_insert_default();
        if credit.moved == 0 {
            credit.moved = den;
            self.tidy();
        }
    }

    /// Takes permits of a line with a credit. The name of the grant says by how much the line had moved: above the ticks of
    /// its start, in whole µs. A negative number tells a grant that has no place of its own.
    pub(super) fn take_beside_credit(&mut self, mut start: i64, cost: i64) -> Grant {
        let (pace, length) = (self.pace, cost * self.pace.per);
        let is_credit = start < FROM_CREDIT;
        if is_credit {
            start -= 2 * FROM_CREDIT;
        } else {
            self.take_interval(start, cost);
        }
        let mut moved = 0;
        if let Some(credit) = &mut self.credit {
            if is_credit {
                credit.free -= length;
                credit.moved += length;
            }
            moved = credit.moved + if is_credit { credit.free } else { 0 };
        }
        let (whole, ticks) = pace.absolute(self.now, start);
        let ticks = ticks + moved.div_euclid(pace.den) * pace.den;
        Grant { whole, ticks: if is_credit { !ticks } else { ticks }, born: self.born, aux: 0 }
    }

    /// Returns the last `cost` permits of a grant whose `ticks` are negative: the request was sent, and used fewer permits.
    /// Other grants are returned as by [`Self::refund`].
    ///
    /// A grant names its start on the line. Where permits may have moved, it counts as moved by all that came back since it was
    /// made, also by what later requests returned: that is less than it may return, never more.
    pub(in crate::algorithm) fn settle(&mut self, grant: Grant, cost: i64) -> bool {
        let is_used = grant.ticks < 0;
        let ticks = if is_used { !grant.ticks } else { grant.ticks };
        let (pace, credit) = (self.pace, self.credit.as_deref().copied().unwrap_or_default());
        let (since, ticks) = (ticks - ticks.rem_euclid(pace.den), ticks.rem_euclid(pace.den));
        // Where it was made is where it lies, unless the tail was moved back since.
        let is_placed = since >= credit.mark;
        if is_placed && (!is_used || self.credit.is_none()) {
            let placed = Grant { ticks, ..grant };
            if !is_used {
                return self.refund(placed, cost);
            }
            if self.undo_if_last(placed, cost) {
                return true;
            }
        }
        let (start, end) = self.interval(Grant { ticks, ..grant }, cost);
        let is_beyond = is_placed && start >= self.ticks_until(credit.reach);
        let earlier = if is_beyond { 0 } else { credit.moved + credit.free - since };
        let (start, end) = (start - earlier, end - earlier);
        if grant.born != self.born || end > self.tail {
            return false;
        }
        let back = (end - start).min(end);
        if back < 1 {
            return false;
        }
        let now = self.now;
        let credit = self.credit.get_or_insert_default();
        let (free, until) = (credit.free + back, credit.until.max(credit.sent_until(pace, now)));
        if free > self.taken_until(until) && is_placed && self.leave_free(start, end) {
            return true;
        }
        if let Some(credit) = &mut self.credit {
            credit.free = free;
        }
        self.tidy();
        true
    }

    /// Drops the credit that is past, moves the rest after what is in use by now, and moves the tail back by it when no
    /// request waits. A second time at the same instant changes nothing.
    pub(super) fn tidy(&mut self) {
        let (pace, now) = (self.pace, self.now);
        let Some(mut credit) = self.credit.as_deref().copied() else { return };
        let ahead = credit.sent_until(pace, now);
        if credit.until == 0 {
            credit.until = ahead;
        }
        credit.free = credit.free.min(self.taken_until(credit.until));
        credit.until = credit.until.max(ahead);
        if credit.moved + credit.free > 0 {
            // Holes among the permits of requests that were sent are free like the rest.
            let sent = (ahead - now) * pace.den;
            let holes = self.holes.extract_if(.., |(_, end)| *end <= sent);
            credit.free += holes.map(|(start, end)| end - start.max(0)).sum::<i64>();
        }
        if credit.free > 0 && credit.promised <= now && self.tail <= pace.usual_gap() {
            let free = credit.free;
            self.tail -= free;
            // The permits that came back lie before a hole or after it: what is free in both cases stays.
            self.holes.iter_mut().for_each(|(_, end)| *end -= free);
            self.holes.retain(|(start, end)| pace.left(*start, *end) >= pace.per);
            credit.moved = ((credit.moved + free).div_euclid(pace.den) + 1) * pace.den;
            (credit.free, credit.mark) = (0, credit.moved);
        }
        if credit.free == 0 {
            credit.until = 0;
        }
        credit.reach = credit.reach.max(credit.until);
        if credit.moved >= MOST_MOVED {
            (credit.moved, credit.mark, self.born) = (0, 0, now);
        }
        self.credit = Some(Box::new(credit));
        self.forget_if_unused();
    }

    fn ticks_until(&self, instant: Micros) -> i64 {
        let far = self.pace.far();
        (instant - self.now).clamp(-far, far) * self.pace.den
    }

    /// How many ticks from now until an instant the line shows as taken.
    fn taken_until(&self, instant: Micros) -> i64 {
        let end = self.tail.min(self.ticks_until(instant));
        let holes = self.holes.iter().map(|(start, hole_end)| {
            let (start, hole_end) = (start.max(&0), hole_end.min(&end));
            (hole_end - start).max(0)
        });
        (end - holes.sum::<i64>()).max(0)
    }
}
