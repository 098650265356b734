//! The requests that wait for one limiter, each with a slot of its own. The rule of the limiter gave these slots; the queue
//! only changes which request has which.
//!
//! The slot of a request is a promise: it comes before the request's deadline, and every exchange keeps that true. A
//! request asks once more when its slot comes ([`Queue::confirm`]). If it is another one's turn, that one takes the slot,
//! and the first gets the slot of the other or an earlier one. Both are operations of the rule (refunds and reservations),
//! tried on a copy of its state, so no exchange can exceed a limit, whatever the rule and the costs are.
//!
//! A request that cannot be moved as far makes others move: the one with the latest deadline among those whose slots come
//! before its own deadline takes the later slot, and so on. For requests of one permit that finds an assignment if there is
//! one: if it finds none, the slots up to that instant are taken by requests that all have to be served until then (Hall).

use super::{Claim, Turns};
use crate::algorithm::{Grant, MAX_BUDGET, Micros, Open};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};

/// The requests that wait for one limiter. Further ones are refused.
pub const MAX_WAITING: usize = 10_000;
/// The requests that one exchange moves. A request that needs more of them to move keeps its slot, or is refused.
const MOST_MOVED: usize = 16;
/// The requests that are looked at for one that can make room.
const LOOKS: usize = 128;

/// The requests that wait for one limiter.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    turns: Turns,
    waiting: BTreeMap<u64, Slot>,
    /// The same requests in the order of their slots.
    slots: BTreeSet<(Micros, u64)>,
}

/// The promise to a request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The instant at which the request may be sent.
    pub at: Micros,
    /// The latest such instant.
    pub deadline: Micros,
    /// The permits.
    pub grant: Grant,
    cost: i64,
}

/// The answer to a request that comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// It is sent at once. It never waited.
    Granted(Grant),
    /// It waits for its slot. Others may have other slots now.
    Waits(Moved),
    /// No order of the waiting requests leaves a slot for it. Alone it would have one so many µs later.
    Refused(Micros),
}

/// The answer to a request whose slot comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmed {
    /// It is sent in its slot, and waits no longer.
    Sent(Slot),
    /// It was another one's turn, which waits no longer and is sent in this slot. Those of the list have other slots now,
    /// the request that asked among them.
    Yields {
        /// The number of the request whose turn it was.
        to: u64,
        /// The slot of that request.
        slot: Slot,
        /// The requests with other slots.
        moved: Moved,
    },
    /// No request of this number waits.
    Gone,
}

/// Numbers of requests that have another slot than before.
pub type Moved = SmallVec<[u64; 4]>;

/// A request that gets another slot.
#[derive(Debug, Clone, Copy)]
struct Mover {
    number: u64,
    cost: i64,
    /// The latest instant at which its new slot may come.
    limit: Micros,
    deadline: Micros,
    old: Option<Grant>,
}

type Movers = SmallVec<[Mover; 4]>;
/// The instants and the permits of movers, in their order.
type NewSlots = SmallVec<[(Micros, Grant); 4]>;

// === impl Queue ===

impl Queue {
    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The slot of a request that waits.
    pub fn slot(&self, number: u64) -> Option<Slot> {
        self.waiting.get(&number).copied()
    }

    /// All requests that wait, in the order of their slots.
    pub fn slots(&self) -> impl Iterator<Item = (u64, Slot)> {
        self.slots.iter().map(|(_, number)| (*number, self.waiting[number]))
    }

    /// Decides a request that may wait up to `budget` µs. `open` is the state of the limiter at `now`.
    pub fn ask(&mut self, open: &mut Open, now: Micros, claim: &Claim, budget: Micros) -> Asked {
        let (cost, deadline) = (claim.cost, now + budget.min(MAX_BUDGET));
        let (wait, start) = open.earliest(0, cost);
        if wait == 0 {
            return Asked::Granted(open.take(start, cost));
        }
        let refused = Asked::Refused((wait - budget).max(1));
        if self.len() >= MAX_WAITING {
            return refused;
        }
        let newcomer = Mover { number: claim.number, cost, limit: deadline, deadline, old: None };
        let Some(moved) = self.exchange(open, now, [newcomer].into_iter().collect()) else {
            return refused;
        };
        self.turns.add(claim);
        Asked::Waits(moved)
    }

    /// Decides whether the request `number`, whose slot comes, is sent or yields its slot.
    pub fn confirm(&mut self, open: &mut Open, now: Micros, number: u64) -> Confirmed {
        let Some(own) = self.slot(number) else { return Confirmed::Gone };
        if let Some(first) = self.turns.first()
            && self.slot(first).is_some_and(|slot| slot.at > own.at)
            && let Some(moved) = self.yield_to(open, now, own.at, first)
        {
            let slot = self.sent(first).unwrap_or(own);
            let moved = moved.into_iter().filter(|moved| *moved != first).collect();
            return Confirmed::Yields { to: first, slot, moved };
        }
        self.sent(number);
        Confirmed::Sent(own)
    }

