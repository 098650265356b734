//! A part of the states. A state is found by a print of its key and lies with it in one place: among a million of them each
//! look at another place is one at memory.

use super::GRACE;
use crate::{
    algorithm::{
        Algorithm, Loss, Micros, Open, State, TokenBucket,
        timeline::{self, Pace},
        token_bucket,
    },
    probing::ProbingTable,
};
use std::mem;

/// Parts of another place that are looked at for each state that is changed, and for each that is new, so that those that
/// are past make room: places fill up with what was in use at one time, at most. Four looks for a new one; seldom one for
/// a change, since each is one at memory.
const SWEEP: u32 = 1;
const SWEEP_FOR_NEW: u32 = 4 * PARTS;
const PARTS: u32 = 64;
/// So many places at once: they lie behind each other.
const STRIDE: u32 = 32;
/// Rules of which token buckets are packed: those of a configuration and of some before it.
const MOST_PACES: u32 = 1024;

/// Stands for a key: 128 bits of hashes that nobody outside can compute. That two keys have one is less likely than that
/// a machine miscounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print(pub(super) [u64; 2]);

/// Where a state lies until others come or go.
pub(super) type Place = usize;

/// States by print.
#[derive(Debug, Default)]
pub(super) struct Shard {
    states: ProbingTable<Kept>,
    paces: Vec<Pace>,
    /// Where the sweep goes on, and how far it may.
    sweep: usize,
    due: u32,
}

/// One cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Kept {
    print: Print,
    state: Packed,
}

#[derive(Debug)]
enum Packed {
    /// The usual kind, with the place of its pace among those of the shard.
    TokenBucket(u32, timeline::Packed),
    /// With when it equals an absent one.
    Other(Micros, Box<State>),
}

// === impl Print ===

impl Print {
    /// Shards are chosen by the other hash.
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

    /// As [`Algorithm::open`], and [`Algorithm::open_behind`] a loss; `None` when no state is there that counts.
    pub(super) fn open(
        &mut self,
        place: Place,
        algorithm: &Algorithm,
        loss: Option<Loss>,
        now: Micros,
    ) -> Option<Open> {
        match (&mut self.states.get_mut(place)?.state, algorithm) {
            (Packed::TokenBucket(pace, packed), Algorithm::TokenBucket(rule)) => {
                let is_lost = loss.is_some_and(|loss| packed.born() < loss.at);
                let pace = self.paces.get(*pace as usize).filter(|_| !is_lost)?;
                Some(open(packed, *pace, *rule, now))
            }
            (Packed::Other(_, state), algorithm) => match loss {
                None => Some(algorithm.open(Some(state), now)),
                Some(loss) if loss.takes(state) => None,
                Some(loss) => Some(algorithm.open_behind(loss, Some(state), now)),
            },
            // A key names its algorithm: never.
            (Packed::TokenBucket(..), _) => None,
        }
    }

    /// As [`Open::put_back`], of what was opened at `place`; others may have come or gone since.
    pub(super) fn put_back(&mut self, print: Print, place: Place, open: Open) {
        let stayed = self.states.get(place).is_some_and(|kept| kept.print == print);
        let place = if stayed { Some(place) } else { self.find(print) };
        let kept = place.and_then(|place| self.states.get_mut(place));
        if let Some(Packed::Other(_, state)) = kept.map(|kept| &mut kept.state) {
            open.put_back(state);
        }
    }

    /// Keeps a state that equals an absent one from `past` on; `place` is where one of this print was, perhaps.
    pub(super) fn put(&mut self, print: Print, place: Option<Place>, state: State, past: Micros) {
        let state = self.packed(state, past);
        let kept = place.and_then(|place| self.states.get_mut(place));
        match kept.filter(|kept| kept.print == print) {
            Some(kept) => {
                kept.state = state;
                self.due += SWEEP;
            }
            None => self.insert(print, state),
        }
    }

