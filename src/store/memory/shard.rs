//! A part of the states. A state is found by a print of its key and lies with it in one place: among a million of them each
//! look at another place is one at memory.

use crate::algorithm::{Algorithm, Micros, Open, State, token_bucket};
use hashbrown::{HashTable, hash_table::Entry};
use std::mem;

/// Other places looked at for each state that is changed, and for each that is new, so that those that are past make
/// room: a table is never less than half full of places that were in use.
const SWEEP: u32 = 1;
const SWEEP_FOR_NEW: u32 = 4;
/// So many at once: they lie behind each other.
const STRIDE: u32 = 32;

/// Stands for a key: 128 bits of hashes that nobody outside can compute. That two keys have one is less likely than that
/// a machine miscounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print(pub(super) [u64; 2]);

/// States by print.
#[derive(Debug, Default)]
pub(super) struct Shard {
    states: HashTable<Kept>,
    /// Where the sweep goes on, and how far it may.
    sweep: usize,
    due: u32,
}

#[derive(Debug)]
struct Kept {
    print: Print,
    /// From when on it equals an absent one.
    past: Micros,
    state: Packed,
}

/// A state, small where it is of the usual kind.
#[derive(Debug)]
pub(super) enum Packed {
    TokenBucket(token_bucket::State),
    Other(Box<State>),
}

// === impl Shard ===

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn find(&mut self, print: Print) -> Option<&mut Packed> {
        let kept = self.states.find_mut(print.0[0], |kept| kept.print == print);
        kept.map(|kept| &mut kept.state)
    }

    pub(super) fn put(&mut self, print: Print, state: State, past: Micros) {
        let entry = self.states.entry(
            print.0[0],
            |kept| kept.print == print,
            |kept| kept.print.0[0],
        );
        match entry {
            Entry::Occupied(mut entry) => {
                let kept = entry.get_mut();
                kept.past = past;
                kept.state.set(state);
                self.due += SWEEP;
            }
            Entry::Vacant(entry) => {
                entry.insert(Kept { print, past, state: Packed::new(state) });
                self.due += SWEEP_FOR_NEW;
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
            if self.states.get_bucket(self.sweep).is_some_and(|kept| kept.past <= now)
                && let Ok(entry) = self.states.get_bucket_entry(self.sweep)
            {
                entry.remove();
            }
            self.sweep += 1;
        }
    }
}

// === impl Packed ===

impl Packed {
    fn new(state: State) -> Self {
        match state {
            State::TokenBucket(state) => Self::TokenBucket(state),
            other => Self::Other(Box::new(other)),
        }
    }

    fn set(&mut self, state: State) {
        match (self, state) {
            (Self::TokenBucket(kept), State::TokenBucket(state)) => *kept = state,
            (Self::Other(kept), state) => **kept = state,
            // A key names its algorithm: never.
            (kept, state) => *kept = Self::new(state),
        }
    }

    /// As [`Algorithm::open`].
    pub(super) fn open(&mut self, algorithm: &Algorithm, now: Micros) -> Open {
        match (self, algorithm) {
            (Self::TokenBucket(state), Algorithm::TokenBucket(rule)) => {
                Open::TokenBucket(token_bucket::Open::new(Some(state), now, *rule))
            }
            (Self::Other(state), algorithm) => algorithm.open(Some(state), now),
            (Self::TokenBucket(_), algorithm) => algorithm.open(None, now),
        }
    }

    /// As [`Open::put_back`].
    pub(super) fn put_back(&mut self, open: Open) {
        if let Self::Other(state) = self {
            open.put_back(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;

    fn state(now: Micros) -> State {
        let rule = Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND);
        let mut open = rule.open(None, now);
        let (_, start) = open.earliest(0, 1);
        open.take(start, 1);
        open.close().expect("a state").0
    }

    fn print(number: u64) -> Print {
        Print([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number])
    }

    #[test]
    fn a_state_takes_little_room() {
        assert!(size_of::<Kept>() <= 96, "{}", size_of::<Kept>());
    }

    #[test]
    fn prints_that_agree_in_their_hash_alone_are_two() {
        let (mut shard, one, other) = (Shard::default(), Print([7, 1]), Print([7, 2]));
        shard.put(one, state(1), 10);
        assert!(shard.find(other).is_none() && !shard.remove(other));
        shard.put(other, state(2), 10);
        assert!(shard.len() == 2 && shard.remove(one) && shard.find(other).is_some());
    }

    /// However many come, once each: those that are past go as others come.
    #[test]
    fn what_is_past_makes_room_for_what_is_new() {
        let (mut shard, mut most) = (Shard::default(), 0);
        for now in 0..100_000 {
            shard.put(print(now as u64), state(now), now + 100);
            shard.sweep(now);
            most = most.max(shard.len());
        }
        assert!((100..1_000).contains(&most), "{most}");
    }

    /// Also where nobody new comes.
    #[test]
    fn what_is_past_goes_while_one_is_changed() {
        let mut shard = Shard::default();
        for number in 0..1_000 {
            shard.put(print(number), state(1), 100);
        }
        for now in 100..5_000 {
            shard.put(print(0), state(now), now + 100);
            shard.sweep(now);
        }
        assert_eq!(shard.len(), 1);
    }
}
