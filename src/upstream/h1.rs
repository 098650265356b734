//! An HTTP/1.1 connection: one request at a time, and how it ended when it had no answer.

use super::{
    Upload, UpstreamError,
    connection::Deadline,
    stream::{Stream, Traffic},
};
use http::{Method, Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{Builder, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use std::{
    error::Error as _,
    future::{Future, poll_fn},
    io::{self, ErrorKind},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep};

/// The head of a response may be this large; common servers stop at 8 to 32 KiB.
pub(super) const HEAD_BYTES: usize = 64 << 10;

/// An HTTP/1.1 connection.
pub(super) struct H1 {
    sender: SendRequest<Upload>,
    /// For the time-outs of its requests, one after the other. It is set anew only when it fires, not for each
    /// request: most of them leave it as it is.
    timer: Pin<Box<Sleep>>,
    traffic: Arc<Traffic>,
    /// It has answered before, and may have been closed since.
    pub(super) is_used: bool,
    /// What comes behind its response belongs to nobody.
    pub(super) is_last: bool,
}

/// What became of a request.
pub(super) enum Sent {
    Answer(Response<Incoming>),
    /// Nothing of it was written.
    Unsent(Box<Request<Upload>>, hyper::Error),
    /// All of it may have been.
    Failed(hyper::Error),
}

// === impl H1 ===

impl H1 {
    /// Over a stream that is connected; `guard` is held as long as the connection lives.
    pub(super) async fn over<G: Send + 'static>(
        stream: Stream,
        response_timeout: Duration,
        guard: G,
    ) -> Result<Self, hyper::Error> {
        let traffic = stream.traffic();
        let handshake = Builder::new().max_header_size(HEAD_BYTES).handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await?;
        tokio::spawn(async move {
            let _guard = guard;
            // Its end and its errors reach whoever sends on it.
            let _ = connection.with_upgrades().await;
        });
        sender.ready().await?;
        let timer = Box::pin(sleep(response_timeout));
        Ok(Self { sender, timer, traffic, is_used: false, is_last: false })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Waits until the last request is over, body and all; false when the connection is.
    pub(super) async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// The answer to a request, or why there is none.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::ResponseTimeout`].
    pub(super) async fn send(
        &mut self,
        request: Request<Upload>,
        deadline: &Deadline,
    ) -> Result<Sent, UpstreamError> {
        if self.timer.deadline() > deadline.at() {
            // The first request of this connection, after it was sent in vain on another.
            self.timer.as_mut().reset(deadline.at());
        }
        self.traffic.awaits_head();
        let mut answer = pin!(self.sender.try_send_request(request));
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Ok(answer));
            }
            // Set for an earlier request, it may fire too early, but never too late.
            while self.timer.as_mut().poll(cx).is_ready() {
                let deadline = deadline.at();
                if Instant::now() >= deadline {
                    return Poll::Ready(Err(UpstreamError::ResponseTimeout));
                }
                self.timer.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await?;
        self.traffic.has_head();
        Ok(match answer {
            Ok(response) => Sent::Answer(response),
            Err(error) => Sent::from_error(error),
        })
    }

    /// How many bytes have come.
    pub(super) fn read(&self) -> u64 {
        self.traffic.read()
    }
}

// === impl Sent ===

impl Sent {
    pub(super) fn from_error(mut error: TrySendError<Request<Upload>>) -> Self {
        match error.take_message() {
            Some(request) => Self::Unsent(Box::new(request), error.into_error()),
            None => Self::Failed(error.into_error()),
        }
    }
}

/// Whether a request may be made twice (RFC 9110 section 9.2.2).
pub(super) fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].contains(method)
}

/// Whether the peer ended the connection, rather than say something wrong.
pub(super) fn is_end(error: &hyper::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    const ENDS: [ErrorKind; 5] =
        [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_incomplete_message() || io.is_some_and(|io| ENDS.contains(&io.kind()))
}
