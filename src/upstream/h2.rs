//! An HTTP/2 connection: many requests at a time. What a request of HTTP/1.1 becomes on it, and back.

use super::{
    Target, Upload, UploadControl, UpstreamError,
    connection::Deadline,
    h1::HEAD_BYTES,
    headers,
    stream::{Traffic, UpstreamStream},
};
use h2::Reason;
use http::{
    HeaderName, HeaderValue, Request, Response, Uri, Version,
    header::{CONNECTION, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE},
};
use http_body::Body as _;
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

/// What one response may be ahead of its reader: a slow client holds so much of our memory. Over a way of 50 ms it
/// is 10 MB/s.
const STREAM_WINDOW: u32 = 512 << 10;
/// The same for all responses of a connection. 32 slow readers do not hold up the others.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// What one upload may be ahead of the upstream.
const SEND_BUFFER: usize = 256 << 10;
/// The HTTP/2 library drops what makes trailers too large, and says nothing. So it is given this much room above what a
/// head may have, and what it hands over is measured.
pub(super) const HEAD_SLACK: u32 = 64 << 10;
/// Streams before the upstream has said how many it takes: the least that RFC 9113 section 6.5.2 recommends.
const FIRST_STREAMS: usize = 100;
/// Streams that we have reset are remembered, so that what is still on its way to them is no error of the
/// connection. Clients leave in crowds.
const RESET_STREAMS: usize = 1024;
/// A connection with requests under way and nothing said is pinged. gRPC servers end those that ping more often
/// than every 5 minutes.
const PING: Duration = Duration::from_secs(310);
/// Without an answer for so long the connection is given up.
const PONG: Duration = Duration::from_secs(20);

/// Meant for one HTTP/1.1 connection (RFC 9113 section 8.2.2).
static CONNECTION_SPECIFIC: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

type H2Driver = Connection<TokioIo<UpstreamStream>, Upload, TokioExecutor>;

/// What became of a request.
pub(super) enum H2Outcome {
    Answer(Response<Incoming>),
    /// Nothing of it was written.
    Unsent(Box<Request<Upload>>, hyper::Error),
    /// All of it may have been.
    Failed(hyper::Error),
}

/// An HTTP/2 connection.
#[derive(Clone)]
pub(super) struct H2Session {
    sender: SendRequest<Upload>,
    line: Arc<SessionState>,
}

/// What the requests of a connection share.
struct SessionState {
    streams: AtomicUsize,
    /// New requests go elsewhere.
    is_retired: AtomicBool,
    /// Until it has ended.
    wire: Mutex<Option<H2Driver>>,
    traffic: Arc<Traffic>,
    /// When the last stream ended.
    idle_since: Mutex<Instant>,
}

/// A connection with one more stream.
pub(super) struct H2Stream(H2Session);

// === impl H2Session ===

impl H2Session {
    /// Over a stream that is connected; `guard` is held as long as the connection lives.
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
        let line = Arc::new(SessionState {
            streams: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            wire: Mutex::new(Some(wire)),
            traffic,
            idle_since: Mutex::new(Instant::now()),
        });
        let driven = line.clone();
        tokio::spawn(async move {
            let _guard = guard;
            poll_fn(|cx| {
                let mut wire = driven.wire.lock();
                let ended = wire.as_mut().is_none_or(|wire| Pin::new(wire).poll(cx).is_ready());
                // With it go the requests that nobody has taken: back to those who sent them.
                let gone = if ended { wire.take() } else { None };
                drop(wire);
                drop(gone);
                if ended { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        });
        Ok(Self { sender, line })
    }

    /// One more stream, when there is room for it.
    pub(super) fn stream(&self) -> Option<H2Stream> {
        if !self.is_open() {
            return None;
        }
        let wire = self.line.wire.lock();
        let most = wire.as_ref()?.current_max_send_streams();
        if self.line.streams.load(Relaxed) >= most {
            return None;
        }
        self.line.streams.fetch_add(1, Relaxed);
        drop(wire);
        Some(H2Stream(self.clone()))
    }

    /// The first stream of a connection that is new.
    pub(super) fn first(&self) -> H2Stream {
        self.line.streams.fetch_add(1, Relaxed);
        H2Stream(self.clone())
    }

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed() && !self.line.is_retired.load(Relaxed)
    }

    /// Since when it has had no stream.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.line.streams.load(Relaxed) == 0).then(|| *self.line.idle_since.lock())
    }
}

// === impl H2Stream ===

