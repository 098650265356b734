//! The way of a request: route ─▶ limit ─▶ upstream, and the answer at the outer edge.

mod attempt;
mod body;
mod budget;
mod client;
mod drain;
mod forward;
mod interim;
mod record;
mod request_id;
mod tunnel;
mod upgrade;
mod validate;

pub use body::{Body, BodyError};
pub use budget::budget;
pub use client::{Client, ClientConnection};
pub use record::ClientGone;

use crate::{
    answer::{Failure, grpc},
    config::Config,
    key::Parts,
    limit::{self, Callee},
    plan::{Plan, RoutePolicy, WorkerCounters},
    route::host_of,
    store::{Checks, Store},
    upstream::{
        Pool, Upload, UploadLimits,
        headers::{self, HeaderFlags},
    },
};
use attempt::{Attempt, FirstConnection};
use drain::Drain;
use forward::spoilt;
use http::{
    HeaderValue, Request, Response, StatusCode, Version,
    header::{CONNECTION, EXPECT, HOST},
};
use http_body::Body as _;
use hyper::body::Incoming;
use record::Record;
use request_id::RequestIds;
use std::{mem, sync::Arc, time::Duration};
use tokio::time::Instant;
use tunnel::Tunnels;
use upgrade::Upgrade;

/// The data plane of one worker.
#[derive(Debug)]
pub struct Proxy {
    /// Shared by all workers.
    plan: Arc<Plan>,
    /// Which of them this is.
    worker: usize,
    /// This worker's connection to where limiters keep their state.
    store: Arc<dyn Store>,
    /// This worker's connections, by index of the upstream.
    upstreams: Vec<Pool>,
    tunnels: Tunnels,
    ids: RequestIds,
    drain: Drain,
}

/// A request that has been looked at. Dropped, it is counted, and logged.
pub struct Begun<'a> {
    record: Record<'a>,
    routed: Result<Routed<'a>, Failure>,
    is_http2: bool,
    is_grpc: bool,
}

/// A request whose route is known: the only kind that can be limited and forwarded.
struct Routed<'a> {
    /// Its index.
    route: usize,
    policy: &'a RoutePolicy,
    /// The checks of its limiters, if they are the same for all requests of the route.
    fixed: Option<&'a Checks>,
    /// How long it may wait.
    budget: Duration,
    request: Request<Upload>,
    seen: HeaderFlags,
    upgrade: Option<Upgrade>,
    /// Its client sends no body before it is asked for it.
    is_expected: bool,
}

// === impl Proxy ===

impl Proxy {
    /// The data plane of one of the workers of `plan`.
    pub fn new(
        plan: Arc<Plan>,
        worker: usize,
        store: Arc<dyn Store>,
        upstreams: Vec<Pool>,
    ) -> Self {
        let (tunnels, ids, drain) = (Tunnels::new(), RequestIds::new(), Drain::default());
        Self { plan, worker, store, upstreams, tunnels, ids, drain }
    }

    /// Where this worker counts.
    fn own(&self) -> &WorkerCounters {
        &self.plan.counters[self.worker]
    }

