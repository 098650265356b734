//! A part of the states. A state is found by a print of its key and lies with it in one place: among a million of them each
//! look at another place is one at memory.

use super::{GRACE, pages::Pages};
use crate::{
    algorithm::{
        Algorithm, DataLoss, Micros, Open, State, TokenBucket,
        timeline::{self, Pace},
        token_bucket,
    },
    probing::{self, ProbingTable},
};
use slab::Slab;
use std::mem;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Parts of another place that are looked at for each state that is changed, and for each that is new, so that those that
/// are past make room: places fill up with what was in use at one time, at most. Four looks for a new one; seldom one for
/// a change, since each is one at memory.
const SWEEP: u32 = 1;
const SWEEP_FOR_NEW: u32 = 4 * PARTS;
const PARTS: u32 = 64;
/// So many places at once: they lie behind each other.
const STRIDE: u32 = 32;
/// Rules of which token buckets are packed: those of a configuration and of some before it.
const MOST_PACES: usize = 1024;

/// Stands for a key: 128 bits of hashes that nobody outside can compute. That two keys have one is less likely than that
/// a machine miscounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Print(pub(super) [u64; 2]);

/// Where a state lies until others come or go.
pub(super) type Place = usize;

/// States by print. What each decision needs is in one cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Shard {
    states: ProbingTable<Pages<Kept>>,
    paces: Box<[Pace]>,
    /// How far the sweep may go on.
    due: u32,
    /// Where it does.
    sweep: usize,
    /// What of the states has no size.
    asides: Slab<Aside>,
}

/// One cache line.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Kept {
    print: Print,
    /// Of a token bucket.
    packed: timeline::Packed,
    kind: Kind,
    /// One more than the place of what lies aside; 0: nothing does.
    aside: u64,
}

/// One of the usual kind, with the place of its pace among those of the shard behind [`Kind::FIRST`]; or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Kind(u64);

#[derive(Debug)]
enum Aside {
    /// Of a token bucket.
    Holes(Vec<(i64, i64)>),
    /// A state of another kind, with when it equals an absent one.
    State(Micros, Box<State>),
}

// === impl Print ===

impl Print {
    fn home(self) -> u64 {
        self.0[1]
    }
}

