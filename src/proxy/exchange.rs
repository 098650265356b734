//! A request from its arrival to its answer, and the choice of its route. It is opened here alone, for the data plane and for
//! services.

use super::{
    Arrival, Client, Proxy, accounts::RequestAccounts, budget::budget, destination::Destination,
    record::Record, upgrade::Upgrade, validate,
};
use crate::{
    answer::{Failure, grpc},
    config::{self, Service},
    key::Parts,
    plan::{RoutePolicy, WorkerCounters, question},
    route::host_of,
    store::{Checks, Question},
    upstream::{
        Pool, Upload,
        headers::{self, HeaderFlags},
    },
};
use http::{HeaderValue, Request, Uri, Version, header::EXPECT};
use http_body::Body as _;
use std::{sync::Arc, time::Duration};

/// A request from its arrival to its answer. Dropped before that, it is counted and logged as cancelled.
pub(crate) struct Exchange<'a> {
    pub(crate) proxy: &'a Proxy,
    pub(crate) client: &'a Arc<Client>,
    pub(crate) arrival: &'a mut Arrival,
    pub(crate) record: Record<'a>,
    /// The special fields of its head, as it came.
    pub(super) seen: HeaderFlags,
    pub(super) is_http2: bool,
    /// Its client understands a failure in gRPC's own form.
    pub(super) is_grpc: bool,
    /// The connection has to close after the answer: what the client sends next may be the rest of this request.
    pub(super) closes: bool,
}

