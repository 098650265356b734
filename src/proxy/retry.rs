//! Sends a refused request again, at a new slot within the time that it may wait. Each attempt takes permits of its own. The
//! refusal is kept meanwhile, and the client gets it if no slot comes in time.

use super::{
    Exchange, Proxy, Routed,
    attempt::Attempt,
    connecting::FirstConnection,
    forward::{Outgoing, Received, unanswered},
    refusal::Pausing,
};
use crate::{
    answer::Failure,
    limit,
    metrics::{RetryResult, UpstreamMetrics},
    store::Checks,
    throttle::{Repeat, UpstreamRefusal},
    upstream::{Replay, Upload, is_idempotent, move_host},
};
use http::{HeaderName, Request};
use std::mem;
use tokio::time::Instant;

/// A request with this header can be repeated, whatever its method (draft-ietf-httpapi-idempotency-key-header).
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Counts the result of one refusal of an upstream with retries, also when the client leaves.
struct RetryCount<'a> {
    metrics: &'a UpstreamMetrics,
    result: RetryResult,
}

/// The consequence of a refusal.
enum AfterRefusal {
    /// The request was sent again, and this came back.
    Sent(Box<Received>),
    /// The client gets this answer.
    Final(Box<Received>),
}

// === impl Proxy ===

impl Proxy {
    /// Keeps the body of a request from now on, if the request may be sent again.
    pub(super) fn keep_body(
        &self,
        request: &mut Request<Upload>,
        routed: &Routed<'_>,
    ) -> Replay<Upload> {
        let throttle = self.throttle(routed);
        if routed.budget.is_zero() || routed.is_expected || !throttle.retries() {
            return Replay::none();
        }
        request.body_mut().record(throttle.retry.max_body, Some(&self.0.plan.kept))
    }

    /// Reads an answer that may be a refusal. A refusal pauses limiters, and the request is sent again as often as its
    /// budget, its attempts, its method and its body allow.
    ///
    /// # Errors
    ///
    /// A [`Failure`] if the request was given a slot for another attempt, and that failed.
    #[cold]
    pub(super) async fn after_answer(
        &self,
        exchange: &mut Exchange<'_>,
        routed: &mut Routed<'_>,
        checks: Option<&Checks>,
        outgoing: &mut Outgoing<'_>,
        mut received: Box<Received>,
    ) -> Result<Box<Received>, Failure> {
        let metrics = &self.0.plan.upstreams[routed.policy.upstream];
        let mut last: Option<RetryCount<'_>> = None;
        loop {
            let throttle = self.throttle(routed);
            let refusal = match received.says_something(&throttle.rules) {
                true => self.hear(&mut exchange.record, routed, &mut received).await,
                false => None,
            };
            if let Some(mut last) = last.take() {
                last.result = match refusal {
                    Some(_) => RetryResult::Throttled,
                    None => RetryResult::Answered,
                };
            }
            let Some(refusal) = refusal.filter(|_| throttle.is_on) else { return Ok(received) };
            let pausing = self.pause(routed, checks, (&refusal, received.times.sent));
            let (Some(pausing), Some(checks)) = (pausing, checks) else { return Ok(received) };
            if !throttle.retries() {
                return Ok(received);
            }
            let mut count = RetryCount { metrics, result: RetryResult::Cancelled };
            let refused = (refusal, pausing, received);
            match self.retry(exchange, routed, checks, outgoing, refused, &mut count).await? {
                AfterRefusal::Sent(answer) => received = answer,
                AfterRefusal::Final(answer) => return Ok(answer),
            }
            last = Some(count);
        }
    }

