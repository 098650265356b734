//! A request whose slot comes while fewer permits are left than it has to leave to higher priorities. Law: it is not sent
//! below the floor; it takes a later slot, or it waits no longer.

use super::{AHEAD, Chain, Effects, Queue, Slot};
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
    pub fn displace(&mut self, number: u64, chain: &Chain, slot: Slot, effects: &mut Effects) {
        let slot = self.shift(chain, slot, effects);
        if let Some(old) = self.give(number, slot, effects)
            && old.at < self.at(number).unwrap_or(old.at)
        {
            self.has_room = true;
        }
        // It learns its new slot from the answer.
        effects.notified.pop();
    }

    /// Removes a request whose permits have been refunded, and for which there is no other slot.
    pub fn dismiss(&mut self, number: u64) {
        self.turns.remove(number);
        self.forget(number);
        self.has_room = true;
    }
}