impl H2Stream {
    /// The answer to a request, or why there is none.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::ResponseTimeout`].
    pub(super) async fn send(
        &mut self,
        request: Request<Upload>,
        target: &Target,
        deadline: &Deadline,
    ) -> Result<H2Outcome, UpstreamError> {
        let H2Session { sender, line } = &mut self.0;
        let before = line.traffic.read();
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
            if line.traffic.read() == before {
                // Nothing at all was said, to nobody: others shall not wait for it as well.
                line.is_retired.store(true, Relaxed);
            }
            return Err(UpstreamError::ResponseTimeout);
        };
        Ok(match answer.map_err(H2Outcome::from_error) {
            Ok(response) => H2Outcome::Answer(response),
            Err(H2Outcome::Unsent(request, error)) => {
                line.is_retired.store(true, Relaxed);
                H2Outcome::Unsent(Box::new(to_h1(*request)), error)
            }
            Err(failed) => failed,
        })
    }

    /// New requests go elsewhere.
    pub(super) fn retire(&self) {
        self.0.line.is_retired.store(true, Relaxed);
    }
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        let line = &self.0.line;
        if line.streams.fetch_sub(1, Relaxed) == 1 {
            *line.idle_since.lock() = Instant::now();
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

/// Whether the upstream has said that it did nothing with a request: it refused the stream, or went away and named
/// an earlier one as the last (RFC 9113 section 8.7).
pub(super) fn is_refused(error: &hyper::Error) -> bool {
    let Some(error) = cause(error) else { return false };
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

/// Whether we have reset the stream: the client broke its upload off.
pub(super) fn is_own_reset(error: &hyper::Error) -> bool {
    cause(error).is_some_and(|error| error.is_reset() && !error.is_remote() && !error.is_library())
}

fn cause(error: &hyper::Error) -> Option<&h2::Error> {
    error.source().and_then(|source| source.downcast_ref())
}

/// A request of HTTP/1.1 as HTTP/2 has it: the target whole, `Host` in it, no field of the connection (RFC 9113
/// sections 8.2.2 and 8.3.1).
fn to_h2(mut request: Request<Upload>, target: &Target) -> Request<Upload> {
    if request.headers_mut().remove(EXPECT).is_some() {
        // Its 100 would not reach us.
        request.body().control().as_ref().map(UploadControl::go_on);
    }
    let headers = request.headers_mut();
    let host = headers.remove(HOST);
    for name in &CONNECTION_SPECIFIC {
        headers.remove(name);
    }
    let is_trailers = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"trailers");
    if headers.contains_key(TE) && !headers.get_all(TE).iter().all(is_trailers) {
        headers.remove(TE);
    }
    let host = host.as_ref().unwrap_or(&target.host);
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = target.origin.scheme().cloned();
    parts.authority =
        host.as_bytes().try_into().ok().or_else(|| target.origin.authority().cloned());
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| target.origin.clone());
    *request.version_mut() = Version::HTTP_2;
    request
}

/// The way back, for a request that was not sent and may go out on another kind of connection.
fn to_h1(mut request: Request<Upload>) -> Request<Upload> {
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = None;
    let authority = parts.authority.take();
    let host = authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    *request.version_mut() = Version::HTTP_11;
    let (has_te, is_open) = (request.headers().contains_key(TE), !request.body().is_end_stream());
    headers::for_connection(request.headers_mut(), has_te, is_open);
    request
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use rstest::rstest;

    fn target() -> Target {
        Target::parse("https://api.example:8443/v2").expect("a target")
    }

    fn asked(method: Method, uri: &str) -> Request<Upload> {
        let request = Request::builder().method(method).uri(uri).header("host", "other.example");
        request.body(Upload::default()).expect("a request")
    }

    #[rstest]
    #[case::path("/a//b?c=d", "https://other.example/a//b?c=d")]
    #[case::root("/", "https://other.example/")]
    #[case::asterisk("*", "https://other.example*")]
    fn a_target_becomes_whole_and_goes_back(#[case] uri: &str, #[case] whole: &str) {
        let request = to_h2(asked(Method::OPTIONS, uri), &target());
        assert_eq!(request.uri().to_string(), whole);
        assert_eq!((request.version(), request.headers().get(HOST)), (Version::HTTP_2, None));
        let request = to_h1(request);
        assert_eq!(request.uri().to_string(), uri);
        assert_eq!(request.version(), Version::HTTP_11);
        assert_eq!(request.headers()[HOST], "other.example");
    }

    #[test]
    fn what_is_said_of_a_connection_goes_and_comes_back() {
        let mut request = asked(Method::GET, "/");
        for (name, value) in [(TE, "trailers"), (CONNECTION, "te")] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        let request = to_h2(request, &target());
        assert_eq!(request.headers().get(CONNECTION), None);
        assert_eq!(to_h1(request).headers()[CONNECTION], "te");
    }

    #[rstest]
    #[case::trailers("trailers", true)]
    #[case::in_capitals("Trailers", true)]
    #[case::more("trailers, gzip", false)]
    #[case::other("gzip", false)]
    fn of_te_only_trailers_stay(#[case] te: &str, #[case] stays: bool) {
        let mut request = asked(Method::POST, "/");
        request.headers_mut().insert(TE, HeaderValue::from_str(te).expect("a value"));
        request.headers_mut().insert(UPGRADE, HeaderValue::from_static("x"));
        let request = to_h2(request, &target());
        assert_eq!(request.headers().contains_key(TE), stays);
        assert!(!request.headers().contains_key(UPGRADE));
    }

    #[test]
    fn what_names_no_host_is_for_the_target() {
        let mut request = asked(Method::GET, "/");
        request.headers_mut().remove(HOST);
        let request = to_h2(request, &target());
        assert_eq!(request.uri().to_string(), "https://api.example:8443/");
    }
}
