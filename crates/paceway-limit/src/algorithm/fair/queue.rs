//! The requests that wait for one limiter, each with a slot of its own, and which of them takes which slot.
//!
//! The rule gives a slot to each request that is admitted, as it does without fair sharing. The queue only lets requests
//! exchange slots, whole: no permit is taken or refunded by an exchange, so none can exceed a limit. Requests exchange slots
//! if they are *alike*: they ask the same limiters for the same costs.
//!
//! Each slot comes before the deadline of the request that has it: the promise, which every exchange keeps. A request
//! confirms shortly before its slot ([`Queue::confirm`]). If it is the turn of another request, the two exchange their slots,
//! and the other one is notified. If the first has no time left for the slot of the other, a third request with a later
//! deadline takes that one instead, and so on ([`Queue::chain`]). The same step finds a slot for a newcomer whose own slot
//! would come too late. For requests that are alike it finds an assignment if there is one, within its bounds: if it finds
//! none, the slots up to that instant belong to requests that all have to be served until then (Hall).

mod bookings;
mod displaced;
mod free_permits;
mod gone;

pub use bookings::{Booking, Refused};
pub use displaced::DueCall;

use super::{Claim, Floors, Place, Turn, Turns};
use crate::algorithm::{Grant, Micros, concurrency::Holder};
use bookings::Bookings;
use gone::is_gone;
use smallvec::SmallVec;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The requests that wait for one limiter. Further ones are refused.
pub const MAX_WAITING: usize = 10_000;
/// A request is sent or yields its slot when it confirms at most so many µs before the slot: 50 ms. The request that gets the
/// slot learns it from a message, which takes some ms.
pub const AHEAD: Micros = 50_000;
/// A gateway whose requests wait says so at least once in this time, in µs: 10 s. After that its requests count as gone when
/// their turn comes, and others get their slots.
pub const LEASE: Micros = 10_000_000;
/// A request whose slot has passed by so many µs is forgotten: 1 s.
pub const OVERDUE: Micros = 1_000_000;
/// The requests that one exchange moves. A request that needs more of them to move keeps its slot, or is refused.
const MOST_MOVED: usize = 16;
/// The requests that are looked at for one that can make room, or take a slot over.
const LOOKS: usize = 128;
/// The tenants that are looked at for a request whose turn it is. The first of them may wait for other limiters, too.
const TENANTS: usize = 8;
/// The requests of each of them that are looked at for one that is alike: the first may have another cost.
const REQUESTS: usize = 8;
/// The requests of all of them.
const MOST_LOOKED: usize = 24;
/// The requests that one step finds gone.
const GONE: usize = 16;
/// The requests that one step calls in their own slots, because their turns come first. A window of 100 calls has 100 slots at
/// one instant. With more of them the request that confirms keeps its slot.
const MOST_CALLED: usize = 64;
/// How often the requests with the next slots are looked at for those whose gateways have died, in µs: each 0.5 s, and with
/// each step while there are any.
const LOOK_EVERY: Micros = 500_000;

/// The requests that wait for one limiter.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    /// The instant at which it was made: a queue from before a loss of data is lost, too.
    born: Micros,
    turns: Turns,
    waiting: BTreeMap<u64, Waiting>,
    /// The same requests in the order of their slots.
    slots: BTreeSet<(Micros, u64)>,
    /// The gateways with waiting requests.
    gateways: BTreeMap<i64, WaitingGateway>,
    /// The number of the last request.
    last: u64,
    /// When requests of gateways that have died are looked for.
    next_look: Micros,
    bookings: Bookings,
    /// Permits before the last slots may be free.
    has_room: bool,
    /// The end of a pause of a limiter: no request is given a slot before it.
    closed_until: Micros,
    /// The permits that requests leave to those of higher priorities.
    floors: Floors,
}

/// A gateway with waiting requests.
#[derive(Debug, Clone)]
struct WaitingGateway {
    /// When its last request came.
    heard: Micros,
    /// How many of its requests wait.
    waiting: i64,
}

/// A slot: permits of each limiter of a request at one instant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The instant at which the request may be sent, on the store's clock.
    pub at: Micros,
    /// The permits, in the order of the request's enforcing limiters of rates.
    pub grants: Grants,
}

/// The permits of a slot.
pub type Grants = SmallVec<[Grant; 2]>;

/// A request that comes to wait.
#[derive(Debug, Clone)]
pub struct Newcomer<'a> {
    /// Its tenant, weight and priority.
    pub turn: &'a Turn,
    /// The permits that it costs at the limiter of the queue.
    pub cost: i64,
    /// Its identity, by which it is notified.
    pub ticket: Holder,
    /// The latest instant of its slot.
    pub deadline: Micros,
    /// The limiters and the costs of the request, as [`like`] writes them.
    pub like: Arc<str>,
}

/// A request that waits.
#[derive(Debug, Clone)]
struct Waiting {
    ticket: Holder,
    /// The permits that it costs at the limiter of the queue.
    cost: i64,
    deadline: Micros,
    like: Arc<str>,
    slot: Slot,
    /// Its turn has come: it has been notified, and keeps its slot until it confirms.
    is_called: bool,
}