/// The route of a request, with all that applies to the requests of that: only such a request can be limited and forwarded.
pub(crate) struct Routed<'a> {
    /// Its index.
    pub(crate) route: usize,
    pub(crate) policy: &'a RoutePolicy,
    /// The questions to its limiters, if they are the same for all requests of the route.
    pub(crate) fixed: Option<&'a Checks>,
    /// How long the request may wait.
    pub(crate) budget: Duration,
    /// The `Host` of the request, until it is a request for the upstream.
    pub(super) host: Option<HeaderValue>,
    /// The upgrade that the request asks for, until it is answered.
    pub(super) upgrade: Option<Upgrade>,
    /// The bytes of its body, if its checks depend on the request and they are known.
    pub(super) body_length: Option<u64>,
    /// The client of the request sends no body before it is asked for it.
    pub(super) is_expected: bool,
    /// The connections to its origin, if no upstream of the configuration has them.
    pub(super) pool: Option<Pool>,
    /// As [`Destination::rest`].
    rest: Option<Box<Uri>>,
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Opens the exchange of a request. Its record is made in the place where it stays.
    #[inline(always)]
    pub(crate) fn open(
        proxy: &'a Proxy,
        client: &'a Arc<Client>,
        arrival: &'a mut Arrival,
    ) -> Self {
        let request = &mut arrival.request;
        let is_http2 = request.version() == Version::HTTP_2;
        let is_grpc = is_http2 && grpc::is_call(request);
        let seen = HeaderFlags::of(request.headers());
        let id = proxy.0.ids.of(request.headers(), seen);
        let record = Record::new(proxy, client, id, request);
        Self { proxy, client, arrival, record, seen, is_http2, is_grpc, closes: false }
    }

    /// Opens the exchange of a request that a service decides, and counts it there.
    pub(crate) fn open_for(
        service: Service,
        counters: &'a WorkerCounters,
        proxy: &'a Proxy,
        client: &'a Arc<Client>,
        arrival: &'a mut Arrival,
    ) -> Self {
        let mut new = Self::open(proxy, client, arrival);
        new.record.serves(service, counters);
        // The program that asks gives its own client the answer.
        new.is_grpc = false;
        new
    }

    /// Validates a request that is no request of a route.
    ///
    /// # Errors
    ///
    /// Those of [`validate::request`] and [`validate::demands`].
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        let (config, request) = (&self.proxy.0.plan.config, &self.arrival.request);
        validate::request(self.client, config, request, self.seen)?;
        validate::demands(&config.limits, request, self.seen)
    }

    /// Validates the request and finds its route.
    ///
    /// # Errors
    ///
    /// Those of a request that breaks a rule; [`Failure::NoRoute`].
    pub(crate) fn route(&mut self) -> Result<Routed<'a>, Failure> {
        let plan = &*self.proxy.0.plan;
        let (config, seen) = (&plan.config, self.seen);
        let Arrival { request, body } = &mut *self.arrival;
        let host = validate::request(self.client, config, request, seen)?;
        let demands = validate::demands(&config.limits, request, seen);
        let upgrade = Upgrade::of(request, body.is_none(), seen);
        if seen.has(HeaderFlags::CONNECTION) {
            headers::remove_nominated(request.headers_mut());
        }
        let client = self.client;
        let Destination { table, pool, rest } = match &client.forward {
            None => Destination { table: &plan.table, pool: None, rest: None },
            Some(connection) => self.destination(connection, host.as_ref())?,
        };
        let (uri, routes) = (self.arrival.request.uri(), &config.routes);
        let path = rest.as_deref().unwrap_or(uri).path();
        let covers = |one: usize, other: usize| routes[one].covers(&routes[other]);
        let asked = if table.names_hosts() { asked_host(uri, host.as_ref()) } else { None };
        let method = self.arrival.request.method();
        let found = table.find_covering(method, asked, path, covers);
        let found = found.map_err(|ambiguous| Failure::Malformed(ambiguous.to_string().into()))?;
        let Some(route) = found else { return Err(Failure::NoRoute) };
        self.record.route = Some(route);
        demands?;
        let own = self.proxy.counters();
        let policy = own.direct[route].policy;
        let (fixed, policy) = (own.fixed[policy].as_ref(), &plan.policies[policy]);
        self.arrival.accept_body(config, config.limits.body, self.client);
        let request = &mut self.arrival.request;
        let is_expected = seen.has(HeaderFlags::EXPECT) && expects(request);
        let budget = if seen.has(HeaderFlags::PATIENCE) {
            budget(policy.max_wait, policy.max_wait_cap, request.headers())
        } else {
            // The cap is for those who ask.
            policy.max_wait
        };
        let body_length = None;
        Ok(Routed {
            route,
            policy,
            fixed,
            budget,
            host,
            upgrade,
            body_length,
            is_expected,
            pool,
            rest,
        })
    }

    /// The questions to the limiters of a request that depend on the request. The route then has the policy of these
    /// limiters. `None`: nothing limits the request.
    ///
    /// # Errors
    ///
    /// Those of [`Self::read_json`]; [`Failure::BadRequest`] for a request without a key.
    pub(crate) async fn checks(
        &mut self,
        routed: &mut Routed<'a>,
    ) -> Result<Option<Question>, Failure> {
        let body = if routed.policy.is_special {
            self.proxy.require_limiters(routed.policy)?;
            Box::pin(self.read_json(routed)).await?
        } else {
            None
        };
        let plan = &*self.proxy.0.plan;
        let (config, request) = (&plan.config, &self.arrival.request);
        let client = self.client;
        routed.body_length = request.body().length();
        let body_length = routed.body_length;
        let refuse = |why: String| Failure::BadRequest(why.into());
        let priority =
            self.record.priority(&routed.policy.priority, request.headers(), client.is_trusted);
        let priority = priority.map_err(refuse)?;
        let parts = |account| Parts {
            client_ip: client.client_ip(request.headers(), &config.trusted_proxies),
            host: asked_host(request.uri(), routed.host.as_ref()),
            method: request.method(),
            uri: routed.rest.as_deref().unwrap_or(request.uri()),
            headers: request.headers(),
            body: body.as_ref(),
            body_length,
            paths: config.paths,
            template: config.routes[routed.route].path.template().map(|template| &**template),
            descriptor: None,
            account,
        };
        let (policy, accounts) = (routed.policy, self.accounts_config(routed.policy));
        let Some(accounts) = accounts else {
            let own = policy.checks(&plan.limiters, priority, || parts(None)).map_err(refuse)?;
            return Ok(own.map(|own| {
                routed.policy = own.policy;
                Question::Checks(own.checks)
            }));
        };
        if let Some(fixed) = self.proxy.counters().fixed_question(routed.route) {
            return Ok(Some(fixed.clone()));
        }
        let mut left = policy;
        let asked = question(accounts, |names| {
            let own = policy.checks(&plan.limiters, priority, || parts(Some(names)))?;
            Ok(own.map(|own| {
                left = own.policy;
                own.checks
            }))
        });
        routed.policy = left;
        asked.map_err(refuse)
    }

    /// The accounts of the upstream of a route, if its requests are sent with one of them.
    pub(crate) fn accounts_config(&self, policy: &RoutePolicy) -> Option<&'a config::Accounts> {
        policy.accounts.as_ref()?;
        self.proxy.0.plan.config.upstreams[policy.upstream].accounts.as_ref()
    }

    /// Finds the accounts with which a request may be sent that asks this question; `None` if its upstream has none.
    ///
    /// # Errors
    ///
    /// [`Failure::AccountsParked`] if none may be used now.
    pub(crate) async fn open_accounts<'q>(
        &self,
        routed: &Routed<'a>,
        question: Option<&'q Question>,
    ) -> Result<Option<Box<RequestAccounts<'q>>>, Failure>
    where
        'a: 'q,
    {
        let policy = routed.policy;
        let (Some(route), Some(config)) = (&policy.accounts, self.accounts_config(policy)) else {
            return Ok(None);
        };
        let until = self.record.started + routed.budget;
        let opened = RequestAccounts::open(&self.proxy.0.store, route, config, question, until);
        Ok(Some(Box::new(Box::pin(opened).await?)))
    }
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
