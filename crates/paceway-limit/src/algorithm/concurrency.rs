//! Leases: at most so many are held at once, whoever comes later waits in a queue. Twin of
//! `concurrency.lua`.
//!
//! A holder counts until its lease expires, is renewed while its gateway lives, and released when its work
//! is done. A place that becomes free is handed to the head of the queue at once: it is *called*, and holds
//! the place for a short claim, within which it must ask again. So nobody polls, nobody herds, and the
//! order is that of asking. What is expired is gone: a late release or renewal changes nothing.

use super::{Grant, Level, Micros, reserve::Queued};
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    mem,
};

/// For how long somebody who was called holds a place without having asked again, µs. Longer than a call of the
/// store, short enough that a gateway which died in the queue costs little.
pub const CLAIM: Micros = 2_000_000;
/// Who waits in one queue at most; beyond it is refused.
const MAX_QUEUE: usize = 100_000;
/// What a refused caller is told: nobody knows when a place will be free. 1 s.
pub const RETRY: Micros = 1_000_000;

/// The rule: at most `max` held at once, each for `lease` µs unless it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    max: i64,
    lease: Micros,
}

/// Who asks: unique among all gateways of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The gateway's number, 1 to 2^52.
    pub gateway: i64,
    /// Its own count.
    pub number: i64,
    /// When it leaves the queue by itself, µs of the store's clock; 0 before it was there; [`HELD`](Self::HELD) when it
    /// holds a place already.
    pub deadline: Micros,
}

type Id = (i64, i64);

/// What is remembered: who holds until when, and who waits until when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    holders: HashMap<Id, Micros>,
    expiries: BTreeSet<(Micros, Id)>,
    queue: VecDeque<(Id, Micros)>,
}

/// A state while it is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    rule: Concurrency,
    now: Micros,
    state: State,
    called: Vec<Ticket>,
    /// Until then nobody knows who else holds a place.
    unknown_until: Micros,
}

// === impl Concurrency ===

impl Concurrency {
    /// `None` when `max` or `lease` is not positive or beyond exact arithmetic.
    pub fn new(max: i64, lease: Micros) -> Option<Self> {
        let exact =
            (1..=super::EXACT / 8).contains(&max) && (1..=super::EXACT / 8).contains(&lease);
        exact.then_some(Self { max, lease })
    }

    /// A request holds one place.
    pub fn capacity(&self) -> i64 {
        1
    }

    /// How many may be held at once.
    pub fn max(&self) -> i64 {
        self.max
    }

    /// For how long a holder that is not renewed counts, µs.
    pub fn lease(&self) -> Micros {
        self.lease
    }

    /// The same rule with `max` places instead. A rule with 0 places admits no further holder.
    pub fn with_max(&self, max: i64) -> Self {
        Self { max: max.clamp(0, self.max), ..*self }
    }

    /// One gateway's share of it, see [`Algorithm::share`](super::Algorithm::share).
    pub(super) fn share(&self, gateways: i64) -> Self {
        Self { max: (self.max / gateways).max(1), ..*self }
    }

    /// The arguments of the script, in its order.
    pub fn args(&self) -> [i64; 2] {
        [self.max, self.lease]
    }
}

// === impl Ticket ===

impl Ticket {
    /// The deadline of a ticket whose place was given without this state: an observing limiter counts it even if no place
    /// is free. Otherwise a state that is full, or whose holders are not known, would not know of a call that runs.
    pub const HELD: Micros = -1;

    /// Whether its place was given without this state.
    pub(super) fn is_held(self) -> bool {
        self.deadline == Self::HELD
    }

    fn id(self) -> Id {
        (self.gateway, self.number)
    }

    /// What is given back to leave the queue or the place.
    pub fn grant(self) -> Grant {
        Grant { whole: self.gateway, ticks: self.number, born: self.deadline, aux: 1 }
    }

    /// Whose place `grant` is.
    pub fn of(grant: Grant) -> Self {
        Self { gateway: grant.whole, number: grant.ticks, deadline: grant.born }
    }
}

// === impl Open ===

impl Open {
    /// Reads a state at `now`, forgets who has expired, and hands their places on.
    pub fn new(state: Option<&mut State>, now: Micros, rule: Concurrency) -> Self {
        Self::held_until(0, state, now, rule)
    }

    /// The same of a state that has lost holders, whose leases end at `unknown_until`. Before it nobody new gets a place,
    /// and whoever renews a lease holds on, known or not.
    pub fn held_until(
        unknown_until: Micros,
        state: Option<&mut State>,
        now: Micros,
        rule: Concurrency,
    ) -> Self {
        let state = state.map(mem::take).unwrap_or_default();
        let mut open = Self { rule, now, state, called: Vec::new(), unknown_until };
        while let Some((expiry, id)) = open.state.expiries.first().copied()
            && expiry <= now
        {
            open.state.expiries.pop_first();
            open.state.holders.remove(&id);
        }
        open.hand_over();
        open
    }

    fn held(&self) -> i64 {
        self.state.holders.len() as i64
    }

    fn is_unknown(&self) -> bool {
        self.now < self.unknown_until
    }

