//! The exchange with the upstream: the client's request on a connection, and what came back as the client gets it.

use super::{
    Body, Client, Exchange, Proxy, Routed,
    attempt::Attempt,
    connecting::FirstConnection,
    interim,
    read_ahead::ReadAhead,
    record::Record,
    request_id::X_REQUEST_ID,
    upgrade::{Switched, Upgrade},
};
use crate::{
    answer::{Failure, PACEWAY_ORIGIN},
    config,
    limit::{self, Callee, Reservation},
    plan::RoutePolicy,
    store::Checks,
    throttle::ThrottleRules,
    upstream::{
        self, Answered, Connection, Replay, Sent, Target, Upload, UploadControl, UploadError,
        UpstreamError,
        headers::{self, AddedHeaders, ForwardContext, HeaderFlags},
    },
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::Body as _;
use std::{borrow::Cow, mem, time::Duration};
use tokio::time::Instant;

/// The times that a request was sent, if it was sent more than once.
static PACEWAY_ATTEMPTS: HeaderName = HeaderName::from_static("paceway-attempts");

/// A request as its attempts at the upstream send it.
pub(super) struct Outgoing<'a> {
    /// The headers that the gateway adds.
    pub(super) added: AddedHeaders<'a>,
    /// The version of HTTP that its client speaks.
    version: Version,
    /// The state of its body; `None` if it has none.
    pub(super) upload: Option<UploadControl>,
    /// Has the body again when an attempt is over, if it is kept.
    pub(super) replay: Replay<Upload>,
}

/// The upstream's answer to one attempt, as far as it has come, and the permits that the attempt holds until it has ended.
pub(super) struct Received {
    pub(super) response: Response<upstream::ResponseBody>,
    /// The start of the body, if it was read ahead.
    pub(super) read_ahead: Option<ReadAhead>,
    pub(super) reservation: Option<Reservation>,
    pub(super) times: AttemptTimes,
    /// The special fields that its head has.
    pub(super) seen: HeaderFlags,
}

/// The times of an attempt that was answered.
#[derive(Clone, Copy)]
pub(super) struct AttemptTimes {
    /// The instant at which the request was sent.
    pub(super) sent: Instant,
    /// The time from then to the head of the answer.
    pub(super) took: Duration,
}

// === impl Proxy ===

