//! One worker's side of a store's health: what becomes of its calls and of its signs of life. Asks nobody.

use super::{
    Breaker, Health,
    breaker::{Answers, Recent},
};
use crate::{
    algorithm::{Grant, concurrency::Ticket},
    store::{Check, Entry, OnFailure, Reply, StoreError, calls::Calls},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A worker whose sibling has had answers for so long and who has none has a connection that is sick.
const LAG: Duration = Duration::from_millis(200);
/// A sick connection is made anew so often at most.
const RENEW: Duration = Duration::from_secs(1);

/// One worker's connection to the store.
pub struct Member {
    pub(super) health: Arc<Health>,
    pub(super) calls: Arc<Calls>,
    pub(super) recent: Recent,
    /// Calls without an answer are those of one server of several: each limiter that meets one is decided here, and the
    /// breaker stays as it is.
    pub(super) is_one_of_many: bool,
    /// Its last signs of life since the breaker opened; `None` when the last one was not answered in time.
    pub(super) answers: Mutex<Option<Answers>>,
    /// When its connection was made anew because it was sick.
    pub(super) renewed: Mutex<Option<Instant>>,
}

// === impl Member ===

impl Member {
    /// How long a call may take that begins now.
    pub(in crate::store) fn limit(&self) -> Duration {
        self.health.pace.limit()
    }

    /// The permits to charge besides those that `check` has granted, for gateways that decide alone meanwhile. None for
    /// limiters that do not share.
    pub(in crate::store) fn share_of_others(&self, check: &Check) -> i64 {
        let shares = matches!(check.on_failure, OnFailure::Share { .. });
        match shares && check.enforce && !check.is_lease() {
            true => self.health.absent.more(&check.key, check.cost),
            false => 0,
        }
    }

    /// Whether any gateway decides alone while this one uses the store.
    pub(in crate::store) fn misses_others(&self) -> bool {
        self.health.misses_others()
    }

    /// What became of a call of the `lane` that began at `started`; `late`: after it was taken for unanswered.
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
                self.health.known.hear(entries, replies, late);
            }
            Err(error) => self.missed(error),
        }
        // Where a breaker hears of all calls, it also tells of those without an answer.
        let is_told = !self.is_one_of_many && matches!(answer, Err(error) if error.is_silence());
        if !is_told && self.health.incidents.hear(lane, entries, answer) {
            self.health.show();
        }
    }

    /// A call had no answer. One that was refused had: who refuses is there, and fast.
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

    /// A place is on its way back.
    pub(in crate::store) fn given_back(&self, check: &Check, grant: Grant) {
        if check.is_lease() {
            self.health.known.given_back(&check.key, Ticket::of(grant));
        }
    }

    /// A sign of life was answered in time.
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

    /// Whether the store answers a sibling and not this one, so that its connection is to be made anew; now and then.
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

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}
