//! What the log and the pages are told of a store that answers and gives no decisions: each change of the process once,
//! not each request, nor each worker.

use crate::{
    log::{Permit, Throttle},
    store::{Entry, Reply, StoreError, hash_tag},
};
use ahash::RandomState;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::time::Instant;

/// Decisions are there again when none has failed for this long: another worker's may fail yet.
const RECOVERED: Duration = Duration::from_secs(1);

/// A failure that nobody has met for so long says nothing of the next decision: whoever sends requests elsewhere because
/// of it sends some here again.
const STALE: Duration = Duration::from_secs(10);

/// A server whose calls fail in turns in several ways changes with each call.
static WORKED: Throttle = Throttle::new();
static FAILED: Throttle = Throttle::new();

/// The error that was last told: for a group of keys, by its hash tag, and by nothing for all of them. Tags come from the
/// configuration.
#[derive(Debug, Default)]
pub(in crate::store) struct IncidentLog {
    /// Whether there is any; asked for each call.
    some: AtomicBool,
    groups: Mutex<HashMap<Box<str>, Incident, RandomState>>,
}

#[derive(Debug)]
struct Incident {
    why: StoreError,
    since: Instant,
    last: Instant,
}

// === impl IncidentLog ===

impl IncidentLog {
    /// Hears what became of a call of the `lane`; whether that changes anything.
    pub(in crate::store) fn hear(
        &self,
        lane: &str,
        entries: &[Entry],
        answer: &Result<Vec<Reply>, StoreError>,
    ) -> bool {
        let replies = match answer {
            Err(error) => return self.failed(lane, error),
            Ok(replies) => replies,
        };
        let failed = replies.iter().any(|reply| reply.error().is_some());
        if !failed && !self.some.load(Relaxed) {
            return false;
        }
        let mut changed = false;
        for (entry, reply) in entries.iter().zip(replies) {
            let group = hash_tag(&entry.checks()[0].key);
            changed |= match reply.error() {
                Some(error) => self.failed(group, error),
                None => self.worked(group),
            };
        }
        // What only reads may work while what writes does not. Of a server that has all lanes, signs of life tell.
        if !lane.is_empty() || entries.iter().zip(replies).any(|(_, reply)| has_written(reply)) {
            changed |= self.worked(lane);
        }
        changed
    }

    /// The store has written something for the `group`.
    pub(in crate::store) fn worked(&self, group: &str) -> bool {
        if !self.some.load(Relaxed) {
            return false;
        }
        let mut groups = self.groups.lock();
        if groups.get(group).is_none_or(|failure| failure.last.elapsed() < RECOVERED) {
            return false;
        }
        groups.remove(group);
        self.some.store(!groups.is_empty(), Relaxed);
        drop(groups);
        if let Some(Permit { suppressed }) = WORKED.permit() {
            let group = (!group.is_empty()).then_some(group);
            tracing::info!(group, suppressed, "the store gives decisions again");
        }
        true
    }

    /// Why limiters get no decision though the store is asked, by their groups, and since when. Keys with foreign values
    /// are not among them.
    pub(super) fn failures(&self) -> Vec<(Box<str>, Duration, StoreError)> {
        if !self.some.load(Relaxed) {
            return Vec::new();
        }
        let groups = self.groups.lock();
        let failures = groups.iter().filter(|(_, failure)| !failure.why.is_of_a_key());
        failures
            .map(|(group, failure)| (group.clone(), failure.since.elapsed(), failure.why.clone()))
            .collect()
    }

    /// Why those with `key` got none a moment ago.
    pub(super) fn failing(&self, key: &str) -> Option<StoreError> {
        if !self.some.load(Relaxed) {
            return None;
        }
        let groups = self.groups.lock();
        let of = |group: &str| groups.get(group).filter(|it| it.last.elapsed() < STALE);
        let failure = of("").or_else(|| of(hash_tag(key)));
        failure.map(|failure| failure.why.clone()).filter(|why| !why.is_of_a_key())
    }

    /// For how long those with `key` have had none.
    pub(super) fn failing_for(&self, key: &str) -> Option<Duration> {
        if !self.some.load(Relaxed) {
            return None;
        }
        let groups = self.groups.lock();
        let failure = groups.get("").or_else(|| groups.get(hash_tag(key)));
        failure.map(|failure| failure.since.elapsed())
    }

    fn failed(&self, group: &str, error: &StoreError) -> bool {
        let now = Instant::now();
        let mut groups = self.groups.lock();
        if let Some(failure) = groups.get_mut(group).filter(|it| it.last.elapsed() >= STALE) {
            // This gateway did not ask meanwhile, so others may have had places.
            failure.since = now;
        }
        match groups.get_mut(group) {
            Some(failure) if failure.why.kind() == error.kind() => {
                failure.last = now;
                return false;
            }
            Some(failure) => (failure.why, failure.last) = (error.clone(), now),
            None => {
                let failure = Incident { why: error.clone(), since: now, last: now };
                groups.insert(group.into(), failure);
                self.some.store(true, Relaxed);
            }
        }
        drop(groups);
        if let Some(Permit { suppressed }) = FAILED.permit() {
            let group = (!group.is_empty()).then_some(group);
            tracing::warn!(group, %error, suppressed, "the store gives no decisions");
        }
        true
    }
}

fn has_written(reply: &Reply) -> bool {
    match reply {
        Reply::Decision(decision) => decision.admitted,
        Reply::Done(done) => *done,
        Reply::HandedOver => true,
        Reply::Level(_) | Reply::Failed(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    /// Who is sent no requests because of it must be sent some again.
    #[tokio::test(start_paused = true)]
    async fn a_failure_that_nobody_has_met_for_long_says_nothing_of_the_next_decision() {
        let (told, refused) = (IncidentLog::default(), StoreError::Refused("OOM".into()));
        for _ in 0..3 {
            told.failed("a", &refused);
            advance(STALE - Duration::from_millis(1)).await;
            assert_eq!(told.failing("p:{a}:T:x"), Some(refused.clone()));
            assert_eq!(told.failing("p:{b}:T:x"), None);
        }
        advance(Duration::from_millis(1)).await;
        assert_eq!((told.failing("p:{a}:T:x"), told.failures().len()), (None, 1));
    }
}