    fn has_room(&self) -> bool {
        self.held() < self.rule.max && !self.is_unknown()
    }

    fn hold(&mut self, id: Id, lease: Micros) {
        let expiry = self.now + lease;
        if let Some(before) = self.state.holders.insert(id, expiry) {
            self.state.expiries.remove(&(before, id));
        }
        self.state.expiries.insert((expiry, id));
    }

    fn hand_over(&mut self) {
        let is_over = |open: &Self, deadline| open.is_unknown() && deadline <= open.now;
        while let Some((id, deadline)) = self.state.queue.front().copied()
            && (self.has_room() || is_over(self, deadline))
        {
            self.state.queue.pop_front();
            if deadline > self.now {
                self.hold(id, self.rule.lease.min(CLAIM));
                self.called.push(Ticket { gateway: id.0, number: id.1, deadline });
            }
        }
    }

    /// Whether there is a place for `ticket`.
    pub fn is_free(&self, ticket: Ticket) -> bool {
        self.has_room() || self.state.holders.contains_key(&ticket.id())
    }

    /// Takes a place.
    pub fn hold_for(&mut self, ticket: Ticket) -> Grant {
        self.hold(ticket.id(), self.rule.lease);
        Ticket { deadline: 0, ..ticket }.grant()
    }

    /// Waits in the queue for `budget` µs, or goes on waiting. `None` when the queue is full, or the time over.
    pub fn enqueue(&mut self, ticket: Ticket, budget: Micros) -> Option<Queued> {
        let waits =
            |(id, deadline): &(Id, Micros)| (*id, *deadline) == (ticket.id(), ticket.deadline);
        let deadline = match ticket.deadline {
            0 => self.now + budget,
            deadline => deadline,
        };
        if deadline <= self.now {
            return None;
        }
        if ticket.deadline == 0 || !self.state.queue.iter().any(waits) {
            if self.state.queue.len() >= MAX_QUEUE {
                return None;
            }
            self.state.queue.push_back((ticket.id(), deadline));
        }
        Some(Queued { deadline, ask_after: self.next() })
    }

    /// Until the first lease expires, µs.
    fn next(&self) -> Micros {
        let expiry = match self.held() < self.rule.max {
            true => None,
            false => {
                // Of no places at all none becomes free by itself.
                let first = self.state.expiries.first().map(|(expiry, _)| *expiry);
                Some(first.unwrap_or(self.now + RETRY))
            }
        };
        expiry.unwrap_or(self.now).max(self.unknown_until) - self.now
    }

    /// Holds on for another lease; false when it has expired.
    pub fn renew(&mut self, grant: Grant) -> bool {
        let id = Ticket::of(grant).id();
        let holds = self.is_unknown() || self.state.holders.contains_key(&id);
        if holds {
            self.hold(id, self.rule.lease);
        }
        holds
    }

    /// Leaves the place or the queue; false when it was in neither any more.
    pub fn give_back(&mut self, grant: Grant, _cost: i64) -> bool {
        let ticket = Ticket::of(grant);
        if let Some(expiry) = self.state.holders.remove(&ticket.id()) {
            self.state.expiries.remove(&(expiry, ticket.id()));
            self.hand_over();
            return true;
        }
        let waits =
            |(id, deadline): &(Id, Micros)| (*id, *deadline) == (ticket.id(), ticket.deadline);
        let waiting = self.state.queue.iter().position(waits);
        waiting.and_then(|i| self.state.queue.remove(i)).is_some()
    }

    /// All places are free; who waits gets them. False when none was held.
    pub fn forget(&mut self) -> bool {
        self.state.expiries.clear();
        let held = !mem::take(&mut self.state.holders).is_empty();
        self.hand_over();
        held
    }

    /// The first instant from `from` on at which one may be had, as far as that can be known.
    pub fn earliest(&self, from: Micros, _cost: i64) -> (Micros, i64) {
        (from.max(self.next()), 0)
    }

    /// Takes nothing: a place is held for somebody, with [`Self::hold_for`].
    pub fn take(&mut self, _start: i64, _cost: i64) -> Grant {
        Grant::default()
    }

    /// Nothing was taken; who has expired is gone all the same.
    pub fn put_back(self, state: &mut State) {
        *state = self.state;
    }

    /// How many more may be held, and until when the others are at most.
    pub fn level(&self) -> Level {
        let last = self.state.expiries.last().map_or(self.now, |(expiry, _)| *expiry);
        let room = if self.has_room() { self.rule.max - self.held() } else { 0 };
        let reset_after = last.max(self.unknown_until) - self.now;
        Level { remaining: room, next: self.next(), reset_after }
    }

    /// Those who got a place that they waited for.
    pub fn called(&mut self) -> Vec<Ticket> {
        mem::take(&mut self.called)
    }

    /// The state to keep and how long it matters, µs; `None` when it equals an absent one.
    pub fn close(self) -> Option<(State, Micros)> {
        let expiry = self.state.expiries.last().map(|(expiry, _)| *expiry);
        let deadline = self.state.queue.iter().map(|(_, deadline)| *deadline).max();
        let until = expiry.max(deadline)?;
        Some((self.state, until - self.now))
    }
}

#[cfg(test)]
mod tests;
