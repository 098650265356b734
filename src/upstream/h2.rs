//! An HTTP/2 connection (a session): sends many requests at a time, each on a stream of its own. hyper speaks the
//! protocol; this file bounds it, and decides when a session takes no further requests.

mod translate;

use super::{
    deadline::Deadline,
    error::UpstreamError,
    h1::HEAD_BYTES,
    stream::{BytesRead, UpstreamStream},
    target::Target,
    upload::Upload,
};
use h2::Reason;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http2::{Builder, Connection, SendRequest},
    },
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::{
    error::Error as _,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};
use tokio::time::{Instant, timeout_at};
use translate::{to_h1, to_h2};

/// The flow-control window of one response, 512 KiB: a slow client holds at most this much memory. With a round trip of
/// 50 ms it still allows 10 MB/s.
const STREAM_WINDOW: u32 = 512 << 10;
/// The flow-control window of all responses of a session together, 16 MiB. It takes more than 32 slow clients to delay
/// the responses of the others.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// The most bytes of one upload that wait in memory for a slow upstream, 256 KiB.
const SEND_BUFFER: usize = 256 << 10;
/// The h2 crate drops the fields of trailers that are too large, and does not report it. So it is given this many bytes
/// beyond the limit of a head, and the gateway measures the trailers that it hands over.
pub(super) const HEAD_SLACK: u32 = 64 << 10;
/// The streams that are used before the upstream has sent its own limit, which may be 1: further requests wait for it.
const FIRST_STREAMS: usize = 1;
/// An upstream that takes up to 4 streams on a connection needs many connections, which are made at the same time.
const FEW_STREAMS: usize = 4;
/// The number of reset streams that are remembered, so that frames which are still on their way to them are no error of
/// the session. Hundreds of clients may leave at once.
const RESET_STREAMS: usize = 1024;
/// A session with requests under way on which the upstream was silent for 310 s is pinged. gRPC servers close sessions
/// that ping more often than every 5 minutes.
const PING: Duration = Duration::from_secs(310);
/// A session whose ping is not answered within 20 s is given up.
const PONG: Duration = Duration::from_secs(20);

type H2Driver = Connection<TokioIo<UpstreamStream>, Upload, TokioExecutor>;

/// The result of one request on a session.
pub(super) enum H2Outcome {
    /// The head of the response came.
    Answer(Response<Incoming>),
    /// The session ended before a byte of the request was written. The request comes back.
    Unsent(Box<Request<Upload>>, hyper::Error),
    /// The stream or the session failed later, so the upstream may have read the whole request.
    Failed(hyper::Error),
}

/// An HTTP/2 connection to an upstream. Clones share it; it ends when the last one is dropped and no stream is open.
#[derive(Clone)]
pub(super) struct H2Session {
    sender: SendRequest<Upload>,
    session: Arc<SessionState>,
}

/// The state that all requests of a session share.
struct SessionState {
    /// The streams that requests hold now.
    streams: AtomicUsize,
    /// The session takes no further requests; those under way finish.
    is_retired: AtomicBool,
    /// hyper's side of the session; `None` once the connection has ended.
    wire: Mutex<Option<H2Driver>>,
    traffic: Arc<BytesRead>,
    /// The instant at which the last stream ended; it counts only while no stream is open.
    idle_since: Mutex<Instant>,
}

/// One stream of a session. It counts in the session until it is dropped.
pub(super) struct H2Stream(H2Session);

// === impl H2Session ===

