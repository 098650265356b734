//! The way of a request: validate ─▶ route ─▶ limit ─▶ upstream, and the answer at the end. `Proxy::answer` has all of its
//! steps.

mod access_line;
mod arrival;
mod attempt;
mod body;
mod budget;
mod client;
mod connecting;
mod current;
mod decisions;
mod drain;
mod ext_authz;
mod forward;
mod forward_auth;
mod interim;
mod original;
mod quota_left;
mod rate_limit;
mod read_ahead;
mod record;
mod refusal;
mod remaining;
mod request_id;
mod request_json;
mod resend;
mod respond;
mod retry;
mod service;
mod service_token;
mod settling;
mod websocket;
mod tunnel;
mod unary;
mod upgrade;
mod validate;

pub use arrival::Arrival;
pub use body::{Body, BodyError};
pub use budget::budget;
pub use client::{Client, ClientConnection};
pub use current::CurrentProxy;
pub use request_json::json_body;
pub use respond::Ending;

use crate::{
    answer::{Failure, grpc},
    config::Config,
    key::Parts,
    limit::{self, Callee},
    plan::{Plan, RoutePolicy, WorkerCounters},
    route::host_of,
    store::{Checks, Store},
    upstream::{
        Pool, RequestBody, Upload, UploadLimits,
        headers::{self, HeaderFlags},
    },
};
use attempt::Attempt;
use bytes::Bytes;
use connecting::FirstConnection;
use drain::Drain;
use forward::spoilt;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header::EXPECT};
use http_body::Body as _;
use record::Record;
use request_id::RequestIds;
use std::{error::Error, pin::pin, sync::Arc, time::Duration};
use tokio::time::Instant;
use tunnel::Tunnels;
use upgrade::Upgrade;

/// The data plane of one worker: it serves requests by the limits and to the upstreams of its plan. Clones share it.
#[derive(Debug, Clone)]
pub struct Proxy(Arc<Inner>);

/// The parts of a proxy. The proxy that replaces another one has its store, tunnels, ids and drain.
#[derive(Debug)]
struct Inner {
    /// The configuration made ready, which all workers share.
    plan: Arc<Plan>,
    /// The index of this worker among those of the plan.
    worker: usize,
    /// This worker's connection to the store of the limiters.
    store: Arc<dyn Store>,
    /// This worker's connections, by index of the upstream.
    upstreams: Vec<Pool>,
    tunnels: Tunnels,
    ids: Arc<RequestIds>,
    drain: Arc<Drain>,
}

/// A request from its arrival to its answer. Dropped before that, it is counted and logged as cancelled.
struct Exchange<'a> {
    record: Record<'a>,
    client: &'a Arc<Client>,
    is_http2: bool,
    is_grpc: bool,
    /// The connection has to close after the answer: what the client sends next may be the rest of this request.
    closes: bool,
}