    /// Reads all that a request says by itself; [`Self::answer`] does the rest. The two are separate, so that the large
    /// future of the rest does not hold the request as it came.
    pub fn begin(&self, client: &Client, mut request: Request<Incoming>) -> Begun<'_> {
        let is_http2 = request.version() == Version::HTTP_2;
        // Only gRPC calls get the gateway's answers in another form.
        let is_grpc = is_http2 && grpc::is_call(&request);
        let seen = HeaderFlags::of(request.headers());
        let id = self.ids.of(request.headers_mut(), seen);
        let mut record = Record::new(&self.plan, self.own(), client, id, &request);
        let routed = self.route(&mut record, client, request, seen);
        Begun { record, routed, is_http2, is_grpc }
    }

    /// Answers a request, of which nothing is left then.
    pub async fn answer(&self, client: &Arc<Client>, begun: &mut Begun<'_>) -> Response<Body> {
        let Begun { record, routed, is_http2, is_grpc } = begun;
        let answer = match routed {
            Ok(routed) => tokio::select! {
                biased;
                answer = self.forward(record, client, routed) => answer,
                () = client.leaves() => Err(Failure::ClientLeft),
            },
            Err(failure) => Err(mem::replace(failure, Failure::NoRoute)),
        };
        let mut response = match answer {
            Ok(response) => {
                record.answered(response.status());
                response
            }
            Err(failure) => record.refusal(&failure, *is_http2, *is_grpc).map(Body::own),
        };
        if !*is_http2 && client.boundary.is_doubtful() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Begins the drain, which closes all connections at `end`. A request that waits for a later slot gets 503 at once.
    pub fn drain(&self, end: Instant) {
        self.drain.begin(end);
    }

    /// Resolves when no tunnel is open any more.
    pub async fn tunnels_ended(&self) {
        self.tunnels.ended().await;
    }

    /// Cuts all tunnels.
    pub fn cut_tunnels(&self) {
        self.tunnels.cut();
    }

    /// Counts and logs what was no request; it was answered with `status`.
    pub fn unparsed(&self, client: &Client, status: StatusCode) {
        record::unparsed(&self.plan, self.own(), client.ip, status);
    }

    async fn forward(
        &self,
        record: &mut Record<'_>,
        client: &Arc<Client>,
        routed: &mut Routed<'_>,
    ) -> Result<Response<Body>, Failure> {
        if !routed.is_expected {
            routed.request.body_mut().look_ahead().await.map_err(spoilt)?;
        }
        let own;
        let checks = match routed.fixed {
            Some(checks) => Some(checks),
            None => {
                own = self.checks(client, routed)?;
                own.as_ref()
            }
        };
        let mut pool = FirstConnection::new(&self.upstreams[routed.policy.upstream]);
        let Some(checks) = checks else {
            let connection = match pool.at_hand() {
                Some(connection) => connection,
                None => pool.ready().await?,
            };
            return self.send(record, client, routed, None, connection).await;
        };
        let way = (routed.route, routed.policy);
        let paced = {
            let mut attempt = Attempt::first(self, record, way, checks, routed.budget);
            limit::pace(&self.store, checks, &mut attempt, &mut pool).await
        };
        record.waited();
        let (reservation, connection) = paced?;
        self.send(record, client, routed, Some(reservation), connection).await
    }

    /// The questions to the limiters of a request, if they depend on the request. `None`: nothing limits it.
    fn checks(&self, client: &Client, routed: &Routed<'_>) -> Result<Option<Checks>, Failure> {
        let (config, request) = (&self.plan.config, &routed.request);
        let parts = || Parts {
            client_ip: client.client_ip(request.headers(), &config.trusted_proxies),
            host: asked_host(request),
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            paths: config.paths,
        };
        let checks = routed.policy.checks(&self.plan.limiters, parts);
        checks.map_err(|why| Failure::BadRequest(why.into()))
    }

    fn route<'a>(
        &'a self,
        record: &mut Record<'a>,
        client: &Client,
        mut request: Request<Incoming>,
        seen: HeaderFlags,
    ) -> Result<Routed<'a>, Failure> {
        let config = &self.plan.config;
        validate::request(client, (&config.limits, &config.paths), &request, seen)?;
        let upgrade = Upgrade::asked(&mut request, seen);
        if seen.has(HeaderFlags::CONNECTION) {
            headers::remove_nominated(request.headers_mut());
        }
        let uri = request.uri();
        let routes = &self.plan.config.routes;
        let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
        let (method, host) = (request.method(), asked_host(&request));
        let found = self.plan.table.find_covering(method, host, uri.path(), covers);
        let found = found.map_err(|ambiguous| Failure::Malformed(ambiguous.to_string().into()))?;
        let route = found.ok_or(Failure::NoRoute)?;
        record.route = Some(route);
        let own = self.own();
        let policy = own.lines[route].policy;
        let (fixed, policy) = (own.fixed[policy].as_ref(), &self.plan.policies[policy]);
        let is_h2 = request.version() == Version::HTTP_2;
        let body = UploadLimits {
            limit: config.limits.body,
            patience: config.client.body_timeout,
            trailers: config.limits.header_bytes,
        };
        let mut request =
            request.map(|incoming| Upload::new(incoming, is_h2, body, &client.boundary));
        let is_expected = seen.has(HeaderFlags::EXPECT) && expects(&mut request);
        let budget = match seen.has(HeaderFlags::PATIENCE) {
            true => budget(policy.max_wait, policy.max_wait_cap, request.headers()),
            // The cap is for those who ask.
            false => policy.max_wait,
        };
        Ok(Routed { route, policy, fixed, budget, request, seen, upgrade, is_expected })
    }
}

/// Why the gateway refuses a message for what it says itself: a message that came on some connection.
///
/// # Errors
///
/// As the gateway answers it.
pub fn validate<B>(config: &Config, request: &Request<B>) -> Result<(), Failure> {
    let seen = HeaderFlags::of(request.headers());
    validate::message((&config.limits, &config.paths), request, seen)
}

/// The host that a request is for, without port. The authority of an absolute target outranks Host (RFC 9112
/// section 3.2.2).
fn asked_host<B>(request: &Request<B>) -> Option<&str> {
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(HOST).and_then(|host| host.to_str().ok()),
    };
    host.map(host_of)
}

/// Whether the client of `request` sends no body before it is asked for it, by the upstream.
fn expects(request: &mut Request<Upload>) -> bool {
    let Some(expect) = request.headers().get(EXPECT) else { return false };
    let is_expected = expect.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if request.body().is_end_stream() || request.version() < Version::HTTP_11 {
        // The request has no body, or its client is too old to know the expectation (RFC 9110 section 10.1.1).
        request.headers_mut().remove(EXPECT);
        return false;
    }
    if is_expected {
        request.body_mut().hold();
    }
    is_expected
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Outcome;

    #[test]
    fn outcomes_of_a_forwarded_request_are_three() {
        assert_eq!(record::forwarded(Duration::ZERO, false), Outcome::Passed);
        assert_eq!(record::forwarded(Duration::ZERO, true), Outcome::Observed);
        assert_eq!(record::forwarded(Duration::from_millis(1), true), Outcome::Waited);
    }
}
