//! A virtual line of time on which permits own disjoint intervals, reserved ahead. Twin of `timeline.lua`. It
//! never decides when a grant may happen: the rules that are built on it do.
//!
//! A grant of `n` permits owns `n·per` ticks, and no two grants share a tick. Free are all ticks after
//! `tail`, and the *holes* before it: the intervals that waiting requests refunded, and those that a request
//! left free because another limiter delayed it.
//!
//! Instants are whole µs and intervals are not, so an interval that starts less than a µs before an instant
//! counts as starting at that instant: nothing drifts.

mod conversion;
mod credit;
mod holes;

use super::{
    DataLoss, EXACT, Grant, MAX_BUDGET, Micros, STATE_VERSION, ceil_div, gcd, stored::StoredBytes,
};
use conversion::Conversion;
use credit::Credit;
pub(super) use holes::drop_shortest_above_bound;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How dense the line is: a permit costs `per / den` µs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How many ticks a permit owns; at least `den`.
    pub(super) per: i64,
    /// How many ticks a µs has.
    pub(super) den: i64,
    /// The greatest cost of one request, in permits.
    pub(super) most: i64,
}

/// The state that a store keeps: the end of the reserved line, and the holes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pace: Pace,
    whole: Micros,
    ticks: i64,
    born: Micros,
    written: Micros,
    /// The permits that requests did not use, and what is promised to those that wait; see [`Timeline::settle`].
    credit: Option<Box<Credit>>,
    /// The start and the end of each hole in ticks before the tail, earliest first.
    holes: Vec<(i64, i64)>,
}

/// The part of a [`State`] that has a fixed size, for a store that keeps a million of them. The pace and the
/// holes are kept elsewhere: many states have the same pace, and few have any holes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Packed {
    whole: Micros,
    ticks: i64,
    born: Micros,
    written: Micros,
}

/// A state while it is worked on: the tail and the holes are in ticks from now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    pace: Pace,
    pub(super) now: Micros,
    born: Micros,
    credit: Option<Box<Credit>>,
    pub(super) tail: i64,
    pub(super) holes: Vec<(i64, i64)>,
}

// === impl Pace ===

impl Pace {
    /// `count` permits per `period` µs, at most `most` of them at once, with room in the arithmetic for
    /// `spare` µs more. `None` when one of the first three is not positive, when the rate is above one permit
    /// a µs, or when `most` permits take more than 2^52 µs.
    ///
    /// A rate whose arithmetic would leave the exact integers (such as 123457 a day) is replaced by a
    /// slightly slower one that stays exact, at most two parts in a million away.
    pub(super) fn new(count: i64, period: Micros, most: i64, spare: Micros) -> Option<Self> {
        if count < 1 || period < count || most < 1 {
            return None;
        }
        let gcd = gcd(count, period);
        let (per, den) = (period / gcd, count / gcd);
        let fits = |per: i64, den: i64| {
            let full = i128::from(per) * i128::from(most);
            let spare = i128::from(MAX_BUDGET) + i128::from(spare);
            2 * (full + i128::from(den) * spare) < i128::from(EXACT)
        };
        if fits(per, den) {
            return Some(Self { per, den, most });
        }
        // The same span on a coarser tick, rounded up: slower, never faster.
        (0..).map(|halvings| den >> halvings).take_while(|coarse| *coarse > 0).find_map(|coarse| {
            let scaled =
                (i128::from(per) * i128::from(coarse) + i128::from(den) - 1) / i128::from(den);
            let scaled = i64::try_from(scaled).ok()?;
            fits(scaled, coarse).then_some(Self { per: scaled, den: coarse, most })
        })
    }

    /// The pace of a stored state; `None` for numbers that no rule has.
    pub(super) fn stored(per: i64, den: i64, most: i64) -> Option<Self> {
        let full = per.checked_mul(most).filter(|full| *full < EXACT);
        (den >= 1 && per >= den && most >= 1 && full.is_some()).then_some(Self { per, den, most })
    }

