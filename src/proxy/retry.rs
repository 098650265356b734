//! Sends a refused request again, at a new slot within the time that it may wait. Each attempt takes permits of its own. The
//! refusal is kept meanwhile, and the client gets it if no slot comes in time.

use super::{
    Exchange, Routed,
    attempt::Attempt,
    connecting::FirstConnection,
    outgoing::{Outgoing, Received},
    refusal::Pausing,
};
use crate::{
    answer::Failure,
    limit::{self, Callee},
    metrics::{RetryResult, UpstreamMetrics},
    throttle::{Repeat, UpstreamRefusal},
    upstream::{Connection, Replay, Upload, is_idempotent, move_host},
};
use http::{HeaderName, Response};
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

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Keeps the body of a request from now on, if the request may be sent again.
    pub(super) fn keep_body(&mut self, routed: &Routed<'_>) -> Replay<Upload> {
        let throttle = self.throttle(routed);
        let retries = throttle.retries() && !routed.budget.is_zero();
        if routed.is_expected || !retries && routed.policy.accounts.is_none() {
            return Replay::none();
        }
        let (most, bound) = (throttle.retry.max_body, &self.proxy.0.plan.kept);
        self.arrival.request.body_mut().record(most, Some(bound))
    }

    /// Reads an answer that may be a refusal. A refusal pauses limiters, and the request is sent again as often as its
    /// budget, its attempts, its method and its body allow.
    ///
    /// # Errors
    ///
    /// A [`Failure`] if the request was given a slot for another attempt, and that failed.
    #[cold]
    pub(super) async fn after_answer<'h>(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'h>,
        mut received: Box<Received>,
    ) -> Result<Box<Received>, Failure>
    where
        'a: 'h,
    {
        let metrics = &self.proxy.0.plan.upstreams[routed.policy.upstream];
        let mut last: Option<RetryCount<'_>> = None;
        loop {
            let throttle = self.throttle(routed);
            if outgoing.accounts.is_some()
                && let Some(answer) = self.change_account(routed, outgoing, &mut received).await?
            {
                received = answer;
                continue;
            }
            let refusal = if received.says_something(&throttle.rules) {
                self.hear(routed, outgoing, &mut received).await
            } else {
                None
            };
            if let Some(read) = &mut outgoing.read {
                read.is_refused = refusal.is_some();
            }
            if let Some(mut last) = last.take() {
                last.result = match refusal {
                    Some(_) => RetryResult::Throttled,
                    None => RetryResult::Answered,
                };
            }
            let Some(refusal) = refusal.filter(|_| throttle.is_on) else { return Ok(received) };
            let pausing = self.pause(routed, outgoing, &refusal);
            let Some(pausing) = pausing.filter(|_| throttle.retries()) else {
                return Ok(received);
            };
            let mut count = RetryCount { metrics, result: RetryResult::Cancelled };
            let hindrance = match self.hindrance(routed, outgoing, &refusal, &pausing) {
                None => self.end_call(outgoing, pausing, &mut received).await,
                known => known,
            };
            if let Some(why) = hindrance {
                count.result = why;
                return Ok(received);
            }
            // With accounts the vendor's time is that of one of them.
            let kept = outgoing.accounts.is_none().then_some(received);
            match self.retry(routed, outgoing, kept, &mut count.result).await? {
                AfterRefusal::Sent(answer) => received = answer,
                AfterRefusal::Final(answer) => return Ok(answer),
            }
            last = Some(count);
        }
    }

    /// Ends a refused call: takes its body back, frees its permits, and waits until its limiters are paused. Returns the
    /// reason why the request cannot be sent again.
    async fn end_call(
        &mut self,
        outgoing: &mut Outgoing<'_>,
        pausing: Pausing,
        received: &mut Received,
    ) -> Option<RetryResult> {
        received.hold(&mut self.record, &self.proxy.0.plan.kept).await;
        let replay = &mut outgoing.extras.replay;
        let body = if received.is_over() { replay.take().await } else { None };
        let Some(body) = body else { return Some(RetryResult::NotRepeatable) };
        *self.arrival.request.body_mut() = body;
        // The concurrency permits could serve other calls during the wait.
        outgoing.reservation = None;
        // Without a pause the limiters could grant each further attempt at once, and the upstream would refuse it again.
        if matches!(pausing.task.await, Ok(true)) {
            return None;
        }
        self.drop_body();
        Some(RetryResult::NoSlot)
    }

    /// Sends a request with another account if its answer rejects the account, or if other accounts take such calls. `None` if it
    /// stays.
    async fn change_account<'h>(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'h>,
        received: &mut Received,
    ) -> Result<Option<Box<Received>>, Failure>
    where
        'a: 'h,
    {
        let Some(reason) = self.leave_account(routed, outgoing, received).await else {
            return Ok(None);
        };
        if !self.move_account(routed, outgoing, received, reason).await? {
            return Ok(None);
        }
        // No caller learns of the credentials of an account.
        let mut result = RetryResult::Cancelled;
        match self.retry(routed, outgoing, None, &mut result).await? {
            AfterRefusal::Sent(answer) | AfterRefusal::Final(answer) => Ok(Some(answer)),
        }
    }

    /// Sends a request again, if a slot comes in time. Otherwise its client gets the answer `refused`; without one it learns why it
    /// has no slot.
    async fn retry<'h>(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'h>,
        mut refused: Option<Box<Received>>,
        result: &mut RetryResult,
    ) -> Result<AfterRefusal, Failure>
    where
        'a: 'h,
    {
        let is_refused = refused.is_some();
        let next = self.next_attempt(routed, outgoing, &mut refused).await;
        let connection = match (next, refused) {
            (Ok(connection), _) => connection,
            (Err(_), Some(received)) => {
                *result = RetryResult::NoSlot;
                self.drop_body();
                return Ok(AfterRefusal::Final(received));
            }
            (Err(failure), None) => {
                *result = RetryResult::Failed;
                return Err(if is_refused { failure.throttled() } else { failure });
            }
        };
        self.readdress(routed, outgoing, &connection);
        outgoing.extras.replay = self.keep_body(routed);
        self.spend(routed, outgoing);
        self.record.attempts += 1;
        let mut head = Response::new(());
        match self.attempt(routed, outgoing, connection, &mut head).await {
            Ok(answered) => {
                let received = Received { head, answered, read_ahead: None };
                Ok(AfterRefusal::Sent(Box::new(received)))
            }
            Err(error) => {
                *result = RetryResult::Failed;
                Err(outgoing.fail(error))
            }
        }
    }

    /// Takes the permits of another attempt, and returns its connection. The answer `refused` is freed when it waits for a slot.
    async fn next_attempt<'h>(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'h>,
        refused: &mut Option<Box<Received>>,
    ) -> Result<Connection, Failure>
    where
        'a: 'h,
    {
        let proxy = self.proxy;
        let until = self.record.started + routed.budget;
        let accounts = outgoing.accounts.as_deref();
        let pools = accounts.map(|accounts| accounts.pools(&proxy.0.upstreams));
        let own = accounts.and_then(|accounts| accounts.upstream());
        let upstream = own.map_or(outgoing.upstream, |own| &proxy.0.upstreams[own]);
        let mut pool = FirstConnection::later(upstream, until).among(pools);
        let connection = match outgoing.checks {
            Some(checks) => {
                let (record, policy, budget) = (&mut self.record, routed.policy, routed.budget);
                let attempt = Attempt::first(proxy, record, routed.route, policy, checks, budget);
                let lead = outgoing.read.as_ref().and_then(|read| read.lead());
                let attempt = attempt.again().after_refusal(refused).leading(lead);
                let among = accounts.and_then(|accounts| accounts.for_attempt());
                let mut attempt = attempt.among(among);
                let paced = limit::pace(&proxy.0.store, checks, &mut attempt, &mut pool).await;
                paced.map(|(reservation, connection)| {
                    outgoing.reservation = Some(reservation);
                    connection
                })
            }
            None => pool.ready().await,
        };
        outgoing.upstream = pool.upstream();
        self.record.end_wait_connecting(pool.connecting);
        self.record.connected(pool.made);
        connection
    }

    /// Makes a request that was sent before one for this connection.
    fn readdress(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        connection: &Connection,
    ) {
        let (config, target) = (self.upstream_config(routed), connection.target());
        let request = &mut self.arrival.request;
        if let Some(accounts) = &mut outgoing.accounts {
            accounts.take_again(self.record.account);
            self.record.account = accounts.chosen();
            outgoing.checks = accounts.checks().or(outgoing.checks);
            accounts.readdress(request, target, config.preserve_host);
            self.send_read(routed, outgoing);
        } else if !config.preserve_host {
            for from in &config.targets {
                move_host(request, &mut outgoing.extras.added, &from.host, &target.host);
            }
        }
    }

    /// Drops the body of a request that is not sent again. The connection of the client learns now whether the rest of the
    /// body is still to come.
    fn drop_body(&mut self) {
        drop(mem::take(self.arrival.request.body_mut()));
    }

    /// Whether a request may be sent twice, whatever the upstream has done with it.
    pub(super) fn is_repeatable(&self) -> bool {
        let request = &self.arrival.request;
        is_idempotent(request.method()) || request.headers().contains_key(&IDEMPOTENCY_KEY)
    }

    /// The reason why a refused request is not sent again, as far as it is known before the limiters are asked.
    fn hindrance(
        &self,
        routed: &Routed<'_>,
        outgoing: &Outgoing<'_>,
        refusal: &UpstreamRefusal,
        pausing: &Pausing,
    ) -> Option<RetryResult> {
        let record = &self.record;
        if record.attempts >= self.throttle(routed).retry.attempts.get() {
            return Some(RetryResult::Exhausted);
        }
        let may_repeat = match refusal.repeat {
            Repeat::Always => true,
            Repeat::IfIdempotent => self.is_repeatable(),
            Repeat::Never => false,
        };
        let left = (record.started + routed.budget).saturating_duration_since(Instant::now());
        // Another account may have an earlier slot.
        if left < pausing.span && outgoing.accounts.is_none() {
            return Some(RetryResult::NoSlot);
        }
        let is_repeatable = may_repeat && outgoing.extras.replay.is_kept();
        (!is_repeatable).then_some(RetryResult::NotRepeatable)
    }
}

impl Drop for RetryCount<'_> {
    fn drop(&mut self) {
        self.metrics.retries[self.result as usize].increment(1);
    }
}