/// A request whose route is known: the only kind that can be limited and forwarded.
struct Routed<'a> {
    /// Its index.
    route: usize,
    policy: &'a RoutePolicy,
    /// The questions to its limiters, if they are the same for all requests of the route.
    fixed: Option<&'a Checks>,
    /// How long it may wait.
    budget: Duration,
    request: &'a mut Request<Upload>,
    /// Its `Host`, until it is a request for the upstream.
    host: Option<HeaderValue>,
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
        let (tunnels, ids, drain) = (Tunnels::new(), RequestIds::new().into(), Arc::default());
        Self(Arc::new(Inner { plan, worker, store, upstreams, tunnels, ids, drain }))
    }

    /// Where this worker counts.
    fn own(&self) -> &WorkerCounters {
        &self.0.plan.counters[self.0.worker]
    }

    /// Serves a request of `client`: every step from the request to its answer, in order. A future that is dropped on the
    /// way (the client is gone, say) refunds what it took, and the request is counted and logged as cancelled.
    pub async fn serve<B>(
        &self,
        client: &Arc<Client>,
        request: Request<B>,
    ) -> (Response<Body>, Ending)
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (mut arrival, mut head) = (Arrival::new(request), Response::new(()));
        let (body, ending) = self.answer(client, &mut arrival, &mut head).await;
        (head.map(|()| body), ending)
    }

    /// Serves a request that stays where it is: a request is 250 bytes, which each call that takes it over would copy. The head
    /// of the answer is put into `head`, for the same reason.
    pub(crate) async fn answer(
        &self,
        client: &Arc<Client>,
        Arrival { request, body }: &mut Arrival,
        head: &mut Response<()>,
    ) -> (Body, Ending) {
        let is_http2 = request.version() == Version::HTTP_2;
        // Only a gRPC client understands a failure in gRPC's own form.
        let is_grpc = is_http2 && grpc::is_call(request);
        let seen = HeaderFlags::of(request.headers());
        let id = self.0.ids.of(request.headers_mut(), seen);
        let mut exchange = Exchange {
            record: Record::new(self, client, id, request),
            client,
            is_http2,
            is_grpc,
            closes: false,
        };
        let outcome = match self.route(&mut exchange.record, client, (request, body), seen) {
            Ok(mut routed) => {
                let forwarded = pin!(self.forward(&mut exchange, &mut routed, head));
                client.unless_left(forwarded).await
            }
            Err(failure) => Err(failure),
        };
        respond::finish(outcome, &mut exchange, head)
    }

    /// Begins the drain, which closes all connections at `end`. A request that waits for a later slot gets 503 at once.
    pub fn drain(&self, end: Instant) {
        self.0.drain.begin(end);
    }

    /// Resolves when no tunnel is open any more.
    pub async fn tunnels_ended(&self) {
        self.0.tunnels.ended().await;
    }

    /// Ends all WebSockets with a close frame.
    pub fn close_tunnels(&self) {
        self.0.tunnels.close();
    }

    /// Cuts all tunnels.
    pub fn cut_tunnels(&self) {
        self.0.tunnels.cut();
    }

    /// Counts and logs what was no request; it was answered with `status`.
    pub fn unparsed(&self, client: &Client, status: StatusCode) {
        record::unparsed(&self.0.plan, self.own(), client.ip, status);
    }

    async fn forward<'p>(
        &'p self,
        exchange: &mut Exchange<'_>,
        routed: &mut Routed<'p>,
        answer: &mut Response<()>,
    ) -> Result<Body, Failure> {
        if !routed.is_expected {
            routed.request.body_mut().look_ahead().await.map_err(spoilt)?;
        }
        let own;
        let checks = match routed.fixed {
            Some(checks) => Some(checks),
            None => {
                headers::remove_alike(routed.request.headers_mut(), &routed.policy.read_headers);
                let body = match routed.policy.is_special {
                    true => Box::pin(self.before_limits(routed)).await?,
                    false => None,
                };
                own = match self.checks(exchange, routed, body.as_deref())? {
                    Some((checks, policy)) => {
                        routed.policy = policy;
                        Some(checks)
                    }
                    None => None,
                };
                own.as_ref()
            }
        };
        let upstream = &self.0.upstreams[routed.policy.upstream];
        let since = exchange.record.started;
        let mut pool = FirstConnection::new(upstream, since, since + routed.budget);
        let Some(checks) = checks else {
            let connection = match pool.at_hand() {
                Some(connection) => connection,
                None => {
                    let ready = pool.ready().await;
                    exchange.record.waited_beside(pool.connecting);
                    exchange.record.connected(pool.made);
                    ready?
                }
            };
            return self.send(exchange, routed, None, (&mut None, connection), answer).await;
        };
        let (way, mut granted) = ((routed.route, routed.policy), None);
        let connected = {
            let mut attempt =
                Attempt::first(self, &mut exchange.record, way, checks, routed.budget);
            let paced = limit::pace(&self.0.store, checks, &mut attempt, &mut pool).await;
            paced.map(|(reservation, connection)| {
                granted = Some(reservation);
                connection
            })
        };
        exchange.record.waited_beside(pool.connecting);
        exchange.record.connected(pool.made);
        self.send(exchange, routed, Some(checks), (&mut granted, connected?), answer).await
    }

    /// The questions to the limiters of a request, if they depend on the request, with the policy of these limiters.
    /// `None`: nothing limits it.
    fn checks<'p>(
        &'p self,
        exchange: &mut Exchange<'_>,
        routed: &Routed<'p>,
        body: Option<&[u8]>,
    ) -> Result<Option<(Checks, &'p RoutePolicy)>, Failure> {
        let (config, request) = (&self.0.plan.config, &*routed.request);
        let (client, rule) = (exchange.client, &routed.policy.priority);
        let refused = |why: String| Failure::BadRequest(why.into());
        let priority = exchange.record.priority(rule, request.headers(), client.is_trusted);
        let priority = priority.map_err(refused)?;
        let parts = || Parts {
            client_ip: client.client_ip(request.headers(), &config.trusted_proxies),
            host: asked_host(request.uri(), routed.host.as_ref()),
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            body,
            paths: config.paths,
            template: config.routes[routed.route].path.template().map(|template| &**template),
            descriptor: None,
        };
        routed.policy.checks(&self.0.plan.limiters, priority, parts).map_err(refused)
    }

    /// Validates a request and finds its route, with all that applies to the requests of that.
    fn route<'a>(
        &'a self,
        record: &mut Record<'a>,
        client: &Client,
        (request, incoming): (&'a mut Request<Upload>, &mut Option<RequestBody>),
        seen: HeaderFlags,
    ) -> Result<Routed<'a>, Failure> {
        let config = &self.0.plan.config;
        let host = validate::request(client, (&config.limits, &config.paths), request, seen)?;
        let demands = validate::demands(&config.limits, request, seen);
        let upgrade = Upgrade::asked(request, incoming.is_none(), seen);
        if seen.has(HeaderFlags::CONNECTION) {
            headers::remove_nominated(request.headers_mut());
        }
        let uri = request.uri();
        let (routes, table) = (&config.routes, &self.0.plan.table);
        let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
        let asked = if table.names_hosts() { asked_host(uri, host.as_ref()) } else { None };
        let found = table.find_covering(request.method(), asked, uri.path(), covers);
        let found = found.map_err(|ambiguous| Failure::Malformed(ambiguous.to_string().into()))?;
        let Some(route) = found else { return Err(Failure::NoRoute) };
        record.route = Some(route);
        demands?;
        let own = self.own();
        let policy = own.direct[route].policy;
        let (fixed, policy) = (own.fixed[policy].as_ref(), &self.0.plan.policies[policy]);
        let is_h2 = request.version() == Version::HTTP_2;
        let body = UploadLimits {
            limit: config.limits.body,
            patience: config.client.body_timeout,
            trailers: config.limits.header_bytes,
        };
        if let Some(incoming) = incoming.take() {
            *request.body_mut() = Upload::new(incoming, is_h2, body, &client.boundary);
        }
        let is_expected = seen.has(HeaderFlags::EXPECT) && expects(request);
        let budget = match seen.has(HeaderFlags::PATIENCE) {
            true => budget(policy.max_wait, policy.max_wait_cap, request.headers()),
            // The cap is for those who ask.
            false => policy.max_wait,
        };
        Ok(Routed { route, policy, fixed, budget, request, host, seen, upgrade, is_expected })
    }
}

