//! The free intervals before the tail of a line of time: permits that come back from requests that left before they were sent
//! make them, and later requests take them. Twin of `timeline/holes.lua`. Never decides when a grant may happen.

use super::{Grant, Timeline};
use crate::algorithm::MAX_HOLES;
use std::cmp::Reverse;

impl Timeline {
    pub(super) fn take_interval(&mut self, start: i64, cost: i64) {
        let (per, end) = (self.pace.per, start + cost * self.pace.per);
        if let Some(i) = self.holes.iter().position(|(s, e)| *s <= start && end <= *e) {
            let (hole_start, hole_end) = self.holes.remove(i);
            if hole_end - end >= per {
                self.holes.insert(i, (end, hole_end));
            }
            // The part of the hole that is past is unusable, and would be dropped when the state is read
            // again.
            if self.pace.left(hole_start, start) >= per {
                self.holes.insert(i, (hole_start, start));
            }
        } else {
            if start - self.tail >= per {
                self.holes.push((self.tail, start));
            }
            self.tail = end;
        }
        drop_shortest_above_bound(&mut self.holes, |(start, end)| end - start);
    }

    /// Returns the interval of an unused grant; false when the state has nothing (left) of this grant.
    pub(in crate::algorithm) fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        let (start, end) = self.interval(grant, cost);
        let is_given = grant.born == self.born && self.leave(start, end);
        if self.credit.is_some() {
            self.tidy();
        }
        is_given
    }

    /// Returns an interval, in ticks from now; false when nothing of it can be used.
    pub(in crate::algorithm) fn leave(&mut self, start: i64, end: i64) -> bool {
        end <= self.tail && (self.undo_last(start, end) || self.leave_free(start, end))
    }

    /// The ticks that a grant owns on a line that has not moved since it was made.
    pub(super) fn interval(&self, grant: Grant, cost: i64) -> (i64, i64) {
        let (pace, far) = (self.pace, self.pace.far());
        let start = (grant.whole - self.now).clamp(-far, far) * pace.den + grant.ticks;
        (start, start + cost * pace.per)
    }

    /// Undoes a grant as [`Self::undo_last`] does, if it is the last one of this line.
    pub(super) fn undo_if_last(&mut self, grant: Grant, cost: i64) -> bool {
        let (start, end) = self.interval(grant, cost);
        grant.born == self.born && end <= self.tail && self.undo_last(start, end)
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
            self.forget_if_unused();
        }
        is_last
    }

    /// A line that is free again equals an absent one.
    pub(super) fn forget_if_unused(&mut self) {
        if self.reset_after() == 0 {
            (self.tail, self.born, self.credit, self.holes) = (0, self.now, None, Vec::new());
        }
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
    pub(super) fn leave_free(&mut self, mut start: i64, mut end: i64) -> bool {
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

/// Keeps at most [`MAX_HOLES`] holes: drops the shortest, among equals the last.
pub(in crate::algorithm) fn drop_shortest_above_bound<T>(
    holes: &mut Vec<T>,
    length: impl Fn(&T) -> i64,
) {
    while holes.len() > MAX_HOLES {
        let lengths = holes.iter().enumerate().map(|(i, hole)| (length(hole), Reverse(i)));
        let Some((_, Reverse(shortest))) = lengths.min() else { return };
        holes.remove(shortest);
    }
}
