//! The counts and the access line of a request. They are written when the record is dropped, however the request ends.

use super::{
    Body, Client, Proxy,
    access_line::{self, AccessLine, LoggedResult},
    quota_left::QuotaLeft,
    request_id::X_REQUEST_ID,
};
use crate::{
    answer::Failure,
    config::Service,
    metrics::Outcome,
    plan::{Plan, WorkerCounters},
    store::Check,
    upstream::Connection,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use std::{fmt::Write, net::IpAddr, time::Duration};
use tokio::time::Instant;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// The record of one request, from its head to the head of its answer.
pub(super) struct Record<'a> {
    plan: &'a Plan,
    counters: &'a WorkerCounters,
    /// The `X-Request-Id` of the request, kept or made.
    pub(super) id: HeaderValue,
    /// The index of its route, once it is known.
    pub(super) route: Option<usize>,
    pub(super) started: Instant,
    outcome: Outcome,
    status: Option<StatusCode>,
    sent: bool,
    /// The index of the limiter that bound the request.
    bound: Option<usize>,
    /// Whether a limiter in mode `observe` would have held or refused it.
    pub(super) observed: bool,
    /// How long the request was held, before the first attempt at the upstream and before the second.
    pub(super) wait: Duration,
    /// The instant from which on the request is being held; `None` while it is not.
    pub(super) waits_since: Option<Instant>,
    /// The time from the slot to the head of the upstream's response, and for which a body was read ahead; of all attempts.
    upstream: Option<Duration>,
    /// How often the request was sent, after refusals of the upstream.
    pub(super) attempts: u32,
    /// The level of the limiter that bound it, if each answer has that.
    pub(super) quota: Option<Box<QuotaLeft>>,
    line: Option<Box<AccessLine>>,
}

/// The outcome of a request that the upstream has answered.
pub(super) fn forwarded(wait: Duration, observed: bool) -> Outcome {
    match (wait.is_zero(), observed) {
        (false, _) => Outcome::Waited,
        (true, true) => Outcome::Observed,
        (true, false) => Outcome::Passed,
    }
}

/// Counts and logs bytes that were answered without having become a request.
pub(super) fn unparsed(plan: &Plan, counters: &WorkerCounters, client: IpAddr, status: StatusCode) {
    counters.no_route.requests.count(Outcome::BadRequest);
    if plan.redactor.is_some() {
        access_line::unparsed(client, status);
    }
}

// === impl Record ===

impl<'a> Record<'a> {
    pub(super) fn new<B>(
        proxy: &'a Proxy,
        client: &Client,
        id: HeaderValue,
        request: &Request<B>,
    ) -> Self {
        let plan = &*proxy.0.plan;
        Self {
            plan,
            counters: proxy.own(),
            id,
            route: None,
            started: Instant::now(),
            outcome: Outcome::Cancelled,
            status: None,
            sent: false,
            bound: None,
            observed: false,
            wait: Duration::ZERO,
            waits_since: None,
            upstream: None,
            attempts: 1,
            quota: None,
            line: plan.redactor.is_some().then(|| AccessLine::new(proxy, client, request)),
        }
    }

    /// Notes that a service decides the request, and counts it there.
    pub(super) fn serves(&mut self, service: Service, counters: &'a WorkerCounters) {
        self.counters = counters;
        if let Some(line) = &mut self.line {
            line.service = Some(service);
        }
    }

    /// Ends the wait of the request, and adds it to the sum of its waits.
    pub(super) fn waited(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.wait += since.elapsed();
        }
    }

    /// Notes the limiter that bound, and for the access line the check of the request there.
    pub(super) fn bind(&mut self, limiter: usize, check: Option<&Check>) {
        self.bound = Some(limiter);
        if let (Some(line), Some(check)) = (&mut self.line, check) {
            line.charged(limiter, check);
        }
    }

    /// Notes the connection on which the request is sent, for the access line.
    pub(super) fn sent_on(&mut self, connection: &Connection) {
        if let Some(line) = &mut self.line {
            line.sent_on(connection);
        }
    }

    /// Adds to the time that the upstream took.
    pub(super) fn took(&mut self, took: Duration) {
        self.upstream = Some(self.upstream.unwrap_or_default() + took);
    }

    pub(super) fn sent(&mut self) {
        self.sent = true;
    }

    fn failed(&mut self, failure: &Failure, status: StatusCode) {
        self.outcome = failure.outcome();
        self.status = (self.outcome != Outcome::Cancelled).then_some(status);
    }

    /// Makes the gateway's own answer to a request that is not forwarded or has no response.
    pub(super) fn refusal(&mut self, failure: &Failure, is_grpc: bool) -> Response<Bytes> {
        let mut response = failure.response();
        self.failed(failure, response.status());
        if is_grpc {
            response = failure.grpc_response();
        }
        let headers = response.headers_mut();
        headers.insert(&X_REQUEST_ID, self.id.clone());
        self.tell(headers);
        response
    }

    /// Adds what a caller learns of its limiters: for how long and for which one it waited, and what that has left.
    #[inline]
    pub(super) fn tell(&self, headers: &mut HeaderMap) {
        if !self.wait.is_zero() {
            self.tell_wait(headers);
        }
        if let Some(quota) = &self.quota {
            quota.add_to(headers);
        }
    }

    #[cold]
    fn tell_wait(&self, headers: &mut HeaderMap) {
        let millis = self.wait.as_secs_f64() * 1000.0;
        let mut timing = format!("paceway;dur={millis:.1}");
        if let Some(bound) = self.bound {
            // A name needs no escape: the configuration allows letters, digits, `_`, `.` and `-`.
            let _ = write!(timing, ";desc=\"{}\"", self.plan.limiters[bound].limiter.name);
        }
        if let Ok(value) = HeaderValue::from_str(&timing) {
            headers.append(SERVER_TIMING, value);
        }
    }

    pub(super) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.outcome = forwarded(self.wait, self.observed);
    }

    /// The access line of an answer with this body, which is written when the body has ended; `None` if the body is whole,
    /// or if no line is written.
    pub(super) fn line_of(&mut self, body: &Body) -> Option<Box<AccessLine>> {
        let mut line = self.line.take()?;
        match body.whole_len() {
            Some(bytes) => {
                line.sends_whole(bytes);
                self.line = Some(line);
                None
            }
            None => {
                line.result = Some(self.result());
                Some(line)
            }
        }
    }

    fn result(&self) -> LoggedResult {
        LoggedResult {
            id: self.id.clone(),
            route: self.route,
            bound: self.bound,
            started: self.started,
            outcome: self.outcome,
            status: self.status,
            wait: self.wait,
            upstream: self.upstream,
            attempts: if self.sent { self.attempts } else { 0 },
        }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        // A client that left during a wait has ended that wait.
        self.waited();
        match self.route {
            Some(route) if self.outcome == Outcome::Passed && self.sent => {
                self.counters.passed(route);
            }
            route => {
                let no_route = &self.counters.no_route;
                let own = route.map_or(no_route, |route| &self.counters.routes[route]);
                own.requests.count(self.outcome);
                if self.sent {
                    own.wait.record(self.wait);
                }
            }
        }
        // Without a response, the upstream's part of the time is unknown.
        if self.status.is_some() && self.outcome != Outcome::UpstreamFailed {
            let upstream = self.upstream.unwrap_or_default();
            let spent = self.started.elapsed().saturating_sub(self.wait + upstream);
            self.counters.overhead.0.record(spent);
        }
        if let Some(mut line) = self.line.take() {
            line.result = Some(self.result());
        }
    }
}