// === impl Inner ===

impl Inner {
    /// The proxy that replaces this one.
    fn next(&self, plan: Arc<Plan>, upstreams: Vec<Pool>) -> Self {
        let Self { worker, store, tunnels, ids, drain, .. } = self;
        let (store, tunnels) = (store.clone(), tunnels.clone());
        Self {
            plan,
            worker: *worker,
            store,
            upstreams,
            tunnels,
            ids: ids.clone(),
            drain: drain.clone(),
        }
    }
}

/// Checks a message by its content alone, whatever connection it came on.
///
/// # Errors
///
/// The failure that the gateway answers with.
pub fn validate<B>(config: &Config, request: &Request<B>) -> Result<(), Failure> {
    let seen = HeaderFlags::of(request.headers());
    validate::message((&config.limits, &config.paths), request, seen)?;
    validate::demands(&config.limits, request, seen)
}

/// The host that a request with the field `host` is for, without port. The authority of an absolute target outranks it
/// (RFC 9112 section 3.2.2).
fn asked_host<'r>(uri: &'r Uri, host: Option<&'r HeaderValue>) -> Option<&'r str> {
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => host.and_then(|host| str::from_utf8(host.as_bytes()).ok()),
    };
    host.map(host_of)
}

/// Whether the client of `request` sends no body before it is asked for it, by the upstream. Removes `Expect` where no body
/// follows or the client speaks HTTP/1.0, and otherwise holds the body until it is asked for.
fn expects(request: &mut Request<Upload>) -> bool {
    let Some(expect) = request.headers().get(EXPECT) else { return false };
    let is_expected = expect.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if request.body().is_end_stream() || request.version() < Version::HTTP_11 {
        // There is no body to wait for, or the client does not know the field (RFC 9110 section 10.1.1).
        request.headers_mut().remove(EXPECT);
        return false;
    }
    if is_expected {
        request.body_mut().hold();
    }
    is_expected
}
