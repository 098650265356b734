//! One part of the states. A state is found by the print of its key and kept beside it, because among a million states each
//! look at another place misses all caches.

mod grant;

use super::{
    GRACE,
    gates::Gates,
    pages::Pages,
    stored_state::{Kind, Print, StoredState},
};
use crate::{
    algorithm::{
        Algorithm, DataLoss, Micros, Open, OpenRule, Rule, RuleState, State, TokenBucket,
        fair::Queue,
        gate::OpenGate,
        stored::StoredRate,
        timeline::{self, Pace},
        token_bucket,
    },
    probing::ProbingTable,
    store::Check,
};
use ahash::HashMap;
use slab::Slab;
use std::{mem, sync::Arc};
use zerocopy::FromZeros;

/// How far the sweep for outdated states moves for a changed state and for a new one, in 64ths of a place: four places for a
/// new state, and seldom one for a change, because each look misses the caches. So the table holds about as many states as
/// were in use at one time.
const SWEEP: u32 = 1;
const SWEEP_FOR_NEW: u32 = 4 * PARTS;
const PARTS: u32 = 64;
/// Places that a sweep looks at in one go. They are neighbours in memory.
const STRIDE: u32 = 32;
/// The largest number of rates whose token buckets are packed: those of a configuration, and of some before it.
const MOST_PACES: usize = 1024;

/// The position of a state in the table, valid until another state is added or removed.
pub(super) type StateIndex = usize;

/// States by print. The fields that every decision reads are in one cache line.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Shard {
    states: ProbingTable<Pages<StoredState>>,
    paces: Box<[Pace]>,
    /// How far the sweep may move, in 64ths of a place.
    due: u32,
    /// Whether `gates` has any.
    has_gates: bool,
    /// The position at which the sweep continues.
    sweep: usize,
    /// The parts of states that have no fixed size.
    asides: Slab<Aside>,
    /// The gates of paused limiters.
    gates: Gates,
    /// The names of the states of limiters with a key, for operators. A state without a key is not listed.
    listed: HashMap<Print, Arc<str>>,
    /// The requests that wait for limiters with fair sharing. A queue without requests is not kept.
    pub(super) queues: HashMap<Print, Box<Queue>>,
}

#[derive(Debug)]
enum Aside {
    /// The unused slots of a token bucket.
    Holes(Vec<(i64, i64)>),
    /// A state of another kind, and the instant from which it equals an absent one.
    State(Micros, Box<RuleState>),
}

