//! Drives one client connection that speaks HTTP to its end. Knows nothing of routes and limits.

use super::{
    client_timer::{ClientTimer, REST},
    context::ConnectionContext,
    edge::{ClientStream, ClientWait, Edge, serialized},
    http2::{self, PiecedBody, Streams},
    phase::{LINGER, Phase},
    tracked_body::TrackedBody,
    unread_body::{DISCARDED, FollowedBody},
};
use crate::{
    answer::Failure,
    metrics::Refusal,
    proxy::{Arrival, Client, Ending, Replied},
    services,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use hyper::{
    body::Incoming,
    server::conn::{
        http1::{self, UpgradeableConnection},
        http2::Connection,
    },
    service::service_fn,
};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The most headers that hyper's parser takes by default.
const HYPER_HEADERS: usize = 100;

/// Drives one client connection that speaks HTTP.
pub(super) struct ConnectionDriver {
    context: Arc<ConnectionContext>,
    client: Arc<Client>,
    stream: Arc<ClientStream>,
    /// An empty table of headers with the room of the last request's, for the head of the next answer.
    spare: Mutex<HeaderMap>,
}

/// How a connection came to its end.
enum ConnectionEnd {
    /// The parser is done: the client closed, an error occurred, or the connection became a tunnel.
    Over(hyper::Result<()>),
    /// The client exceeded a time-out; the value says which one.
    Late(ClientWait),
    /// The drain is over.
    Aborted,
}

// === impl ConnectionDriver ===

impl ConnectionDriver {
    pub(super) fn new(
        context: Arc<ConnectionContext>,
        client: Arc<Client>,
        stream: Arc<ClientStream>,
    ) -> Arc<Self> {
        Arc::new(Self { context, client, stream, spare: Mutex::default() })
    }

    /// Serves HTTP/1 requests, one after the other. Half a second after a response the connection gives its buffers back;
    /// with the next byte it gets a new parser.
    pub(super) async fn http1(self: Arc<Self>) {
        let idle = self.context.client().idle_timeout;
        // The requests so far, and the end of the idle time that began after the last one. Empty lines do not extend it.
        let mut rests: Option<(u32, Instant)> = None;
        let end = loop {
            match self.parse_http1().await {
                ConnectionEnd::Late(ClientWait::Rest) => {}
                end => break end,
            }
            let requests = self.stream.requests();
            let until = match rests {
                Some((same, until)) if same == requests => until,
                _ => Instant::now() + idle.saturating_sub(REST),
            };
            rests = Some((requests, until));
            if let Some(end) = Box::pin(self.rest(until)).await {
                break end;
            }
        };
        // The parser is dropped by now, and with it the request and all that was held for it. The futures below are in
        // boxes, so that an idle connection is not as large as the largest way to end.
        match end {
            ConnectionEnd::Over(_) if self.stream.is_http1() => Box::pin(self.close()).await,
            ConnectionEnd::Over(_) | ConnectionEnd::Aborted => {}
            ConnectionEnd::Late(ClientWait::Head) => Box::pin(self.refuse_late_head()).await,
            ConnectionEnd::Late(wait) => self.count_late(wait),
        }
    }

    /// Parses and answers requests until the client has sent its last one, or sends none for half a second.
    async fn parse_http1(self: &Arc<Self>) -> ConnectionEnd {
        let driver = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let unread = driver.stream.begin(&request);
            let request = request.map(|body| FollowedBody::new(body, unread));
            driver.clone().answer(Arrival::new(request))
        });
        let limits = self.context.plan().config.limits;
        let mut builder = http1::Builder::new();
        builder.header_read_timeout(None).max_header_size(limits.header_bytes);
        // hyper would keep a buffer for each request, only to notice that the client has left. `ClientStream` notices it
        // without one.
        builder.half_close(true);
        // An explicit number costs every request a little, even where it equals hyper's default.
        if limits.headers != HYPER_HEADERS {
            builder.max_headers(limits.headers);
        }
        let connection = builder.serve_connection(Edge(self.stream.clone()), service);
        let connection = pin!(connection.with_upgrades());
        let close =
            |connection: Pin<&mut UpgradeableConnection<_, _>>| connection.graceful_shutdown();
        let timer = ClientTimer::new(self.context.client());
        self.drive(connection, timer, close, Phase::ClosingIdle, |cx| self.stream.waits(cx)).await
    }

    /// Waits, without buffers, for the next byte. Returns the end of the connection if none comes before `until`.
    async fn rest(&self, until: Instant) -> Option<ConnectionEnd> {
        self.stream.rest();
        drop(mem::take(&mut *self.spare.lock()));
        let mut phases = self.context.phases.clone();
        tokio::select! {
            biased;
            () = self.stream.readable() => None,
            _ = phases.wait_for(|now| *now >= Phase::ClosingIdle) => {
                Some(ConnectionEnd::Over(Ok(())))
            }
            () = sleep_until(until) => Some(ConnectionEnd::Late(ClientWait::Rest)),
        }
    }

    #[expect(clippy::manual_async_fn, reason = "an `async fn` copies its arguments once more")]
    fn answer(
        self: Arc<Self>,
        mut arrival: Arrival,
    ) -> impl Future<Output = Result<Response<TrackedBody>, Infallible>> {
        async move {
            let proxy = self.context.proxy.load();
            let mut head = Response::new(());
            mem::swap(head.headers_mut(), &mut self.spare.lock());
            let Replied { body, ending } = match self.context.service {
                None => proxy.answer(&self.client, &mut arrival, &mut head).await,
                Some(own) => {
                    Box::pin(services::serve_call(
                        own,
                        &proxy,
                        &self.client,
                        &mut arrival,
                        &mut head,
                    ))
                    .await
                }
            };
            let headers = arrival.request.headers_mut();
            headers.clear();
            mem::swap(headers, &mut self.spare.lock());
            let can_go_on = self.stream.answered(ending != Ending::Open);
            if ending == Ending::ClientGone {
                self.stream.abandon();
            }
            if head.status() == StatusCode::SWITCHING_PROTOCOLS {
                self.stream.becomes_tunnel();
            } else if !can_go_on || self.context.draining.load(Relaxed) {
                head.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(head.map(|()| TrackedBody::new(body, self.stream.clone())))
        }
    }

    /// Serves HTTP/2 requests, up to 128 at one time.
    pub(super) async fn http2(self: Arc<Self>) {
        let streams = Streams::new(self.context.client().body_timeout);
        // The window returns to the budget after the streams have ended and released the bytes in it.
        let window = self.context.connections.windows.grant();
        let end = {
            let driver = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let (driver, mut arrival) = (driver.clone(), Arrival::new(request));
                async move {
                    let proxy = driver.context.proxy.load();
                    let mut head = Response::new(());
                    let Replied { body, .. } = match driver.context.service {
                        None => proxy.answer(&driver.client, &mut arrival, &mut head).await,
                        Some(own) => {
                            Box::pin(services::serve_call(
                                own,
                                &proxy,
                                &driver.client,
                                &mut arrival,
                                &mut head,
                            ))
                            .await
                        }
                    };
                    Ok::<_, Infallible>(head.map(|()| PiecedBody::new(body)))
                }
            });
            let limits = self.context.plan().config.limits;
            let builder = http2::builder(streams.clone(), &limits, &window);
            let mut connection = pin!(builder.serve_connection(Edge(self.stream.clone()), service));
            let close = |connection: Pin<&mut Connection<_, _, _>>| connection.graceful_shutdown();
            let waits = |cx: &mut Context<'_>| match self.stream.waits(cx) {
                (ClientWait::Start | ClientWait::Request, _) if !streams.poll_none(cx) => {
                    (ClientWait::Nothing, 0)
                }
                waits => waits,
            };
            let timer = ClientTimer::new(self.context.client());
            let end = self.drive(connection.as_mut(), timer, close, Phase::Draining, waits).await;
            if let ConnectionEnd::Late(ClientWait::Start | ClientWait::Request) = end {
                // An idle client receives GOAWAY, and may begin no stream after it.
                close(connection.as_mut());
                let _ = timeout(LINGER, connection).await;
            }
            end
        };
        match end {
            ConnectionEnd::Late(wait) => self.count_late(wait),
            ConnectionEnd::Over(Err(error)) if is_offence(&error) => {
                self.context.connections.refuse(Refusal::Http2);
            }
            ConnectionEnd::Over(_) | ConnectionEnd::Aborted => {}
        }
        streams.end().await;
    }

    /// Polls the parser and the time-outs until the connection ends. From `phase` on it begins to `close` the connection,
    /// and in [`Phase::Aborting`] it returns.
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        &self,
        mut connection: Pin<&mut C>,
        mut timer: ClientTimer,
        close: impl Fn(Pin<&mut C>),
        mut phase: Phase,
        waits: impl Fn(&mut Context<'_>) -> (ClientWait, u32),
    ) -> ConnectionEnd {
        let (mut phases, seen) = (self.context.phases.clone(), self.context.phases.clone());
        loop {
            let mut is_reached = pin!(phases.wait_for(move |now| *now >= phase));
            let mut is_watched = false;
            let end = poll_fn(|cx| {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(Some(ConnectionEnd::Over(ended)));
                }
                // Polled once, it wakes this task when the phase changes. Polling it each time would cost every request.
                if !is_watched || seen.has_changed().unwrap_or(true) {
                    is_watched = true;
                    if is_reached.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                }
                let waits = waits(cx);
                timer.poll(cx, waits).map(|wait| Some(ConnectionEnd::Late(wait)))
            });
            if let Some(end) = end.await {
                return end;
            }
            if phase == Phase::Aborting {
                return ConnectionEnd::Aborted;
            }
            close(connection.as_mut());
            timer.hurry();
            phase = Phase::Aborting;
        }
    }

    /// Closes an HTTP/1 connection after its parser ended, and logs a request that the parser refused. If the client may
    /// still be sending, its bytes are read until it pauses for 1 s, so that it receives the answer instead of a reset.
    async fn close(&self) {
        let refused = self.stream.refused();
        if let Some(status) = refused {
            self.context.proxy.load().unparsed(self.client.ip, status);
        }
        let is_sending =
            refused.is_some() || self.stream.is_sending() || self.stream.has_unread_input();
        if !is_sending {
            return;
        }
        let mut phases = self.context.phases.clone();
        let (most, limit) = DISCARDED;
        tokio::select! {
            _ = timeout(limit, self.stream.close(most, LINGER)) => {}
            () = async {
                let _ = phases.wait_for(|now| *now >= Phase::ClosingIdle).await;
                sleep(LINGER).await;
            } => {}
        }
    }

    /// Answers 408 and closes: the rest of a request's head did not arrive within `header_timeout`.
    async fn refuse_late_head(&self) {
        let failure = Failure::HeadTimeout.response();
        self.context.connections.refuse(Refusal::HeaderTimeout);
        self.context.proxy.load().unparsed(self.client.ip, failure.status());
        let answered = async {
            if self.stream.write_own(&serialized(&failure, None)).await.is_ok() {
                self.stream.close(DISCARDED.0, LINGER).await;
            }
        };
        let _ = timeout(LINGER, answered).await;
    }

    /// Counts a connection that ends because its client exceeded a time-out. An idle one is no refusal.
    fn count_late(&self, wait: ClientWait) {
        match wait {
            ClientWait::Start | ClientWait::Head => {
                self.context.connections.refuse(Refusal::HeaderTimeout);
            }
            ClientWait::Write => {
                self.stream.reset();
                self.context.connections.refuse(Refusal::Stalled);
            }
            ClientWait::Body | ClientWait::Request | ClientWait::Rest | ClientWait::Nothing => {}
        }
    }
}

/// Whether h2 ended the connection because of the frames that the client sent, a flood of resets for example.
fn is_offence(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| error.is_library() && !error.is_io())
}
