//! The turns that refused requests have booked. Law: a booking uses no slot; it lapses before its slot passes.
//!
//! A request of five permits finds no room among requests of one permit that take each slot as soon as it is within their
//! budgets. No exchange helps it: each of these has been promised a slot that ends its own budget. So a request that is
//! refused books its turn: it takes permits of the queue's limiter for the time after its `Retry-After`. When a request of
//! the same tenant that is alike comes back in time, it gets these permits. Otherwise they return to the limiter 50 ms
//! before their slot, and waiting requests get them ([`Queue::fill`]).
//!
//! Only a request books that costs more than one that waits: all others find room as soon as these do. Bookings leave the
//! others at least the share of their weights, and at least half of the permits.

use super::{AHEAD, LOOKS, Queue};
use crate::algorithm::{
    Algorithm, Grant, Micros, Open, OpenRate, ceil_div,
    fair::{Priority, Turn},
};
use std::{mem, sync::Arc};

/// The bookings of one limiter. Further requests are refused without one.
const MAX_BOOKED: usize = 16;
/// A request with a smaller budget books no turn, µs: 200 ms. The caller could not come back in time.
const LEAST_BUDGET: Micros = 200_000;
/// A slot is booked for a second after the time at which the caller comes back, or for four fifths of its budget if these are
/// shorter, µs. So a caller that is late gets it, too.
const MARGIN: Micros = 1_000_000;
/// The latest time at which the caller comes back, µs from now: 60 s.
const MOST_AHEAD: Micros = 60_000_000;
/// How many whole seconds are tried.
const TRIES: usize = 4;
/// `Retry-After` counts in seconds.
const SECOND: Micros = 1_000_000;

/// The bookings of a queue, in the order in which they were made.
#[derive(Debug, Clone, Default)]
pub(super) struct Bookings {
    booked: Vec<Booking>,
    /// The instant of the slot of the last booking, which may have been claimed.
    last: Micros,
}

/// Permits for a request that was refused and is to come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    priority: Priority,
    tenant: Arc<str>,
    like: Arc<str>,
    at: Micros,
    /// The permits at the queue's limiter.
    pub grant: Grant,
    /// How many permits these are.
    pub cost: i64,
}

/// A request that is refused, because its slot would come too late.
#[derive(Debug, Clone, Copy)]
pub struct Refused<'a> {
    /// Its tenant, weight and priority.
    pub turn: &'a Turn,
    /// Its limiters and costs, as [`like`](super::like) writes them.
    pub like: &'a Arc<str>,
    /// The permits that it costs at the limiter of the queue.
    pub cost: i64,
    /// How long it may wait, µs.
    pub budget: Micros,
    /// How much later it would be admitted, µs.
    pub retry_after: Micros,
}

/// The whole seconds in which a span ends, at least one, µs.
fn whole_seconds(span: Micros) -> Micros {
    ceil_div(span, SECOND).max(1) * SECOND
}

// === impl Queue ===

impl Queue {
    /// Books a turn for a request that is refused. Returns how much later its caller has to come back, µs.
    pub fn book(
        &mut self,
        now: Micros,
        open: &mut Open,
        rule: &Algorithm,
        refused: Refused<'_>,
    ) -> Option<Micros> {
        let Refused { turn, like, cost, budget, retry_after } = refused;
        let Turn { tenant, weight, priority } = turn;
        let is_possible = budget >= LEAST_BUDGET
            && self.bookings.booked.len() < MAX_BOOKED
            && self.has_cheaper(now + budget, cost)
            && self.bookings.position(turn, like).is_none();
        if !is_possible {
            return None;
        }
        let apart = rule.time_of(cost * self.turns.permits_between(tenant, *weight, *priority));
        let least = (self.bookings.last + apart - now).max(0);
        let margin = MARGIN.min(budget * 4 / 5);
        let kept = self.floors.kept_from(*priority, rule.capacity());
        let mut back = whole_seconds(retry_after.max(least - budget));
        for _ in 0..TRIES {
            if back > MOST_AHEAD {
                return None;
            }
            let (wait, start) = open.earliest(least.max(back + margin), cost, kept);
            if wait <= back + budget {
                let (grant, at) = (open.take(start, cost), now + wait);
                open.promise(wait, start, kept);
                let (tenant, like) = (tenant.clone(), like.clone());
                let booking = Booking { priority: *priority, tenant, like, at, grant, cost };
                self.bookings.booked.push(booking);
                self.bookings.last = at;
                return Some(back);
            }
            back = whole_seconds(wait - budget).max(back + SECOND);
        }
        None
    }

    /// The booking of a request that comes back, if its slot is within the budget.
    pub fn claim(&mut self, deadline: Micros, turn: &Turn, like: &Arc<str>) -> Option<Booking> {
        let i = self.bookings.position(turn, like)?;
        let booking =
            (self.bookings.booked[i].at <= deadline).then(|| self.bookings.booked.remove(i));
        self.has_room |= booking.is_some();
        booking
    }

    /// Removes the bookings whose slots come within 50 ms; without waiting requests all of them, because then the limiter has
    /// room without them.
    pub fn lapse(&mut self, now: Micros) -> Vec<Booking> {
        if self.is_empty() {
            return mem::take(&mut self.bookings.booked);
        }
        let is_due = |booking: &mut Booking| booking.at - AHEAD <= now;
        let lapsed: Vec<_> = self.bookings.booked.extract_if(.., is_due).collect();
        self.has_room |= !lapsed.is_empty();
        lapsed
    }

    /// Whether a request that costs less waits for one of the last slots before `deadline`.
    fn has_cheaper(&self, deadline: Micros, cost: i64) -> bool {
        let before = self.slots.range(..=(deadline, u64::MAX)).rev().take(LOOKS);
        let mut before = before.filter_map(|(_, number)| self.waiting.get(number));
        before.any(|it| it.cost < cost)
    }
}

// === impl Bookings ===

impl Bookings {
    fn position(&self, turn: &Turn, like: &Arc<str>) -> Option<usize> {
        let is_its_tenant = |it: &Booking| it.priority == turn.priority && it.tenant == turn.tenant;
        self.booked.iter().position(|it| is_its_tenant(it) && it.like == *like)
    }
}
