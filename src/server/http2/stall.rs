//! Gives an HTTP/2 stream up when its client takes nothing of the response. hyper does not: the window of a stream is the
//! client's to open, and a client that never opens it would hold the stream, and its upstream connection, forever.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};
use tokio::{
    task_local,
    time::{Instant, Sleep, sleep},
};

/// A stream is checked 4 times within the time-out, so that it is given up after at most 1.25 times the time-out.
const CHECKS: u32 = 4;

/// How far the client is with one response.
#[derive(Default)]
pub(super) struct Progress {
    /// Counts each piece that was handed to h2, and each request of h2 for another one. The number is odd while a piece
    /// waits for the client to open its window.
    pub(super) pieces: AtomicU64,
    /// Counts the bytes that were written. A client may open its window byte by byte, as a gRPC consumer with back-pressure
    /// does.
    pub(super) bytes: AtomicU64,
}

/// Measures how long a response has been waiting for its client.
struct StallTimer {
    /// The progress at the last check.
    pieces: u64,
    bytes: u64,
    /// The checks since the last progress.
    checks: u32,
    timer: Pin<Box<Sleep>>,
}

task_local! {
    static PROGRESS: Arc<Progress>;
}

/// Returns the progress of the stream whose task this is.
pub(super) fn progress() -> Arc<Progress> {
    PROGRESS.try_with(Arc::clone).unwrap_or_default()
}

/// Runs `stream` to its end, or until no byte of its response was written for `limit`.
pub(super) async fn unless_stalled(stream: impl Future<Output = ()>, limit: Duration) {
    let progress = Arc::<Progress>::default();
    let mut stream = pin!(PROGRESS.scope(progress.clone(), stream));
    let mut stalled = None;
    poll_fn(|cx| {
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let pieces = progress.pieces.load(Relaxed);
        if pieces.is_multiple_of(2) {
            stalled = None;
            return Poll::Pending;
        }
        let stalled = stalled.get_or_insert_with(|| StallTimer::new(&progress, limit / CHECKS));
        if stalled.pieces != pieces {
            stalled.restart(&progress, limit / CHECKS);
        }
        while stalled.timer.as_mut().poll(cx).is_ready() {
            if stalled.checks + 1 >= CHECKS && stalled.bytes == progress.bytes.load(Relaxed) {
                return Poll::Ready(());
            }
            stalled.check(&progress, limit / CHECKS);
        }
        Poll::Pending
    })
    .await;
}

// === impl StallTimer ===

impl StallTimer {
    fn new(progress: &Progress, step: Duration) -> Self {
        Self {
            pieces: progress.pieces.load(Relaxed),
            bytes: progress.bytes.load(Relaxed),
            checks: 0,
            timer: Box::pin(sleep(step)),
        }
    }

    /// Begins again, because another piece is waiting now.
    fn restart(&mut self, progress: &Progress, step: Duration) {
        (self.pieces, self.checks) = (progress.pieces.load(Relaxed), 0);
        self.bytes = progress.bytes.load(Relaxed);
        self.timer.as_mut().reset(Instant::now() + step);
    }

    fn check(&mut self, progress: &Progress, step: Duration) {
        let bytes = progress.bytes.load(Relaxed);
        self.checks = if bytes == self.bytes { self.checks + 1 } else { 0 };
        self.bytes = bytes;
        self.timer.as_mut().reset(Instant::now() + step);
    }
}
