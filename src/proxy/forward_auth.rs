//! Decisions for programs that forward their requests themselves: another proxy describes a request, and the answer is 200
//! when the slot of that request has come. The route, its limiters and the loop that waits are those of the data plane.

use super::{
    Arrival, Body, Client, Ending, Exchange, Proxy, Routed, attempt::Attempt, original,
    record::Record, request_id::X_REQUEST_ID, respond, service_token::has_token,
};
use crate::{
    algorithm::Grant,
    answer::{Failure, PACEWAY_ORIGIN},
    config::{ForwardAuthConfig, Service},
    limit::{self, AlwaysReady},
    plan::WorkerCounters,
    store::Check,
    upstream::headers::{self, HeaderFlags},
};
use http::{HeaderName, HeaderValue, Response, StatusCode, Version};
use std::{pin::pin, sync::Arc};

/// The status of a denial that has another one for the sake of the proxy.
static PACEWAY_STATUS: HeaderName = HeaderName::from_static("paceway-status");
/// A concurrency permit that the request holds from now on.
pub(super) static PACEWAY_LEASE: HeaderName = HeaderName::from_static("paceway-lease");

// === impl Proxy ===

impl Proxy {
    /// Serves a call of another proxy to a service: decides the request that the call describes. A future that is dropped
    /// while the request waits refunds what it took. The head of the answer is put into `head`.
    pub(crate) async fn decide(
        &self,
        service: Service,
        client: &Arc<Client>,
        arrival: &mut Arrival,
        head: &mut Response<()>,
    ) -> (Body, Ending) {
        let (answer, ending) = self.decided(service, client, arrival).await;
        let (parts, body) = answer.into_parts();
        *head = Response::from_parts(parts, ());
        (body, ending)
    }

    async fn decided(
        &self,
        service: Service,
        client: &Arc<Client>,
        arrival: &mut Arrival,
    ) -> (Response<Body>, Ending) {
        let plan = &self.0.plan;
        let counters = plan.services.iter().find(|own| own.service == service);
        let counters = counters.map(|own| &own.workers[self.0.worker]);
        let services = &plan.config.services;
        // The port of a service is open only while the configuration has the service.
        let closed = || (Failure::NoRoute.response().map(Body::whole), Ending::Open);
        let Some(counters) = counters else { return closed() };
        match service {
            Service::ForwardAuth => {
                let Some(config) = &services.forward_auth else { return closed() };
                let (answer, ending) = self.forward_auth((config, counters), client, arrival).await;
                (for_proxy(config, answer), ending)
            }
            Service::EnvoyRateLimit => {
                let Some(listener) = &services.envoy_rate_limit else { return closed() };
                self.rate_limit((listener, counters), client, arrival).await
            }
            Service::Decisions => {
                let Some(config) = &services.decisions else { return closed() };
                self.decisions((config, counters), client, arrival).await
            }
            Service::ExtAuthz => {
                let Some(listener) = &services.ext_authz else { return closed() };
                self.ext_authz((listener, counters), client, arrival).await
            }
        }
    }

    async fn forward_auth(
        &self,
        (config, counters): (&ForwardAuthConfig, &WorkerCounters),
        client: &Arc<Client>,
        Arrival { request, body }: &mut Arrival,
    ) -> (Response<Body>, Ending) {
        let is_http2 = request.version() == Version::HTTP_2;
        let described = match &config.listener.token {
            Some(token) if !has_token(request.headers(), token) => Err(Failure::Unauthorized),
            _ => original::restore(request, config),
        };
        let seen = HeaderFlags::of(request.headers());
        let id = self.0.ids.of(request.headers_mut(), seen);
        let record = Record::new(self, client, id, request);
        let mut exchange = Exchange { record, client, is_http2, is_grpc: false, closes: false };
        exchange.record.serves(Service::ForwardAuth, counters);
        let routed = described
            .and_then(|()| self.route(&mut exchange.record, client, (request, body), seen));
        let outcome = match routed {
            Ok(mut routed) => client.unless_left(pin!(self.slot(&mut exchange, &mut routed))).await,
            Err(failure) => Err(failure),
        };
        let outcome = outcome.map(|leases| granted(&exchange.record, &leases));
        respond::finish_call(outcome, &mut exchange)
    }

