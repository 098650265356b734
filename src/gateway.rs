//! The way of a request: route ─▶ limit ─▶ upstream, and the answer at the outer edge.

mod peer;
mod plan;
mod record;

pub use peer::{Line, Peer};
pub use plan::{LimiterPlan, Plan, RoutePlan};

use crate::{
    answer::{Failure, PACEWAY_ORIGIN},
    config::Mode,
    key::{self, Parts},
    limit::{self, Admission, Slot},
    metrics::Verdict,
    route::host_of,
    store::{Decision, Store, StoreError},
    upstream::{self, Ahead, Connection, Upload, Upstream, headers},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::{CONNECTION, HOST},
};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use record::Record;
use smallvec::SmallVec;
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;

/// How often a waiting upload is looked after.
const LOOK: Duration = Duration::from_millis(200);
/// The same for who has sent all of its request: almost always the parser notices.
const LOOK_RARELY: Duration = Duration::from_secs(1);
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
const PREFER: HeaderName = HeaderName::from_static("prefer");

/// The data plane of one worker.
#[derive(Debug)]
pub struct Gateway {
    /// Shared by all workers.
    plan: Arc<Plan>,
    /// This worker's connection to where limiters keep their state.
    store: Arc<dyn Store>,
    /// This worker's connections, by index of the upstream.
    upstreams: Vec<Upstream>,
}

/// The body of a response: the upstream's, streamed, or our own.
#[derive(Debug)]
pub enum Body {
    /// As it comes.
    Upstream(upstream::Body),
    /// As it comes; the places are held until it has ended or nobody wants it any more.
    Holding(upstream::Body, Option<Box<Slot>>),
    /// Until it is taken.
    Own(Option<Bytes>),
}

/// A request whose route is known: the only kind that can be limited and forwarded.
struct Routed<'a> {
    route: &'a RoutePlan,
    request: Request<Incoming>,
}

// === impl Gateway ===

impl Gateway {
    /// The data plane of one worker.
    pub fn new(plan: Arc<Plan>, store: Arc<dyn Store>, upstreams: Vec<Upstream>) -> Self {
        Self { plan, store, upstreams }
    }

    /// Answers a request.
    pub async fn handle(&self, peer: &Peer, request: Request<Incoming>) -> Response<Body> {
        let mut record = Record::new(&self.plan, peer.ip, &request);
        let version = request.version();
        match self.forward(&mut record, peer, request).await {
            Ok(response) => {
                record.answered(response.status());
                response
            }
            Err(failure) => {
                let mut response = failure.response();
                record.failed(&failure, response.status());
                if failure.ends_connection() && version < Version::HTTP_2 {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(CONNECTION, close);
                }
                response.map(|bytes| Body::Own(Some(bytes)))
            }
        }
    }

    /// Counts and logs what was no request; it was answered with `status`.
    pub fn unparsed(&self, peer: &Peer, status: StatusCode) {
        record::unparsed(&self.plan, peer.ip, status);
    }

