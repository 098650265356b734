//! The incident log: why a store that answers gives no decisions, for the log and the admin pages. It reports each change
//! once per process, not once per request or worker.

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

/// An incident that no request has met for 10 s says nothing about the next decision. A load balancer that sends requests
/// elsewhere because of it then sends some here again.
const STALE: Duration = Duration::from_secs(10);

/// Bounds the log: a server whose calls fail in several ways in turn changes with each call.
static WORKED: Throttle = Throttle::new();
static FAILED: Throttle = Throttle::new();

/// The incidents that last, by the hash tag of their keys; the empty tag is for all keys. Tags come from the configuration,
/// so their number is bounded.
#[derive(Debug, Default)]
pub(in crate::store) struct IncidentLog {
    /// Whether any incident lasts; every call reads it.
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
    /// Records the end of a call of the `lane`. Returns whether an incident began or ended.
    pub(in crate::store) fn record(
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
            // With one server, the limiters of a request may have several hash tags.
            for check in entry.checks() {
                changed |= match reply.error() {
                    Some(StoreError::Foreign(key)) if *key != check.key => false,
                    Some(error) => self.failed(hash_tag(&check.key), error),
                    None => self.worked(hash_tag(&check.key)),
                };
            }
        }
        // Reads may succeed while writes fail. With one server, heartbeats show whether writes succeed.
        if !lane.is_empty() || entries.iter().zip(replies).any(|(_, reply)| has_written(reply)) {
            changed |= self.worked(lane);
        }
        changed
    }

    /// The store has executed a write for the `group`, which ends its incident.
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

    /// The incidents that last, by group: why its limiters get no decision though the store is asked, and for how long.
    /// Keys with foreign values are not among them.
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

    /// Why limiters with `key` got no decision in the last 10 s.
    pub(super) fn failing(&self, key: &str) -> Option<StoreError> {
        if !self.some.load(Relaxed) {
            return None;
        }
        let groups = self.groups.lock();
        let of = |group: &str| groups.get(group).filter(|it| it.last.elapsed() < STALE);
        let failure = of("").or_else(|| of(hash_tag(key)));
        failure.map(|failure| failure.why.clone()).filter(|why| !why.is_of_a_key())
    }

    /// For how long limiters with `key` have had no decision.
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
            // This gateway did not ask in between, so other gateways may have been granted permits.
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
        Reply::Block { .. } => true,
        Reply::Done(done) => *done,
        Reply::HandedOver | Reply::Owed(_) => true,
        Reply::Level(_) | Reply::Tenants(_) | Reply::Failed(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, TokenBucket},
        store::Check,
    };
    use tokio::time::advance;

    /// A load balancer that sends no requests to this gateway because of an incident has to send some again.
    #[tokio::test(start_paused = true)]
    async fn an_old_incident_does_not_affect_the_next_decision() {
        let (incidents, refused) = (IncidentLog::default(), StoreError::Refused("OOM".into()));
        for _ in 0..3 {
            incidents.failed("a", &refused);
            advance(STALE - Duration::from_millis(1)).await;
            assert_eq!(incidents.failing("p:{a}:T:x"), Some(refused.clone()));
            assert_eq!(incidents.failing("p:{b}:T:x"), None);
        }
        advance(Duration::from_millis(1)).await;
        assert_eq!((incidents.failing("p:{a}:T:x"), incidents.failures().len()), (None, 1));
    }

    /// Without a Cluster, the limiters of one request have tags of their own, and each is shown as failing.
    #[tokio::test(start_paused = true)]
    async fn every_tag_of_a_request_that_failed_is_reported() {
        let rule = TokenBucket::new(1, 1_000_000, 1).expect("a rule");
        let check = |key: &str| Check::new(key, Algorithm::TokenBucket(rule));
        let (incidents, oom) = (IncidentLog::default(), StoreError::Refused("OOM".into()));
        let checks = [check("p:{a}:T:a"), check("p:{b}:T:b")].into();
        let entries = [Entry::Reserve { checks, budget: 0, ticket: None }];
        let tags = |incidents: &IncidentLog| {
            let mut tags: Vec<_> = incidents.failures().into_iter().map(|(tag, ..)| tag).collect();
            tags.sort_unstable();
            tags.join(" ")
        };
        assert!(incidents.record("", &entries, &Ok(vec![Reply::Failed(oom)])));
        assert_eq!(tags(&incidents), "a b");
        advance(RECOVERED).await;
        assert!(incidents.record("", &entries, &Ok(vec![Reply::Done(true)])));
        assert_eq!(tags(&incidents), "");
        let foreign = StoreError::Foreign("p:{b}:T:b".into());
        incidents.record("", &entries, &Ok(vec![Reply::Failed(foreign)]));
        let groups = incidents.groups.lock();
        assert!(groups.len() == 1 && groups.contains_key("b"), "{groups:?}");
    }
}
