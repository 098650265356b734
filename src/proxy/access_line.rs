//! The access line of a request: the values that no other part of the gateway needs. It is written when the body of the
//! answer has ended, or when its client has left. No header but the host, the request id, the trace id and, if the
//! configuration says so, the user agent is in it.

use super::{Client, Proxy, TunnelBytes, validate};
use crate::{
    config::{Service, priority_name},
    metrics::Outcome,
    plan::{Plan, Redactor},
    store::Check,
    trace::{RequestTrace, TraceId, TraceParent},
    upstream::Connection,
};
use http::{
    HeaderValue, Method, Request, StatusCode, Uri, Version,
    header::{HOST, USER_AGENT},
};
use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tokio::time::Instant;

/// The status in the access log of a request whose client left, as in nginx.
const CLIENT_LEFT: u16 = 499;
/// The most bytes of a user agent that a line has.
const MAX_AGENT: usize = 256;

/// The access line of one request, as far as it is known.
#[derive(Debug)]
pub(super) struct AccessLine {
    /// A worker's own, so that no line makes workers write to one cache line.
    proxy: Proxy,
    trace_id: Option<TraceId>,
    client: IpAddr,
    version: Version,
    method: Method,
    host: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    uri: Uri,
    /// The key at the limiter that bound, in the form that pages show, and the cost there.
    charge: Option<(Option<Box<str>>, i64)>,
    /// Its tenant and its priority at the limiter that bound, if its requests take turns; no tenant without `fair`.
    turn: Option<(Option<Box<str>>, &'static str)>,
    upstream_address: Option<SocketAddr>,
    /// The service that decides the request; `None` for a request that is forwarded.
    pub(super) service: Option<Service>,
    /// How the request did without a permit: `share` or `revalidate`.
    pub(super) saved_by: Option<&'static str>,
    /// The bytes of the answer's body that were handed to the client's connection.
    pub(super) sent: u64,
    pub(super) result: Option<LoggedResult>,
}

/// The result of a request, as its record has it when the head of the answer is made.
#[derive(Debug)]
pub(super) struct LoggedResult {
    pub(super) id: HeaderValue,
    /// The index of the route.
    pub(super) route: Option<usize>,
    /// The index of the limiter that bound.
    pub(super) bound: Option<usize>,
    pub(super) started: Instant,
    pub(super) outcome: Outcome,
    pub(super) status: Option<StatusCode>,
    pub(super) wait: Duration,
    pub(super) connecting: Duration,
    pub(super) upstream: Option<Duration>,
    /// How often the request was sent; 0 if it was not.
    pub(super) attempts: u32,
    /// The account that it was sent with.
    pub(super) account: Option<HeaderValue>,
}

/// The access line of a CONNECT to the forward proxy that leads to no request.
pub(super) struct ConnectLine<'a> {
    pub(super) client: IpAddr,
    /// The host and port that it names.
    pub(super) host: &'a str,
    pub(super) outcome: Outcome,
    pub(super) status: StatusCode,
    /// The time from its head to its answer, or to the end of the tunnel.
    pub(super) took: Duration,
    /// The octets of a tunnel that was opened.
    pub(super) bytes: Option<TunnelBytes>,
}

/// Logs bytes that were answered without having become a request.
pub(super) fn unparsed(client: IpAddr, status: StatusCode) {
    tracing::info!(
        target: "paceway::access",
        client = %client,
        method = "-",
        path = "-",
        route = "-",
        limiter = "-",
        outcome = Outcome::BadRequest.name(),
        wait_ms = 0.0,
        status = status.as_u16(),
    );
}

// === impl ConnectLine ===

impl ConnectLine<'_> {
    pub(super) fn write(&self) {
        tracing::info!(
            target: "paceway::access",
            client = %self.client,
            method = "CONNECT",
            host = valid_host(self.host),
            path = "-",
            route = "-",
            limiter = "-",
            outcome = self.outcome.name(),
            wait_ms = 0.0,
            total_ms = millis(self.took),
            bytes_sent = self.bytes.map(|bytes| bytes.sent),
            bytes_received = self.bytes.map(|bytes| bytes.received),
            status = self.status.as_u16(),
        );
    }
}

fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

/// A host as a line shows it; `None` if it is no valid one.
fn valid_host(host: &str) -> Option<&str> {
    (host.len() <= 260 && validate::is_host(host.as_bytes())).then_some(host)
}

// === impl AccessLine ===