// === impl Shard ===

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn find(&self, print: Print) -> Option<Place> {
        self.states.find(print.home(), |kept| kept.print == print)
    }

    /// As [`Algorithm::open`], and [`Algorithm::open_after`] a loss; `None` when no state is there that counts.
    pub(super) fn open(
        &mut self,
        place: Place,
        algorithm: &Algorithm,
        loss: Option<DataLoss>,
        now: Micros,
    ) -> Option<Open> {
        let kept = *self.states.get(place)?;
        if let Some(pace) = kept.kind.pace() {
            // A key names its algorithm: it is that of the state.
            let Algorithm::TokenBucket(rule) = algorithm else { return None };
            let is_lost = loss.is_some_and(|loss| kept.packed.born() < loss.at);
            let pace = *self.paces.get(pace).filter(|_| !is_lost)?;
            return Some(self.open_packed(kept, pace, *rule, now));
        }
        let Aside::State(_, state) = self.asides.get_mut(kept.place_aside()?)? else { return None };
        match loss {
            None => Some(algorithm.open(Some(state), now)),
            Some(loss) if loss.takes(state) => None,
            Some(loss) => Some(algorithm.open_after(loss, Some(state), now)),
        }
    }

    fn open_packed(&mut self, kept: Kept, pace: Pace, rule: TokenBucket, now: Micros) -> Open {
        let aside = kept.place_aside().and_then(|place| self.asides.get_mut(place));
        let mut none = Vec::new();
        let holes = match aside {
            Some(Aside::Holes(holes)) => holes,
            _ => &mut none,
        };
        // They are only lent.
        let mut state = kept.packed.unpack(pace, mem::take(holes));
        let open = token_bucket::Open::new(Some(&mut state), now, rule);
        *holes = state.into_holes();
        Open::TokenBucket(open)
    }

    /// As [`Open::put_back`], of what was opened at `place`; others may have come or gone since.
    pub(super) fn put_back(&mut self, print: Print, place: Place, open: Open) {
        let aside = self.at(print, Some(place)).1.and_then(|aside| self.asides.get_mut(aside));
        if let Some(Aside::State(_, state)) = aside {
            open.put_back(state);
        }
    }

    /// Keeps a state that equals an absent one from `past` on; `place` is where one of this print was, perhaps.
    pub(super) fn put(&mut self, print: Print, place: Option<Place>, state: State, past: Micros) {
        let (place, aside) = self.at(print, place);
        let kept = match state {
            State::TokenBucket(state) => self.packed(print, aside, state, past),
            other => self.unpacked(print, aside, other, past),
        };
        self.set(place, kept);
    }

    /// The same of one that matters for longer than it says itself.
    pub(super) fn keep_until(&mut self, print: Print, state: State, past: Micros) {
        let (place, aside) = self.at(print, None);
        let kept = self.unpacked(print, aside, state, past);
        self.set(place, kept);
    }

    /// Where the state of this print is, which was at `place` perhaps, and what of it lies aside.
    fn at(&self, print: Print, place: Option<Place>) -> (Option<Place>, Option<usize>) {
        let is_it = |place: &Place| self.states.get(*place).is_some_and(|kept| kept.print == print);
        let place = place.filter(is_it).or_else(|| self.find(print));
        let kept = place.and_then(|place| self.states.get(place));
        (place, kept.and_then(Kept::place_aside))
    }

    fn set(&mut self, place: Option<Place>, new: Kept) {
        match place.and_then(|place| self.states.get_mut(place)) {
            Some(kept) => {
                *kept = new;
                self.due += SWEEP;
            }
            None => {
                self.states.insert(new, Kept::home);
                self.due += SWEEP_FOR_NEW;
            }
        }
    }

    fn packed(
        &mut self,
        print: Print,
        aside: Option<usize>,
        state: timeline::State,
        past: Micros,
    ) -> Kept {
        let (packed, pace, holes) = timeline::Packed::new(state);
        let known = self.paces.iter().position(|known| *known == pace);
        let Some(pace_at) = known.or_else(|| self.remember(pace)) else {
            let state = State::TokenBucket(packed.unpack(pace, holes));
            return self.unpacked(print, aside, state, past);
        };
        let holes = (!holes.is_empty()).then_some(Aside::Holes(holes));
        let aside = self.lay_aside(aside, holes);
        Kept { print, packed, kind: Kind::of(pace_at), aside }
    }

    fn unpacked(&mut self, print: Print, aside: Option<usize>, state: State, past: Micros) -> Kept {
        let aside = self.lay_aside(aside, Some(Aside::State(past, Box::new(state))));
        Kept { print, packed: timeline::Packed::new_zeroed(), kind: Kind::OTHER, aside }
    }

    /// Where the pace is from now on, if there is room.
    fn remember(&mut self, pace: Pace) -> Option<usize> {
        let place = self.paces.len();
        let has_room = place < MOST_PACES;
        if has_room {
            self.paces = self.paces.iter().copied().chain([pace]).collect();
        }
        has_room.then_some(place)
    }

    /// Puts `new` in the place of what lies there, if anything does; [`Kept::aside`] of it.
    #[inline]
    fn lay_aside(&mut self, place: Option<usize>, new: Option<Aside>) -> u64 {
        match (place, new) {
            // Most have nothing there.
            (None, None) => 0,
            (place, new) => self.replace_aside(place, new),
        }
    }

    fn replace_aside(&mut self, place: Option<usize>, new: Option<Aside>) -> u64 {
        let Some(new) = new else {
            place.and_then(|place| self.asides.try_remove(place));
            return 0;
        };
        let place = match place.and_then(|place| Some((place, self.asides.get_mut(place)?))) {
            Some((place, aside)) => {
                *aside = new;
                place
            }
            None => self.asides.insert(new),
        };
        place as u64 + 1
    }

    /// False when there was none.
    pub(super) fn remove(&mut self, print: Print) -> bool {
        self.find(print).is_some_and(|place| self.remove_at(place))
    }

    fn remove_at(&mut self, place: Place) -> bool {
        let removed = self.states.remove(place, Kept::home);
        self.lay_aside(removed.and_then(|kept| kept.place_aside()), None);
        removed.is_some()
    }

    /// Somebody new has come, and there is no room for the state: looks for some as if there were.
    pub(super) fn make_room(&mut self, now: Micros) {
        self.due += SWEEP_FOR_NEW;
        self.sweep(now);
    }

    /// Looks at the next few places when enough has been put, and drops what is past.
    pub(super) fn sweep(&mut self, now: Micros) {
        if self.due < STRIDE * PARTS {
            return;
        }
        for _ in 0..mem::take(&mut self.due) / PARTS {
            if self.sweep >= self.states.places() {
                self.sweep = 0;
            }
            let kept = self.states.get(self.sweep);
            match kept.is_some_and(|kept| self.past(kept).saturating_add(GRACE) <= now) {
                // Another one may be there then.
                true => drop(self.remove_at(self.sweep)),
                false => self.sweep += 1,
            }
        }
    }

    /// From when on it equals an absent one.
    fn past(&self, kept: &Kept) -> Micros {
        match kept.place_aside().and_then(|place| self.asides.get(place)) {
            Some(Aside::State(past, _)) => *past,
            _ => kept.packed.past(),
        }
    }
}