impl H2Session {
    /// Makes a session of a connected stream, and spawns the task that drives it. `guard` is held until that task ends.
    pub(super) async fn over<G: Send + 'static>(
        stream: UpstreamStream,
        guard: G,
    ) -> Result<Self, hyper::Error> {
        let traffic = stream.traffic();
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(HEAD_BYTES as u32 + HEAD_SLACK)
            .initial_max_send_streams(FIRST_STREAMS)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let (sender, wire) = builder.handshake(TokioIo::new(stream)).await?;
        let session = Arc::new(SessionState {
            streams: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            wire: Mutex::new(Some(wire)),
            traffic,
            idle_since: Mutex::new(Instant::now()),
        });
        let driven = session.clone();
        tokio::spawn(async move {
            let _guard = guard;
            poll_fn(|cx| {
                let mut wire = driven.wire.lock();
                let ended = wire.as_mut().is_none_or(|wire| Pin::new(wire).poll(cx).is_ready());
                // Dropping the driver returns the requests that it has not taken to their senders.
                let gone = if ended { wire.take() } else { None };
                drop(wire);
                drop(gone);
                if ended { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        });
        Ok(Self { sender, session })
    }

    /// Opens one more stream; `None` if the upstream allows no further one, or the session takes no further requests.
    pub(super) fn stream(&self) -> Option<H2Stream> {
        if !self.is_open() {
            return None;
        }
        let wire = self.session.wire.lock();
        let most = wire.as_ref()?.current_max_send_streams();
        if self.session.streams.load(Relaxed) >= most {
            return None;
        }
        self.session.streams.fetch_add(1, Relaxed);
        drop(wire);
        Some(H2Stream(self.clone()))
    }

    /// Opens the first stream of a new session.
    pub(super) fn first(&self) -> H2Stream {
        self.session.streams.fetch_add(1, Relaxed);
        H2Stream(self.clone())
    }

    /// Whether the upstream has said how many streams it takes, which is in its first frame (RFC 9113 section 3.4).
    pub(super) fn is_settled(&self) -> bool {
        self.session.traffic.read() > 0
    }

    /// Whether the upstream has said that it takes few streams.
    pub(super) fn takes_few(&self) -> bool {
        let wire = self.session.wire.lock();
        let is_few = |wire: &H2Driver| wire.current_max_send_streams() <= FEW_STREAMS;
        self.is_settled() && wire.as_ref().is_some_and(is_few)
    }

    /// Resolves when the upstream has said how many streams it takes, or has closed the connection.
    pub(super) async fn wait_until_settled(&self) {
        self.session.traffic.wait_until_begun().await;
    }

    /// Whether the session takes further requests.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed() && !self.session.is_retired.load(Relaxed)
    }

    /// The instant since which no stream has been open; `None` while one is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.session.streams.load(Relaxed) == 0).then(|| *self.session.idle_since.lock())
    }
}

// === impl H2Stream ===

impl H2Stream {
    /// Sends a request and waits for the head of its response.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::ResponseTimeout`] if the head has not come by the deadline.
    pub(super) async fn send(
        &mut self,
        request: Request<Upload>,
        target: &Target,
        deadline: &Deadline,
    ) -> Result<H2Outcome, UpstreamError> {
        let H2Session { sender, session } = &mut self.0;
        let before = session.traffic.read();
        let mut answer = pin!(sender.try_send_request(to_h2(request, target)));
        let mut until = deadline.at();
        let answer = loop {
            match timeout_at(until, answer.as_mut()).await {
                Ok(answer) => break Some(answer),
                Err(_) if deadline.at() > until => until = deadline.at(),
                Err(_) => break None,
            }
        };
        let Some(answer) = answer else {
            if session.traffic.read() == before {
                // The upstream sent no byte to any request meanwhile, so no other request shall wait for this session.
                session.is_retired.store(true, Relaxed);
            }
            return Err(UpstreamError::ResponseTimeout);
        };
        Ok(match answer.map_err(H2Outcome::from_error) {
            Ok(response) => H2Outcome::Answer(response),
            Err(H2Outcome::Unsent(request, error)) => {
                session.is_retired.store(true, Relaxed);
                H2Outcome::Unsent(Box::new(to_h1(*request)), error)
            }
            Err(failed) => failed,
        })
    }

    /// Lets the session take no further requests.
    pub(super) fn retire(&self) {
        self.0.session.is_retired.store(true, Relaxed);
    }
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        let session = &self.0.session;
        if session.streams.fetch_sub(1, Relaxed) == 1 {
            *session.idle_since.lock() = Instant::now();
        }
    }
}

// === impl H2Outcome ===

impl H2Outcome {
    fn from_error(mut error: TrySendError<Request<Upload>>) -> Self {
        match error.take_message() {
            Some(request) => Self::Unsent(Box::new(request), error.into_error()),
            None => Self::Failed(error.into_error()),
        }
    }
}

/// Whether the upstream has declared that it did not process a request: it refused the stream, or sent GOAWAY with an
/// earlier stream as the last one (RFC 9113 section 8.7).
pub(super) fn is_refused(error: &hyper::Error) -> bool {
    let Some(error) = cause(error) else { return false };
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

/// Whether the gateway itself reset the stream, because the client did not finish its upload.
pub(super) fn is_own_reset(error: &hyper::Error) -> bool {
    cause(error).is_some_and(|error| error.is_reset() && !error.is_remote() && !error.is_library())
}

fn cause(error: &hyper::Error) -> Option<&h2::Error> {
    error.source().and_then(|source| source.downcast_ref())
}
