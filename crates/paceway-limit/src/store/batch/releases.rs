//! The entries that give grants back. Decides nothing and sends nothing.

use crate::{
    algorithm::{concurrency::Ticket, fair::Place, reserve},
    store::{Check, Checks, Decision, Entry, OnFailure, StoreError},
};
use std::time::Duration;
use tokio::time::Instant;

/// Returns the entries that give back the grants of an admitted request that was not sent.
pub(in crate::store) fn releases(
    checks: &Checks,
    parts: &[reserve::Part],
) -> impl Iterator<Item = Entry> {
    let given = checks.iter().zip(parts).filter(|(_, part)| part.at >= 0);
    given.map(|(check, part)| match Place::of(part.grant) {
        Some(place) => Entry::Leave { checks: checks.clone(), place },
        None => Entry::Refund { check: check.clone(), grant: part.grant },
    })
}

/// Returns the parts that remove `ticket` from every queue and every concurrency limiter that it may be in.
pub fn parts_of(checks: &Checks, ticket: Ticket) -> reserve::Parts {
    let part = |check: &Check| {
        if check.is_lease() {
            reserve::Part { at: 0, grant: ticket.grant() }
        } else {
            reserve::Part::NOTHING
        }
    };
    checks.iter().map(part).collect()
}

/// Returns the entries that undo a decision whose caller has left.
pub(super) fn undo(checks: &Checks, ticket: Option<Ticket>, decision: &Decision) -> Vec<Entry> {
    if ticket.is_some_and(|ticket| ticket.deadline == Ticket::HELD) {
        // The ticket belongs to a call that is running and keeps its permit.
        return Vec::new();
    }
    let mut entries: Vec<_> = releases(checks, &decision.parts).collect();
    if let (Some(queued), Some(ticket)) = (decision.queued, ticket) {
        let ticket = Ticket { deadline: queued.deadline, ..ticket };
        entries.extend(releases(checks, &parts_of(checks, ticket)));
    }
    entries
}

/// Takes out of a decision that came after the time-out the permits that count as spent: the gateway has decided by its share
/// meanwhile, and charges what it granted.
pub(super) fn spend_shared(checks: &Checks, decision: &mut Decision) {
    let is_spent = |check: &Check| {
        let is_shared = matches!(check.on_failure, OnFailure::Share { .. } | OnFailure::Whole);
        is_shared && check.enforce && !check.is_lease()
    };
    for (part, check) in decision.parts.iter_mut().zip(checks.iter()) {
        if is_spent(check) {
            *part = reserve::Part::NOTHING;
        }
    }
}

/// Returns the entries that have to be sent again after `entry` failed with `error`, and the instant since which they are
/// due.
///
/// A concurrency permit is given back until the store has confirmed it. That may happen twice, since no other request has
/// its ticket. Without it, a lost answer or a lost release would keep the permit from all requests for a whole lease.
pub(super) fn again(entry: &Entry, since: Instant, error: &StoreError) -> (Vec<Entry>, Instant) {
    match entry {
        Entry::Refund { check, .. } => {
            // After its lease the permit is free. Rate permits that were not given back count as spent.
            let lease = check.algorithm.lease().unwrap_or_default();
            let is_held = since.elapsed() < Duration::from_micros(lease.unsigned_abs());
            (is_held.then(|| entry.clone()).into_iter().collect(), since)
        }
        // The permit of a running call is renewed again, and not given back.
        Entry::Reserve { ticket: Some(Ticket { deadline: Ticket::HELD, .. }), .. }
        | Entry::Choose { ticket: Some(Ticket { deadline: Ticket::HELD, .. }), .. } => {
            (Vec::new(), since)
        }
        Entry::Reserve { checks, ticket: Some(ticket), .. } if !error.is_unasked() => {
            (releases(checks, &parts_of(checks, *ticket)).collect(), Instant::now())
        }
        // It is not known which way was taken.
        Entry::Choose { among, ticket: Some(ticket), .. } if !error.is_unasked() => {
            let all = among.all();
            (releases(all, &parts_of(all, *ticket)).collect(), Instant::now())
        }
        _ => (Vec::new(), since),
    }
}
