//! One worker's connections to one upstream. HTTP/1.1, one request at a time each; the newest idle one is
//! used first, so that those too many grow old and are closed.

use super::{Control, Target, Timeouts, Upload, UpstreamError};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as _, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{Builder, SendRequest},
    },
};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use std::{
    fmt,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, Sleep, interval, sleep, timeout},
};
use tower::Service as _;

const MAX_IDLE: usize = 1024;
/// A connection that is not ready for its next request after this time is dropped.
const RECYCLE: Duration = Duration::from_secs(5);
/// Bounds of how long before its slot a request takes a connection.
const LEAD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// An upstream as one worker sees it. Clones share the connections.
#[derive(Clone)]
pub struct Upstream(Arc<Inner>);

struct Inner {
    target: Target,
    timeouts: Timeouts,
    connector: HttpsConnector<HttpConnector>,
    /// Newest last.
    idle: Mutex<Vec<Idle>>,
    /// Connections there are or that are being made.
    open: AtomicUsize,
    /// How long the last connection took to make, µs.
    connecting: AtomicU64,
}

struct Idle {
    wire: Wire,
    since: Instant,
}

/// One connection.
struct Wire {
    sender: SendRequest<Upload>,
    /// For the time-outs of its requests, one after the other. It is set anew only when it fires, not for each
    /// request: most of them leave it as it is.
    timer: Pin<Box<Sleep>>,
}

/// A connection that is ready for one request.
pub struct Connection {
    wire: Wire,
    upstream: Upstream,
}

/// The body of a response; at its end the connection is ready for others.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    connection: Option<Connection>,
}

/// A connection that is being made.
#[derive(Debug)]
pub struct Ahead(oneshot::Receiver<Result<Connection, UpstreamError>>);

/// Counts a connection in [`Inner::open`].
struct Counted(Weak<Inner>);

// === impl Upstream ===

impl Upstream {
    /// Connects nowhere yet. Must be called on the runtime that will use it.
    pub fn new(
        target: Target,
        timeouts: Timeouts,
        connector: HttpsConnector<HttpConnector>,
    ) -> Self {
        let (idle, open) = (Mutex::default(), AtomicUsize::new(0));
        let connecting = AtomicU64::new(0);
        let inner = Arc::new(Inner { target, timeouts, connector, idle, open, connecting });
        tokio::spawn(sweep(Arc::downgrade(&inner)));
        Self(inner)
    }

    /// Where it is.
    pub fn target(&self) -> &Target {
        &self.0.target
    }

    /// How long it may take.
    pub fn timeouts(&self) -> Timeouts {
        self.0.timeouts
    }

    /// Whether no connection is there nor being made.
    fn is_cold(&self) -> bool {
        self.0.open.load(Relaxed) == 0
    }

    /// How long before its slot a request should take a connection, so that it is ready by then.
    pub fn lead(&self) -> Duration {
        let took = Duration::from_micros(self.0.connecting.load(Relaxed));
        (took * 2).clamp(LEAD.0, LEAD.1)
    }

    /// A connection: an idle one, or a new one.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::Connect`], [`UpstreamError::ConnectTimeout`].
    pub async fn connection(&self) -> Result<Connection, UpstreamError> {
        if let Some(wire) = self.take_idle() {
            return Ok(Connection { wire, upstream: self.clone() });
        }
        let started = Instant::now();
        let connecting = timeout(self.0.timeouts.connect, self.connect());
        let sender = connecting.await.map_err(|_| UpstreamError::ConnectTimeout)??;
        let took = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.0.connecting.store(took, Relaxed);
        let timer = Box::pin(sleep(self.0.timeouts.response));
        Ok(Connection { wire: Wire { sender, timer }, upstream: self.clone() })
    }

    /// Begins to make a connection when none is there nor being made. Whoever drops the receiver leaves it to the
    /// others.
    pub fn connect_ahead(&self) -> Option<Ahead> {
        if !self.is_cold() {
            return None;
        }
        let (made, ahead) = oneshot::channel();
        let upstream = self.clone();
        tokio::spawn(async move {
            if let Err(Ok(connection)) = made.send(upstream.connection().await) {
                connection.recycle();
            }
        });
        Some(Ahead(ahead))
    }