    /// A permit in each `per` ticks, which are the unit of the line's clock.
    pub(super) const fn of_permits(per: i64, most: i64) -> Self {
        Self { per, den: 1, most }
    }

    /// The pace of one of `gateways` that keep this pace together. It is not slower than one permit in
    /// `period` µs, and grants at most `most` at once.
    pub(super) fn share(
        self,
        gateways: i64,
        period: Micros,
        most: i64,
        spare: Micros,
    ) -> Option<Self> {
        let slowest = i128::from(period) * i128::from(self.den);
        let slower = self.per.checked_mul(gateways);
        match slower.filter(|per| i128::from(*per) <= slowest) {
            Some(per) => Self::new(self.den, per, most, spare),
            None => Self::new(1, period, most, spare),
        }
    }

    /// The ticks that a request with the greatest cost owns.
    pub(super) fn full(&self) -> i64 {
        self.most * self.per
    }

    /// `start`, or `from` (µs) when `start` is a µs or more before it.
    pub(super) fn clip(&self, start: i64, from: Micros) -> i64 {
        let from = from * self.den;
        if start <= from - self.den { from } else { start }
    }

    /// How many ticks after its instant the permits of a waiting request begin at least, in a bucket that is this full when
    /// idle: if it costs one permit or at most a quarter of the bucket, and no other limiter delays it.
    pub(super) fn usual_gap(&self) -> i64 {
        let full = self.full();
        (full - self.per.max(full / 4) - self.den).max(0)
    }

    /// By how many ticks an interval may begin too early because another pace wrote the line in between: the
    /// rounding of that conversion, and far less than a permit.
    pub(super) fn slack(&self) -> i64 {
        (2 * self.den + 2).min(self.per / 4)
    }

    /// How many ticks of an interval are still usable: an interval that starts less than a µs before now
    /// starts now, as explained above.
    pub(super) fn left(&self, start: i64, end: i64) -> i64 {
        end - start.max(1 - self.den)
    }

    /// A tick from now as an instant: whole µs and the ticks above them.
    pub(super) fn absolute(&self, now: Micros, tick: i64) -> (Micros, i64) {
        (now + tick.div_euclid(self.den), tick.rem_euclid(self.den))
    }

    /// The greatest distance between a state of this pace and now, µs. It is exceeded only when the clock is
    /// set back by hours: then the clamp keeps the arithmetic exact, and requests are still refused.
    pub(super) fn far(&self) -> Micros {
        self.full() / self.den + 2 * MAX_BUDGET
    }
}

// === impl State ===

impl State {
    /// The state after a loss of data: it is only known that nothing from before `loss` reaches beyond the
    /// end of its horizon.
    pub(super) fn used_up(pace: Pace, loss: DataLoss, now: Micros) -> Self {
        let (whole, ticks, holes) = (loss.until(), 0, Vec::new());
        Self { pace, whole, ticks, born: now, written: now, credit: None, holes }
    }

    /// Reads a state as the Lua twin writes it.
    pub(super) fn read(bytes: &mut StoredBytes<'_>) -> Option<Self> {
        let [version, kind] = bytes.bytes()?;
        let [per, den, most, whole, ticks, born, written] = bytes.integers()?;
        let has_credit = kind.is_ascii_lowercase();
        let credit = if has_credit { Some(Box::new(Credit::read(bytes)?)) } else { None };
        let holes = bytes.rest()?.into_iter().map(|[start, end]| (start, end)).collect();
        let pace = Pace::stored(per, den, most)?;
        let is_one = version == STATE_VERSION && (0..den).contains(&ticks);
        is_one.then_some(Self { pace, whole, ticks, born, written, credit, holes })
    }

    /// When the state came into being, µs of the store's clock.
    pub(super) fn born(&self) -> Micros {
        self.born
    }