impl Proxy {
    /// Takes the permits of a request and a connection to its upstream, and sends it at its instant.
    pub(super) async fn forward<'p>(
        &'p self,
        exchange: &mut Exchange<'p>,
        routed: &mut Routed<'p>,
        answer: &mut Response<()>,
    ) -> Result<Body, Failure> {
        if !routed.is_expected {
            exchange.arrival.request.body_mut().look_ahead().await.map_err(spoilt)?;
        }
        let own;
        let checks = match routed.fixed {
            Some(checks) => Some(checks),
            None => {
                let headers = exchange.arrival.request.headers_mut();
                headers::remove_alike(headers, &routed.policy.read_headers);
                own = exchange.checks(routed).await?;
                own.as_ref()
            }
        };
        let upstream = &self.0.upstreams[routed.policy.upstream];
        let since = exchange.record.started;
        let mut pool = FirstConnection::new(upstream, since, since + routed.budget);
        let mut granted = None;
        let connected = match checks {
            Some(checks) => {
                let (record, budget) = (&mut exchange.record, routed.budget);
                let mut attempt =
                    Attempt::first(self, record, routed.route, routed.policy, checks, budget);
                let paced = limit::pace(&self.0.store, checks, &mut attempt, &mut pool).await;
                paced.map(|(reservation, connection)| {
                    granted = Some(reservation);
                    connection
                })
            }
            None => match pool.at_hand() {
                Some(connection) => Ok(connection),
                None => pool.ready().await,
            },
        };
        exchange.record.waited_beside(pool.connecting);
        exchange.record.connected(pool.made);
        self.send(exchange, routed, checks, (&mut granted, connected?), answer).await
    }

    /// Sends a request, now that its instant has come. From here on its permits are spent. The head of the response is put
    /// into `answer`, where it stays: it is 120 bytes, which each function that returned it would copy.
    pub(super) async fn send(
        &self,
        exchange: &mut Exchange<'_>,
        routed: &mut Routed<'_>,
        checks: Option<&Checks>,
        (reservation, connection): (&mut Option<Reservation>, Connection),
        answer: &mut Response<()>,
    ) -> Result<Body, Failure> {
        let (client, seen) = (exchange.client, exchange.seen);
        let (record, request) = (&mut exchange.record, &mut exchange.arrival.request);
        if connection.is_http2() && routed.upgrade.as_ref().is_some_and(Upgrade::is_by_h2) {
            return Err(Failure::BadRequest("this upstream takes no WebSockets".into()));
        }
        let (version, upload) = (request.version(), request.body().control());
        let upgrade = routed.upgrade.take();
        let config = &self.0.plan.config.upstreams[routed.policy.upstream];
        let target = self.0.upstreams[routed.policy.upstream].target_of(&connection);
        let added = AddedHeaders::default();
        let mut outgoing = Outgoing { added, version, upload, replay: Replay::none() };
        let way = (&**client, target);
        routed.for_upstream(
            request,
            seen,
            config,
            upgrade.as_ref(),
            &record.id,
            way,
            &mut outgoing.added,
        )?;
        if upgrade.is_none() {
            outgoing.replay = self.keep_body(request, routed);
        }
        if let Some(reservation) = reservation {
            reservation.spend();
            self.count_permits(routed.policy, reservation.checks(), None);
        }
        record.sent();
        record.sent_on(&connection, request.headers_mut());
        // As in `attempt`, whose future would cost each request copies of its response.
        let hears = (version == Version::HTTP_11).then_some(client);
        let mut started = Instant::now();
        let answered = 'sent: {
            let Outgoing { added, upload, replay, .. } = &mut outgoing;
            let inform = interim::pass(hears, upload);
            let way = (started, &mut *replay);
            let sent = connection.send(request, added, way, &inform, answer).await;
            let failed = match sent {
                Ok(Sent::Answer(answered)) => break 'sent answered,
                Ok(Sent::Resend(again)) => {
                    let way = (added, replay, &mut started, &inform, &mut *answer);
                    let first = reservation.as_ref();
                    match Box::pin(self.send_again(exchange, routed, first, *again, way)).await {
                        Ok(answered) => break 'sent answered,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            return Err(unanswered(failed, upload.as_ref(), reservation.take()));
        };
        let Answered { body, seen, at } = answered;
        let times = self.answered(&mut exchange.record, routed, answer.status(), (started, at));
        if !config.throttle.rules.concerns(answer.status(), seen) {
            self.learn(routed, reservation.as_ref(), times, false);
            let (way, came) = ((&outgoing, upgrade), (&mut *answer, body, seen));
            return self.pass_on(exchange, routed, way, came, (reservation, None));
        }
        // Nearly all answers say nothing about the quota. The box keeps their way free of what the others need.
        let reservation = reservation.take();
        let response = mem::take(answer).map(|()| body);
        let received = Box::new(Received { response, read_ahead: None, reservation, times, seen });
        let heard = self.after_answer(exchange, routed, checks, &mut outgoing, received);
        let Received { response, read_ahead, mut reservation, seen, .. } = *Box::pin(heard).await?;
        let (head, body) = response.into_parts();
        *answer = Response::from_parts(head, ());
        let kept = (&mut reservation, read_ahead.map(Box::new));
        self.pass_on(exchange, routed, (&outgoing, upgrade), (answer, body, seen), kept)
    }

    /// Makes one attempt: sends the request on `connection`, and waits for the head of the response.
    pub(super) async fn attempt(
        &self,
        exchange: &mut Exchange<'_>,
        routed: &mut Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        reservation: Option<&Reservation>,
        connection: Connection,
    ) -> Result<(Response<upstream::ResponseBody>, HeaderFlags, AttemptTimes), UpstreamError> {
        let hears = (outgoing.version == Version::HTTP_11).then_some(exchange.client);
        let request = &mut exchange.arrival.request;
        exchange.record.sent_on(&connection, request.headers_mut());
        let mut started = Instant::now();
        let Outgoing { added, upload, replay, .. } = outgoing;
        let inform = interim::pass(hears, upload);
        let mut answer = Response::new(());
        let way = (started, &mut *replay);
        let sent = connection.send(request, added, way, &inform, &mut answer).await?;
        let Answered { body, seen, at } = match sent {
            Sent::Answer(answered) => answered,
            Sent::Resend(again) => {
                let way = (added, replay, &mut started, &inform, &mut answer);
                Box::pin(self.send_again(exchange, routed, reservation, *again, way)).await?
            }
        };
        let times = self.answered(&mut exchange.record, routed, answer.status(), (started, at));
        Ok((answer.map(|()| body), seen, times))
    }

    /// Counts an answer with `status` to an attempt that was sent at `sent`, whose head was there at `at`.
    fn answered(
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        status: StatusCode,
        (sent, at): (Instant, Instant),
    ) -> AttemptTimes {
        let took = at.saturating_duration_since(sent);
        record.took(took);
        if let Some(trace) = &mut record.trace {
            trace.answered(status);
        }
        let own = &self.counters().upstreams[routed.policy.upstream];
        own.seconds.record(took);
        own.statuses.count(status);
        AttemptTimes { sent, took }
    }

    /// Makes the upstream's answer the client's: changes its head, and returns its body.
    #[inline(always)]
    fn pass_on(
        &self,
        exchange: &mut Exchange<'_>,
        routed: &Routed<'_>,
        (outgoing, upgrade): (&Outgoing<'_>, Option<Upgrade>),
        (response, body, seen): (&mut Response<()>, upstream::ResponseBody, HeaderFlags),
        (reservation, read_ahead): (&mut Option<Reservation>, Option<Box<ReadAhead>>),
    ) -> Result<Body, Failure> {
        let Exchange { record, client, closes, .. } = exchange;
        let switched = Switched::from(upgrade, response).map_err(Failure::Upstream)?;
        let is_h2 = response.version() == Version::HTTP_2;
        let settling = match reservation {
            Some(reservation) if routed.policy.settles => {
                self.settling(routed, reservation, response)
            }
            _ => None,
        };
        for_client(routed.policy, record, seen, response);
        let lease = reservation.take_if(|reservation| reservation.is_lease()).map(Box::new);
        if let Some(switched) = switched {
            switched.answer(response);
            let is_websocket = switched.is_websocket();
            // Only such an answer switches.
            let tunnel =
                body.tunnel().ok_or(Failure::Upstream(UpstreamError::Invalid("a switch")))?;
            self.0.tunnels.begin(
                (switched.client, tunnel),
                is_websocket,
                lease,
                &self.0.plan.routes[routed.route].tunnels,
            );
            return Ok(Body::empty());
        }
        let unasked = outgoing.upload.as_ref().and_then(UploadControl::answered);
        if unasked.is_some() && outgoing.version < Version::HTTP_2 {
            // The next bytes of the client may be its body, or another request.
            *closes = true;
        }
        let mut body = Body::streamed(body, is_h2, || client.leaving());
        body.keep(lease, unasked);
        if let Some(start) = read_ahead {
            body = body.after(*start);
        }
        if let Some(settling) = settling {
            body = body.settling(settling);
        }
        Ok(body)
    }
}

// === impl Received ===

impl Received {
    /// Whether the answer may be a refusal, or say what remains of a quota.
    pub(super) fn says_something(&self, rules: &ThrottleRules) -> bool {
        rules.concerns(self.response.status(), self.seen)
    }
}

// === impl Routed ===

impl Routed<'_> {
    /// Makes the request one for its upstream, and puts the headers that the gateway adds into `own`.
    fn for_upstream<'h>(
        &mut self,
        request: &mut Request<Upload>,
        seen: HeaderFlags,
        config: &config::Upstream,
        upgrade: Option<&Upgrade>,
        id: &HeaderValue,
        (client, target): (&'h Client, &'h Target),
        own: &mut AddedHeaders<'h>,
    ) -> Result<(), Failure> {
        let authority = request.uri().authority();
        let authority = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let way = ForwardContext {
            peer: &client.forwarded_for,
            port: &client.port,
            is_tls: client.is_tls,
            is_trusted: client.is_trusted,
            version: request.version(),
            replaces_host: authority.is_some(),
            host: authority.or_else(|| self.host.take()),
            upstream_host: &target.host,
            preserve_host: config.preserve_host,
            forwarded: config.forwarded,
            is_open: !request.body().is_end_stream(),
            is_options: *request.method() == Method::OPTIONS,
        };
        headers::to_upstream(request.headers_mut(), seen, way, own);
        own.set(&X_REQUEST_ID, Cow::Owned(id.clone()));
        let rules = self.policy.rules.as_ref().into_iter().flatten().map(|rules| &rules.request);
        if upgrade.is_some() || rules.clone().any(|rules| !rules.is_empty()) {
            own.merge_into(request.headers_mut());
            rules.for_each(|rules| rules.apply(request.headers_mut()));
        }
        // Most are as they came.
        if !target.base.is_empty() || request.uri().authority().is_some() {
            let uri = target.uri(request.uri().path_and_query());
            *request.uri_mut() = uri.ok_or(Failure::BadRequest("the path is too long".into()))?;
        }
        *request.version_mut() = Version::HTTP_11;
        if let Some(upgrade) = upgrade {
            upgrade.ask(request.headers_mut());
        }
        Ok(())
    }
}

