//! The way of a request: route ─▶ limit ─▶ upstream, and the answer at the outer edge.

mod body;
mod budget;
mod interim;
mod peer;
mod plan;
mod record;
mod redact;
mod trace;
mod tunnel;
mod upgrade;
mod vet;

pub use body::Body;
pub use budget::budget;
pub use peer::{Line, Peer};
pub use plan::{LimiterPlan, Plan, RoutePlan};

use crate::{
    answer::{Failure, PACEWAY_ORIGIN, grpc},
    config::Mode,
    key::{self, Parts},
    limit::{self, Admission, Slot},
    metrics::Verdict,
    route::host_of,
    store::{Decision, Store, StoreError},
    upstream::{
        Ahead, Connection, Control, Fault, Terms, Upload, Upstream,
        headers::{self, Way},
    },
};
use http::{
    HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::{CONNECTION, HOST},
};
use http_body::Body as _;
use hyper::body::Incoming;
use record::Record;
use smallvec::SmallVec;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use trace::{Ids, X_REQUEST_ID};
use tunnel::Tunnels;
use upgrade::{Switched, Upgrade};

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The data plane of one worker.
#[derive(Debug)]
pub struct Gateway {
    /// Shared by all workers.
    plan: Arc<Plan>,
    /// This worker's connection to where limiters keep their state.
    store: Arc<dyn Store>,
    /// This worker's connections, by index of the upstream.
    upstreams: Vec<Upstream>,
    tunnels: Tunnels,
    ids: Ids,
}

/// A request whose route is known: the only kind that can be limited and forwarded.
struct Routed<'a> {
    route: &'a RoutePlan,
    request: Request<Upload>,
    upgrade: Option<Upgrade>,
    /// Its client sends no body before it is asked for it.
    is_expected: bool,
}

// === impl Gateway ===

impl Gateway {
    /// The data plane of one worker.
    pub fn new(plan: Arc<Plan>, store: Arc<dyn Store>, upstreams: Vec<Upstream>) -> Self {
        Self { plan, store, upstreams, tunnels: Tunnels::new(), ids: Ids::new() }
    }

    /// Answers a request.
    pub async fn handle(&self, peer: &Arc<Peer>, mut request: Request<Incoming>) -> Response<Body> {
        let id = self.ids.of(request.headers_mut());
        let is_http2 = request.version() == Version::HTTP_2;
        let mut record = Record::new(&self.plan, peer.ip, id, &request);
        let is_grpc = grpc::is_call(&request);
        let answer = tokio::select! {
            biased;
            answer = self.forward(&mut record, peer, request) => answer,
            () = peer.leaves() => Err(Failure::ClientLeft),
        };
        match answer {
            Ok(response) => {
                record.answered(response.status());
                response
            }
            Err(failure) => {
                let mut response = failure.response();
                record.failed(&failure, response.status());
                if is_grpc {
                    response = failure.grpc_response();
                } else if failure.ends_connection() && !is_http2 {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response.headers_mut().insert(X_REQUEST_ID, record.id.clone());
                response.map(Body::own)
            }
        }
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
    pub fn unparsed(&self, peer: &Peer, status: StatusCode) {
        record::unparsed(&self.plan, peer.ip, status);
    }

    async fn forward<'a>(
        &'a self,
        record: &mut Record<'a>,
        peer: &Arc<Peer>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Failure> {
        let mut routed = self.route(record, peer, request)?;
        if !routed.is_expected {
            routed.request.body_mut().look_ahead().await.map_err(spoilt)?;
        }
        let upstream = &self.upstreams[routed.route.upstream];
        // Nothing is open: a connection is made while the decision is.
        let ahead = upstream.connect_ahead();
        let admission = self.admit(record, peer, &routed).await?;
        let admission = match admission {
            None => {
                let connection = connection(upstream, ahead).await?;
                return self.send(record, peer, routed, None, connection).await;
            }
            Some(Admission::Granted(slot)) if slot.wait.is_zero() => {
                let connection = connection(upstream, ahead).await?;
                if !slot.is_late() {
                    return self.send(record, peer, routed, Some(slot), connection).await;
                }
                // It was long in the making: what is sent now could meet what is sent later.
                connection.recycle();
                Admission::Granted(slot)
            }
            Some(admission) => {
                drop(ahead);
                admission
            }
        };
        let (slot, connection) = self.wait(record, &routed, admission, upstream).await?;
        self.send(record, peer, routed, Some(slot), connection).await
    }

    fn route<'a>(
        &'a self,
        record: &mut Record<'a>,
        peer: &Peer,
        mut request: Request<Incoming>,
    ) -> Result<Routed<'a>, Failure> {
        vet::vet(peer, &self.plan.config.limits, &request)?;
        let upgrade = Upgrade::asked(&mut request);
        let uri = request.uri();
        let found = self.plan.table.find(request.method(), asked_host(&request), uri.path());
        let route = &self.plan.routes[found.ok_or(Failure::NoRoute)?];
        record.route(route);
        let is_h2 = request.version() == Version::HTTP_2;
        let config = &self.plan.config;
        let terms = Terms { limit: config.limits.body, patience: config.client.body_timeout };
        let mut request = request.map(|incoming| Upload::new(incoming, is_h2, terms));
        let is_expected = interim::expects(&mut request);
        Ok(Routed { route, request, upgrade, is_expected })
    }