    /// Whether it counts permits that came back, so that a [`Packed`] cannot hold all of it.
    pub(crate) fn has_credit(&self) -> bool {
        self.credit.is_some()
    }

    /// Returns the holes alone, for a store that keeps them apart.
    pub(crate) fn into_holes(self) -> Vec<(i64, i64)> {
        self.holes
    }
}

// === impl Packed ===

impl Packed {
    /// Splits a state without credit into the part of fixed size, the pace and the holes.
    pub(crate) fn new(state: State) -> (Self, Pace, Vec<(i64, i64)>) {
        let State { pace, whole, ticks, born, written, credit: _, holes } = state;
        (Self { whole, ticks, born, written }, pace, holes)
    }

    /// Makes the state again from its three parts.
    pub(crate) fn unpack(self, pace: Pace, holes: Vec<(i64, i64)>) -> State {
        let Self { whole, ticks, born, written } = self;
        State { pace, whole, ticks, born, written, credit: None, holes }
    }

    /// When the state came into being, µs of the store's clock.
    pub(crate) fn born(&self) -> Micros {
        self.born
    }

    /// The instant from which on the state equals an absent one, µs of the store's clock.
    pub(crate) fn past(&self) -> Micros {
        self.whole + i64::from(self.ticks > 0)
    }
}

// === impl Timeline ===

impl Timeline {
    /// Reads a state at `now`. A line that is free again equals an absent one. `saved` returns the permits that
    /// an idle line of a pace grants at once; a state that another pace wrote is read by [`Conversion`].
    pub(super) fn new(
        state: Option<&mut State>,
        now: Micros,
        pace: Pace,
        saved: impl Fn(Pace) -> i64,
    ) -> Self {
        let fresh = Self { pace, now, born: now, credit: None, tail: 0, holes: Vec::new() };
        let Some(state) = state else { return fresh };
        let (old, far) = (state.pace, state.pace.far());
        let tail_at =
            |instant: Micros| (state.whole - instant).clamp(-far, far) * old.den + state.ticks;
        let tail = tail_at(now);
        if tail <= -old.den {
            return fresh;
        }
        if old != pace {
            let since = (now - state.written).clamp(0, far.min(pace.far()));
            let conversion = Conversion::new(old, pace, since, &saved);
            let new_tail = conversion.tail(tail);
            if new_tail <= -pace.den {
                return fresh;
            }
            let holes = conversion.holes(&state.holes, tail);
            let promised = if saved(pace) > 1 { Credit::promised(state, tail, now) } else { 0 };
            // By how much a grant was moved is known in ticks of the old pace alone, so the grants from before
            // are not refunded after such a change.
            let born = if Credit::has_moved(state.credit.as_deref()) { now } else { state.born };
            let credit = Credit::after_change(promised, now);
            return Self { tail: new_tail, born, holes, credit, ..fresh };
        }
        let holes = state.holes.iter().map(|(start, end)| (tail - start, tail - end));
        let holes = holes.filter(|(_, end)| *end > 0).collect();
        let mut line = Self { tail, born: state.born, holes, ..fresh };
        if state.credit.is_some() {
            // The rest of a hole that is past in part comes back, too, before it is too short for a permit.
            line.credit.clone_from(&state.credit);
            line.tidy();
        }
        line.holes.retain(|(start, end)| pace.left(*start, *end) >= pace.per);
        line
    }

    /// A line by its tail and its holes, in ticks from now.
    pub(super) fn at(
        pace: Pace,
        now: Micros,
        tail: i64,
        holes: impl Iterator<Item = (i64, i64)>,
    ) -> Self {
        let holes = holes.filter(|(start, end)| pace.left(*start, *end) >= pace.per).collect();
        Self { pace, now, born: now, credit: None, tail, holes }
    }

