//! One worker's side of a store's health: it records how the worker's calls and heartbeats ended. It sends nothing itself.

use super::{
    Breaker, Health,
    breaker::{Answers, Recent},
};
use crate::{
    algorithm::{Grant, Micros, concurrency::Ticket},
    store::{Check, Entry, OnFailure, Pauses, Reply, StoreError, calls::Calls},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// The connection of a worker is sick when the worker has no answer and another worker has had answers for this long.
const LAG: Duration = Duration::from_millis(200);
/// The least time between two replacements of a sick connection.
const RENEW: Duration = Duration::from_secs(1);

/// One worker's connection to the store.
#[derive(Debug)]
pub struct Member {
    pub(super) health: Arc<Health>,
    pub(super) calls: Arc<Calls>,
    pub(super) recent: Recent,
    /// The connection leads to one of several servers. A call without an answer then concerns the limiters of that server,
    /// which are decided here, and the breaker stays as it is.
    pub(super) is_one_of_many: bool,
    /// The answers to its heartbeats since the breaker opened; `None` when the last one was not answered in time.
    pub(super) answers: Mutex<Option<Answers>>,
    /// When its connection was last replaced because it was sick.
    pub(super) renewed: Mutex<Option<Instant>>,
}

// === impl Member ===

impl Member {
    /// How long a call that begins now may take.
    pub(in crate::store) fn limit(&self) -> Duration {
        self.health.pace.limit()
    }

    /// The pauses that the process knows.
    pub(in crate::store) fn pauses(&self) -> &Arc<Pauses> {
        &self.health.pauses
    }

    /// The permits to charge besides those that `check` has granted, for gateways that decide alone meanwhile. None for
    /// limiters that do not share.
    pub(in crate::store) fn share_of_others(&self, check: &Check) -> i64 {
        let shares = matches!(check.on_failure, OnFailure::Share { .. });
        if shares && check.enforce && !check.is_lease() {
            self.health.absent.more(&check.key, check.cost)
        } else {
            0
        }
    }

    /// Whether any gateway decides alone while this one uses the store.
    pub(in crate::store) fn misses_others(&self) -> bool {
        self.health.misses_others()
    }

    /// Records the end of a call of the `lane` that began at `started`. `late`: the answer came after the time-out, for
    /// which the call counted as unanswered.
    pub(in crate::store) fn heard(
        &self,
        lane: &str,
        entries: &[Entry],
        answer: &Result<Vec<Reply>, StoreError>,
        started: Instant,
        late: bool,
    ) {
        match answer {
            Ok(replies) => {
                self.health.answered();
                self.health.pace.answered(started.elapsed());
                if !late {
                    self.recent.answered();
                }
                if replies.iter().any(is_grant) {
                    self.health.note_grant();
                }
                self.health.known.record(entries, replies, late);
                self.learn_pauses(entries, replies, started);
            }
            Err(error) => self.missed(error),
        }
        // With one server, the breaker reports the calls without an answer.
        let opens = !self.is_one_of_many && matches!(answer, Err(error) if error.is_silence());
        if !opens && self.health.incidents.record(lane, entries, answer) {
            self.health.show();
        }
    }

    /// Learns the pauses that the replies to a call report, which was sent at `started`.
    fn learn_pauses(&self, entries: &[Entry], replies: &[Reply], started: Instant) {
        for (entry, reply) in entries.iter().zip(replies) {
            let level = match reply {
                Reply::Decision(decision) => &decision.level,
                Reply::Level(level) => level,
                Reply::Block { .. }
                | Reply::Done(_)
                | Reply::HandedOver
                | Reply::Owed(_)
                | Reply::Tenants(_)
                | Reply::Failed(_) => continue,
            };
            if level.paused > 0 {
                self.learn_pause(entry, reply, level.paused, started);
            }
        }
    }

    #[cold]
    fn learn_pause(&self, entry: &Entry, reply: &Reply, left: Micros, started: Instant) {
        let (index, status) = match (entry, reply) {
            (_, Reply::Decision(decision)) => (decision.bound_by, 0),
            (Entry::Pause { pause, .. }, _) => (0, pause.status),
            _ => (0, 0),
        };
        if let Some(check) = entry.checks().get(index) {
            self.health.pauses.learn_since(&check.key, started, left, status);
        }
    }

    /// Records a call without an answer. A refusal is an answer: a store that refuses is there, and fast.
    pub(in crate::store) fn missed(&self, error: &StoreError) {
        match error {
            StoreError::Refused(_) | StoreError::Foreign(_) => {}
            _ if self.is_one_of_many => {}
            StoreError::NotConnected | StoreError::Away(_) | StoreError::Unreachable(_) => {
                self.health.open(error);
            }
            StoreError::Timeout | StoreError::Protocol => {
                if self.recent.missed() {
                    self.health.open(error);
                }
            }
        }
    }

    /// A permit is on its way back to the store.
    pub(in crate::store) fn refunded(&self, check: &Check, grant: Grant) {
        if check.is_lease() {
            self.health.known.permits.refunded(&check.key, Ticket::of(grant));
        }
    }

    /// A heartbeat was answered in time.
    pub(in crate::store) fn is_well(&self) {
        self.recent.answered();
    }

    /// Whether the last probe was answered in time, and if so whether quickly.
    pub(in crate::store) fn probed(&self, answered: Option<bool>) {
        let away = self.health.away.lock();
        if away.is_none() {
            return;
        }
        {
            let mut answers = self.answers.lock();
            *answers = answered.map(|quick| Answers::and(*answers, Instant::now(), quick));
        }
        let some = self.health.members().iter().any(|member| member.answers.lock().is_some());
        self.health.set(if some { Breaker::HalfOpen } else { Breaker::Open });
    }

    /// Whether the store answers another worker and not this one, so that the connection is to be replaced. True once a second
    /// at most.
    pub(in crate::store) fn is_sick(&self) -> bool {
        if self.health.is_closed() || self.answers.lock().is_some() {
            return false;
        }
        let (members, now) = (self.health.members(), Instant::now());
        let has_lasted = |since: Instant, span| now.saturating_duration_since(since) >= span;
        let is_well = |member: &Arc<Self>| {
            member.answers.lock().is_some_and(|answers| has_lasted(answers.since, LAG))
        };
        let mut renewed = self.renewed.lock();
        let again = renewed.is_none_or(|at| has_lasted(at, RENEW));
        let is_sick = again && members.iter().any(is_well);
        if is_sick {
            *renewed = Some(now);
        }
        is_sick
    }
}

fn is_grant(reply: &Reply) -> bool {
    matches!(reply, Reply::Decision(decision) if decision.admitted)
}
