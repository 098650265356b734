//! Reads on their way that wait for the answer of an identical one. The rules and the table of groups are in `reads`.

use super::{
    Body, Exchange, Routed,
    client_head::for_client,
    reading::{OthersWaiting, PendingRead},
};
use crate::{
    answer::Failure,
    limit,
    plan::Waiting,
    reads::{
        CONDITIONS, Fingerprint, Follower, GroupPhase, Identity, Joined, NextGroup, SharedAnswer,
        is_of_the_gateway,
    },
    store::{Check, Checks},
    upstream::headers::HeaderFlags,
};
use http::{HeaderName, Response};
use std::{mem, sync::Arc};
use tokio::time::{Instant, timeout_at};

/// The end of a wait with another read.
enum FollowEnd {
    Answered(Arc<SharedAnswer>),
    /// The other one has no answer.
    Over(NextGroup),
    /// The slot comes too late for this read, or the answer is none for it.
    Alone,
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Waits for the answer of identical reads, if there are such. `None` if this read asks for a slot: as the first of them, or
    /// because it has got no answer.
    pub(super) async fn wait_with_others(
        &mut self,
        routed: &mut Routed<'a>,
        by: &[HeaderName],
        checks: &Checks,
        pending: &mut PendingRead,
        others: &OthersWaiting,
    ) -> Result<Option<Arc<SharedAnswer>>, Failure> {
        let identity = self.identity(routed, by, checks);
        let mut next = None;
        while let Some(follower) = self.join(identity, next.take(), pending, others) {
            let is_first_wait = !mem::replace(&mut pending.has_waited, true);
            match self.follow(routed, checks, follower).await? {
                FollowEnd::Answered(shared) => return Ok(Some(shared)),
                // The first time, it may wait with the others again.
                FollowEnd::Over(group) if is_first_wait => next = Some(group),
                FollowEnd::Over(_) | FollowEnd::Alone => break,
            }
        }
        Ok(None)
    }

    /// Joins the identical reads that wait, or the `next` group of those with which this one has waited. `None` if it is the first
    /// of them, or asks alone.
    fn join(
        &self,
        identity: Identity,
        next: Option<NextGroup>,
        pending: &mut PendingRead,
        others: &OthersWaiting,
    ) -> Option<Follower> {
        let (waits, headers) = (&self.proxy.0.plan.shared_waits, self.arrival.request.headers());
        let joined = match next {
            Some(next) => waits.join_next(identity, next, headers),
            None => waits.join(identity, headers),
        };
        match joined {
            Joined::First(lead) => {
                others.0.get_or_init(|| lead.group());
                pending.lead = Some(lead);
                None
            }
            Joined::Alone => None,
            Joined::Follower(follower) => Some(follower),
        }
    }

    /// Hashes all in which identical reads agree: method, URL, upstream, keys and turns at the limiters, and headers.
    fn identity(&self, routed: &Routed<'_>, by: &[HeaderName], checks: &Checks) -> Identity {
        let request = &self.arrival.request;
        let (uri, headers) = (request.uri().to_string(), request.headers());
        let upstream = self.upstream_config(routed).name.as_bytes();
        let host = routed.host.as_ref().map_or(&b""[..], |host| host.as_bytes());
        let method = request.method().as_str().as_bytes();
        let scheme = [u8::from(self.client.is_tls)];
        let mut of = Fingerprint::new([upstream, method, &scheme, host, uri.as_bytes()]);
        for Check { key, cost, turn, .. } in checks.iter() {
            of.add(key.as_bytes());
            of.add(&cost.to_be_bytes());
            if let Some(turn) = turn {
                of.add(turn.tenant.as_bytes());
                of.add(&[turn.priority as u8]);
            }
        }
        of.add_callers(headers);
        of.add_headers(headers, by);
        of.add_headers(headers, &CONDITIONS);
        if by.iter().any(is_of_the_gateway) {
            of.add(self.client.ip.to_string().as_bytes());
        }
        of.end()
    }

    /// Waits for the answer of another read, within the budget of this one. The time of the call of the other one is no wait, and
    /// is added to the budget.
    async fn follow(
        &mut self,
        routed: &mut Routed<'_>,
        checks: &Checks,
        mut other: Follower,
    ) -> Result<FollowEnd, Failure> {
        let (plan, policy) = (&self.proxy.0.plan, routed.policy);
        let limiter = policy.limiter(0);
        let waiting = Waiting::enter(plan, routed.route, limiter, policy.max_waiting);
        let Some(_waiting) = waiting else {
            return Err(Failure::QueueFull { retry_after: limit::micros(other.time_to_slot()) });
        };
        loop {
            let until = self.record.started + routed.budget;
            let phase = other.phase();
            if matches!(phase, GroupPhase::Asks | GroupPhase::Waits(_)) {
                self.record.waits_since.get_or_insert_with(Instant::now);
            }
            // The slot is in time.
            let is_certain = match phase {
                GroupPhase::Answered(shared) if shared.is_for(self.arrival.request.headers()) => {
                    return Ok(FollowEnd::Answered(shared));
                }
                GroupPhase::Answered(_) | GroupPhase::IsItsOwn => return Ok(FollowEnd::Alone),
                GroupPhase::IsOver(next) => return Ok(FollowEnd::Over(next)),
                GroupPhase::IsSent => {
                    self.record.end_wait();
                    let sent = Instant::now();
                    other.changed().await;
                    self.record.took(sent.elapsed());
                    routed.budget += sent.elapsed();
                    continue;
                }
                GroupPhase::Asks => false,
                GroupPhase::Waits(slot) => {
                    self.record.bind(policy.limiter(slot.bound_by), checks.get(slot.bound_by));
                    if slot.at.is_some_and(|at| at > until) {
                        return Ok(FollowEnd::Alone);
                    }
                    slot.at.is_some()
                }
            };
            if is_certain {
                other.changed().await;
            } else if timeout_at(until, other.changed()).await.is_err() {
                return Ok(FollowEnd::Alone);
            }
        }
    }

    /// Makes the answer of another read this one's.
    pub(super) fn copy(
        &mut self,
        routed: &Routed<'_>,
        checks: &Checks,
        shared: &SharedAnswer,
        answer: &mut Response<()>,
    ) -> Body {
        self.record.end_wait();
        self.record.note_saved("share");
        if let Some(saved) = &self.proxy.0.plan.routes[routed.route].saved {
            saved.shared.increment(permits(checks));
        }
        *answer = shared.head.clone();
        let seen = HeaderFlags::of_response(answer.headers());
        for_client(routed.policy, &self.record, seen, self.client.forward.is_some(), answer);
        Body::whole(shared.body.clone())
    }
}

/// The permits that a call takes: those of the limiter at which it costs most.
pub(super) fn permits(checks: &Checks) -> u64 {
    let costs = checks.iter().filter(|check| !check.is_lease()).map(|check| check.cost);
    costs.max().unwrap_or(1).unsigned_abs()
}