    /// A line that was never moved, from the numbers that a store reports; `None` when no line can have these
    /// numbers.
    pub(super) fn reported(pace: Pace, now: Micros, tail: i64, born: Micros) -> Option<Self> {
        let far = (pace.far() + 1) * pace.den;
        let is_known = (0..EXACT).contains(&now) && (0..EXACT).contains(&born);
        let is_one = is_known && (1 - pace.den..=far).contains(&tail);
        is_one.then_some(Self { pace, now, born, credit: None, tail, holes: Vec::new() })
    }

    /// The start of the first free interval of `length` ticks from `from` on (µs from now).
    pub(super) fn free(&self, from: Micros, length: i64) -> i64 {
        let too_early = (from - 1) * self.pace.den;
        let hole = self.holes.iter().find_map(|(start, end)| {
            // A request that left may have started less than a µs before `from`, which a larger hole does not
            // show.
            let at = self.pace.clip(*start, from).min(end - length);
            (at >= *start && at > too_early).then_some(at)
        });
        hole.unwrap_or_else(|| self.pace.clip(self.tail, from))
    }

    /// The start of the first interval of `length` ticks that has `kept` free ticks before it, and is free from `from` on (µs
    /// from now). All that is free from now on is kept, also where it is past at the instant of the interval: the bucket fills up
    /// meanwhile.
    pub(super) fn free_after(&self, from: Micros, length: i64, kept: i64) -> i64 {
        let mut kept = (kept - self.credit()).max(0);
        for (start, end) in &self.holes {
            let start = self.pace.clip(*start, 0);
            let skipped = kept.min((end - start).max(0));
            kept -= skipped;
            let start = self.pace.clip(start + skipped, from);
            if kept == 0 && start + length <= *end {
                return start;
            }
        }
        self.pace.clip(self.pace.clip(self.tail, 0) + kept, from)
    }

    /// Takes the interval that [`Self::free`] found, and keeps the free rests on both sides as holes; or permits that came
    /// back, as [`Self::free_in_credit`] found them.
    pub(super) fn take(&mut self, start: i64, cost: i64) -> Grant {
        if self.credit.is_some() {
            return self.take_beside_credit(start, cost);
        }
        self.take_interval(start, cost);
        let (whole, ticks) = self.pace.absolute(self.now, start);
        Grant { whole, ticks, born: self.born, aux: 0 }
    }

    /// The time until the state equals an absent one, µs; that one also forgets a part of a µs.
    pub(super) fn reset_after(&self) -> Micros {
        let part = i64::from(self.tail.rem_euclid(self.pace.den) != 0);
        (ceil_div(self.tail, self.pace.den) + part).max(0)
    }

    /// The state to keep and how long it matters, µs; `None` when it equals an absent one.
    pub(super) fn close(self) -> Option<(State, Micros)> {
        let reset_after = self.reset_after();
        if reset_after <= 0 {
            return None;
        }
        let (whole, ticks) = self.pace.absolute(self.now, self.tail);
        let holes = self.holes.iter().map(|(s, e)| (self.tail - s, self.tail - e)).collect();
        let (pace, born, written) = (self.pace, self.born, self.now);
        let credit = self.credit.filter(|credit| credit.is_needed(self.now));
        Some((State { pace, whole, ticks, born, written, credit, holes }, reset_after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of the rule can leave a hole that begins before now. When a permit is taken from it, the part
    /// before now is not kept: a state that is read again between two requests of a batch has the same holes
    /// as one that is not.
    #[test]
    fn the_past_part_of_a_hole_is_dropped() {
        let pace = Pace::new(1, 10, 3, 0).expect("a pace");
        let mut line =
            Timeline { pace, now: 1000, born: 1, credit: None, tail: 100, holes: vec![(-25, 40)] };
        let start = line.free(0, 10);
        assert_eq!(start, 0);
        line.take(start, 1);
        assert_eq!(line.holes, [(10, 40)]);
        let (mut state, _) = line.close().expect("a state");
        let read = Timeline::new(Some(&mut state), 1000, pace, |_| 3);
        assert_eq!(read.holes, [(10, 40)]);
    }
}
