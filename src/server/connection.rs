//! A connection that speaks HTTP, to its end. Knows nothing of routes and limits.

use super::{
    LINGER, Phase,
    clock::{Clock, REST},
    door::Door,
    edge::{Edge, Stream, Wait, serialized},
    http2::{self, Pieces, Streams},
};
use crate::{
    answer::Failure,
    config::Limits,
    metrics::Refusal,
    proxy::{Body, BodyError, Client, ClientGone},
};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header::CONNECTION};
use http_body::{Frame, SizeHint};
use hyper::{
    body::Incoming,
    server::conn::{
        http1::{self, UpgradeableConnection},
        http2::Connection,
    },
    service::service_fn,
};
use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};
use tokio::time::{Instant, sleep_until, timeout};

/// Of a request that was refused, still under way: so much is taken while the client hears of it.
const LAST_WORDS: usize = 4 << 20;

/// A connection that speaks HTTP.
pub(super) struct Served {
    door: Arc<Door>,
    client: Arc<Client>,
    stream: Arc<Stream>,
    /// A request was refused, and the connection with it.
    refused: AtomicBool,
}

/// How a connection came to its end.
enum End {
    /// The parser has no more to do.
    Over(hyper::Result<()>),
    /// The client kept us waiting.
    Late(Wait),
    /// The gateway stops.
    Aborted,
}

/// The body of a response; tells the connection when it has ended.
struct Watched {
    body: Body,
    /// Why there is no more.
    cut: Option<BodyError>,
    served: Arc<Served>,
}

// === impl Served ===

impl Served {
    pub(super) fn new(door: Arc<Door>, client: Arc<Client>, stream: Arc<Stream>) -> Arc<Self> {
        Arc::new(Self { door, client, stream, refused: AtomicBool::new(false) })
    }

    pub(super) async fn http1(self: Arc<Self>) {
        let idle = self.door.client().idle_timeout;
        // What is no request does not make it less idle.
        let mut rests: Option<(u32, Instant)> = None;
        let end = loop {
            match self.parsed().await {
                End::Late(Wait::Rest) => {}
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
        // The connection is gone, and with it its request and all that was held for it.
        match end {
            // No connection should be larger for how some of them end.
            End::Over(_) if self.stream.is_heeded() => Box::pin(self.part()).await,
            End::Over(_) | End::Aborted => {}
            End::Late(Wait::Head) => Box::pin(self.give_up()).await,
            End::Late(wait) => self.late(wait),
        }
    }

    /// Requests, until there is none any more, and the parser holds nothing.
    async fn parsed(self: &Arc<Self>) -> End {
        let served = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            served.stream.begin(&request);
            served.clone().answer(request)
        });
        let limits = &self.door.plan.config.limits;
        let mut builder = http1::Builder::new();
        builder.header_read_timeout(None).max_header_size(limits.header_bytes);
        // Whether the client has left while it is being answered is looked after without a buffer to read into.
        builder.half_close(true);
        // Any other number costs every request a little.
        if limits.headers != Limits::default().headers {
            builder.max_headers(limits.headers);
        }
        let connection = builder.serve_connection(Edge(self.stream.clone()), service);
        let connection = pin!(connection.with_upgrades());
        let close =
            |connection: Pin<&mut UpgradeableConnection<_, _>>| connection.graceful_shutdown();
        let clock = Clock::new(self.door.client());
        self.drive(connection, clock, close, Phase::ClosingIdle, |cx| self.stream.waits(cx)).await
    }

