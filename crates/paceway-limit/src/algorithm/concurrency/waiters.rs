//! The requests that wait for concurrency permits, in the order in which they came, and in that of their turns at a limiter
//! with fair sharing. It holds no permit. The order of turns is `algorithm/fair`'s; twin of `waiters.lua`.

use super::{MAX_QUEUE, Ticket};
use crate::algorithm::{
    Micros,
    fair::{Claim, Priority, Turn, Turns, queue::MAX_WAITING},
};
use std::collections::{BTreeMap, HashMap};

/// The requests that wait for the permits of one limiter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Waiters {
    /// The requests by their numbers, which grow in the order in which they came.
    queue: BTreeMap<i64, Ticket>,
    numbers: HashMap<Ticket, i64>,
    /// The turns of the requests that have one. While gateways get a new configuration some have none.
    turns: Turns,
    /// No request waits longer than until then.
    latest: Micros,
}

// === impl Waiters ===

impl Waiters {
    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether this request waits.
    pub(super) fn has(&self, waiter: Ticket) -> bool {
        self.numbers.contains_key(&waiter)
    }

    /// No request waits longer than until then, in µs of the store's clock.
    pub(super) fn latest(&self) -> Micros {
        self.latest
    }

    /// The turns of the requests.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// Whether a further request has to be refused. Fewer requests can take turns than wait in order.
    pub(super) fn is_full(&self, takes_turns: bool) -> bool {
        self.queue.len() >= MAX_QUEUE || takes_turns && self.turns.len() >= MAX_WAITING
    }

    /// Adds a request, with its turn if it takes one. `is_first`: it comes before all others of its tenant.
    pub(super) fn add(&mut self, now: Micros, waiter: Ticket, is_first: bool, turn: Option<&Turn>) {
        let first = self.queue.first_key_value().map(|(number, _)| number - 1);
        let last = self.queue.last_key_value().map(|(number, _)| number + 1);
        let number = if is_first {
            first.unwrap_or(now)
        } else {
            last.map_or(now, |number| number.max(now))
        };
        self.queue.insert(number, waiter);
        self.numbers.insert(waiter, number);
        self.latest = self.latest.max(waiter.deadline);
        // The number of one that a gateway without turns has removed lately.
        self.turns.remove(number.unsigned_abs());
        if let Some(Turn { tenant, weight, priority }) = turn {
            self.turns.add(&Claim {
                number: number.unsigned_abs(),
                tenant: tenant.clone(),
                weight: *weight,
                priority: *priority,
                cost: 1,
            });
        }
    }

    /// The ticket of the request with this number.
    pub(super) fn ticket(&self, number: i64) -> Option<Ticket> {
        self.queue.get(&number).copied()
    }

    /// The number of the request that came first.
    pub(super) fn oldest(&self) -> Option<i64> {
        self.queue.first_key_value().map(|(number, _)| *number)
    }

    /// Whether this request came first.
    pub(super) fn is_first(&self, waiter: Ticket) -> bool {
        self.queue.first_key_value().is_some_and(|(_, first)| *first == waiter)
    }

    /// The number of the request whose turn it is. One without a turn is the next when it came before all others.
    pub(super) fn next(&mut self) -> Option<i64> {
        let oldest = self.oldest()?;
        if !self.turns.has(oldest.unsigned_abs()) {
            return Some(oldest);
        }
        while let Some(number) = self.turns.first() {
            if self.queue.contains_key(&number.cast_signed()) {
                return Some(number.cast_signed());
            }
            // It got a permit from a gateway whose configuration has no turns.
            if !self.turns.remove(number) {
                break;
            }
        }
        Some(oldest)
    }

    /// The priority of the request with this number if none of a higher one waits.
    pub(super) fn most_urgent(&self, number: i64) -> Option<Priority> {
        let own = self.turns.priority_of(number.unsigned_abs())?;
        (self.turns.most_urgent(own) == own).then_some(own)
    }

    /// Removes a request that gets a permit. `takes_turns`: it is counted for its tenant.
    pub(super) fn serve(&mut self, number: i64, takes_turns: bool) {
        if takes_turns {
            self.turns.serve(number.unsigned_abs());
        }
        self.forget(number);
    }

    /// Removes a request that waits no longer; false if it did not wait.
    pub(super) fn remove(&mut self, waiter: Ticket, takes_turns: bool) -> bool {
        let Some(number) = self.numbers.get(&waiter).copied() else { return false };
        if takes_turns {
            self.turns.remove(number.unsigned_abs());
        }
        self.forget(number);
        true
    }

    fn forget(&mut self, number: i64) {
        if let Some(waiter) = self.queue.remove(&number) {
            self.numbers.remove(&waiter);
        }
    }
}