/// Makes the head of the upstream's response one for the client.
fn for_client(
    policy: &RoutePolicy,
    record: &Record<'_>,
    seen: HeaderFlags,
    response: &mut Response<()>,
) {
    let version = mem::replace(response.version_mut(), Version::HTTP_11);
    let status = response.status();
    let headers: &mut HeaderMap = response.headers_mut();
    headers::to_client(headers, seen, version);
    // An id that the upstream sends stays.
    if !(seen.has(HeaderFlags::REQUEST_ID) && headers.contains_key(&X_REQUEST_ID)) {
        headers.append(&X_REQUEST_ID, record.id.clone());
    }
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("upstream"));
    }
    if record.attempts > 1 {
        headers.insert(&PACEWAY_ATTEMPTS, HeaderValue::from(record.attempts));
    }
    record.tell(headers);
    policy.rules.as_ref().into_iter().flatten().for_each(|rules| rules.response.apply(headers));
}

/// Why there is no answer. If nothing was sent, the permits are refunded.
pub(super) fn unanswered(
    error: UpstreamError,
    upload: Option<&UploadControl>,
    reservation: Option<Reservation>,
) -> Failure {
    if let Some(fault) = upload.and_then(UploadControl::error) {
        return spoilt(fault);
    }
    if error.is_unsent()
        && let Some(reservation) = reservation
    {
        reservation.refund();
    }
    Failure::Upstream(error)
}

/// The failure of a request whose body broke, grew too large or stalled, or whose client left within it.
pub(crate) fn spoilt(fault: UploadError) -> Failure {
    match fault {
        UploadError::Malformed => Failure::Malformed(fault.to_string().into()),
        UploadError::TooLarge => Failure::TooLarge(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body is larger than it may be".into(),
        ),
        UploadError::Trailers => Failure::TooLarge(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "the trailers are larger than headers may be".into(),
        ),
        UploadError::Slow => Failure::BodyTimeout,
        UploadError::NoRoom => Failure::TooManyBodies,
        UploadError::ClientGone | UploadError::Unwanted => Failure::ClientLeft,
    }
}
