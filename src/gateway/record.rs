//! What is counted and logged of a request: written when it ends, however it ends.

use super::{Plan, RoutePlan};
use crate::{answer::Failure, key, metrics::Outcome};
use http::{Method, Request, StatusCode, Uri};
use std::{net::IpAddr, time::Duration};
use tokio::time::Instant;

/// nginx's name for a request whose client left.
const CLIENT_LEFT: u16 = 499;

/// One request.
pub(super) struct Record<'a> {
    plan: &'a Plan,
    route: Option<&'a RoutePlan>,
    started: Instant,
    outcome: Outcome,
    status: Option<StatusCode>,
    sent: bool,
    /// Index of the limiter that bound.
    pub(super) bound: Option<usize>,
    /// An observing limiter would have held or refused it.
    pub(super) observed: bool,
    /// How long it was held.
    pub(super) wait: Duration,
    /// Since when it is being held.
    pub(super) waits_since: Option<Instant>,
    /// Until the head of the upstream's response.
    pub(super) upstream: Option<Duration>,
    line: Option<Line>,
}

/// What only the access log needs.
struct Line {
    client: IpAddr,
    method: Method,
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
pub(super) fn unparsed(plan: &Plan, client: IpAddr, status: StatusCode) {
    let outcome = Outcome::BadRequest;
    plan.no_route.count(outcome);
    if plan.access_log {
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
    pub(super) fn new<B>(plan: &'a Plan, peer: IpAddr, request: &Request<B>) -> Self {
        let line = plan.access_log.then(|| Line {
            client: key::client_ip(peer, request.headers(), &plan.config.trusted_proxies),
            method: request.method().clone(),
            uri: request.uri().clone(),
        });
        Self {
            plan,
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
            line,
        }
    }

    pub(super) fn route(&mut self, route: &'a RoutePlan) {
        self.route = Some(route);
    }

    /// It is held no longer.
    pub(super) fn waited(&mut self) {
        if let Some(since) = self.waits_since.take() {
            self.wait = since.elapsed();
        }
    }

    pub(super) fn sent(&mut self) {
        self.sent = true;
    }

    pub(super) fn failed(&mut self, failure: &Failure, status: StatusCode) {
        self.outcome = failure.outcome();
        self.status = (self.outcome != Outcome::Cancelled).then_some(status);
    }

    pub(super) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.outcome = forwarded(self.wait, self.observed);
    }

    fn log(&self, line: &Line) {
        let bound = self.bound.map(|limiter| self.plan.limiters[limiter].limiter.name.as_str());
        let millis = |span: Duration| (span.as_secs_f64() * 1e6).round() / 1e3;
        // The path alone: a query may hold secrets.
        tracing::info!(
            target: "paceway::access",
            client = %line.client,
            method = line.method.as_str(),
            path = line.uri.path(),
            route = self.route.map_or("-", |route| &route.name),
            limiter = bound.unwrap_or("-"),
            outcome = self.outcome.name(),
            wait_ms = millis(self.wait),
            upstream_ms = self.upstream.map(millis),
            status = self.status.map_or(CLIENT_LEFT, |status| status.as_u16()),
        );
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        // Whoever left did so while it was held.
        self.waited();
        let metrics = self.route.map_or(&self.plan.no_route, |route| &route.metrics);
        metrics.count(self.outcome);
        if self.sent {
            metrics.wait.record(self.wait);
        }
        // Of a response that never came nobody knows how much was the upstream's.
        if self.status.is_some() && self.outcome != Outcome::UpstreamFailed {
            let upstream = self.upstream.unwrap_or_default();
            self.plan.overhead.record(self.started.elapsed().saturating_sub(self.wait + upstream));
        }
        if let Some(line) = &self.line {
            self.log(line);
        }
    }
}