    /// Asks the route's limiters; `None` where there are none.
    async fn admit(
        &self,
        record: &mut Record<'_>,
        peer: &Peer,
        routed: &Routed<'_>,
    ) -> Result<Option<Admission>, Failure> {
        let (route, request) = (routed.route, &routed.request);
        let trusted = &self.plan.config.trusted_proxies;
        let checks = route.checks(&self.plan.limiters, || Parts {
            client_ip: key::client_ip(peer.ip, request.headers(), trusted),
            host: asked_host(request),
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
        });
        let checks = checks.map_err(|why| Failure::BadRequest(why.into()))?;
        let Some(checks) = checks else { return Ok(None) };
        let wanted = budget(route.max_wait, route.max_wait_cap, request.headers());
        // Who cannot wait may still go at once.
        let full = !wanted.is_zero() && route.is_full();
        let budget = if full { Duration::ZERO } else { wanted };
        let admission = limit::ask(&self.store, &checks, budget).await;
        let admission = admission.map_err(|error| undecided(route, error))?;
        match &admission {
            Admission::Granted(slot) => {
                record.bound = Some(route.limiter(slot.bound_by));
                self.count(record, route, slot);
            }
            Admission::Queued(place) => {
                let limiter = route.limiter(place.bound_by);
                record.bound = Some(limiter);
                self.plan.limiters[limiter].metrics.count(Verdict::Wait);
            }
            Admission::Refused(decision) => {
                let is_place = checks[decision.bound_by].is_lease();
                let fits = decision.wait > 0 && limit::duration(decision.wait) <= wanted;
                if full && (is_place || fits) {
                    self.refused(record, route, decision);
                    let retry_after = if is_place { decision.retry_after } else { decision.wait };
                    return Err(Failure::QueueFull { retry_after });
                }
                let late = limit::micros(wanted) - limit::micros(budget);
                let retry_after = decision.retry_after - late;
                let decision = Decision { retry_after, ..decision.clone() };
                return Err(self.refused(record, route, &decision));
            }
        }
        Ok(Some(admission))
    }

    /// Counts a refusal, and says it.
    fn refused(&self, record: &mut Record<'_>, route: &RoutePlan, decision: &Decision) -> Failure {
        let (limiter, rate) = route.owners()[decision.bound_by];
        record.bound = Some(limiter);
        let limiter = &self.plan.limiters[limiter];
        limiter.metrics.count(Verdict::Refuse);
        let policy = limiter.policies[rate].clone();
        Failure::Limited { policy, retry_after: decision.retry_after }
    }