    /// Sends a refused request again, if it may be and a slot comes in time.
    async fn retry(
        &self,
        exchange: &mut Exchange<'_>,
        routed: &mut Routed<'_>,
        checks: &Checks,
        outgoing: &mut Outgoing<'_>,
        (refusal, pausing, mut received): (UpstreamRefusal, Pausing, Box<Received>),
        count: &mut RetryCount<'_>,
    ) -> Result<AfterRefusal, Failure> {
        if let Some(why) = self.hindrance(exchange, routed, outgoing, &refusal, &pausing) {
            count.result = why;
            return Ok(AfterRefusal::Final(received));
        }
        received.hold(&mut exchange.record, &self.0.plan.kept).await;
        let body = if received.is_over() { outgoing.replay.take().await } else { None };
        let Some(body) = body else {
            count.result = RetryResult::NotRepeatable;
            return Ok(AfterRefusal::Final(received));
        };
        *exchange.arrival.request.body_mut() = body;
        // The call has ended. Its concurrency permits could serve other calls during the wait.
        received.reservation = None;
        // Without a pause the limiters could grant each further attempt at once, and the upstream would refuse it again.
        if !matches!(pausing.task.await, Ok(true)) {
            count.result = RetryResult::NoSlot;
            drop(mem::take(exchange.arrival.request.body_mut()));
            return Ok(AfterRefusal::Final(received));
        }
        let upstream = &self.0.upstreams[routed.policy.upstream];
        let until = exchange.record.started + routed.budget;
        let (mut kept, mut pool) = (Some(received), FirstConnection::later(upstream, until));
        let (record, budget) = (&mut exchange.record, routed.budget);
        let attempt = Attempt::first(self, record, routed.route, routed.policy, checks, budget);
        let mut attempt = attempt.again().after_refusal(&mut kept);
        let paced = limit::pace(&self.0.store, checks, &mut attempt, &mut pool).await;
        drop(attempt);
        exchange.record.waited_beside(pool.connecting);
        exchange.record.connected(pool.made);
        let (mut reservation, connection) = match (paced, kept) {
            (Ok(paced), _) => paced,
            (Err(_), Some(received)) => {
                count.result = RetryResult::NoSlot;
                // The connection of the client learns now whether the rest of the body is still to come.
                drop(mem::take(exchange.arrival.request.body_mut()));
                return Ok(AfterRefusal::Final(received));
            }
            (Err(failure), None) => {
                count.result = RetryResult::Failed;
                return Err(failure.throttled());
            }
        };
        let config = &self.0.plan.config.upstreams[routed.policy.upstream];
        if !config.preserve_host {
            let host = &connection.target().host;
            for target in &config.targets {
                move_host(&mut exchange.arrival.request, &mut outgoing.added, &target.host, host);
            }
        }
        outgoing.replay = self.keep_body(&mut exchange.arrival.request, routed);
        reservation.spend();
        self.count_permits(routed.policy, reservation.checks(), None);
        exchange.record.attempts += 1;
        match self.attempt(exchange, routed, outgoing, Some(&reservation), connection).await {
            Ok((response, seen, times)) => {
                let reservation = Some(reservation);
                let received = Received { response, read_ahead: None, reservation, times, seen };
                Ok(AfterRefusal::Sent(Box::new(received)))
            }
            Err(error) => {
                count.result = RetryResult::Failed;
                Err(unanswered(error, outgoing.upload.as_ref(), Some(reservation)))
            }
        }
    }

    /// The reason why a refused request is not sent again, as far as it is known before the limiters are asked.
    fn hindrance(
        &self,
        exchange: &Exchange<'_>,
        routed: &Routed<'_>,
        outgoing: &Outgoing<'_>,
        refusal: &UpstreamRefusal,
        pausing: &Pausing,
    ) -> Option<RetryResult> {
        let record = &exchange.record;
        if record.attempts >= self.throttle(routed).retry.attempts.get() {
            return Some(RetryResult::Exhausted);
        }
        let has_key = || exchange.arrival.request.headers().contains_key(&IDEMPOTENCY_KEY);
        let may_repeat = match refusal.repeat {
            Repeat::Always => true,
            Repeat::IfIdempotent => is_idempotent(exchange.arrival.request.method()) || has_key(),
            Repeat::Never => false,
        };
        let left = (record.started + routed.budget).saturating_duration_since(Instant::now());
        if left < pausing.span {
            return Some(RetryResult::NoSlot);
        }
        (!may_repeat || !outgoing.replay.is_kept()).then_some(RetryResult::NotRepeatable)
    }
}

impl Drop for RetryCount<'_> {
    fn drop(&mut self) {
        self.metrics.retries[self.result as usize].increment(1);
    }
}
