//! What is counted and logged of a request: written when it ends, however it ends.

use super::{
    Client,
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
    HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
    header::{CONNECTION, HOST},
};
use std::{net::IpAddr, time::Duration};
use tokio::time::Instant;

/// nginx's name for a request whose client left.
const CLIENT_LEFT: u16 = 499;

/// Of a response that nobody is there to read.
#[derive(Debug, Clone, Copy)]
pub struct ClientGone;

/// One request.
pub(super) struct Record<'a> {
    plan: &'a Plan,
    counters: &'a WorkerCounters,
    /// Its `X-Request-Id`.
    pub(super) id: HeaderValue,
    /// Index of its route.
    pub(super) route: Option<usize>,
    pub(super) started: Instant,
    outcome: Outcome,
    status: Option<StatusCode>,
    sent: bool,
    /// Index of the limiter that bound.
    pub(super) bound: Option<usize>,
    /// An observing limiter would have held or refused it.
    pub(super) observed: bool,
    /// How long it was held, before the first attempt at the upstream and before the second.
    pub(super) wait: Duration,
    /// Since when it is being held.
    pub(super) waits_since: Option<Instant>,
    /// Until the head of the upstream's response.
    pub(super) upstream: Option<Duration>,
    line: Option<Box<AccessLine<'a>>>,
}

/// What only the access log needs. No header is shown but those that say who asked for what.
struct AccessLine<'a> {
    redactor: &'a Redactor,
    trace_id: Option<Box<str>>,
    client: IpAddr,
    version: Version,
    method: Method,
    host: Option<HeaderValue>,
    uri: Uri,
}

/// What became of a request that was forwarded.
pub(super) fn forwarded(wait: Duration, observed: bool) -> Outcome {
    match (wait.is_zero(), observed) {
        (false, _) => Outcome::Waited,
        (true, true) => Outcome::Observed,
        (true, false) => Outcome::Passed,
    }
}

/// Counts and logs what was answered without having become a request.
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
            line: plan.redactor.as_ref().map(|redactor| Box::new(line(redactor))),
        }
    }

    /// It is held no longer.
    pub(super) fn waited(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.wait += since.elapsed();
        }
    }

    pub(super) fn sent(&mut self) {
        self.sent = true;
    }

    fn failed(&mut self, failure: &Failure, status: StatusCode) {
        self.outcome = failure.outcome();
        self.status = (self.outcome != Outcome::Cancelled).then_some(status);
    }

    /// What its client is told instead of an answer.
    pub(super) fn refusal(
        &mut self,
        failure: &Failure,
        is_http2: bool,
        is_grpc: bool,
    ) -> Response<Bytes> {
        let mut response = failure.response();
        self.failed(failure, response.status());
        if is_grpc {
            response = failure.grpc_response();
        } else if failure.ends_connection() && !is_http2 {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.outcome == Outcome::Cancelled {
            response.extensions_mut().insert(ClientGone);
        }
        response.headers_mut().insert(&X_REQUEST_ID, self.id.clone());
        response
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

    /// As it was sent; a name that is longer than any of ours has no end worth a look.
    fn method(&self) -> &str {
        let method = self.method.as_str();
        &method[..method.len().min(32)]
    }

    /// What the request was for, if that is a host.
    fn host(&self) -> Option<&str> {
        let own = self.host.as_ref().and_then(|host| host.to_str().ok());
        let host = self.uri.authority().map(|authority| authority.as_str()).or(own)?;
        (host.len() <= 260 && validate::is_host(host.as_bytes())).then_some(host)
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        // Whoever left did so while it was held.
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
        // Of a response that never came nobody knows how much was the upstream's.
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
