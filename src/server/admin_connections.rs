//! Connections of the admin side: how many may be open at one time, and how long each may take. Knows no page of it.

use super::{
    phase::Phase,
    unread_body::{FollowedBody, UnreadBody},
};
use crate::{
    admin::{EventStream, PageError},
    config::ClientLimits,
};
use axum::{Router, body::Bytes, extract::ConnectInfo, response::IntoResponse};
use http::{HeaderValue, Request, StatusCode, header::CONNECTION};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    io::{self, ErrorKind, IoSlice},
    net::{SocketAddr, TcpListener as StdListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::AbortHandle,
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};

/// A page has 30 s for its answer, including the body that it reads. Its calls of the store have shorter time-outs.
const PAGE: Duration = Duration::from_secs(30);
/// Each admin time-out is at least 1 s, since those of clients, from which it is taken, may be 1 ms.
const LEAST: Duration = Duration::from_secs(1);
/// The pause after a failed accept. Most likely the process has no file descriptor left, and the next try would fail, too.
const PAUSE: Duration = Duration::from_millis(100);

/// How long an operator's connection may take for each step.
#[derive(Debug, Clone, Copy)]
pub(super) struct AdminTimeouts {
    /// The time from the connection, or from the first byte of a later request, to the end of the request's head.
    head: Duration,
    /// The time between two requests.
    idle: Duration,
    /// The time in which the operator may take nothing of a response.
    stall: Duration,
}

/// An operator's connection. Reads and writes fail with [`ErrorKind::TimedOut`] when it takes too long.
struct TimedStream {
    tcp: TcpStream,
    limits: AdminTimeouts,
    waits: Arc<Mutex<AdminWaits>>,
    /// The instant since which the socket has been full; `None` while it takes what is written.
    blocked: Option<Instant>,
    read_timer: LazyTimer,
    write_timer: LazyTimer,
}

/// A connection that is being served, as the accept loop sees it.
struct AdminConnection {
    waits: Arc<Mutex<AdminWaits>>,
    task: AbortHandle,
}