impl AccessLine {
    #[cold]
    pub(super) fn new<B>(
        proxy: &Proxy,
        client: &Client,
        request: &Request<B>,
        trace: Option<&RequestTrace>,
    ) -> Box<Self> {
        let own = trace.map(RequestTrace::id);
        let (config, headers) = (&proxy.0.plan.config, request.headers());
        let agent = || headers.get(USER_AGENT).cloned();
        Box::new(Self {
            proxy: proxy.clone(),
            trace_id: own.or_else(|| Some(TraceParent::of(headers)?.trace)),
            client: client.client_ip(headers, &config.trusted_proxies),
            version: request.version(),
            method: request.method().clone(),
            host: headers.get(HOST).cloned(),
            user_agent: config.logs_user_agent.then(agent).flatten(),
            uri: request.uri().clone(),
            charge: None,
            turn: None,
            upstream_address: None,
            service: None,
            saved_by: None,
            sent: 0,
            result: None,
        })
    }

    /// Notes the limiter that bound, with the key and the cost of the request there.
    #[cold]
    pub(super) fn charged(&mut self, limiter: usize, check: &Check) {
        let (Some(redactor), plan) = (&self.plan().redactor, &self.plan().limiters[limiter]) else {
            return;
        };
        let key = plan.key_in(&check.key).flatten();
        let key = key.map(|key| redactor.key(plan.limiter.key.as_ref(), key).into());
        let turn = check.turn.as_ref().map(|turn| {
            let fair = plan.limiter.fair.as_ref();
            let tenant = fair.map(|fair| redactor.key(Some(&fair.by), &turn.tenant).into());
            (tenant, priority_name(turn.priority))
        });
        self.charge = Some((key, check.cost));
        self.turn = turn;
    }

    /// Notes the connection on which the request is sent.
    #[cold]
    pub(super) fn sent_on(&mut self, connection: &Connection) {
        self.upstream_address = connection.peer();
    }

    /// Notes the size of a body that is made as a whole.
    pub(super) fn sends_whole(&mut self, bytes: u64) {
        self.sent = if self.method == Method::HEAD { 0 } else { bytes };
    }

    fn plan(&self) -> &Plan {
        &self.proxy.0.plan
    }

    fn write(&self, redactor: &Redactor, result: &LoggedResult) {
        let plan = self.plan();
        let bound = result.bound.map(|limiter| plan.limiters[limiter].limiter.name.as_str());
        let route = result.route.map(|route| &plan.config.routes[route]);
        let forwarded = route.filter(|_| self.service.is_none());
        let upstream = forwarded.map(|route| &plan.config.upstreams[route.upstream].name);
        let (tenant, priority) = self.turn.as_ref().map(|(t, p)| (t.as_deref(), *p)).unzip();
        let (key, cost) = self.charge.as_ref().map(|(key, cost)| (key.as_deref(), *cost)).unzip();
        tracing::info!(
            target: "paceway::access",
            request_id = result.id.to_str().unwrap_or("-"),
            trace_id = self.trace_id.map(tracing::field::display),
            client = %self.client,
            protocol = self.protocol(),
            method = self.method(),
            host = self.host(),
            path = &*redactor.path(self.uri.path()),
            query = self.uri.query().map(|query| redactor.query(query)).as_deref(),
            user_agent = self.user_agent(),
            service = self.service.map(Service::name),
            route = route.map_or("-", |route| &route.name),
            upstream = upstream.map(String::as_str),
            account = result.account.as_ref().and_then(|account| account.to_str().ok()),
            upstream_address = self.upstream_address.map(tracing::field::display),
            limiter = bound.unwrap_or("-"),
            key = key.flatten(),
            cost,
            tenant = tenant.flatten(),
            priority,
            outcome = result.outcome.name(),
            wait_ms = millis(result.wait),
            connect_ms = Some(result.connecting).filter(|span| !span.is_zero()).map(millis),
            upstream_ms = result.upstream.map(millis),
            total_ms = millis(result.started.elapsed()),
            attempts = forwarded.map(|_| result.attempts).filter(|attempts| *attempts > 0),
            saved_by = self.saved_by,
            bytes_sent = self.sent,
            status = result.status.map_or(CLIENT_LEFT, |status| status.as_u16()),
        );
    }

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
        valid_host(host)
    }

    fn user_agent(&self) -> Option<&str> {
        let agent = self.user_agent.as_ref()?.to_str().ok()?;
        Some(&agent[..agent.len().min(MAX_AGENT)])
    }
}

impl Drop for AccessLine {
    fn drop(&mut self) {
        if let (Some(redactor), Some(result)) = (&self.plan().redactor, &self.result) {
            self.write(redactor, result);
        }
    }
}