    /// Nothing, until more comes or it is too late for that: then it is the end.
    async fn rest(&self, until: Instant) -> Option<End> {
        self.stream.rest();
        let mut phases = self.door.phases.clone();
        tokio::select! {
            biased;
            () = self.stream.more() => None,
            _ = phases.wait_for(|now| *now >= Phase::ClosingIdle) => Some(End::Over(Ok(()))),
            () = sleep_until(until) => Some(End::Late(Wait::Rest)),
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Watched>, Infallible> {
        let proxy = &self.door.proxy;
        let mut begun = proxy.begin(&self.client, request);
        let mut response = proxy.answer(&self.client, &mut begun).await;
        drop(begun);
        if response.extensions().get::<ClientGone>().is_some() {
            self.stream.abandon();
        } else if !response.status().is_success() && response.headers().contains_key(CONNECTION) {
            self.refused.store(true, Relaxed);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            self.stream.becomes_tunnel();
        } else if self.door.draining.load(Relaxed) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.stream.answered();
        Ok(response.map(|body| Watched { body, cut: None, served: self }))
    }

    pub(super) async fn http2(self: Arc<Self>) {
        let streams = Streams::new(self.door.client().body_timeout);
        // Given back when the streams have ended, and with them what they held.
        let window = self.door.seats.windows.grant();
        let end = {
            let served = self.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let served = served.clone();
                async move {
                    let proxy = &served.door.proxy;
                    let mut begun = proxy.begin(&served.client, request);
                    let response = proxy.answer(&served.client, &mut begun).await;
                    Ok::<_, Infallible>(response.map(Pieces::of))
                }
            });
            let builder = http2::builder(streams.clone(), &self.door.plan.config.limits, &window);
            let mut connection = pin!(builder.serve_connection(Edge(self.stream.clone()), service));
            let close = |connection: Pin<&mut Connection<_, _, _>>| connection.graceful_shutdown();
            let waits = |cx: &mut Context<'_>| match self.stream.waits(cx) {
                (Wait::Start | Wait::Request, _) if !streams.poll_none(cx) => (Wait::Nothing, 0),
                waits => waits,
            };
            let clock = Clock::new(self.door.client());
            let end = self.drive(connection.as_mut(), clock, close, Phase::Draining, waits).await;
            if let End::Late(Wait::Start | Wait::Request) = end {
                // It is told so; that nothing more comes of it is not its choice.
                close(connection.as_mut());
                let _ = timeout(LINGER, connection).await;
            }
            end
        };
        match end {
            End::Late(wait) => self.late(wait),
            End::Over(Err(error)) if is_offence(&error) => self.door.seats.refuse(Refusal::Http2),
            End::Over(_) | End::Aborted => {}
        }
        streams.end().await;
    }

    /// Drives a connection to its end; from `phase` on towards it.
    async fn drive<C: Future<Output = hyper::Result<()>>>(
        &self,
        mut connection: Pin<&mut C>,
        mut clock: Clock,
        close: impl Fn(Pin<&mut C>),
        mut phase: Phase,
        waits: impl Fn(&mut Context<'_>) -> (Wait, u32),
    ) -> End {
        let (mut phases, seen) = (self.door.phases.clone(), self.door.phases.clone());
        loop {
            let mut is_time = pin!(phases.wait_for(move |now| *now >= phase));
            let mut is_heard = false;
            let end = poll_fn(|cx| {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(Some(End::Over(ended)));
                }
                // It wakes this task once asked. To ask each time would be work for each request.
                if !is_heard || seen.has_changed().unwrap_or(true) {
                    is_heard = true;
                    if is_time.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                }
                let waits = waits(cx);
                clock.poll(cx, waits).map(|wait| Some(End::Late(wait)))
            });
            if let Some(end) = end.await {
                return end;
            }
            if phase == Phase::Aborting {
                return End::Aborted;
            }
            close(connection.as_mut());
            clock.hurry();
            phase = Phase::Aborting;
        }
    }

    /// The last of a connection that its parser has done with.
    async fn part(&self) {
        let refused = self.stream.refused();
        if let Some(status) = refused {
            self.door.proxy.unparsed(&self.client, status);
        }
        let is_told = refused.is_some() || self.refused.load(Relaxed) || self.stream.is_unread();
        if is_told && *self.door.phases.borrow() < Phase::ClosingIdle {
            let _ = timeout(LINGER, self.stream.close(LAST_WORDS)).await;
        }
    }

    /// The rest of a head does not come.
    async fn give_up(&self) {
        let failure = Failure::HeadTimeout.response();
        self.door.seats.refuse(Refusal::HeaderTimeout);
        self.door.proxy.unparsed(&self.client, failure.status());
        let said = async {
            if self.stream.say(&serialized(&failure, None)).await.is_ok() {
                self.stream.close(LAST_WORDS).await;
            }
        };
        let _ = timeout(LINGER, said).await;
    }

    fn late(&self, wait: Wait) {
        match wait {
            Wait::Start | Wait::Head => self.door.seats.refuse(Refusal::HeaderTimeout),
            Wait::Write => {
                self.stream.reset();
                self.door.seats.refuse(Refusal::Stalled);
            }
            Wait::Request | Wait::Rest | Wait::Nothing => {}
        }
    }
}

/// Whether it was us who broke off, because of what the client sent.
fn is_offence(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| error.is_library() && !error.is_io())
}

// === impl Watched ===

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(cut) = self.cut.take() {
            return Poll::Ready(Some(Err(cut)));
        }
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Err(cut)) => {
                // What came before is written first: the parser ends at once.
                self.cut = Some(cut);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.served.stream.end();
    }
}