    /// Counts what each limiter said: of several rates the one that said the most.
    fn count(&self, record: &mut Record<'_>, route: &RoutePlan, slot: &Slot) {
        let mut said: SmallVec<[(usize, Verdict); 4]> = SmallVec::new();
        for (i, part) in slot.parts().iter().enumerate() {
            let limiter = route.limiter(i);
            let enforce = self.plan.limiters[limiter].limiter.mode == Mode::Enforce;
            let verdict = match (enforce, part.at) {
                (true, at) if at > 0 && slot.bound_by == i => Verdict::Wait,
                (true, _) => Verdict::Pass,
                (false, ..0) => Verdict::WouldRefuse,
                (false, 0) => Verdict::WouldPass,
                (false, _) => Verdict::WouldWait,
            };
            match said.last_mut() {
                Some((last, most)) if *last == limiter => *most = verdict.max(*most),
                _ => said.push((limiter, verdict)),
            }
        }
        for (limiter, verdict) in said {
            record.observed |= matches!(verdict, Verdict::WouldWait | Verdict::WouldRefuse);
            self.plan.limiters[limiter].metrics.count(verdict);
        }
    }

    /// Holds a request until its slot has come and its places are free, with a connection at hand.
    async fn wait(
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        admission: Admission,
        upstream: &Upstream,
    ) -> Result<(Slot, Connection), Failure> {
        let route = routed.route;
        let bound = record.bound.unwrap_or(route.limiter(0));
        let Some(_waiting) = plan::Waiting::enter(route, &self.plan.limiters[bound]) else {
            let wait = match &admission {
                Admission::Granted(slot) => slot.wait,
                Admission::Queued(_) | Admission::Refused(_) => Duration::ZERO,
            };
            return Err(Failure::QueueFull { retry_after: limit::micros(wait) });
        };
        let wanted = budget(route.max_wait, route.max_wait_cap, routed.request.headers());
        let started = Instant::now();
        record.waits_since = Some(started);
        let held = self.held(record, route, admission, upstream, started + wanted).await;
        record.waited();
        held
    }

    async fn held(
        &self,
        record: &mut Record<'_>,
        route: &RoutePlan,
        mut admission: Admission,
        upstream: &Upstream,
        until: Instant,
    ) -> Result<(Slot, Connection), Failure> {
        loop {
            let next = match admission {
                Admission::Granted(slot) => {
                    slot.near(upstream.lead()).await;
                    let connection = connection(upstream, None).await?;
                    slot.come().await;
                    let left = until.saturating_duration_since(Instant::now());
                    if slot.is_late() {
                        let late = route.limiter(slot.bound_by);
                        self.plan.limiters[late].metrics.late.increment(1);
                        slot.ask_again(left).await
                    } else if slot.is_complete() {
                        return Ok((slot, connection));
                    } else {
                        slot.take_places(left).await
                    }
                }
                Admission::Queued(place) => {
                    place.called().await;
                    place.ask_again(until.saturating_duration_since(Instant::now())).await
                }
                Admission::Refused(decision) => return Err(self.refused(record, route, &decision)),
            };
            admission = next.map_err(|error| undecided(route, error))?;
        }
    }

