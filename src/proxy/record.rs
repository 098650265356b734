//! The counts and the access line of a request. They are written when the record is dropped, however the request ends.

mod end;

pub(super) use end::AnswerEnd;

use super::{
    Client, Proxy,
    access_line::{self, AccessLine},
    connecting::{Connecting, MadeConnection},
    quota_left::QuotaLeft,
    request_id::X_REQUEST_ID,
};
use crate::{
    algorithm::fair::Priority,
    answer::Failure,
    config::{AnswerForm, PriorityRule, Service},
    key,
    metrics::Outcome,
    plan::{LimiterCounters, Plan, WorkerCounters},
    store::Check,
    trace::RequestTrace,
    upstream::Connection,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use std::{fmt::Write, net::IpAddr, time::Duration};
use tokio::time::Instant;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The record of one request, from its head to the head of its answer.
pub(crate) struct Record<'a> {
    plan: &'a Plan,
    counters: &'a WorkerCounters,
    /// The counters of the limiters, which services share.
    limiters: &'a [LimiterCounters],
    /// The `X-Request-Id` of the request, kept or made.
    pub(crate) id: HeaderValue,
    /// The index of its route, once it is known.
    pub(crate) route: Option<usize>,
    pub(super) started: Instant,
    outcome: Outcome,
    status: Option<StatusCode>,
    sent: bool,
    /// The index of the limiter that bound the request.
    bound: Option<usize>,
    /// The priority that the request says itself; `None` if it has that of its route.
    claimed: Option<Priority>,
    /// Whether a limiter in mode `observe` would have held or refused it.
    pub(super) observed: bool,
    /// How long the request was held, before the first attempt at the upstream and before the second.
    pub(crate) wait: Duration,
    /// For how long the request had no connection after its slots had come.
    connecting: Duration,
    /// The instant from which on the request is being held; `None` while it is not.
    pub(super) waits_since: Option<Instant>,
    /// The time from the slot to the head of the upstream's response, and for which a body was read ahead; of all attempts.
    upstream: Option<Duration>,
    /// How often the request was sent, after refusals of the upstream.
    pub(super) attempts: u32,
    /// The account that it is sent with, if its upstream has several.
    pub(crate) account: Option<u8>,
    /// The level of the limiter that bound it, if each answer has that.
    pub(super) quota: Option<Box<QuotaLeft>>,
    line: Option<Box<AccessLine>>,
    /// Its trace, if it is traced.
    pub(super) trace: Option<Box<RequestTrace>>,
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
    /// Begins the record of a request. It is made in the place where it stays: 300 bytes are not copied.
    #[inline(always)]
    pub(crate) fn new<B>(
        proxy: &'a Proxy,
        client: &Client,
        id: HeaderValue,
        request: &Request<B>,
    ) -> Self {
        let plan = &*proxy.0.plan;
        let trace = plan.tracer.as_ref().and_then(|tracer| {
            let sample = plan.config.tracing.as_ref().map(|tracing| tracing.sample);
            tracer.begin(sample.unwrap_or_default(), request.method(), request.headers())
        });
        let line = || AccessLine::new(proxy, client, request, trace.as_deref());
        Self {
            plan,
            counters: proxy.counters(),
            limiters: &proxy.counters().limiters,
            id,
            route: None,
            started: Instant::now(),
            outcome: Outcome::Cancelled,
            status: None,
            sent: false,
            bound: None,
            claimed: None,
            observed: false,
            wait: Duration::ZERO,
            connecting: Duration::ZERO,
            waits_since: None,
            upstream: None,
            attempts: 1,
            account: None,
            quota: None,
            line: plan.redactor.is_some().then(line),
            trace,
        }
    }

    /// Notes that a service decides the request, and counts it there.
    pub(crate) fn serves(&mut self, service: Service, counters: &'a WorkerCounters) {
        self.counters = counters;
        if let Some(line) = &mut self.line {
            line.service = Some(service);
        }
    }

    /// The priority of the request, by the rule of its route. One that the request says itself is counted apart.
    ///
    /// # Errors
    ///
    /// Those of [`PriorityRule::of`].
    pub(super) fn priority(
        &mut self,
        rule: &PriorityRule,
        headers: &HeaderMap,
        is_trusted: bool,
    ) -> Result<Priority, String> {
        match rule.fixed() {
            Some(priority) => Ok(priority),
            None => rule.of(headers, is_trusted).map(|claimed| *self.claimed.insert(claimed)),
        }
    }

    /// Ends the wait of the request, and adds it to the sum of its waits.
    pub(super) fn end_wait(&mut self) {
        self.end_wait_connecting(Connecting::default());
    }

    /// The same for a request that also had to wait for a connection, which is no wait for the limiters.
    #[inline]
    pub(super) fn end_wait_connecting(&mut self, connecting: Connecting) {
        self.connecting += connecting.total;
        if let Some(since) = self.waits_since.take() {
            let wait = since.elapsed().saturating_sub(connecting.within_wait);
            self.wait += wait;
            if let Some(bound) = self.bound {
                self.limiters[bound].wait.record(wait);
            }
            if let Some(trace) = &mut self.trace {
                let limiters = &self.plan.limiters;
                let bound = self.bound.map(|limiter| limiters[limiter].limiter.name.as_str());
                trace.waited(since, since + wait, bound);
            }
        }
    }

    /// Notes the limiter that bound, and for the access line the check of the request there.
    pub(super) fn bind(&mut self, limiter: usize, check: Option<&Check>) {
        self.bound = Some(limiter);
        if let (Some(line), Some(check)) = (&mut self.line, check) {
            line.charged(limiter, check);
        }
        if let (Some(trace), Some(check)) = (&mut self.trace, check) {
            let key = self.plan.limiters[limiter].key_in(&check.key).flatten();
            trace.bind(key.map(key::hashed));
        }
    }

    /// Notes for the trace that the limiters are asked.
    #[inline]
    pub(super) fn traces_question(&mut self) {
        if let Some(trace) = &mut self.trace {
            trace.asks();
        }
    }

    /// Notes the connection on which a request with these headers is sent, for the access line and the trace.
    pub(super) fn sent_on(&mut self, connection: &Connection, headers: &mut HeaderMap) {
        if let Some(line) = &mut self.line {
            line.sent_on(connection);
        }
        if let Some(trace) = &mut self.trace {
            trace.sends(headers, connection.peer());
        }
    }

    /// Notes that a connection to the upstream was made, or that it failed.
    pub(super) fn connected(&mut self, made: Option<MadeConnection>) {
        if let (Some(trace), Some(made)) = (&mut self.trace, made) {
            let (from, to) = made.times;
            trace.connected(from, to, made.is_made);
        }
    }

    /// Adds to the time that the upstream took.
    pub(super) fn took(&mut self, took: Duration) {
        self.upstream = Some(self.upstream.unwrap_or_default() + took);
    }

    /// Notes for the access line how the request did without a permit.
    pub(super) fn note_saved(&mut self, by: &'static str) {
        if let Some(line) = &mut self.line {
            line.saved_by = Some(by);
        }
    }

    pub(crate) fn note_sent(&mut self) {
        self.sent = true;
    }

    /// Notes that the request is refused for `failure`, with an answer of this status.
    pub(crate) fn failed(&mut self, failure: &Failure, status: StatusCode) {
        self.outcome = failure.outcome();
        self.status = (self.outcome != Outcome::Cancelled).then_some(status);
    }

    /// Makes the gateway's own answer to a request that is not forwarded or has no response.
    pub(crate) fn refusal(&mut self, failure: &Failure, is_grpc: bool) -> Response<Bytes> {
        let policy = self.route.map(|route| self.plan.counters[0].direct[route].policy);
        let policy = policy.map(|policy| &self.plan.policies[policy]);
        let form = policy.map_or(AnswerForm::Problem, |policy| policy.answers);
        let mut response = failure.response_as(form, &self.id);
        self.failed(failure, response.status());
        if is_grpc {
            response = failure.grpc_response();
        }
        let headers = response.headers_mut();
        headers.insert(&X_REQUEST_ID, self.id.clone());
        self.tell(headers);
        if let Some(rules) = policy.and_then(|policy| policy.rules.as_ref()) {
            rules.iter().for_each(|rules| rules.own.apply(headers));
        }
        response
    }

    /// Adds what a caller learns of its limiters: for how long and for which one it waited, and what that has left.
    #[inline]
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        if !self.wait.is_zero() {
            self.tell_wait(headers);
        }
        if let Some(quota) = &self.quota {
            quota.add_to(headers);
        }
    }

    /// The account that the request is sent with, as a header field.
    pub(crate) fn account_label(&self) -> Option<&'a HeaderValue> {
        let (account, route) = (self.account?, self.route?);
        let policy = self.plan.counters[0].direct[route].policy;
        let accounts = self.plan.policies[policy].accounts.as_ref()?;
        Some(&accounts.plan.all.get(usize::from(account))?.label)
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

    pub(crate) fn note_answer(&mut self, status: StatusCode) {
        self.status = Some(status);
        self.outcome = forwarded(self.wait, self.observed);
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        // A client that left during a wait has ended that wait.
        self.end_wait();
        match self.route {
            Some(route)
                if self.outcome == Outcome::Passed && self.sent && self.claimed.is_none() =>
            {
                self.counters.passed(route);
            }
            route => {
                let no_route = &self.counters.no_route;
                let own = route.map_or(no_route, |route| &self.counters.routes[route]);
                own.requests.count(self.outcome);
                if self.sent {
                    own.waits_of(self.claimed).record(self.wait);
                }
            }
        }
        // Without a response, the upstream's part of the time is unknown.
        if self.status.is_some() && self.outcome != Outcome::UpstreamFailed {
            let upstream = self.upstream.unwrap_or_default();
            let spent =
                self.started.elapsed().saturating_sub(self.wait + self.connecting + upstream);
            self.counters.overhead.0.record(spent);
        }
        if self.line.is_some() || self.trace.is_some() {
            drop(self.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_a_forwarded_request_are_three() {
        assert_eq!(forwarded(Duration::ZERO, false), Outcome::Passed);
        assert_eq!(forwarded(Duration::ZERO, true), Outcome::Observed);
        assert_eq!(forwarded(Duration::from_millis(1), true), Outcome::Waited);
    }
}
