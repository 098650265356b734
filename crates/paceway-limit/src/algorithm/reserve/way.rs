//! The choice among the ways of a request: the one with the earliest slot is taken. Changes no state. Twin of `way.lua`.

use super::{Ticket, Want, common, enforced_rates, fitting_all_queues};
use crate::algorithm::{MAX_BUDGET, Micros};
use smallvec::SmallVec;
use std::cmp::Reverse;

/// The outcome for a request that takes a way, in the order in which requests prefer them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Granted,
    /// It waits for a concurrency permit.
    Queued,
    Refused,
}

/// The slot that a request would get by one way, at the end of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    outcome: Outcome,
    /// Until the slot, µs; [`Micros::MAX`] where it is not known, because all concurrency permits are held.
    wait: Micros,
    /// The fewest permits that one of the limiters has left. Waiting requests count as held permits.
    left: i64,
}

/// The slot that a request would get at these limiters.
pub fn offer(wants: &mut [Want<'_>], budget: Micros, ticket: Option<Ticket>) -> Offer {
    let budget = budget.min(MAX_BUDGET);
    let mut starts: SmallVec<[i64; 2]> = smallvec::smallvec![0; wants.len()];
    let (at, _) = common(wants, 0, &mut starts);
    let mut later = (at - budget).max(0);
    if let Some((fitting, _)) = fitting_all_queues(wants, budget, later) {
        later = fitting;
    }
    let mut left = enforced_rates(wants).map(|(_, rate)| rate.level().remaining).min();
    let mut is_taken = false;
    for want in wants.iter_mut().filter(|want| want.enforce) {
        let Some(open) = want.open.leases() else { continue };
        let own = open.level().remaining - open.waiting();
        left = Some(left.map_or(own, |left| left.min(own)));
        is_taken |= ticket.is_some_and(|ticket| open.is_paused() || !open.is_free(ticket));
    }
    let outcome = match (later > 0, is_taken) {
        (true, _) => Outcome::Refused,
        (false, true) if budget > 0 => Outcome::Queued,
        (false, true) => Outcome::Refused,
        (false, false) => Outcome::Granted,
    };
    let wait = if is_taken { Micros::MAX } else { at.max(later) };
    Offer { outcome, wait, left: left.unwrap_or(i64::MAX) }
}

/// The index of the way that a request takes. `afters` says for each how late the slots of those before have to be at least, µs,
/// in ascending order; `offer` what it offers.
pub fn earliest_way(
    afters: impl Iterator<Item = Micros>,
    mut offer: impl FnMut(usize) -> Offer,
) -> usize {
    let mut best: Option<(usize, Offer, Micros)> = None;
    for (i, after) in afters.enumerate() {
        if best.is_some_and(|(_, best, _)| after > 0 && best.wait <= after) {
            // Those that follow wait for no earlier slot.
            break;
        }
        let new = offer(i);
        if best.is_none_or(|(_, best, its)| new.is_better(best, its == after)) {
            best = Some((i, new, after));
        }
    }
    best.map_or(0, |(i, ..)| i)
}

// === impl Offer ===

impl Offer {
    /// Whether it is better than the `other` one, which comes before it. Ways that are taken after others are so at equal slots,
    /// too: the permits that are left say nothing then.
    fn is_better(self, other: Self, is_equal: bool) -> bool {
        let key = |offer: Self| (offer.outcome, offer.wait);
        let left = |offer: Self| Reverse(if is_equal { offer.left } else { 0 });
        (key(self), left(self)) < (key(other), left(other))
    }
}