// === impl Kept ===

impl Kept {
    fn home(&self) -> u64 {
        self.print.home()
    }

    /// Where what lies aside is there.
    fn place_aside(&self) -> Option<usize> {
        usize::try_from(self.aside.checked_sub(1)?).ok()
    }
}

/// All zeros: empty.
impl probing::Place for Kept {
    type Thing = Self;

    fn empty() -> Self {
        Self::new_zeroed()
    }

    fn get(&self) -> Option<&Self> {
        (self.kind != Kind::NONE).then_some(self)
    }

    fn get_mut(&mut self) -> Option<&mut Self> {
        (self.kind != Kind::NONE).then_some(self)
    }

    fn put(&mut self, thing: Self) {
        *self = thing;
    }

    fn take(&mut self) -> Option<Self> {
        let taken = mem::replace(self, Self::empty());
        taken.get().copied()
    }
}

// === impl Kind ===

impl Kind {
    const NONE: Self = Self(0);
    const OTHER: Self = Self(1);
    const FIRST: u64 = 2;

    fn of(pace: usize) -> Self {
        Self(pace as u64 + Self::FIRST)
    }

    fn pace(self) -> Option<usize> {
        usize::try_from(self.0.checked_sub(Self::FIRST)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{SlidingWindow, TokenBucket};

    const RULE: Algorithm = Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND);

    fn state(now: Micros) -> (State, Micros) {
        let mut open = RULE.open(None, now);
        let (_, start) = open.earliest(0, 1);
        open.take(start, 1);
        open.close().expect("a state")
    }

    fn put(shard: &mut Shard, number: u64, now: Micros) {
        let (print, (state, ttl)) = (print(number), state(now));
        shard.put(print, shard.find(print), state, now + ttl);
        shard.sweep(now);
    }

    fn print(number: u64) -> Print {
        Print([number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15)])
    }

    #[test]
    fn a_state_and_what_is_needed_to_find_it_are_a_line_each() {
        assert_eq!(size_of::<Kept>(), 64);
        // Behind a lock.
        assert!(8 + std::mem::offset_of!(Shard, sweep) <= 64);
    }

    #[test]
    fn prints_that_agree_in_their_hash_alone_are_two() {
        let (mut shard, one, other) = (Shard::default(), Print([1, 7]), Print([2, 7]));
        let (state, ttl) = state(0);
        shard.put(one, None, state.clone(), ttl);
        assert!(shard.find(other).is_none() && !shard.remove(other));
        shard.put(other, shard.find(one), state, ttl);
        assert!(shard.len() == 2 && shard.remove(one) && shard.find(other).is_some());
    }

    fn window() -> (Algorithm, State, Micros) {
        let rule = SlidingWindow::new(3, 1_000_000, 0).expect("a rule");
        let rule = Algorithm::SlidingWindow(rule);
        let mut open = rule.open(None, 0);
        let (_, start) = open.earliest(0, 2);
        open.take(start, 2);
        let (state, ttl) = open.close().expect("a state");
        (rule, state, ttl)
    }

