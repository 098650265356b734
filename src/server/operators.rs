//! Connections of the admin side: how many there may be at one time, and how long each may take. Knows none of its pages.

use super::Phase;
use crate::config::ClientLimits;
use axum::{Router, body::Body};
use http::{Response, StatusCode};
use hyper::{
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use parking_lot::Mutex;
use std::{
    convert::Infallible,
    io::{self, ErrorKind, IoSlice},
    net::TcpListener as StdListener,
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

/// A page, and the body that it reads, may take this long: it waits for the store at most for its time-out.
const PAGE: Duration = Duration::from_secs(30);
/// Time-outs of clients may be as short as a millisecond. Those of operators are not.
const LEAST: Duration = Duration::from_secs(1);
/// Pause after a failed accept: most likely the process is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How long an operator may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// From the connection, or from the first byte of a request, to the end of its head.
    head: Duration,
    /// Between two requests.
    idle: Duration,
    /// Between two pieces of a response that it takes.
    stall: Duration,
}

/// An operator's connection, which fails with [`ErrorKind::TimedOut`] when it takes too long.
struct Timed {
    tcp: TcpStream,
    limits: Limits,
    waits: Arc<Mutex<Waits>>,
    /// Since when the operator has taken nothing of what is written.
    blocked: Option<Instant>,
    read_timer: Timer,
    write_timer: Timer,
}

/// A connection that is being served.
struct Open {
    waits: Arc<Mutex<Waits>>,
    task: AbortHandle,
}

/// What a connection waits for, and since when.
struct Waits {
    what: Wait,
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// For the rest of a head; of a new connection for all of it.
    Head,
    /// For the next request.
    Request,
    /// For the page, which has a limit of its own.
    Page,
}

/// Made when it is first needed.
#[derive(Default)]
struct Timer(Option<Pin<Box<Sleep>>>);

/// Serves `pages` on at most `most` connections at a time, until the gateway drains: then it releases the port, so that
/// a new process on this host can start. Connections that are open then are still served.
pub(super) async fn serve(
    listener: StdListener,
    pages: Router,
    limits: Limits,
    most: usize,
    mut phases: watch::Receiver<Phase>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let pages = TowerToHyperService::new(pages);
    // The last of `most` connections is the one that waits for the permit of another.
    let permits = Arc::new(Semaphore::new(most.saturating_sub(1).max(1)));
    let accept = async {
        let mut open = Vec::<Open>::new();
        loop {
            let Ok((tcp, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            open.retain(|open| !open.task.is_finished());
            if permits.available_permits() == 0 {
                end_one(&open);
            }
            // The semaphore is never closed.
            let Ok(permit) = permits.clone().acquire_owned().await else { return };
            let waits = Arc::new(Mutex::new(Waits { what: Wait::Head, since: Instant::now() }));
            let connection = connection(tcp, pages.clone(), limits, waits.clone());
            let task = tokio::spawn(async move {
                connection.await;
                drop(permit);
            });
            open.push(Open { waits, task: task.abort_handle() });
        }
    };
    tokio::select! {
        () = accept => {}
        _ = phases.wait_for(|phase| *phase >= Phase::Draining) => {}
    }
}

/// Ends the connection that has waited for a request for longest. Otherwise some idle connections of browsers and scrapers
/// would make a probe of `/readyz` fail.
fn end_one(open: &[Open]) {
    let idle = open.iter().filter_map(|open| {
        let waits = open.waits.lock();
        (waits.what != Wait::Page).then_some((waits.since, &open.task))
    });
    if let Some((_, task)) = idle.min_by_key(|(since, _)| *since) {
        task.abort();
    }
}

async fn connection(
    tcp: TcpStream,
    pages: TowerToHyperService<Router>,
    limits: Limits,
    waits: Arc<Mutex<Waits>>,
) {
    // Small answers must not wait for a delayed acknowledgement.
    let _ = tcp.set_nodelay(true);
    let stream = Timed::new(tcp, limits, waits.clone());
    let service = service_fn(move |request| {
        waits.lock().now(Wait::Page);
        let (page, waits) = (timeout(PAGE, pages.call(request)), waits.clone());
        async move {
            let answer = page.await.unwrap_or_else(|_| {
                let mut late = Response::new(Body::from("the request did not come in time\n"));
                *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
                Ok(late)
            });
            waits.lock().now(Wait::Request);
            Ok::<_, Infallible>(match answer {
                Ok(answer) => answer,
                Err(never) => match never {},
            })
        }
    });
    let mut builder = http1::Builder::new();
    // An error means that the operator has left or was too slow.
    let _ = builder.header_read_timeout(None).serve_connection(TokioIo::new(stream), service).await;
}

// === impl Limits ===

impl Limits {
    /// Those of clients, at least [`LEAST`].
    pub(super) fn of(client: ClientLimits) -> Self {
        let ClientLimits { header_timeout, idle_timeout, body_timeout, .. } = client;
        let [head, idle, stall] =
            [header_timeout, idle_timeout, body_timeout].map(|limit| limit.max(LEAST));
        Self { head, idle, stall }
    }
}

// === impl Waits ===

impl Waits {
    fn now(&mut self, what: Wait) {
        (self.what, self.since) = (what, Instant::now());
    }
}

// === impl Timer ===

impl Timer {
    /// Ready with an error at `until`.
    fn poll(&mut self, cx: &mut Context<'_>, until: Instant) -> Poll<io::Error> {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(ErrorKind::TimedOut.into())
    }
}

// === impl Timed ===

impl Timed {
    fn new(tcp: TcpStream, limits: Limits, waits: Arc<Mutex<Waits>>) -> Self {
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
            if waits.what == Wait::Request {
                // It takes the response, and is not idle yet. hyper may not read again before the socket wakes it, so
                // that the timer has to be set here. It does not ring yet.
                waits.since = Instant::now();
                let _ = self.read_timer.poll(cx, waits.since + self.limits.idle);
            }
            return wrote;
        }
        let since = *self.blocked.get_or_insert_with(Instant::now);
        self.write_timer.poll(cx, since + self.limits.stall).map(Err)
    }
}

impl AsyncRead for Timed {
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
            if waits.what == Wait::Request && buf.filled().len() > before {
                waits.now(Wait::Head);
            }
            return read;
        }
        let limit = match waits.what {
            Wait::Head => this.limits.head,
            Wait::Request => this.limits.idle,
            Wait::Page => return Poll::Pending,
        };
        this.read_timer.poll(cx, waits.since + limit).map(Err)
    }
}

impl AsyncWrite for Timed {
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
