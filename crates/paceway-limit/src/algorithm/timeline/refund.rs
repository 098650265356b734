//! Permits that come back to a line of time: those of requests that left, and those that a request reserved and did not
//! use. Never decides when a grant may happen.

use super::{EXACT, Grant, Micros, Timeline, ceil_div, drop_shortest_above_bound};

/// How far a line is moved back before the count begins again, ticks. The grants from before that are not
/// refunded any more.
const MOST_MOVED: i64 = EXACT / 8;

impl Timeline {
    /// Returns the interval of an unused grant; false when the state has nothing (left) of this grant.
    pub(in crate::algorithm) fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        let (start, end) = self.interval(grant, cost);
        if grant.born != self.born || end > self.tail {
            return false;
        }
        self.undo_last(start, end) || self.leave_free(start, end)
    }

    /// Returns the last `cost` permits of a grant whose `ticks` are negative: the request was sent, and used fewer
    /// permits. Other grants are returned as by [`Self::refund`]. `ahead` is how far from now the instants of the
    /// grants on this line can be, µs.
    ///
    /// A hole would serve only requests that fit into it: with 1000 reserved and 200 used by each, no hole of
    /// 800 would ever be used. So the line after the permits is moved back. Each grant there keeps its instant
    /// and owns ticks that are no earlier than that instant: those before `now + ahead` stay.
    ///
    /// A grant names its start on a line that was never moved. It counts as moved by all moves since it was
    /// made, also those of later grants: that is less than it may return, never more.
    pub(in crate::algorithm) fn settle(
        &mut self,
        mut grant: Grant,
        cost: i64,
        ahead: Micros,
    ) -> bool {
        let is_used = grant.ticks < 0;
        if is_used {
            grant.ticks = !grant.ticks;
        }
        let is_exact = self.moved == 0;
        if is_exact && !is_used {
            return self.refund(grant, cost);
        }
        let (pace, (start, end)) = (self.pace, self.interval(grant, cost));
        if grant.born != self.born || end > self.tail {
            return false;
        }
        if self.undo_last(start, end) {
            return true;
        }
        let back = (end - start).min(end - ahead * pace.den);
        if back < 1 {
            return is_exact && self.leave_free(start, end);
        }
        if is_exact && self.gap(start, end).is_none() {
            return false;
        }
        for (hole_start, hole_end) in &mut self.holes {
            if is_exact && *hole_start >= end {
                *hole_start -= back;
                *hole_end -= back;
            } else if *hole_end > start {
                // It may lie before the permits or after them: what is free in both cases stays.
                *hole_end -= back;
            }
        }
        self.tail -= back;
        self.moved += back;
        self.holes.retain(|(start, end)| pace.left(*start, *end) >= pace.per);
        if is_exact {
            self.leave_free(start, end - back);
        }
        if self.moved >= MOST_MOVED {
            (self.moved, self.born) = (0, self.now);
        }
        true
    }

    /// The ticks that a grant owns if all moves of the line since it was made moved it, too.
    fn interval(&self, grant: Grant, cost: i64) -> (i64, i64) {
        let (pace, moved) = (self.pace, self.moved);
        let far = pace.far() + ceil_div(moved, pace.den);
        let start = (grant.whole - self.now).clamp(-far, far) * pace.den + grant.ticks - moved;
        (start, start + cost * pace.per)
    }

    /// Undoes the last grant of the line as if it had never been made, however late that is; false for another
    /// grant.
    fn undo_last(&mut self, start: i64, end: i64) -> bool {
        let slack = self.pace.slack();
        let is_last = self.tail - end <= slack;
        if is_last {
            self.tail = start;
            if self.holes.last().is_some_and(|(_, hole_end)| hole_end + slack >= start)
                && let Some((hole_start, _)) = self.holes.pop()
            {
                self.tail = hole_start;
            }
            if self.reset_after() == 0 {
                (self.tail, self.born, self.moved, self.holes) = (0, self.now, 0, Vec::new());
            }
        }
        is_last
    }

    /// The index of the first hole that is not before an interval; `None` when a hole overlaps with it.
    fn gap(&self, start: i64, end: i64) -> Option<usize> {
        let slack = self.pace.slack();
        let at = self.holes.iter().position(|(s, _)| *s >= start).unwrap_or(self.holes.len());
        let before = at.checked_sub(1).map_or(start, |i| self.holes[i].1);
        let after = self.holes.get(at).map_or(end, |(s, _)| *s);
        (before <= start + slack && after >= end - slack).then_some(at)
    }

    /// Makes a hole of an interval, as far as it is not past; false when nothing of it can be used.
    fn leave_free(&mut self, mut start: i64, mut end: i64) -> bool {
        let pace = self.pace;
        if pace.left(start, end) < pace.per {
            return false;
        }
        let Some(at) = self.gap(start, end) else { return false };
        let before = at.checked_sub(1).map_or(start, |i| self.holes[i].1);
        let after = self.holes.get(at).map_or(end, |(s, _)| *s);
        (start, end) = (start.max(before), end.min(after));
        self.holes.insert(at, (start, end));
        if self.holes.get(at + 1).is_some_and(|(s, _)| *s == end) {
            self.holes[at].1 = self.holes.remove(at + 1).1;
        }
        if at > 0 && self.holes[at - 1].1 == start {
            self.holes[at - 1].1 = self.holes.remove(at).1;
        }
        // An interval that the rounding cut may be too short for a permit.
        self.holes.retain(|(start, end)| pace.left(*start, *end) >= pace.per);
        drop_shortest_above_bound(&mut self.holes, |(start, end)| end - start);
        true
    }
}