/// The answer to a request that confirms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmed {
    /// It is sent in this slot, and waits no longer.
    Sent(Slot),
    /// It has a slot at this instant now, and confirms again.
    Waits(Micros),
    /// No request of this number waits.
    Gone,
}

/// The effects of a step on other requests, besides its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Effects {
    /// The requests that have earlier or later slots now.
    pub notified: Vec<Holder>,
    /// Slots that no request has any more. Their permits are refunded.
    pub refunds: Vec<Slot>,
    /// Bookings that have lapsed. Their permits are refunded, before those of `refunds`.
    pub lapsed: Vec<Booking>,
}

/// The requests that move for one that needs a slot: each takes the slot of the next one, the last a slot that is free.
pub type Chain = SmallVec<[u64; 4]>;

/// The text by which requests are alike: the cost at the queue's limiter, and the costs and keys of the other limiters.
pub fn like<'a>(cost: i64, others: impl Iterator<Item = (i64, &'a str)>) -> Arc<str> {
    let mut text = cost.to_string();
    for (cost, key) in others {
        text.push_str(&format!(" {cost} {key}"));
    }
    text.into()
}

// === impl Queue ===

impl Queue {
    /// An empty queue, made at the instant `born`.
    pub fn new(born: Micros) -> Self {
        Self { born, ..Self::default() }
    }