    /// The same of one that matters for longer than it says itself.
    pub(super) fn keep_until(&mut self, print: Print, state: State, past: Micros) {
        self.insert(print, Packed::Other(past, Box::new(state)));
    }

    fn insert(&mut self, print: Print, state: Packed) {
        match self.find(print).and_then(|place| self.states.get_mut(place)) {
            Some(kept) => kept.state = state,
            None => self.states.insert(Kept { print, state }, Kept::home),
        }
        self.due += SWEEP_FOR_NEW;
    }

    fn packed(&mut self, state: State, past: Micros) -> Packed {
        let state = match state {
            State::TokenBucket(state) => state,
            other => return Packed::Other(past, Box::new(other)),
        };
        let pace = state.pace();
        let known = self.paces.iter().position(|known| *known == pace);
        let place = known.unwrap_or_else(|| {
            self.paces.push(pace);
            self.paces.len() - 1
        });
        match u32::try_from(place) {
            Ok(place) if place < MOST_PACES => {
                Packed::TokenBucket(place, timeline::Packed::new(state))
            }
            _ => {
                self.paces.truncate(MOST_PACES as usize);
                Packed::Other(past, Box::new(State::TokenBucket(state)))
            }
        }
    }

    /// False when there was none.
    pub(super) fn remove(&mut self, print: Print) -> bool {
        self.find(print).is_some_and(|place| self.states.remove(place, Kept::home).is_some())
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
            match self.states.get(self.sweep).is_some_and(|kept| kept.past() <= now) {
                // Another one may be there then.
                true => drop(self.states.remove(self.sweep, Kept::home)),
                false => self.sweep += 1,
            }
        }
    }
}

fn open(packed: &mut timeline::Packed, pace: Pace, rule: TokenBucket, now: Micros) -> Open {
    let mut state = packed.unpack(pace);
    let open = token_bucket::Open::new(Some(&mut state), now, rule);
    packed.repack(state);
    Open::TokenBucket(open)
}

// === impl Kept ===

impl Kept {
    fn home(&self) -> u64 {
        self.print.home()
    }

    fn past(&self) -> Micros {
        GRACE
            + match &self.state {
                Packed::TokenBucket(_, state) => state.past(),
                Packed::Other(past, _) => *past,
            }
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
    fn a_state_takes_little_room() {
        assert_eq!(size_of::<Option<Kept>>(), 64);
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

    /// What it remembers is out while it is opened, and others of its request may come meanwhile.
    #[test]
    fn what_is_put_back_finds_its_state_wherever_that_is_by_now() {
        let window = SlidingWindow::new(3, 1_000_000, 0).expect("a rule");
        let (rule, mut shard) = (Algorithm::SlidingWindow(window), Shard::default());
        let mut open = rule.open(None, 0);
        let (_, start) = open.earliest(0, 2);
        open.take(start, 2);
        let level = open.level();
        let (state, ttl) = open.close().expect("a state");
        shard.put(print(0), None, state, ttl);
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

    /// Holes among them, and whatever the pace.
    #[test]
    fn what_is_packed_is_what_it_was() {
        let mut shard = Shard::default();
        for count in 1..=i64::from(MOST_PACES) + 10 {
            let rule = TokenBucket::new(count, 10_000_000, 20).expect("a rule");
            let rule = Algorithm::TokenBucket(rule);
            let mut open = rule.open(None, 5);
            let mut grants = Vec::new();
            for _ in 0..40 {
                let (_, start) = open.earliest(0, 1);
                grants.push(open.take(start, 1));
            }
            assert!(open.give_back(grants[30], 1), "a hole");
            let (mut state, ttl) = open.close().expect("a state");
            let expected = rule.open(Some(&mut state), 1000);
            shard.put(print(count as u64), None, state, 5 + ttl);
            for _ in 0..2 {
                let place = shard.find(print(count as u64)).expect("a state");
                assert_eq!(shard.open(place, &rule, None, 1000), Some(expected.clone()));
            }
        }
        assert_eq!(shard.paces.len(), MOST_PACES as usize);
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