    /// What it remembers is out while it is opened, and others of its request may come meanwhile.
    #[test]
    fn what_is_put_back_finds_its_state_wherever_that_is_by_now() {
        let ((rule, state, ttl), mut shard) = (window(), Shard::default());
        shard.put(print(0), None, state, ttl);
        let place = shard.find(print(0)).expect("a state");
        let first = shard.open(place, &rule, None, 0).expect("a state");
        let level = first.level();
        shard.put_back(print(0), place, first);
        for number in 1..100 {
            let place = shard.find(print(0)).expect("a state");
            let open = shard.open(place, &rule, None, 0).expect("a state");
            put(&mut shard, number, 0);
            shard.put_back(print(0), place, open);
            let place = shard.find(print(0)).expect("a state");
            let open = shard.open(place, &rule, None, 0).expect("a state");
            assert_eq!(open.level(), level);
            shard.put_back(print(0), place, open);
        }
    }

    #[test]
    fn what_lies_aside_goes_with_its_state() {
        let ((_, state, ttl), mut shard) = (window(), Shard::default());
        for _ in 0..2 {
            (0..10).for_each(|number| shard.put(print(number), None, state.clone(), ttl));
            assert_eq!((shard.len(), shard.asides.len()), (10, 10));
        }
        assert!(shard.remove(print(0)) && !shard.remove(print(0)));
        put(&mut shard, 1, 0);
        assert_eq!((shard.len(), shard.asides.len()), (9, 8));
        (0..1_000).for_each(|_| shard.make_room(GRACE + 2_000_000));
        assert_eq!((shard.len(), shard.asides.len()), (0, 0));
    }

    /// They lie on huge pages then.
    #[test]
    fn what_is_kept_among_many_is_found() {
        const MANY: u64 = 40_000;
        let mut shard = Shard::default();
        (0..MANY).for_each(|number| put(&mut shard, number, 0));
        assert_eq!(shard.len(), MANY as usize);
        assert!((0..MANY).all(|number| shard.find(print(number)).is_some()));
        assert!((0..MANY).all(|number| shard.remove(print(number))));
        assert!(shard.len() == 0 && shard.find(print(0)).is_none());
    }

    /// Holes among them, and whatever the pace.
    #[test]
    fn what_is_packed_is_what_it_was() {
        let mut shard = Shard::default();
        for count in 1..=MOST_PACES as i64 + 10 {
            let rule = TokenBucket::new(count, 10_000_000, 20).expect("a rule");
            let rule = Algorithm::TokenBucket(rule);
            let mut open = rule.open(None, 5);
            let mut grants = Vec::new();
            for _ in 0..40 {
                let (_, start) = open.earliest(0, 1);
                grants.push(open.take(start, 1));
            }
            assert!(open.refund(grants[30], 1), "a hole");
            let (mut state, ttl) = open.close().expect("a state");
            let expected = rule.open(Some(&mut state), 1000);
            shard.put(print(count as u64), None, state, 5 + ttl);
            for _ in 0..2 {
                let place = shard.find(print(count as u64)).expect("a state");
                assert_eq!(shard.open(place, &rule, None, 1000), Some(expected.clone()));
            }
        }
        assert_eq!(shard.paces.len(), MOST_PACES);
    }

    /// However many come, once each: those that are past go as others come.
    #[test]
    fn what_is_past_makes_room_for_what_is_new() {
        let (mut shard, mut most) = (Shard::default(), 0);
        for number in 0..20_000 {
            put(&mut shard, number, number as Micros * 100_000);
            most = most.max(shard.len());
        }
        assert!((60..1_000).contains(&most), "{most}");
    }

    /// Also where nobody new is let in.
    #[test]
    fn what_is_past_goes_while_there_is_no_room() {
        let mut shard = Shard::default();
        (0..1_000).for_each(|number| put(&mut shard, number, 0));
        let later = GRACE + 2_000_000;
        (0..16).for_each(|_| shard.make_room(later));
        assert!(shard.len() < 1_000, "sixteen newcomers look at 64 places");
        (0..1_000).for_each(|_| shard.make_room(later));
        assert_eq!(shard.len(), 0);
    }

    /// Also where nobody new comes.
    #[test]
    fn what_is_past_goes_while_one_is_changed() {
        let mut shard = Shard::default();
        (0..1_000).for_each(|number| put(&mut shard, number, 0));
        assert_eq!(shard.len(), 1_000);
        (0..200_000).for_each(|step| put(&mut shard, 0, GRACE + 2_000_000 + step));
        assert_eq!(shard.len(), 1);
    }
}
