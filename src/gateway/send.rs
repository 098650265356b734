//! The exchange with the upstream: the client's request on a connection, and what came back as the client gets it.

use super::{
    Body, Gateway, Peer, RoutePlan, Routed, interim,
    record::Record,
    trace::X_REQUEST_ID,
    upgrade::{Switched, Upgrade},
};
use crate::{
    answer::{Failure, PACEWAY_ORIGIN},
    limit::Slot,
    upstream::{
        Connection, Control, Fault, Target, Upload, UpstreamError,
        headers::{self, Way},
    },
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header::CONNECTION,
};
use http_body::Body as _;
use std::{mem, sync::Arc};
use tokio::time::Instant;

const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

// === impl Gateway ===

impl Gateway {
    /// Sends a request, now that its slot has come. From here on its permits are spent.
    pub(super) async fn send(
        &self,
        record: &mut Record<'_>,
        peer: &Arc<Peer>,
        routed: Routed<'_>,
        mut slot: Option<Slot>,
        connection: Connection,
    ) -> Result<Response<Body>, Failure> {
        let Routed { route, request, upgrade, .. } = routed;
        if connection.is_http2() && upgrade.as_ref().is_some_and(Upgrade::is_by_h2) {
            return Err(Failure::BadRequest("this upstream takes no WebSockets".into()));
        }
        let (version, upload) = (request.version(), request.body().control());
        let target = connection.target();
        let request = self.for_upstream(route, peer, request, upgrade.as_ref(), target)?;
        if let Some(slot) = &mut slot {
            slot.spend();
        }
        record.sent();
        let hears = (version == Version::HTTP_11).then_some(peer);
        let started = Instant::now();
        let answer = connection.send(request, interim::pass(hears, &upload));
        let mut response =
            answer.await.map_err(|error| unanswered(error, upload.as_ref(), slot.take()))?;
        let took = started.elapsed();
        record.upstream = Some(took);
        let metrics = &self.plan.upstreams[route.upstream];
        metrics.seconds.record(took);
        metrics.count(response.status());
        let switched = Switched::from(upgrade, &response).map_err(Failure::Upstream)?;
        let is_h2 = response.version() == Version::HTTP_2;
        for_client(route, record, &mut response);
        let slot = slot.filter(Slot::holds_places);
        if let Some(switched) = switched {
            switched.answer(&mut response);
            let (head, body) = response.into_parts();
            // Only such an answer switches.
            let tunnel =
                body.tunnel().ok_or(Failure::Upstream(UpstreamError::Invalid("a switch")))?;
            self.tunnels.begin((switched.client, tunnel), slot, &route.metrics.tunnels);
            return Ok(Response::from_parts(head, Body::empty()));
        }
        let unasked = upload.and_then(|upload| upload.answered());
        if unasked.is_some() && version < Version::HTTP_2 {
            // What the client sends now may be its body, or the next request.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let mut response = response.map(|body| Body::streamed(body, is_h2, peer.leaving()));
        response.body_mut().keep(slot, unasked);
        Ok(response)
    }

    /// A request as its upstream gets it.
    fn for_upstream(
        &self,
        route: &RoutePlan,
        peer: &Peer,
        request: Request<Upload>,
        upgrade: Option<&Upgrade>,
        target: &Target,
    ) -> Result<Request<Upload>, Failure> {
        let (mut parts, body) = request.into_parts();
        let config = &self.plan.config.upstreams[route.upstream];
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
        route.rules.iter().for_each(|rules| rules.request.apply(&mut parts.headers));
        parts.uri = target
            .uri(parts.uri.path_and_query())
            .ok_or(Failure::BadRequest("the path is too long".into()))?;
        parts.version = Version::HTTP_11;
        if let Some(upgrade) = upgrade {
            upgrade.ask(&mut parts.headers);
        }
        Ok(Request::from_parts(parts, body))
    }
}

/// Makes the head of the upstream's response one for the client.
fn for_client<B>(route: &RoutePlan, record: &Record<'_>, response: &mut Response<B>) {
    let version = mem::replace(response.version_mut(), Version::HTTP_11);
    let status = response.status();
    let headers: &mut HeaderMap = response.headers_mut();
    headers::to_client(headers, version);
    headers.entry(X_REQUEST_ID).or_insert_with(|| record.id.clone());
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("upstream"));
    }
    if !record.wait.is_zero() {
        let millis = record.wait.as_secs_f64() * 1000.0;
        if let Ok(value) = HeaderValue::from_str(&format!("paceway;dur={millis:.1}")) {
            headers.append(SERVER_TIMING, value);
        }
    }
    route.rules.iter().for_each(|rules| rules.response.apply(headers));
}

/// Why there is no answer. Where nothing was sent, `slot` goes to somebody else.
fn unanswered(error: UpstreamError, upload: Option<&Control>, slot: Option<Slot>) -> Failure {
    if let Some(fault) = upload.and_then(Control::fault) {
        return spoilt(fault);
    }
    if error.is_unsent()
        && let Some(slot) = slot
    {
        slot.give_back();
    }
    Failure::Upstream(error)
}

/// The body has no end.
pub(super) fn spoilt(fault: Fault) -> Failure {
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