    async fn send(
        &self,
        record: &mut Record<'_>,
        peer: &Arc<Peer>,
        routed: Routed<'_>,
        mut slot: Option<Slot>,
        connection: Connection,
    ) -> Result<Response<Body>, Failure> {
        let target = connection.target();
        let upgrade = routed.upgrade;
        if connection.is_http2() && upgrade.as_ref().is_some_and(Upgrade::is_by_h2) {
            return Err(Failure::BadRequest("this upstream takes no WebSockets".into()));
        }
        let (mut parts, body) = routed.request.into_parts();
        let (version, upload) = (parts.version, body.control());
        let config = &self.plan.config.upstreams[routed.route.upstream];
        let asked_host = parts.uri.authority();
        let asked_host = asked_host.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let way = Way {
            peer: &peer.forwarded_for,
            port: &peer.port,
            is_tls: peer.is_tls,
            is_trusted: peer.is_trusted,
            version: parts.version,
            asked_host,
            upstream_host: &target.host,
            preserve_host: config.preserve_host,
            forwarded: config.forwarded,
            is_open: !body.is_end_stream(),
        };
        headers::to_upstream(&mut parts.headers, &way);
        routed.route.rules.iter().for_each(|rules| rules.request.apply(&mut parts.headers));
        parts.uri = target
            .uri(parts.uri.path_and_query())
            .ok_or(Failure::BadRequest("the path is too long".into()))?;
        parts.version = Version::HTTP_11;
        if let Some(upgrade) = &upgrade {
            upgrade.ask(&mut parts.headers);
        }
        let mut request = Request::from_parts(parts, body);
        if version == Version::HTTP_11 || upload.is_some() {
            interim::pass(&mut request, (version == Version::HTTP_11).then_some(peer), &upload);
        }
        if let Some(slot) = &mut slot {
            slot.spend();
        }
        let started = Instant::now();
        record.sent();
        let answer = connection.send(request).await;
        let metrics = &self.plan.upstreams[routed.route.upstream];
        let mut response = answer.map_err(|error| {
            if let Some(fault) = upload.as_ref().and_then(Control::fault) {
                return spoilt(fault);
            }
            if error.is_unsent()
                && let Some(slot) = slot.take()
            {
                slot.give_back();
            }
            Failure::Upstream(error)
        })?;
        let took = started.elapsed();
        record.upstream = Some(took);
        metrics.seconds.record(took);
        metrics.count(response.status());
        let version = std::mem::replace(response.version_mut(), Version::HTTP_11);
        let switched = Switched::from(upgrade, &mut response).map_err(Failure::Upstream)?;
        let unasked = upload.and_then(|upload| upload.answered());
        headers::to_client(response.headers_mut(), version);
        response.headers_mut().entry(X_REQUEST_ID).or_insert_with(|| record.id.clone());
        if response.status() == 429 {
            response.headers_mut().insert(PACEWAY_ORIGIN, HeaderValue::from_static("upstream"));
        }
        if !record.wait.is_zero() {
            let millis = record.wait.as_secs_f64() * 1000.0;
            if let Ok(value) = HeaderValue::from_str(&format!("paceway;dur={millis:.1}")) {
                response.headers_mut().append(SERVER_TIMING, value);
            }
        }
        routed.route.rules.iter().for_each(|rules| rules.response.apply(response.headers_mut()));
        if let Some(switched) = switched {
            switched.answer(&mut response);
            let slot = slot.filter(Slot::holds_places);
            self.tunnels.begin(switched.ends, slot, &routed.route.metrics.tunnels);
            return Ok(response.map(|_| Body::empty()));
        }
        if unasked.is_some() && version < Version::HTTP_2 {
            // What the client sends now may be its body, or the next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let is_h2 = version == Version::HTTP_2;
        let mut response = response.map(|body| Body::streamed(body, is_h2, peer.leaving()));
        response.body_mut().keep(slot, unasked);
        Ok(response)
    }
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

/// The body has no end.
fn spoilt(fault: Fault) -> Failure {
    match fault {
        Fault::Malformed => Failure::Malformed(fault.to_string().into()),
        Fault::TooLarge => Failure::TooLarge(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is larger than it may be".into(),
        ),
        Fault::Slow => Failure::BodyTimeout,
        Fault::Left | Fault::Unwanted => Failure::ClientLeft,
    }
}

/// The store gave no decision.
fn undecided(route: &RoutePlan, error: StoreError) -> Failure {
    tracing::debug!(route = route.name, %error, "undecided");
    Failure::Store(error)
}

/// A connection, the one that was begun ahead if there is one.
async fn connection(upstream: &Upstream, ahead: Option<Ahead>) -> Result<Connection, Failure> {
    let made = match ahead {
        Some(ahead) => ahead.get().await,
        None => None,
    };
    match made {
        Some(made) => made,
        None => upstream.connection().await,
    }
    .map_err(Failure::Upstream)
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