    /// The instant at which it was made.
    pub fn born(&self) -> Micros {
        self.born
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The order in which the waiting requests take slots, and the tenants.
    pub fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The instant of the slot of a request that waits.
    pub fn at(&self, number: u64) -> Option<Micros> {
        Some(self.waiting.get(&number)?.slot.at)
    }

    /// The instants of the slots of all requests that wait, in order.
    pub fn slots(&self) -> impl Iterator<Item = Micros> {
        self.slots.iter().map(|(at, _)| *at)
    }

    /// The requests that have to move so that a request with this `deadline` gets a slot, if a slot at `goal` is free; `None`
    /// if there is no way. `but` do not move.
    pub fn chain(
        &self,
        now: Micros,
        deadline: Micros,
        like: &str,
        goal: Micros,
        but: &[u64],
    ) -> Option<Chain> {
        let (mut chain, mut limit) = (Chain::new(), deadline);
        while goal > limit {
            if chain.len() >= MOST_MOVED {
                return None;
            }
            let before = self.slots.range(..=(limit, u64::MAX)).rev().take(LOOKS);
            let mut best: Option<(Micros, u64)> = None;
            for (at, number) in before {
                let Some(it) = self.waiting.get(number) else { continue };
                let is_free = !but.contains(number) && !chain.contains(number) && !it.is_called;
                let is_open = *at > now && *at >= self.closed_until;
                if is_free && *it.like == *like && is_open && it.deadline > limit {
                    best = best.max(Some((it.deadline, *number)));
                    if it.deadline >= goal {
                        break;
                    }
                }
            }
            let (deadline, number) = best?;
            chain.push(number);
            limit = deadline;
        }
        Some(chain)
    }

    /// The latest instant at which the free slot of `chain` may come: the deadline of the last request that moves.
    pub fn limit(&self, chain: &Chain, deadline: Micros) -> Micros {
        chain.last().and_then(|last| self.waiting.get(last)).map_or(deadline, |last| last.deadline)
    }

    /// Lets a request wait. The last of `chain` takes `slot`, and each other one the slot of the next. Returns its number and
    /// the instant of its slot.
    pub fn join(
        &mut self,
        now: Micros,
        newcomer: Newcomer<'_>,
        chain: &Chain,
        slot: Slot,
        effects: &mut Effects,
    ) -> (u64, Micros) {
        let Newcomer { turn, cost, ticket, deadline, like } = newcomer;
        let Turn { tenant, weight, priority } = turn.clone();
        let number = (self.last + 1).max(now.unsigned_abs());
        self.last = number;
        let slot = self.shift(chain, slot, effects);
        let at = slot.at;
        self.waiting
            .insert(number, Waiting { ticket, cost, deadline, like, slot, is_called: false });
        self.slots.insert((at, number));
        let before = self.gateways.get(&ticket.gateway).map_or(0, |gateway| gateway.waiting);
        self.gateways.insert(ticket.gateway, WaitingGateway { heard: now, waiting: before + 1 });
        self.turns.add(&Claim { number, tenant, weight, priority, cost });
        (number, at)
    }

    /// Decides whether the request `number`, whose slot comes, is sent or yields its slot.
    pub fn confirm(&mut self, now: Micros, number: u64, effects: &mut Effects) -> Confirmed {
        self.forget_overdue(now);
        let Some(own) = self.waiting.get(&number) else { return Confirmed::Gone };
        if let Some(gateway) = self.gateways.get_mut(&own.ticket.gateway) {
            gateway.heard = now;
        }
        let like = own.like.clone();
        self.forget_gone(now, &like, effects);
        let Some(own) = self.waiting.get(&number) else { return Confirmed::Gone };
        let at = own.slot.at;
        if at < self.closed_until {
            // It asks again, and its slot comes after the pause.
            self.leave(now, number, effects);
            return Confirmed::Gone;
        }
        // A floor may have given one that was called a later slot.
        if at - now > AHEAD {
            return Confirmed::Waits(at);
        }
        if !own.is_called {
            if let Some(at) = self.yields(now, number, effects) {
                return Confirmed::Waits(at);
            }
            self.turns.serve(number);
        }
        self.forget(number).map_or(Confirmed::Gone, Confirmed::Sent)
    }

    /// Removes a request that waits no longer. The last request that is alike takes its slot. For
    /// [`Place::NONE`] only the free permits are looked for.
    pub fn leave(&mut self, now: Micros, number: u64, effects: &mut Effects) -> bool {
        if number == Place::NONE.0 {
            self.has_room = true;
            return false;
        }
        self.turns.remove(number);
        let Some(left) = self.waiting.get(&number).cloned() else { return false };
        self.forget(number);
        let later = self.slots.range((left.slot.at + 1, 0)..).rev().take(LOOKS);
        let alike = |number: &u64| {
            let it = self.waiting.get(number);
            it.is_some_and(|it| !it.is_called && it.like == left.like && !self.is_gone(now, it))
        };
        let last = later
            .map(|(_, number)| *number)
            .find(alike)
            .filter(|_| left.slot.at >= self.closed_until.max(now));
        let unused = match last {
            Some(last) => self.give(last, left.slot, effects),
            None => Some(left.slot),
        };
        effects.refunds.extend(unused);
        self.has_room = true;
        true
    }

    /// Gives the slot of a request that confirms to the one whose turn it is; returns the instant of the slot that it has
    /// instead, or `None` if it keeps its own.
    fn yields(&mut self, now: Micros, number: u64, effects: &mut Effects) -> Option<Micros> {
        for _ in 0..GONE {
            let own = self.waiting.get(&number)?.clone();
            let first = self.first(now, number, &own)?;
            let other = self.waiting.get(&first)?;
            if self.is_gone(now, other) {
                self.leave(now, first, effects);
                continue;
            }
            let but = [number, first];
            let mut chain = self.chain(now, own.deadline, &own.like, other.slot.at, &but)?;
            let slot = self.give(first, own.slot.clone(), effects)?;
            self.turns.serve(first);
            self.waiting.get_mut(&first)?.is_called = true;
            let at = if chain.is_empty() { slot.at } else { self.at(chain[0])? };
            chain.insert(0, number);
            // The other one has its old slot by now. It learns its new one from the answer.
            self.shift(&chain, slot, effects);
            effects.notified.pop();
            return Some(at);
        }
        None
    }

    /// The first request, other than `number`, of the tenant whose turn it is, if it is alike and has a later slot. A request
    /// whose own slot is no later than that of `number` needs no other slot in its turn: it is called.
    fn first(&mut self, now: Micros, number: u64, own: &Waiting) -> Option<u64> {
        for _ in 0..MOST_CALLED {
            let (waiting, gateways) = (&self.waiting, &self.gateways);
            let mut firsts = self.turns.firsts(TENANTS, REQUESTS).take(MOST_LOOKED);
            let first = firsts.find(|first| {
                let is_it = |it: &Waiting| {
                    it.like == own.like || it.slot.at <= own.slot.at && !is_gone(gateways, now, it)
                };
                *first == number || waiting.get(first).is_some_and(is_it)
            })?;
            drop(firsts);
            let other = self.waiting.get(&first).filter(|_| first != number)?;
            if other.slot.at > own.slot.at || self.is_gone(now, other) {
                return Some(first);
            }
            self.turns.serve(first);
            self.waiting.get_mut(&first)?.is_called = true;
        }
        None
    }

    /// Gives `slot` to the last of `chain`, its slot to the one before, and so on; returns the slot of the first.
    fn shift(&mut self, chain: &Chain, slot: Slot, effects: &mut Effects) -> Slot {
        let mut free = slot;
        for number in chain.iter().rev() {
            if let Some(old) = self.give(*number, free.clone(), effects) {
                free = old;
            }
        }
        free
    }

    /// Gives a slot to a request that waits, and returns the one that it had.
    fn give(&mut self, number: u64, slot: Slot, effects: &mut Effects) -> Option<Slot> {
        let waiting = self.waiting.get_mut(&number)?;
        self.slots.remove(&(waiting.slot.at, number));
        self.slots.insert((slot.at, number));
        effects.notified.push(waiting.ticket);
        Some(std::mem::replace(&mut waiting.slot, slot))
    }

    fn forget(&mut self, number: u64) -> Option<Slot> {
        let gone = self.waiting.remove(&number)?;
        self.slots.remove(&(gone.slot.at, number));
        if let Some(gateway) = self.gateways.get_mut(&gone.ticket.gateway) {
            gateway.waiting -= 1;
            if gateway.waiting == 0 {
                self.gateways.remove(&gone.ticket.gateway);
            }
        }
        Some(gone.slot)
    }
}

#[cfg(test)]
mod tests;