    fn take_idle(&self) -> Option<Wire> {
        let mut idle = self.0.idle.lock();
        while let Some(Idle { wire, since }) = idle.pop() {
            if wire.sender.is_ready() && since.elapsed() < self.0.timeouts.idle {
                return Some(wire);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<Upload>, UpstreamError> {
        self.0.open.fetch_add(1, Relaxed);
        let counted = Counted(Arc::downgrade(&self.0));
        let mut connector = self.0.connector.clone();
        let stream = connector.call(self.0.target.origin.clone()).await;
        let stream = stream.map_err(UpstreamError::Connect)?;
        let handshake = Builder::new().handshake(stream).await;
        let (mut sender, connection) =
            handshake.map_err(|error| UpstreamError::Connect(error.into()))?;
        tokio::spawn(async move {
            let _counted = counted;
            // Its end and its errors reach whoever sends on it.
            let _ = connection.with_upgrades().await;
        });
        sender.ready().await.map_err(|error| UpstreamError::Connect(error.into()))?;
        Ok(sender)
    }

    fn keep(&self, wire: Wire) {
        let mut idle = self.0.idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { wire, since: Instant::now() });
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.0.target).finish()
    }
}

/// Closes what is idle for too long, as long as the upstream is in use.
async fn sweep(inner: Weak<Inner>) {
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        let Some(inner) = inner.upgrade() else { return };
        let timeout = inner.timeouts.idle;
        let fresh = |idle: &Idle| !idle.wire.sender.is_closed() && idle.since.elapsed() < timeout;
        inner.idle.lock().retain(fresh);
    }
}

// === impl Counted ===

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.open.fetch_sub(1, Relaxed);
        }
    }
}

// === impl Ahead ===

impl Ahead {
    /// The connection; `None` when the task that makes it has ended with its runtime.
    pub async fn get(self) -> Option<Result<Connection, UpstreamError>> {
        self.0.await.ok()
    }
}

// === impl Connection ===

impl Connection {
    /// Sends a request and waits for the head of its response.
    ///
    /// A connection that closed while it was idle has sent nothing: then the request goes out on another.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub async fn send(
        mut self,
        mut request: Request<Upload>,
    ) -> Result<Response<Body>, UpstreamError> {
        let patience = self.upstream.0.timeouts.response;
        let upload = request.body().control();
        let deadline = Instant::now() + patience;
        loop {
            let taken_at = || upload.as_ref().and_then(Control::taken_at);
            let deadline = || taken_at().map_or(deadline, |at| deadline.max(at + patience));
            let mut error = match self.wire.send(request, deadline).await? {
                Ok(incoming) => return Ok(incoming.map(|incoming| Body::new(incoming, self))),
                Err(error) => error,
            };
            let unsent = error.take_message();
            request = unsent.ok_or_else(|| UpstreamError::Broken(error.into_error()))?;
            self = self.upstream.connection().await?;
        }
    }

    /// Keeps it for the next request.
    pub fn recycle(mut self) {
        if self.wire.sender.is_ready() {
            self.upstream.keep(self.wire);
        } else if !self.wire.sender.is_closed()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                if let Ok(Ok(())) = timeout(RECYCLE, self.wire.sender.ready()).await {
                    self.upstream.keep(self.wire);
                }
            });
        }
    }
}

// === impl Wire ===

impl Wire {
    /// The response, or what the connection says; an error when neither comes until `deadline`, which may move.
    async fn send(
        &mut self,
        request: Request<Upload>,
        deadline: impl Fn() -> Instant,
    ) -> Result<Result<Response<Incoming>, TrySendError<Request<Upload>>>, UpstreamError> {
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Ok(answer));
            }
            // Set for an earlier request, it may fire too early, but never too late.
            while self.timer.as_mut().poll(cx).is_ready() {
                let deadline = deadline();
                if Instant::now() >= deadline {
                    return Poll::Ready(Err(UpstreamError::ResponseTimeout));
                }
                self.timer.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.upstream).finish()
    }
}

// === impl Body ===

impl Body {
    fn new(incoming: Incoming, connection: Connection) -> Self {
        let mut body = Self { incoming, connection: Some(connection) };
        body.recycle_at_end();
        body
    }

    fn recycle_at_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            connection.recycle();
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.recycle_at_end(),
            Some(Err(_)) => self.connection = None,
            None => {
                if let Some(connection) = self.connection.take() {
                    connection.recycle();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