// === impl Shard ===

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn find(&self, print: Print) -> Option<StateIndex> {
        self.states.find(print.home(), |kept| kept.print == print)
    }

    /// Opens a state as [`Rule::open`] does; `None` if the position holds no state that counts.
    pub(super) fn open(
        &mut self,
        place: StateIndex,
        rule: &Rule,
        loss: Option<DataLoss>,
        now: Micros,
    ) -> Option<OpenRule> {
        let kept = *self.states.get(place)?;
        if kept.kind.pace().is_some() {
            // The key contains the letter of its algorithm, so the state has the same one.
            let Rule::Rate(Algorithm::TokenBucket(rule)) = rule else { return None };
            let open = self.open_bucket(place, *rule, loss, now)?;
            return Some(OpenRule::Rate(Open::TokenBucket(open)));
        }
        let Aside::State(_, state) = self.asides.get_mut(kept.place_aside()?)? else { return None };
        match loss {
            Some(loss) if loss.takes(state) => None,
            loss => Some(rule.open(loss, Some(state), now)),
        }
    }

    /// The state of a print, if it is of a kind that is not packed.
    pub(super) fn kept(&self, print: Print) -> Option<&RuleState> {
        let place = self.states.get(self.find(print)?)?.place_aside()?;
        match self.asides.get(place)? {
            Aside::State(_, state) => Some(state),
            Aside::Holes(_) => None,
        }
    }

    /// The state of a rate and its gate, as they are kept.
    pub(super) fn stored(&self, print: Print) -> StoredRate {
        let kept = self.find(print).and_then(|place| self.states.get(place));
        let pace = kept.and_then(|kept| self.paces.get(kept.kind.pace()?));
        let aside = kept.and_then(|kept| self.asides.get(kept.place_aside()?));
        let state = match (kept, pace, aside) {
            (Some(kept), Some(pace), Some(Aside::Holes(holes))) => {
                Some(State::TokenBucket(kept.packed.unpack(*pace, holes.clone())))
            }
            (Some(kept), Some(pace), _) => {
                Some(State::TokenBucket(kept.packed.unpack(*pace, Vec::new())))
            }
            (_, _, Some(Aside::State(_, state))) => match &**state {
                RuleState::Rate(state) => Some(state.clone()),
                RuleState::Permits(_) => None,
            },
            _ => None,
        };
        StoredRate { gate: self.gates.get(print), state }
    }

    /// Opens the state of a token bucket; `None` if the position holds none that is packed and counts.
    fn open_bucket(
        &mut self,
        place: StateIndex,
        rule: TokenBucket,
        loss: Option<DataLoss>,
        now: Micros,
    ) -> Option<token_bucket::Open> {
        let kept = self.states.get(place)?;
        let is_lost = loss.is_some_and(|loss| kept.packed.born() < loss.at);
        let pace = *self.paces.get(kept.kind.pace()?).filter(|_| !is_lost)?;
        let aside = kept.place_aside().and_then(|place| self.asides.get_mut(place));
        let mut none = Vec::new();
        let holes = match aside {
            Some(Aside::Holes(holes)) => holes,
            _ => &mut none,
        };
        // The state borrows them only.
        let mut state = kept.packed.unpack(pace, mem::take(holes));
        let open = token_bucket::Open::new(Some(&mut state), now, rule);
        *holes = state.into_holes();
        Some(open)
    }

    pub(super) fn has_gate(&self, print: Print) -> bool {
        self.has_gates && self.gates.get(print).is_some()
    }

    /// Opens the gate of a limiter; `None` when it has none that delays a request.
    #[inline]
    pub(super) fn open_gate(
        &mut self,
        print: Print,
        check: &Check,
        now: Micros,
    ) -> Option<Box<OpenGate>> {
        // Mostly no limiter is paused.
        if self.has_gates || check.bounds.is_some() {
            self.find_gate(print, check, now)
        } else {
            None
        }
    }

    #[cold]
    fn find_gate(&mut self, print: Print, check: &Check, now: Micros) -> Option<Box<OpenGate>> {
        let gate = self.gates.get(print);
        let has_one = gate.is_some();
        let open = check.open_gate(gate, now);
        if has_one && open.is_none() {
            self.remove_gate(print);
        }
        open.map(Box::new)
    }

    /// Removes the gate of a limiter; false when it had none.
    pub(super) fn remove_gate(&mut self, print: Print) -> bool {
        let removed = self.gates.remove(print);
        self.has_gates = !self.gates.is_empty();
        removed
    }

    /// Keeps the gate of a paused limiter, or removes it when a refund has ended it: a later rule must not find it again.
    #[cold]
    pub(super) fn put_gate(&mut self, now: Micros, print: Print, open: &OpenGate) {
        if open.ends() > now {
            self.has_gates = true;
            self.gates.put(now, print, open.gate().clone(), open.ends());
        } else {
            self.remove_gate(print);
        }
    }

    /// Puts back a state that was opened at `place` and not changed. Other states may have been added or removed since.
    pub(super) fn put_back(&mut self, print: Print, place: StateIndex, open: OpenRule) {
        let aside = self.at(print, Some(place)).1.and_then(|aside| self.asides.get_mut(aside));
        if let Some(Aside::State(_, state)) = aside {
            open.put_back(state);
        }
    }

    /// Keeps a state that equals an absent one from `past` on; `place` is the last known position of this print.
    pub(super) fn put(
        &mut self,
        print: Print,
        place: Option<StateIndex>,
        state: RuleState,
        past: Micros,
    ) {
        let (place, aside) = self.at(print, place);
        let kept = match state {
            RuleState::Rate(State::TokenBucket(state)) if !state.has_credit() => {
                self.packed(print, aside, state, past)
            }
            other => self.unpacked(print, aside, other, past),
        };
        self.set(place, kept);
    }

    /// Keeps a state that matters until `past`, which is later than its own end.
    pub(super) fn keep_until(&mut self, print: Print, state: RuleState, past: Micros) {
        let (place, aside) = self.at(print, None);
        let kept = self.unpacked(print, aside, state, past);
        self.set(place, kept);
    }

    /// The position of the state of this print, which was last known at `place`, and the index of its part in `asides`.
    fn at(&self, print: Print, place: Option<StateIndex>) -> (Option<StateIndex>, Option<usize>) {
        let is_it =
            |place: &StateIndex| self.states.get(*place).is_some_and(|kept| kept.print == print);
        let place = place.filter(is_it).or_else(|| self.find(print));
        let kept = place.and_then(|place| self.states.get(place));
        (place, kept.and_then(StoredState::place_aside))
    }

    fn set(&mut self, place: Option<StateIndex>, new: StoredState) {
        match place.and_then(|place| self.states.get_mut(place)) {
            Some(kept) => {
                *kept = new;
                self.due += SWEEP;
            }
            None => {
                self.states.insert(new, StoredState::home);
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
    ) -> StoredState {
        let (packed, pace, holes) = timeline::Packed::new(state);
        let known = self.paces.iter().position(|known| *known == pace);
        let Some(pace_at) = known.or_else(|| self.remember(pace)) else {
            let state = RuleState::Rate(State::TokenBucket(packed.unpack(pace, holes)));
            return self.unpacked(print, aside, state, past);
        };
        let holes = (!holes.is_empty()).then_some(Aside::Holes(holes));
        let aside = self.lay_aside(aside, holes);
        StoredState { print, packed, kind: Kind::of(pace_at), aside }
    }

    fn unpacked(
        &mut self,
        print: Print,
        aside: Option<usize>,
        state: RuleState,
        past: Micros,
    ) -> StoredState {
        let aside = self.lay_aside(aside, Some(Aside::State(past, Box::new(state))));
        StoredState { print, packed: timeline::Packed::new_zeroed(), kind: Kind::OTHER, aside }
    }

    /// Adds a pace if there is room, and returns its index.
    fn remember(&mut self, pace: Pace) -> Option<usize> {
        let place = self.paces.len();
        let has_room = place < MOST_PACES;
        if has_room {
            self.paces = self.paces.iter().copied().chain([pace]).collect();
        }
        has_room.then_some(place)
    }

    /// Replaces the part at `place` of `asides` by `new`, and returns its [`StoredState::aside`].
    #[inline]
    fn lay_aside(&mut self, place: Option<usize>, new: Option<Aside>) -> u64 {
        match (place, new) {
            // Most states have no such part.
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

    /// Removes the state of a print; false if there was none.
    pub(super) fn remove(&mut self, print: Print) -> bool {
        self.find(print).is_some_and(|place| self.remove_at(place))
    }

    fn remove_at(&mut self, place: StateIndex) -> bool {
        let removed = self.states.remove(place, StoredState::home);
        if let Some(kept) = removed.filter(|_| !self.listed.is_empty()) {
            self.listed.remove(&kept.print);
        }
        self.lay_aside(removed.and_then(|kept| kept.place_aside()), None);
        removed.is_some()
    }

    /// Lists the state of a key under the name that operators know.
    pub(super) fn list(&mut self, print: Print, name: &Arc<str>) {
        self.listed.insert(print, name.clone());
    }

    /// The listed names that begin with `prefix`.
    pub(super) fn names(&self, prefix: &str) -> Vec<Arc<str>> {
        self.listed.values().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    /// A new key found no room for its state. The sweep moves as if it had, so that it may free some.
    pub(super) fn make_room(&mut self, now: Micros) {
        self.due += SWEEP_FOR_NEW;
        self.sweep(now);
    }

    /// Looks at the next places when enough states have been put, and removes outdated ones.
    pub(super) fn sweep(&mut self, now: Micros) {
        if self.due < STRIDE * PARTS {
            return;
        }
        for _ in 0..mem::take(&mut self.due) / PARTS {
            if self.sweep >= self.states.places() {
                self.sweep = 0;
            }
            let kept = self.states.get(self.sweep);
            if kept.is_some_and(|kept| self.past(kept).saturating_add(GRACE) <= now) {
                // Another state may have moved there.
                self.remove_at(self.sweep);
            } else {
                self.sweep += 1;
            }
        }
    }

    /// The instant from which the state equals an absent one.
    fn past(&self, kept: &StoredState) -> Micros {
        match kept.place_aside().and_then(|place| self.asides.get(place)) {
            Some(Aside::State(past, _)) => *past,
            _ => kept.packed.past(),
        }
    }
}

#[cfg(test)]
mod tests;