    /// Removes a request that waits no longer, and refunds its slot. The last requests move up to it. Returns those that did.
    pub fn leave(&mut self, open: &mut Open, now: Micros, number: u64) -> Moved {
        let mut moved = Moved::new();
        let Some(slot) = self.slot(number) else { return moved };
        self.turns.remove(number);
        self.forget(number);
        open.refund(slot.grant, slot.cost);
        for _ in 0..MOST_MOVED {
            let Some((at, last)) = self.slots.last().copied() else { break };
            let earlier = Mover { limit: at - 1, ..self.mover(last, at) };
            let (wait, _) = open.earliest(0, earlier.cost);
            if now + wait >= at {
                break;
            }
            match self.exchange(open, now, [earlier].into_iter().collect()) {
                Some(more) => moved.extend(more),
                None => break,
            }
        }
        moved
    }

    /// Gives the slot that comes at `at` to the request `first`, together with as many of the next slots as it costs.
    fn yield_to(&mut self, open: &mut Open, now: Micros, at: Micros, first: u64) -> Option<Moved> {
        let mut winner = self.mover(first, at);
        let mut movers = Movers::new();
        let (mut room, mut after) = (0, at);
        for (slot, number) in self.slots.range((at, 0)..).filter(|(_, number)| *number != first) {
            if room >= winner.cost || movers.len() >= MOST_MOVED {
                break;
            }
            let mover = self.mover(*number, *slot);
            (room, after) = (room + mover.cost, *slot);
            movers.push(Mover { limit: mover.deadline, ..mover });
        }
        // The slots that it costs may end after its own deadline.
        winner.limit = after.min(winner.deadline);
        movers.push(winner);
        self.exchange(open, now, movers)
    }

    /// The request is sent: it takes its turn, and waits no longer.
    fn sent(&mut self, number: u64) -> Option<Slot> {
        self.turns.serve(number);
        self.forget(number)
    }

    fn forget(&mut self, number: u64) -> Option<Slot> {
        let slot = self.waiting.remove(&number)?;
        self.slots.remove(&(slot.at, number));
        Some(slot)
    }

    fn mover(&self, number: u64, limit: Micros) -> Mover {
        let Slot { deadline, grant, cost, .. } = self.waiting[&number];
        Mover { number, cost, limit, deadline, old: Some(grant) }
    }

    /// Gives each of `movers` a slot before its limit, and moves others where it has to. Returns all that have another slot;
    /// `None` if there is no way, and then nothing has changed.
    fn exchange(&mut self, open: &mut Open, now: Micros, mut movers: Movers) -> Option<Moved> {
        loop {
            match self.place(open, now, &mut movers) {
                Ok((changed, slots)) => {
                    *open = changed;
                    let mut moved = Moved::new();
                    for (mover, (at, grant)) in movers.iter().zip(slots) {
                        if self.forget(mover.number).is_none_or(|old| old.at != at) {
                            moved.push(mover.number);
                        }
                        let (cost, deadline) = (mover.cost, mover.deadline);
                        self.waiting.insert(mover.number, Slot { at, deadline, grant, cost });
                        self.slots.insert((at, mover.number));
                    }
                    return Some(moved);
                }
                Err(stuck) => {
                    let room = self.room_for(&stuck, &movers)?;
                    movers.push(room);
                }
            }
        }
    }

    /// Tries to give each of `movers` a slot on a copy of the state, the one with the earliest limit first.
    ///
    /// # Errors
    ///
    /// The first that gets none before its limit.
    fn place(
        &self,
        open: &Open,
        now: Micros,
        movers: &mut Movers,
    ) -> Result<(Open, NewSlots), Mover> {
        let mut trial = open.clone();
        movers.sort_by_key(|mover| (mover.limit, mover.number));
        for mover in movers.iter() {
            if let Some(old) = mover.old
                && !trial.refund(old, mover.cost)
            {
                // The limiter was reset or has lost the slot: it cannot be given to another one.
                return Err(Mover { limit: Micros::MIN, ..*mover });
            }
        }
        let mut slots = NewSlots::new();
        for mover in movers.iter() {
            let (wait, start) = trial.earliest(0, mover.cost);
            if now + wait > mover.limit {
                return Err(*mover);
            }
            slots.push((now + wait, trial.take(start, mover.cost)));
        }
        Ok((trial, slots))
    }

    /// A request with a slot before the limit of `stuck` that can be moved beyond it; `None` if there is none. A request of
    /// several permits needs them side by side, so the last such request makes room; otherwise the one with the latest
    /// deadline does.
    fn room_for(&self, stuck: &Mover, movers: &Movers) -> Option<Mover> {
        if movers.len() >= MOST_MOVED || stuck.limit == Micros::MIN {
            return None;
        }
        let before = self.slots.range(..=(stuck.limit, u64::MAX)).rev().take(LOOKS);
        let others = before.filter(|(_, number)| movers.iter().all(|it| it.number != *number));
        let mut can_move = others
            .map(|(_, number)| (self.waiting[number].deadline, *number))
            .filter(|(deadline, _)| *deadline > stuck.limit);
        let (deadline, number) = match stuck.cost {
            1 => can_move.max()?,
            _ => can_move.next()?,
        };
        Some(self.mover(number, deadline))
    }
}

#[cfg(test)]
mod tests;
