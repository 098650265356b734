//! A request whose slot comes while fewer permits are left than it has to leave to higher priorities. Law: it is not sent
//! below the floor; it takes a later slot, or it waits no longer.

use super::{AHEAD, Chain, Effects, MOST_MOVED, Queue, Slot};
use crate::algorithm::{
    Micros,
    fair::{Floors, Priority},
};
use std::sync::Arc;

/// A request whose slot comes.
#[derive(Debug, Clone)]
pub struct DueCall {
    /// Its slot.
    pub slot: Slot,
    /// The latest instant of a slot.
    pub deadline: Micros,
    /// Its limiters and costs, as [`like`](super::like) writes them.
    pub like: Arc<str>,
    /// The priority whose floor counts: the highest one that waits, which gets the slot.
    pub priority: Priority,
}

// === impl Queue ===

impl Queue {
    /// Notes the permits that requests leave to those of higher priorities.
    pub fn keep_back(&mut self, floors: Floors) {
        self.floors = floors;
    }

    /// The request `number` of this priority, if its slot comes. While one of a higher priority waits, the slot is exchanged for
    /// that one, or a lower one has its twentieth.
    pub fn due(&self, now: Micros, number: u64, own: Priority) -> Option<DueCall> {
        let it = self.waiting.get(&number)?;
        let priority = self.turns.most_urgent(own);
        let is_due = it.slot.at - now <= AHEAD && it.slot.at >= self.closed_until;
        let (slot, deadline, like) = (it.slot.clone(), it.deadline, it.like.clone());
        is_due.then_some(DueCall { slot, deadline, like, priority })
    }

    /// Gives a request whose permits have been refunded another slot: the last of `chain` takes it, each other one the slot of the
    /// next, and the request that of the first.
    pub fn displace(
        &mut self,
        now: Micros,
        number: u64,
        chain: &Chain,
        slot: Slot,
        effects: &mut Effects,
    ) {
        let slot = self.shift(chain, slot, effects);
        if let Some(old) = self.give(number, slot, effects)
            && old.at < self.at(number).unwrap_or(old.at)
        {
            self.has_room = true;
            // It learns its new slot from the answer.
            effects.notified.pop();
            self.keep_turn(now, number, old.at, effects);
        } else {
            effects.notified.pop();
        }
    }

    /// Gives a request whose turn has come the next slot after `before`, that of a request which has its own turn later. Without it
    /// the new slot, after those of all others, would stay: no turn exchanges the slots of those that are called.
    fn keep_turn(&mut self, now: Micros, number: u64, before: Micros, effects: &mut Effects) {
        let Some(own) = self.waiting.get(&number).filter(|own| own.is_called) else { return };
        let (slot, like) = (own.slot.clone(), own.like.clone());
        let after = before.max(now) + 1;
        let can_move = |number: &u64| {
            let it = self.waiting.get(number);
            it.is_some_and(|it| !it.is_called && it.like == like)
        };
        let later = self.slots.range((after, 0)..(slot.at.max(after), 0)).take(MOST_MOVED);
        let nexts = later.filter(|(_, number)| can_move(number));
        // A request whose slot is the latest that it can have does not move.
        let mut chains = nexts.map(|(at, _)| self.chain(now, *at, &like, slot.at, &[number]));
        let Some(chain) = chains.find_map(|chain| chain) else { return };
        let slot = self.shift(&chain, slot, effects);
        self.give(number, slot, effects);
        effects.notified.pop();
    }

    /// Removes a request whose permits have been refunded, and for which there is no other slot.
    pub fn dismiss(&mut self, number: u64) {
        self.turns.remove(number);
        self.forget(number);
        self.has_room = true;
    }
}
