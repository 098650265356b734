//! HTTP/2 with clients: what one connection may ask for, and its streams, which never outlive it.

use super::windows::Window;
use crate::{
    config::Limits,
    proxy::{Body, BodyError},
};
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use hyper::{rt::Executor, server::conn::http2};
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    task_local,
    time::{Instant, Sleep, sleep},
};

/// Requests at one time; more are refused, and may be sent again. nginx's number, and HTTP/2 advises no fewer than 100.
const STREAMS: u32 = 128;
/// Of streams that were reset before we had a look at them; more of them is an attack (CVE-2023-44487).
const RESET_UNSEEN: usize = 20;
/// Of streams that we had to reset for what was wrong with them.
const RESET_FOR_ERRORS: usize = 64;
/// The HTTP/2 library answers a larger header list with a bare 431 that is not counted, and drops what makes trailers too
/// large. So it is given this much room above `limits.header_bytes`, and what it hands over is measured.
const HEAD_SLACK: usize = 64 << 10;
/// Of one response, not yet written.
const SEND_BUFFER: usize = 64 << 10;
/// A response is passed on in pieces of one frame.
const PIECE: usize = 16 << 10;
/// How often within its time-out a response that waits for its client is looked at. A stream of which nothing is taken is
/// given up after the time-out and a fourth of it at most.
const LOOKS: u32 = 4;
/// A connection that says nothing is asked whether it is alive, and ended when it does not answer.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The streams of one connection.
#[derive(Clone)]
pub(super) struct Streams {
    tasks: Arc<Mutex<JoinSet<()>>>,
    /// A response that nobody takes is given up after this.
    stalled: Duration,
}

/// A response's body, in pieces; says when more is asked for.
pub(super) struct Pieces {
    body: Body,
    /// What is left of a larger piece.
    rest: Bytes,
    /// Why there is no more.
    cut: Option<BodyError>,
    taken: Arc<Taken>,
}

/// A piece of a response. The HTTP/2 library takes bytes of it when the client's windows let them out.
pub(super) struct Piece {
    bytes: Bytes,
    taken: Arc<Taken>,
}

/// How far the client is with a response.
#[derive(Default)]
struct Taken {
    /// Counts the pieces that were handed over, and those after which more was asked for: odd while one waits for the
    /// client to make room.
    pieces: AtomicU64,
    /// Bytes that were written. A client may take a piece byte by byte (a gRPC consumer with back-pressure, say).
    bytes: AtomicU64,
}

/// A response that waits for its client.
struct Stalled {
    /// What was taken when it was last looked at.
    pieces: u64,
    bytes: u64,
    /// Looks since then.
    looks: u32,
    timer: Pin<Box<Sleep>>,
}

task_local! {
    static TAKEN: Arc<Taken>;
}

/// A connection's limits.
pub(super) fn builder(
    streams: Streams,
    limits: &Limits,
    window: &Window,
) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_pending_accept_reset_streams(RESET_UNSEEN)
        .max_local_error_reset_streams(RESET_FOR_ERRORS)
        .max_header_list_size(u32::try_from(limits.header_bytes + HEAD_SLACK).unwrap_or(u32::MAX))
        .initial_stream_window_size(window.of_stream())
        .initial_connection_window_size(window.of_connection())
        .max_send_buf_size(SEND_BUFFER)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        .enable_connect_protocol();
    builder
}

// === impl Streams ===

impl Streams {
    pub(super) fn new(stalled: Duration) -> Self {
        Self { tasks: Arc::default(), stalled }
    }

    /// Whether there are none; wakes when one ends.
    pub(super) fn poll_none(&self, cx: &mut Context<'_>) -> bool {
        let mut tasks = self.tasks.lock();
        loop {
            match tasks.poll_join_next(cx) {
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }

    /// Ends those that are left, and waits until they have let go of everything.
    pub(super) async fn end(&self) {
        let mut tasks = mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let stream = unless_stalled(stream, self.stalled);
        self.tasks.lock().spawn(stream);
    }
}

/// Gives `stream` up when no byte of its response has been taken for too long. The window of a stream is the client's to
/// open, and nothing but this minds when it never does.
async fn unless_stalled(stream: impl Future<Output = ()>, limit: Duration) {
    let taken = Arc::<Taken>::default();
    let mut stream = pin!(TAKEN.scope(taken.clone(), stream));
    let mut stalled = None;
    poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let pieces = taken.pieces.load(Relaxed);
        if pieces.is_multiple_of(2) {
            stalled = None;
            return Poll::Pending;
        }
        let stalled = stalled.get_or_insert_with(|| Stalled::new(&taken, limit / LOOKS));
        if stalled.pieces != pieces {
            stalled.again(&taken, limit / LOOKS);
        }
        while stalled.timer.as_mut().poll(cx).is_ready() {
            if stalled.looks + 1 >= LOOKS && stalled.bytes == taken.bytes.load(Relaxed) {
                return Poll::Ready(());
            }
            stalled.look(&taken, limit / LOOKS);
        }
        Poll::Pending
    })
    .await;
}

// === impl Stalled ===

impl Stalled {
    fn new(taken: &Taken, step: Duration) -> Self {
        Self {
            pieces: taken.pieces.load(Relaxed),
            bytes: taken.bytes.load(Relaxed),
            looks: 0,
            timer: Box::pin(sleep(step)),
        }
    }

    /// It waits with another piece.
    fn again(&mut self, taken: &Taken, step: Duration) {
        (self.pieces, self.looks) = (taken.pieces.load(Relaxed), 0);
        self.bytes = taken.bytes.load(Relaxed);
        self.timer.as_mut().reset(Instant::now() + step);
    }

    fn look(&mut self, taken: &Taken, step: Duration) {
        let bytes = taken.bytes.load(Relaxed);
        self.looks = if bytes == self.bytes { self.looks + 1 } else { 0 };
        self.bytes = bytes;
        self.timer.as_mut().reset(Instant::now() + step);
    }
}

// === impl Pieces ===

impl Pieces {
    /// For a response of the task that asks.
    pub(super) fn of(body: Body) -> Self {
        let taken = TAKEN.try_with(Arc::clone).unwrap_or_default();
        Self { body, rest: Bytes::new(), cut: None, taken }
    }
}

impl http_body::Body for Pieces {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Self::Error>>> {
        let this = &mut *self;
        if !this.taken.pieces.load(Relaxed).is_multiple_of(2) {
            this.taken.pieces.fetch_add(1, Relaxed);
        }
        if let Some(cut) = this.cut.take() {
            return Poll::Ready(Some(Err(cut)));
        }
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                },
                Some(Err(cut)) => {
                    // A reset takes along what is not written yet.
                    this.cut = Some(cut);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => return Poll::Ready(None),
            }
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE));
        this.taken.pieces.fetch_add(1, Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Piece { bytes, taken: this.taken.clone() }))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // Asked for before the first piece only.
        self.body.size_hint()
    }
}

// === impl Piece ===

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.taken.bytes.fetch_add(count as u64, Relaxed);
        self.bytes.advance(count);
    }
}
