//! The exchange with the upstream: the client's request on a connection, and what came back as the client gets it.

use super::{
    Body, Exchange, Routed,
    attempt::Attempt,
    client_head::for_client,
    connecting::FirstConnection,
    interim::ClientSide,
    outgoing::{AttemptTimes, Outgoing, Received, spoilt},
    read_ahead::ReadAhead,
    reading::{OthersWaiting, PendingRead, ReadStart},
    request_id::X_REQUEST_ID,
    settling::Settling,
    upgrade::{Switched, Upgrade},
};
use crate::{
    answer::Failure,
    limit::{self, Callee},
    store::{Checks, Question},
    upstream::{
        Answered, Connection, RequestExtras, Sent, Target, UploadControl, UpstreamError,
        headers::{self, ForwardContext, HeaderFlags},
    },
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use http_body::Body as _;
use std::{borrow::Cow, mem};
use tokio::time::Instant;

// === impl Exchange ===

impl<'a> Exchange<'a> {
    /// Takes the permits of a request and a connection to its upstream, and sends it at its instant. The head of the response
    /// is put into `answer`, where it stays: it is 120 bytes, which each function that returned it would copy.
    pub(super) async fn forward(
        &mut self,
        routed: &mut Routed<'a>,
        answer: &mut Response<()>,
        others: &OthersWaiting,
    ) -> Result<Body, Failure> {
        if !routed.is_expected {
            self.arrival.request.body_mut().look_ahead().await.map_err(spoilt)?;
        }
        let own: Option<Question>;
        let mut accounts = None;
        let checks = match routed.fixed {
            Some(checks) => Some(checks),
            None => {
                let headers = self.arrival.request.headers_mut();
                headers::remove_alike(headers, &routed.policy.read_headers);
                own = self.checks(routed).await?;
                accounts = self.open_accounts(routed, own.as_ref()).await?;
                own.as_ref().map(Question::first)
            }
        };
        let read = match &routed.policy.reads {
            None => None,
            Some(policy) => {
                match Box::pin(self.begin_read(routed, policy, checks, answer, others)).await? {
                    ReadStart::Answered(body) => return Ok(body),
                    ReadStart::Asks(read) => read,
                }
            }
        };
        if let Some(accounts) = accounts {
            return Box::pin(self.forward_among(routed, checks, accounts, read, answer)).await;
        }
        let proxy = self.proxy;
        let own_pool = routed.pool.take();
        let upstream = own_pool.as_ref().unwrap_or(&proxy.0.upstreams[routed.policy.upstream]);
        let since = self.record.started;
        let mut pool = FirstConnection::new(upstream, since, since + routed.budget);
        let client = ClientSide::of(self.client, &self.arrival.request);
        let mut outgoing = Outgoing::new(checks, upstream, client, since, read);
        let connected = match checks {
            Some(checks) => {
                let mut attempt = self.first_attempt(routed, checks, outgoing.read.as_deref());
                let paced = limit::pace(&proxy.0.store, checks, &mut attempt, &mut pool).await;
                paced.map(|(reservation, connection)| {
                    outgoing.reservation = Some(reservation);
                    connection
                })
            }
            None => match pool.at_hand() {
                Some(connection) => Ok(connection),
                None => pool.ready().await,
            },
        };
        self.record.end_wait_connecting(pool.connecting);
        self.record.connected(pool.made);
        self.send(routed, &mut outgoing, connected?, answer).await
    }

    /// The first attempt of a request.
    #[inline(always)]
    pub(super) fn first_attempt<'r>(
        &'r mut self,
        routed: &Routed<'a>,
        checks: &'r Checks,
        read: Option<&'r PendingRead>,
    ) -> Attempt<'r, 'a> {
        let (record, policy) = (&mut self.record, routed.policy);
        let attempt =
            Attempt::first(self.proxy, record, routed.route, policy, checks, routed.budget);
        match read {
            Some(read) => read.lead_attempt(attempt),
            None => attempt,
        }
    }

    /// Sends a request, now that its instant has come. From here on its permits are spent.
    pub(super) async fn send<'h>(
        &mut self,
        routed: &mut Routed<'a>,
        outgoing: &mut Outgoing<'h>,
        connection: Connection,
        answer: &mut Response<()>,
    ) -> Result<Body, Failure>
    where
        'a: 'h,
    {
        if connection.is_http2() && routed.upgrade.as_ref().is_some_and(Upgrade::is_by_h2) {
            return Err(Failure::BadRequest("this upstream takes no WebSockets".into()));
        }
        let target = outgoing.upstream.target_of(&connection);
        self.address(routed, target, outgoing)?;
        if routed.upgrade.is_none() {
            outgoing.extras.replay = self.keep_body(routed);
        }
        self.spend(routed, outgoing);
        self.record.note_sent();
        if let Some(read) = &outgoing.read {
            if let Some(lead) = read.lead() {
                lead.sends();
            }
            self.send_read(routed, outgoing);
        }
        let answered = match self.attempt(routed, outgoing, connection, answer).await {
            Ok(answered) => answered,
            Err(error) => return Err(outgoing.fail(error)),
        };
        let status = answer.status();
        let is_of_account =
            outgoing.accounts.as_ref().is_some_and(|accounts| accounts.concerns(status));
        if !is_of_account && !self.throttle(routed).rules.concerns(status, answered.seen) {
            self.learn(routed, outgoing, false);
            return self.pass_on(routed, outgoing, answered, None, answer);
        }
        // Nearly all answers say nothing about the quota. The box keeps their way free of what the others need.
        let received = Box::new(Received { head: mem::take(answer), answered, read_ahead: None });
        let heard = self.after_answer(routed, outgoing, received);
        let Received { head, answered, read_ahead } = *Box::pin(heard).await?;
        *answer = head;
        self.pass_on(routed, outgoing, answered, read_ahead.map(Box::new), answer)
    }

    /// Makes one attempt: sends the request on `connection`, and waits for the head of the response.
    pub(super) async fn attempt(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        connection: Connection,
        answer: &mut Response<()>,
    ) -> Result<Answered, UpstreamError> {
        let request = &mut self.arrival.request;
        self.record.sent_on(&connection, request.headers_mut());
        if let Some(accounts) = &outgoing.accounts {
            accounts.count_sent();
        }
        outgoing.times.sent = Instant::now();
        outgoing.client.begin();
        let Outgoing { extras, client, times, .. } = &mut *outgoing;
        let inform = |status: StatusCode, headers: HeaderMap| client.inform(status, headers);
        let answered = match connection.send(request, extras, times.sent, &inform, answer).await? {
            Sent::Answer(answered) => answered,
            Sent::Resend(again) => Box::pin(self.resend(routed, outgoing, *again, answer)).await?,
        };
        self.count_answer(routed, &mut outgoing.times, answer.status(), answered.at);
        Ok(answered)
    }

    /// Spends the permits of an attempt.
    pub(super) fn spend(&self, routed: &Routed<'_>, outgoing: &mut Outgoing<'_>) {
        if let Some(reservation) = &mut outgoing.reservation {
            reservation.spend();
            self.proxy.count_permits(routed.policy, reservation.checks(), None);
        }
    }

    /// Counts an answer with `status`, whose head was there `at` that instant.
    fn count_answer(
        &mut self,
        routed: &Routed<'_>,
        times: &mut AttemptTimes,
        status: StatusCode,
        at: Instant,
    ) {
        times.took = at.saturating_duration_since(times.sent);
        self.record.took(times.took);
        if let Some(trace) = &mut self.record.trace {
            trace.answered(status);
        }
        let own = &self.proxy.counters().upstreams[routed.policy.upstream];
        own.seconds.record(times.took);
        own.statuses.count(status);
    }

    /// Makes the request one for `target`, and puts the headers that the gateway adds into `own`.
    fn address<'h>(
        &mut self,
        routed: &mut Routed<'a>,
        target: &'h Target,
        outgoing: &mut Outgoing<'h>,
    ) -> Result<(), Failure>
    where
        'a: 'h,
    {
        let Outgoing { extras: RequestExtras { added: own, .. }, accounts, .. } = outgoing;
        let config = self.upstream_config(routed);
        let (client, seen, request) = (self.client, self.seen, &mut self.arrival.request);
        let authority = request.uri().authority();
        let authority = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let is_unseen = client.forward.as_ref().is_some_and(|forward| forward.is_for_command());
        let context = ForwardContext {
            peer: &client.forwarded_for,
            port: &client.port,
            is_tls: client.is_tls,
            is_trusted: client.is_trusted,
            version: request.version(),
            replaces_host: authority.is_some(),
            host: authority.or_else(|| routed.host.take()),
            upstream_host: &target.host,
            preserve_host: config.preserve_host,
            forwarded: config.forwarded,
            is_unseen,
            is_open: !request.body().is_end_stream(),
            is_options: *request.method() == Method::OPTIONS,
        };
        headers::to_upstream(request.headers_mut(), seen, context, own);
        if !is_unseen {
            own.set(&X_REQUEST_ID, Cow::Owned(self.record.id.clone()));
        }
        let rules = routed.policy.rules.as_ref().into_iter().flatten().map(|rules| &rules.request);
        if routed.upgrade.is_some() || rules.clone().any(|rules| !rules.is_empty()) {
            own.merge_into(request.headers_mut());
            rules.for_each(|rules| rules.apply(request.headers_mut()));
        }
        if let Some(accounts) = accounts {
            own.merge_into(request.headers_mut());
            accounts.sign(request);
            accounts.keep_uri(request.uri());
        }
        // A client of the forward proxy has written the base path itself. Most other requests are as they came, too.
        let base = if client.forward.is_some() { "" } else { &target.base };
        if !base.is_empty() || request.uri().authority().is_some() {
            let uri = Target::uri_below(base, request.uri().path_and_query());
            *request.uri_mut() = uri.ok_or(Failure::BadRequest("the path is too long".into()))?;
        }
        *request.version_mut() = Version::HTTP_11;
        if let Some(upgrade) = &routed.upgrade {
            upgrade.ask(request.headers_mut());
        }
        Ok(())
    }

    /// Makes the upstream's answer the client's: changes its head, and returns its body.
    #[inline(always)]
    fn pass_on(
        &mut self,
        routed: &mut Routed<'_>,
        outgoing: &mut Outgoing<'_>,
        answered: Answered,
        read_ahead: Option<Box<ReadAhead>>,
        response: &mut Response<()>,
    ) -> Result<Body, Failure> {
        let Answered { body, seen, .. } = answered;
        let switched =
            Switched::from(routed.upgrade.take(), response).map_err(Failure::Upstream)?;
        let is_h2 = response.version() == Version::HTTP_2;
        let (plan, reservation) = (&self.proxy.0.plan, &mut outgoing.reservation);
        let settling = match reservation {
            Some(reservation) if routed.policy.settles => {
                let body_length = routed.body_length;
                Settling::begin(plan, routed.policy, reservation, response, body_length)
            }
            _ => None,
        };
        let checks = outgoing.checks;
        let read = outgoing.read.take();
        let read = read.map(|read| self.hear_read(routed, checks, *read, response));
        let seen = match read {
            Some(_) => HeaderFlags::of_response(response.headers()),
            None => seen,
        };
        let is_forward = self.client.forward.is_some();
        for_client(routed.policy, &self.record, seen, is_forward, response);
        let lease = reservation.take_if(|reservation| reservation.is_lease()).map(Box::new);
        if let Some(switched) = switched {
            switched.answer(response);
            let is_websocket = switched.is_websocket();
            // Only such an answer switches.
            let tunnel =
                body.tunnel().ok_or(Failure::Upstream(UpstreamError::Invalid("a switch")))?;
            let gauge = &plan.routes[routed.route].tunnels;
            self.proxy.0.tunnels.begin(switched.client, tunnel, is_websocket, lease, gauge);
            return Ok(Body::empty());
        }
        let unasked = outgoing.client.upload.as_ref().and_then(UploadControl::answered);
        if unasked.is_some() && !self.is_http2 {
            // The next bytes of the client may be its body, or another request.
            self.closes = true;
        }
        let mut body = Body::streamed(body, is_h2, || self.client.leaving());
        body.keep(lease, unasked);
        if let Some(start) = read_ahead {
            body = body.after(*start);
        }
        if let Some(read) = read {
            return Ok(read.finish(body, settling, self.client));
        }
        if let Some(settling) = settling {
            body = body.settling(settling);
        }
        Ok(body)
    }
}