    async fn forward<'a>(
        &'a self,
        record: &mut Record<'a>,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Failure> {
        let routed = self.route(record, peer, request)?;
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
        let (slot, connection) = self.wait(record, peer, &routed, admission, upstream).await?;
        self.send(record, peer, routed, Some(slot), connection).await
    }

    fn route<'a>(
        &'a self,
        record: &mut Record<'a>,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Result<Routed<'a>, Failure> {
        if peer.framed_twice(&request) {
            return Err(Failure::BadRequest("both Content-Length and Transfer-Encoding".into()));
        }
        let uri = request.uri();
        if !uri.path().starts_with('/') {
            return Err(Failure::BadRequest("only a request for a path can be forwarded".into()));
        }
        let hosts = request.headers().get_all(HOST).iter().count();
        if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
            return Err(Failure::BadRequest(
                "a request names its host once (RFC 9112 section 3.2)".into(),
            ));
        }
        let found = self.plan.table.find(request.method(), asked_host(&request), uri.path());
        let route = &self.plan.routes[found.ok_or(Failure::NoRoute)?];
        record.route(route);
        Ok(Routed { route, request })
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
        peer: &Peer,
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
        let (started, is_upload) = (Instant::now(), !routed.request.body().is_end_stream());
        record.waits_since = Some(started);
        let held = self.held(record, route, admission, upstream, started + wanted);
        // With input unread, be it a body or the next request, nobody but us looks whether the client is still there.
        let look = if is_upload { LOOK } else { LOOK_RARELY };
        let held = tokio::select! {
            held = held => held,
            () = peer.leaves(look) => Err(Failure::ClientLeft),
        };
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
        peer: &Peer,
        routed: Routed<'_>,
        mut slot: Option<Slot>,
        connection: Connection,
    ) -> Result<Response<Body>, Failure> {
        let upstream = &self.upstreams[routed.route.upstream];
        let target = upstream.target();
        let (mut parts, body) = routed.request.into_parts();
        let asked_host = parts.uri.authority();
        let asked_host = asked_host.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        parts.uri = target
            .uri(parts.uri.path_and_query())
            .ok_or(Failure::BadRequest("the path is too long".into()))?;
        parts.version = Version::HTTP_11;
        let (address, is_trusted) = (&peer.forwarded_for, peer.is_trusted);
        headers::to_upstream(&mut parts.headers, address, is_trusted, asked_host, &target.host);
        if let Some(slot) = &mut slot {
            slot.spend();
        }
        let started = Instant::now();
        record.sent();
        let answer = connection.send(Request::from_parts(parts, Upload::new(body))).await;
        let metrics = &self.plan.upstreams[routed.route.upstream];
        let mut response = answer.map_err(|error| {
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
        headers::check_response(&mut response).map_err(Failure::Upstream)?;
        headers::remove_hop_by_hop(response.headers_mut());
        if response.status() == 429 {
            response.headers_mut().insert(PACEWAY_ORIGIN, HeaderValue::from_static("upstream"));
        }
        if !record.wait.is_zero() {
            let millis = record.wait.as_secs_f64() * 1000.0;
            if let Ok(value) = HeaderValue::from_str(&format!("paceway;dur={millis:.1}")) {
                response.headers_mut().append(SERVER_TIMING, value);
            }
        }
        // A response without a body ends here.
        let slot = slot.filter(|slot| slot.holds_places() && !response.body().is_end_stream());
        Ok(response.map(|body| match slot {
            None => Body::Upstream(body),
            Some(slot) => Body::Holding(body, Some(Box::new(slot))),
        }))
    }
}

/// The host that a request is for, without port. The authority of an absolute target outranks Host (RFC 9112
/// section 3.2.2).
fn asked_host(request: &Request<Incoming>) -> Option<&str> {
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => request.headers().get(HOST).and_then(|host| host.to_str().ok()),
    };
    host.map(host_of)
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

/// How long a request may wait: the route's budget, or its own (RFC 7240 section 4.3) up to the cap.
pub fn budget(max_wait: Duration, max_wait_cap: Duration, headers: &HeaderMap) -> Duration {
    let asked = headers.get_all(PREFER).iter().find_map(preferred_wait);
    asked.map_or(max_wait, |asked| asked.min(max_wait_cap))
}

/// The `wait` of a `Prefer` field; what is not a number of seconds is not preferred (RFC 7240 section 2).
fn preferred_wait(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.split(',').find_map(|preference| {
        let (name, seconds) = preference.split(';').next()?.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("wait") {
            return None;
        }
        let seconds = seconds.trim().trim_matches('"');
        let digits = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
        // More than fits is more than any cap.
        digits.then(|| Duration::from_secs(seconds.parse().unwrap_or(u32::MAX.into())))
    })
}

// === impl Body ===

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Upstream(body) => Pin::new(body).poll_frame(cx),
            Self::Holding(body, slot) => {
                let frame = Pin::new(body).poll_frame(cx);
                if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
                    *slot = None;
                }
                frame
            }
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Upstream(body) | Self::Holding(body, _) => body.is_end_stream(),
            Self::Own(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Upstream(body) | Self::Holding(body, _) => body.size_hint(),
            Self::Own(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Outcome;
    use rstest::rstest;

    #[rstest]
    #[case::plain("wait=5", Some(5))]
    #[case::zero("wait=0", Some(0))]
    #[case::among_others("respond-async, Wait = 10; x=y", Some(10))]
    #[case::quoted("wait=\"7\"", Some(7))]
    #[case::huge("wait=99999999999999999999999", Some(u64::from(u32::MAX)))]
    #[case::negative("wait=-1", None)]
    #[case::no_number("wait=soon", None)]
    #[case::nothing("wait", None)]
    #[case::other("waiting=5", None)]
    fn prefer_wait(#[case] value: &'static str, #[case] seconds: Option<u64>) {
        let value = HeaderValue::from_static(value);
        assert_eq!(preferred_wait(&value), seconds.map(Duration::from_secs));
    }

    #[test]
    fn outcomes_of_a_forwarded_request_are_three() {
        assert_eq!(record::forwarded(Duration::ZERO, false), Outcome::Passed);
        assert_eq!(record::forwarded(Duration::ZERO, true), Outcome::Observed);
        assert_eq!(record::forwarded(Duration::from_millis(1), true), Outcome::Waited);
    }
}