    /// Waits for the slot of a request, and spends it. Returns the concurrency permits that the request holds from then on,
    /// each as the value of a header.
    pub(super) async fn slot<'p>(
        &'p self,
        exchange: &mut Exchange<'_>,
        routed: &mut Routed<'p>,
    ) -> Result<Vec<HeaderValue>, Failure> {
        let checks = match routed.fixed {
            Some(checks) => Some(checks.clone()),
            None => {
                // The program that asks forwards the request, so that nothing can be removed from it.
                let headers = routed.request.headers();
                if let Some(name) = headers::alike(headers, &routed.policy.read_headers).next() {
                    let why = format!(
                        "a limiter reads a header that `{name}` is taken for by some programs"
                    );
                    return Err(Failure::BadRequest(why.into()));
                }
                let body = match routed.policy.is_special {
                    true => self.before_limits(routed).await?,
                    false => None,
                };
                self.checks(exchange, routed, body.as_deref())?.map(|(checks, policy)| {
                    routed.policy = policy;
                    checks
                })
            }
        };
        let Some(checks) = checks else {
            exchange.record.sent();
            return Ok(Vec::new());
        };
        let way = (routed.route, routed.policy);
        let paced = {
            let mut attempt =
                Attempt::first(self, &mut exchange.record, way, &checks, routed.budget);
            limit::pace(&self.0.store, &checks, &mut attempt, &mut AlwaysReady::default()).await
        };
        exchange.record.waited();
        let (reservation, ()) = paced?;
        exchange.record.sent();
        self.spent(routed.policy, reservation.checks(), None);
        let leases = reservation.leave();
        Ok(leases.iter().filter_map(|(check, grant)| self.lease(check, *grant)).collect())
    }

    /// Describes a concurrency permit, so that a program can renew and release it: the limiter, the lease, the key if there is
    /// one, and the time until the lease expires.
    pub(super) fn lease(&self, check: &Check, grant: Grant) -> Option<HeaderValue> {
        let (plan, key) = self.0.plan.owner(&check.key)?;
        let name = &plan.limiter.name;
        let Grant { whole: gateway, ticks: number, .. } = grant;
        let mut text = format!("{name}; lease=\"{gateway}-{number}\"");
        if let Some(key) = key {
            text.push_str(&format!("; key=\"{}\"", quotable(key)));
        }
        let seconds = limit::duration(check.algorithm.lease().unwrap_or_default()).as_secs_f64();
        text.push_str(&format!("; expires={seconds:.3}"));
        HeaderValue::from_str(&text).ok()
    }
}

/// The answer to a request whose slot has come.
pub(super) fn granted(record: &Record<'_>, leases: &[HeaderValue]) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("gateway"));
    headers.insert(&X_REQUEST_ID, record.id.clone());
    record.tell(headers);
    for lease in leases {
        headers.append(&PACEWAY_LEASE, lease.clone());
    }
    response
}

/// Gives a denial the status that its proxy passes on, as the configuration says.
fn for_proxy(config: &ForwardAuthConfig, mut answer: Response<Body>) -> Response<Body> {
    let own = answer.status();
    if let Some(status) = config.denied_status.filter(|_| own != StatusCode::OK) {
        *answer.status_mut() = status;
        answer.headers_mut().insert(&PACEWAY_STATUS, HeaderValue::from(own.as_u16()));
    }
    answer
}

/// A text as a quoted string of a header (RFC 9651 section 3.3.3). Names of states hold letters of ASCII alone.
fn quotable(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
