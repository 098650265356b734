//! Handles the replies of a call: answers the callers, and queues what has to follow.

use super::{
    backlog::Backlog,
    call::Call,
    charges::not_charged,
    delayed::Later,
    queued::Origin,
    releases::{again, spend_shared, undo},
};
use crate::{
    algorithm::{Micros, concurrency::CLAIM},
    store::{Check, Checks, Entry, Reply, StoreError, settlement},
};
use std::time::Duration;
use tokio::time::Instant;

/// A lost release is sent again after 0.5 s, when the store has executed what it received on a connection that has ended.
const AGAIN: Duration = Duration::from_millis(500);

/// The answer of the store to one call.
pub(super) type CallAnswer = Result<Vec<Reply>, StoreError>;

/// Handles the replies of a call. With `is_late`, its callers have received a time-out before.
pub(super) fn handle(backlog: &mut Backlog, call: Call, answer: CallAnswer, is_late: bool) {
    let (replies, error) = match answer {
        Ok(replies) if replies.len() == call.entries.len() => (replies, None),
        Ok(_) => (Vec::new(), Some(StoreError::Protocol)),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut replies = replies.into_iter();
    for (entry, of) in call.entries.iter().zip(call.origins) {
        let reply = match (&error, replies.next()) {
            // The entry was sent in a call of its own, which had no answer.
            (None, Some(Reply::Failed(error))) if error.is_silence() => Err(error),
            (None, Some(reply)) => Ok(reply),
            (error, _) => Err(error.clone().unwrap_or(StoreError::Protocol)),
        };
        if let Err(error) = &reply {
            send_again(backlog, entry, of.since, error);
        }
        match of.origin {
            Origin::Caller(sender) => {
                let granted = granted_checks(entry, &reply);
                let unsent = match sender {
                    Some(sender) => sender.send(reply).err(),
                    None => Some(reply),
                };
                match (unsent, granted) {
                    (Some(reply), _) => undo_reply(backlog, entry, reply, is_late),
                    (None, Some(checks)) => charge_for_others(backlog, checks),
                    (None, None) => {}
                }
            }
            Origin::Release => {
                if let (Entry::Refund { check, .. }, Ok(Reply::HandedOver)) = (entry, reply) {
                    watch(backlog, check.clone(), CLAIM);
                }
            }
            // A request is charged once: without an answer the store may have charged it.
            Origin::Debt if matches!(&reply, Err(error) if !error.is_unasked()) => {}
            Origin::Charge | Origin::Debt => {
                if let [check] = entry.checks()
                    && let Some((left, why)) = not_charged(check, &reply)
                {
                    backlog.owe(&left, why);
                }
            }
            Origin::Watch => {
                if let [check] = entry.checks() {
                    watched(backlog, check, reply);
                }
            }
        }
    }
}

fn send_again(backlog: &mut Backlog, entry: &Entry, since: Instant, error: &StoreError) {
    let (entries, since) = again(entry, since, error);
    for entry in entries {
        backlog.delayed.push(Instant::now() + AGAIN, Later::Release { entry, since });
    }
}

/// Gives back the decision of a request whose caller has left, or has received a time-out.
fn undo_reply(
    backlog: &mut Backlog,
    entry: &Entry,
    reply: Result<Reply, StoreError>,
    is_late: bool,
) {
    let Ok(Reply::Decision(mut decision)) = reply else { return };
    let ticket = match entry {
        Entry::Reserve { ticket, .. } | Entry::Choose { ticket, .. } => *ticket,
        _ => None,
    };
    if let Entry::MoveUp { parts, .. } = entry
        && !decision.admitted
    {
        decision.parts.clone_from(parts);
    }
    let Some(checks) = entry.checks_of(&decision) else { return };
    if is_late && backlog.callee.spends_late() {
        spend_shared(checks, &mut decision);
    }
    for entry in undo(checks, ticket, &decision) {
        backlog.release(entry, Instant::now());
    }
}

/// Charges the permits that gateways without a store may grant while the store grants this request to `checks`.
fn charge_for_others(backlog: &mut Backlog, checks: &Checks) {
    let member = backlog.callee.member.as_ref().filter(|member| member.misses_others());
    let Some(member) = member.cloned() else { return };
    for check in checks.iter() {
        for entry in settlement::charges(check, member.share_of_others(check)) {
            backlog.charge(entry);
        }
    }
}

/// Reads the state of `check` when a claim on one of its permits has expired, which hands the permit to the next request
/// in the queue. The gateway that was called may have crashed, and no other one knows of the claim.
fn watch(backlog: &mut Backlog, check: Check, claim: Micros) {
    let at = Instant::now() + Duration::from_micros(claim.unsigned_abs());
    backlog.delayed.watch(at, check);
}

fn watched(backlog: &mut Backlog, check: &Check, reply: Result<Reply, StoreError>) {
    match reply {
        Ok(Reply::Level(level)) if (1..=CLAIM).contains(&level.next) => {
            watch(backlog, check.clone(), level.next);
        }
        // A permit that expires later than a claim does is held by a live request, or the waiting requests know it.
        Ok(Reply::Level(_)) => {}
        _ => watch(backlog, check.clone(), CLAIM),
    }
}

/// The limiters that a new request was granted.
fn granted_checks<'e>(entry: &'e Entry, reply: &Result<Reply, StoreError>) -> Option<&'e Checks> {
    match (entry, reply) {
        (Entry::Reserve { .. } | Entry::Choose { .. }, Ok(Reply::Decision(decision))) => {
            entry.checks_of(decision).filter(|_| decision.admitted)
        }
        _ => None,
    }
}
