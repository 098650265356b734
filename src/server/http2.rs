//! HTTP/2 with clients: the limits of one connection, and its streams, which never outlive it.

mod pieces;
mod stall;

pub(super) use pieces::PiecedBody;

use super::windows::ConnectionWindow;
use crate::config::Limits;
use hyper::{rt::Executor, server::conn::http2};
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;
use stall::unless_stalled;
use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::task::JoinSet;

/// How many requests may be open at one time, as in nginx. Further ones are refused, and may be sent again. RFC 9113 advises
/// at least 100.
const STREAMS: u32 = 128;
/// How many streams a client may reset before the gateway has looked at them. More of them are an attack (CVE-2023-44487),
/// and end the connection.
const RESET_UNSEEN: usize = 20;
/// How many streams the gateway resets for errors in their frames before it ends the connection (CVE-2025-8671).
const RESET_FOR_ERRORS: usize = 64;
/// The room above `limits.header_bytes` that h2 gets. It answers a longer list of headers with a bare 431 that is not
/// counted, and drops the trailers that exceed it; a list within this room is measured by the gateway.
const HEAD_SLACK: usize = 64 << 10;
/// How many bytes of one response h2 may hold before they are written.
const SEND_BUFFER: usize = 64 << 10;
/// A client that has sent nothing for 30 s gets a PING.
const PING_AFTER: Duration = Duration::from_secs(30);
/// A client that does not answer a PING within 10 s is disconnected.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// The streams of one connection, a task each.
#[derive(Clone)]
pub(super) struct Streams {
    tasks: Arc<Mutex<JoinSet<()>>>,
    /// A stream ends when its client takes no byte of the response for this long.
    stalled: Duration,
}

/// Returns a hyper builder with the limits of one connection, each of which is there because of a known attack.
pub(super) fn builder(
    streams: Streams,
    limits: &Limits,
    window: &ConnectionWindow,
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

    /// Whether no stream is open. Otherwise wakes the task of `cx` when one ends.
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

    /// Aborts the streams that are open, and waits until they have released all that they held.
    pub(super) async fn end(&self) {
        let mut tasks = mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // In a box: tokio moves the future of a task a dozen times until it runs and ends, which copied 74 kB a request.
        let stream = unless_stalled(Box::pin(stream), self.stalled);
        self.tasks.lock().spawn(stream);
    }
}
