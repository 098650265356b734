//! Requests whose gateways have died, or do not reach the store: others get their slots.

use super::{Effects, GONE, LEASE, LOOK_EVERY, OVERDUE, Queue, Waiting, WaitingGateway};
use crate::algorithm::Micros;
use smallvec::SmallVec;
use std::collections::BTreeMap;

impl Queue {
    /// Forgets requests whose slots have passed: their gateways have died, or do not reach the store.
    pub fn forget_overdue(&mut self, now: Micros) {
        for _ in 0..GONE {
            let Some((at, number)) = self.slots.first().copied() else { break };
            if at >= now - OVERDUE {
                break;
            }
            self.turns.remove(number);
            self.forget(number);
        }
    }

    /// Gives the next slots whose gateways have died to other requests. No request of such a gateway confirms, and so none
    /// yields its slot. They are removed if they are alike to the one that confirms, whose limiters take the refund.
    pub(super) fn forget_gone(&mut self, now: Micros, like: &str, effects: &mut Effects) {
        if now < self.next_look && self.next_look <= now + LOOK_EVERY {
            return;
        }
        let next = self.slots.range((now, 0)..).take(GONE);
        let firsts: SmallVec<[u64; GONE]> = next.map(|(_, number)| *number).collect();
        self.next_look = now + LOOK_EVERY;
        for number in firsts {
            let it = self.waiting.get(&number);
            if it.is_some_and(|it| *it.like == *like && self.is_gone(now, it)) {
                self.leave(now, number, effects);
                self.next_look = now;
            }
        }
    }

    /// Whether the gateway of a request has died, or does not reach the store.
    pub(super) fn is_gone(&self, now: Micros, it: &Waiting) -> bool {
        is_gone(&self.gateways, now, it)
    }
}

/// Whether the gateway of a request has died.
pub(super) fn is_gone(gateways: &BTreeMap<i64, WaitingGateway>, now: Micros, it: &Waiting) -> bool {
    gateways.get(&it.ticket.gateway).is_none_or(|gateway| gateway.heard < now - LEASE)
}
