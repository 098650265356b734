//! A line of time that a rule of another pace wrote.

use super::{MAX_BUDGET, Micros, Pace};

/// A line that one pace wrote and another one reads. Requests that wait keep their instants: a slower line begins after the
/// last of them, and a faster one does not grant their permits a second time. When none waits, the permits in the bucket
/// stay: a greater burst begins empty, and a smaller one keeps as many permits as it can hold. These are the only fractions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conversion {
    old: Pace,
    new: Pace,
    /// How long ago the line was written, µs.
    since: Micros,
    /// The permits that an idle line grants at once, of both: an interval that ends so many permits from now on has a slot
    /// now.
    saved: [i64; 2],
}

// === impl Conversion ===

impl Conversion {
    /// The conversion from `old` to `new` of a line that was written `since` µs ago; `saved` is the number of permits that
    /// an idle line of a pace grants at once.
    pub(super) fn new(old: Pace, new: Pace, since: Micros, saved: impl Fn(Pace) -> i64) -> Self {
        Self { old, new, since, saved: [saved(old), saved(new)] }
    }

    /// The tick of the new line for the tick at which an interval ends on the old one. Since the line was written it has
    /// flowed at the faster of both paces: a refusal writes nothing, and at the slower pace every request that comes back at
    /// the stated time would be refused again.
    fn end(&self, tick: i64) -> f64 {
        let Self { old, new, since, .. } = *self;
        let flowed = self.end_at(tick + since * old.den) - (since * new.den) as f64;
        self.end_at(tick).min(flowed)
    }

    /// The same for a line that is written now. Both twins compute in doubles.
    fn end_at(&self, tick: i64) -> f64 {
        let Self { old, new, saved: [old_saved, new_saved], .. } = *self;
        let ahead = tick - old_saved * old.per;
        if ahead > 0 {
            return (new_saved * new.per) as f64 + ahead as f64 * new.den as f64 / old.den as f64;
        }
        let owed = (tick as f64 / old.per as f64 + (new_saved - old_saved) as f64).max(0.0);
        owed * new.per as f64
    }

    /// The tail of the new line for a tail of the old one.
    pub(super) fn tail(&self, tail: i64) -> i64 {
        let most = self.new.full() + MAX_BUDGET * self.new.den;
        (self.end(tail).ceil() as i64).min(most)
    }

    /// The holes of the new line (from now) for those of the old one (before its tail). The permits after a hole may be of
    /// either pace, and a slower one lets them begin earlier.
    pub(super) fn holes(&self, holes: &[(i64, i64)], tail: i64) -> Vec<(i64, i64)> {
        let Self { old, new, .. } = *self;
        let (mut kept, mut free) = (Vec::new(), i64::MIN);
        for (start, end) in holes.iter().map(|(start, end)| (tail - start, tail - end)) {
            let before_old = self.end(end + old.per).floor() as i64 - new.per;
            let end = before_old.min(self.end(end).floor() as i64);
            let start = (self.end(start).ceil() as i64).max(free);
            if new.left(start, end) >= new.per {
                kept.push((start, end));
                free = end;
            }
        }
        kept
    }
}
