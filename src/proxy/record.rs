//! The counts and the access line of a request. They are written when the record is dropped, however the request ends.

use super::{
    Client,
    quota_left::QuotaLeft,
    request_id::{self, X_REQUEST_ID},
    validate,
};
use crate::{
    answer::Failure,
    metrics::Outcome,
    plan::{Plan, Redactor, WorkerCounters},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::HOST,
};
use std::{fmt::Write, net::IpAddr, time::Duration};
use tokio::time::Instant;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// The status in the access log of a request whose client left, as in nginx.
const CLIENT_LEFT: u16 = 499;

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
    pub(super) bound: Option<usize>,
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
    line: Option<Box<AccessLine<'a>>>,
}

/// The values that only the access log needs. The log shows the host, the request id and the trace id, and no other
/// header.
struct AccessLine<'a> {
    redactor: &'a Redactor,
    trace_id: Option<Box<str>>,
    client: IpAddr,
    version: Version,
    method: Method,
    host: Option<HeaderValue>,
    uri: Uri,
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
    let outcome = Outcome::BadRequest;
    counters.no_route.requests.count(outcome);
    if plan.redactor.is_some() {
        tracing::info!(
            target: "paceway::access",
            client = %client,
            method = "-",
            path = "-",
            route = "-",
            limiter = "-",
            outcome = outcome.name(),
            wait_ms = 0.0,
            status = status.as_u16(),
        );
    }
}

// === impl Record ===

impl<'a> Record<'a> {
    pub(super) fn new<B>(
        plan: &'a Plan,
        counters: &'a WorkerCounters,
        client: &Client,
        id: HeaderValue,
        request: &Request<B>,
    ) -> Self {
        let line = |redactor| AccessLine {
            redactor,
            trace_id: request_id::trace_id(request.headers()).map(Into::into),
            client: client.client_ip(request.headers(), &plan.config.trusted_proxies),
            version: request.version(),
            method: request.method().clone(),
            host: request.headers().get(HOST).cloned(),
            uri: request.uri().clone(),
        };
        Self {
            plan,
            counters,
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
            line: plan.redactor.as_ref().map(|redactor| Box::new(line(redactor))),
        }
    }

    /// Ends the wait of the request, and adds it to the sum of its waits.
    pub(super) fn waited(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.wait += since.elapsed();
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

    fn log(&self, line: &AccessLine<'_>) {
        let bound = self.bound.map(|limiter| self.plan.limiters[limiter].limiter.name.as_str());
        let millis = |span: Duration| (span.as_secs_f64() * 1e6).round() / 1e3;
        let route = self.route.map(|route| &self.plan.config.routes[route]);
        let upstream = route.map(|route| &self.plan.config.upstreams[route.upstream].name);
        tracing::info!(
            target: "paceway::access",
            request_id = self.id.to_str().unwrap_or("-"),
            trace_id = line.trace_id.as_deref(),
            client = %line.client,
            protocol = line.protocol(),
            method = line.method(),
            host = line.host(),
            path = &*line.redactor.path(line.uri.path()),
            query = line.uri.query().map(|query| line.redactor.query(query)).as_deref(),
            route = route.map_or("-", |route| &route.name),
            upstream = upstream.map(String::as_str),
            limiter = bound.unwrap_or("-"),
            outcome = self.outcome.name(),
            wait_ms = millis(self.wait),
            upstream_ms = self.upstream.map(millis),
            attempts = (self.attempts > 1).then_some(self.attempts),
            status = self.status.map_or(CLIENT_LEFT, |status| status.as_u16()),
        );
    }
}

// === impl AccessLine ===

impl AccessLine<'_> {
    fn protocol(&self) -> &'static str {
        match self.version {
            Version::HTTP_10 => "HTTP/1.0",
            Version::HTTP_2 => "h2",
            _ => "HTTP/1.1",
        }
    }

    /// The method as it was sent, up to 32 characters: no method that a route can name is longer.
    fn method(&self) -> &str {
        let method = self.method.as_str();
        &method[..method.len().min(32)]
    }

    /// The host that the request was for, if it is a valid one.
    fn host(&self) -> Option<&str> {
        let own = self.host.as_ref().and_then(|host| host.to_str().ok());
        let host = self.uri.authority().map(|authority| authority.as_str()).or(own)?;
        (host.len() <= 260 && validate::is_host(host.as_bytes())).then_some(host)
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
        if let Some(line) = &self.line {
            self.log(line);
        }
    }
}
