//! A part of the states. A state is found by a print of its key and lies with it in one place: among a million of them each
//! look at another place is one at memory.

use super::GRACE;
use crate::algorithm::{
    Algorithm, Micros, Open, State, TokenBucket,
    timeline::{self, Pace},
    token_bucket,
};
use hashbrown::{HashTable, hash_table::Entry};
use std::mem;

/// Other places looked at for each state that is changed, and for each that is new, so that those that are past make
/// room: a table is never less than half full of places that were in use.
const SWEEP: u32 = 1;
const SWEEP_FOR_NEW: u32 = 4;
/// So many at once: they lie behind each other.
const STRIDE: u32 = 32;
/// Rules of which token buckets are packed: those of a configuration and of some before it.
const MOST_PACES: u32 = 1024;

/// Stands for a key: 128 bits of hashes that nobody outside can compute. That two keys have one is less likely than that
/// a machine miscounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print(pub(super) [u64; 2]);

/// States by print.
#[derive(Debug, Default)]
pub(super) struct Shard {
    states: HashTable<Kept>,
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

// === impl Shard ===

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    fn find(&mut self, print: Print) -> Option<(&mut Packed, &[Pace])> {
        let kept = self.states.find_mut(print.0[0], |kept| kept.print == print)?;
        Some((&mut kept.state, &self.paces))
    }

    /// As [`Algorithm::open`]; `None` when there is no state.
    pub(super) fn open(
        &mut self,
        print: Print,
        algorithm: &Algorithm,
        now: Micros,
    ) -> Option<Open> {
        let (state, paces) = self.find(print)?;
        Some(match (state, algorithm) {
            (Packed::TokenBucket(pace, packed), Algorithm::TokenBucket(rule)) => {
                open(packed, paces.get(*pace as usize), *rule, now)
            }
            (Packed::Other(_, state), algorithm) => algorithm.open(Some(state), now),
            // A key names its algorithm: never.
            (Packed::TokenBucket(..), algorithm) => algorithm.open(None, now),
        })
    }

    /// As [`Open::put_back`].
    pub(super) fn put_back(&mut self, print: Print, open: Open) {
        if let Some((Packed::Other(_, state), _)) = self.find(print) {
            open.put_back(state);
        }
    }

    /// Keeps a state that matters for `ttl` µs.
    pub(super) fn put(&mut self, print: Print, state: State, now: Micros, ttl: Micros) {
        let state = self.packed(state, now + ttl);
        let hash = |kept: &Kept| kept.print.0[0];
        match self.states.entry(print.0[0], |kept| kept.print == print, hash) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().state = state;
                self.due += SWEEP;
            }
            Entry::Vacant(entry) => {
                entry.insert(Kept { print, state });
                self.due += SWEEP_FOR_NEW;
            }
        }
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
        let entry = self.states.find_entry(print.0[0], |kept| kept.print == print);
        entry.map(|entry| drop(entry.remove())).is_ok()
    }

    /// Looks at the next few places when enough has been put, and drops what is past.
    pub(super) fn sweep(&mut self, now: Micros) {
        if self.due < STRIDE {
            return;
        }
        for _ in 0..mem::take(&mut self.due) {
            if self.sweep >= self.states.num_buckets() {
                self.sweep = 0;
            }
            if self.states.get_bucket(self.sweep).is_some_and(|kept| kept.past() <= now)
                && let Ok(entry) = self.states.get_bucket_entry(self.sweep)
            {
                entry.remove();
            }
            self.sweep += 1;
        }
    }
}

fn open(
    packed: &mut timeline::Packed,
    pace: Option<&Pace>,
    rule: TokenBucket,
    now: Micros,
) -> Open {
    let mut state = pace.map(|pace| packed.unpack(*pace));
    let open = token_bucket::Open::new(state.as_mut(), now, rule);
    if let Some(state) = state {
        packed.repack(state);
    }
    Open::TokenBucket(open)
}

// === impl Kept ===

impl Kept {
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
    use crate::algorithm::TokenBucket;

    const RULE: Algorithm = Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND);

    fn state(now: Micros) -> (State, Micros) {
        let mut open = RULE.open(None, now);
        let (_, start) = open.earliest(0, 1);
        open.take(start, 1);
        open.close().expect("a state")
    }

    fn put(shard: &mut Shard, number: u64, now: Micros) {
        let (state, ttl) = state(now);
        shard.put(print(number), state, now, ttl);
        shard.sweep(now);
    }

    fn print(number: u64) -> Print {
        Print([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number])
    }

    #[test]
    fn a_state_takes_little_room() {
        assert_eq!(size_of::<Kept>(), 64);
    }

    #[test]
    fn prints_that_agree_in_their_hash_alone_are_two() {
        let (mut shard, one, other) = (Shard::default(), Print([7, 1]), Print([7, 2]));
        let (state, ttl) = state(0);
        shard.put(one, state.clone(), 0, ttl);
        assert!(shard.open(other, &RULE, 0).is_none() && !shard.remove(other));
        shard.put(other, state, 0, ttl);
        assert!(shard.len() == 2 && shard.remove(one) && shard.open(other, &RULE, 0).is_some());
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
            shard.put(print(count as u64), state, 5, ttl);
            for _ in 0..2 {
                assert_eq!(shard.open(print(count as u64), &rule, 1000), Some(expected.clone()));
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

    /// Also where nobody new comes.
    #[test]
    fn what_is_past_goes_while_one_is_changed() {
        let mut shard = Shard::default();
        (0..1_000).for_each(|number| put(&mut shard, number, 0));
        assert_eq!(shard.len(), 1_000);
        (0..5_000).for_each(|step| put(&mut shard, 0, GRACE + 2_000_000 + step));
        assert_eq!(shard.len(), 1);
    }
}