/// The step that a connection waits for, and the instant at which the wait began.
struct AdminWaits {
    what: AdminWait,
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AdminWait {
    /// The rest of a request's head, or on a new connection all of it.
    Head,
    /// The first byte of the next request.
    Request,
    /// The page, which has the limit [`PAGE`].
    Page,
    /// The body of the request, which the page reads within the same limit.
    Body,
}

/// The body of a request. It notes when the page waits for more of it, so that operators who send slowly cannot take all
/// connections.
struct AwaitedBody {
    body: FollowedBody,
    waits: Arc<Mutex<AdminWaits>>,
}

/// A timer that is made when it is first needed: most connections end before that.
#[derive(Default)]
struct LazyTimer(Option<Pin<Box<Sleep>>>);

/// Serves `pages` on at most `most` connections at one time until the gateway drains. Then it closes the port, so that a new
/// process on this host can start; connections that are open are still served.
pub(super) async fn serve(
    listener: StdListener,
    pages: Router,
    limits: AdminTimeouts,
    most: usize,
    mut phases: watch::Receiver<Phase>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let pages = TowerToHyperService::new(pages);
    // The last of `most` connections is the one that waits for the permit of another.
    let permits = Arc::new(Semaphore::new(most.saturating_sub(1).max(1)));
    let accept = async {
        let mut open = Vec::<AdminConnection>::new();
        loop {
            let Ok((tcp, peer)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            open.retain(|open| !open.task.is_finished());
            if permits.available_permits() == 0 {
                end_one(&open);
            }
            // Fails only if the semaphore is closed, which no code does.
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let waits =
                Arc::new(Mutex::new(AdminWaits { what: AdminWait::Head, since: Instant::now() }));
            let connection = connection(tcp, peer, pages.clone(), limits, waits.clone());
            let task = tokio::spawn(async move {
                connection.await;
                drop(permit);
            });
            open.push(AdminConnection { waits, task: task.abort_handle() });
        }
    };
    tokio::select! {
        () = accept => {}
        _ = phases.wait_for(|phase| *phase >= Phase::Draining) => {}
    }
}

/// Ends the connection that has been waiting for a request, or for the body of one, for the longest time. Otherwise 32 idle
/// connections of browsers and scrapers, or 32 slow uploads, would make a probe of `/readyz` fail.
fn end_one(open: &[AdminConnection]) {
    let idle = open.iter().filter_map(|open| {
        let waits = open.waits.lock();
        (waits.what != AdminWait::Page).then_some((waits.since, &open.task))
    });
    if let Some((_, task)) = idle.min_by_key(|(since, _)| *since) {
        task.abort();
    }
}

async fn connection(
    tcp: TcpStream,
    peer: SocketAddr,
    pages: TowerToHyperService<Router>,
    limits: AdminTimeouts,
    waits: Arc<Mutex<AdminWaits>>,
) {
    // Small answers must not wait for a delayed acknowledgement.
    let _ = tcp.set_nodelay(true);
    let stream = TimedStream::new(tcp, limits, waits.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        waits.lock().now(AdminWait::Page);
        let unread = UnreadBody::of(&request);
        let request = request.map(|body| AwaitedBody {
            body: FollowedBody::new(body, unread.clone()),
            waits: waits.clone(),
        });
        let (page, waits) = (timeout(PAGE, pages.call(request)), waits.clone());
        async move {
            let answer = page.await.unwrap_or_else(|_| {
                let why = "the request did not come in time".into();
                Ok(PageError(StatusCode::REQUEST_TIMEOUT, why).into_response())
            });
            let mut answer = match answer {
                Ok(answer) => answer,
                Err(never) => match never {},
            };
            if let Some(unread) = unread {
                waits.lock().what = AdminWait::Body;
                if !unread.discard().await {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                waits.lock().what = AdminWait::Page;
            }
            // A stream of events is no connection that waits for a request, and it ends with the stream.
            if answer.extensions().get::<EventStream>().is_none() {
                waits.lock().now(AdminWait::Request);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut builder = http1::Builder::new();
    // An error means that the operator has left or was too slow.
    let _ = builder.header_read_timeout(None).serve_connection(TokioIo::new(stream), service).await;
}

// === impl AdminTimeouts ===

impl AdminTimeouts {
    /// Takes the time-outs of clients, and raises each to at least [`LEAST`].
    pub(super) fn of(client: ClientLimits) -> Self {
        let ClientLimits { header_timeout, idle_timeout, body_timeout, .. } = client;
        let [head, idle, stall] =
            [header_timeout, idle_timeout, body_timeout].map(|limit| limit.max(LEAST));
        Self { head, idle, stall }
    }
}

// === impl AdminWaits ===

impl AdminWaits {
    fn now(&mut self, what: AdminWait) {
        (self.what, self.since) = (what, Instant::now());
    }
}

// === impl AwaitedBody ===

impl Body for AwaitedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // The instant stays that of the request, however often a byte comes.
        self.waits.lock().what = if frame.is_pending() { AdminWait::Body } else { AdminWait::Page };
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

// === impl LazyTimer ===

impl LazyTimer {
    /// Ready at `until` with the error to return.
    fn poll(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<io::Error> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(ErrorKind::TimedOut.into())
    }
}

// === impl TimedStream ===

impl TimedStream {
    fn new(tcp: TcpStream, limits: AdminTimeouts, waits: Arc<Mutex<AdminWaits>>) -> Self {
        let (read_timer, write_timer) = Default::default();
        Self { tcp, limits, waits, blocked: None, read_timer, write_timer }
    }

    fn wrote<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.blocked = None;
            let mut waits = self.waits.lock();
            if waits.what == AdminWait::Request {
                // The operator takes the response, and is not idle yet. hyper may not read again before the socket wakes
                // it, so that the timer is set here, too. It does not fire yet.
                waits.since = Instant::now();
                let _ = self.read_timer.poll(cx, waits.since + self.limits.idle);
            }
            return wrote;
        }
        let since = *self.blocked.get_or_insert_with(Instant::now);
        self.write_timer.poll(cx, since + self.limits.stall).map(Err)
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.tcp).poll_read(cx, buf);
        let mut waits = this.waits.lock();
        if read.is_ready() {
            if waits.what == AdminWait::Request && buf.filled().len() > before {
                waits.now(AdminWait::Head);
            }
            return read;
        }
        let limit = match waits.what {
            AdminWait::Head => this.limits.head,
            AdminWait::Request => this.limits.idle,
            AdminWait::Page | AdminWait::Body => return Poll::Pending,
        };
        this.read_timer.poll(cx, waits.since + limit).map(Err)
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.tcp).poll_write(cx, buf);
        this.wrote(cx, wrote)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let wrote = Pin::new(&mut this.tcp).poll_write_vectored(cx, bufs);
        this.wrote(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}
