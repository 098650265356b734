//! An HTTP/1.1 connection: sends one request at a time, and reports how an exchange without a response ended. The task
//! that waits for the response drives the connection itself, so that no second task has to be woken.

mod early;
pub(super) mod framing;
#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
mod names;
mod output;
mod tunnel;

pub(super) use early::EarlyResponse;
pub(super) use head::{HEAD_BYTES, HeadFacts};
pub(super) use output::OutgoingBody;
pub use tunnel::Tunnel;

use super::{
    deadline::Deadline,
    error::{UpstreamError, WireError},
    headers::added::AddedHeaders,
    sockets::OpenConnection,
    stream::UpstreamStream,
    upload::Upload,
};
use bytes::{Bytes, BytesMut};
use framing::Decoder;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use names::KnownNames;
use output::OutputBuffer;
use std::{
    future::{Future, poll_fn},
    io, mem,
    net::SocketAddr,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::AsyncReadExt,
    time::{Instant, Sleep, sleep},
};

/// The room for the first read of a connection, in bytes, and for the next ones while most of it stays empty.
const READ_LEAST: usize = 4 << 10;
/// The most room for one read, in bytes, for an upstream that fills what it is given.
const READ_MOST: usize = 64 << 10;
/// The most bytes before the end of the response's head, interim responses (1xx) included. An upstream that sends 1xx
/// for ever is given up after 1 MiB.
const BEFORE_THE_ANSWER: usize = 1 << 20;

/// An HTTP/1.1 connection to an upstream, used by one request or idle.
pub(super) struct H1Connection {
    io: UpstreamStream,
    /// The bytes that were read from the socket and not yet parsed.
    input: BytesMut,
    /// The room for the next read, in bytes.
    next: usize,
    /// The bytes that have come since the current request began.
    came: usize,
    output: OutputBuffer,
    /// The names of the last response.
    names: KnownNames,
    /// The timer of `response_timeout`, shared by all requests of the connection. It is set again only when it fires, not
    /// for each request, which spares most of them the timer wheel.
    timer: Pin<Box<Sleep>>,
    /// The connection has answered a request before, so the upstream may have closed it while it was idle.
    pub(super) is_used: bool,
    /// The bytes after the current response belong to no request, so the connection is closed after it.
    pub(super) is_last: bool,
    _open: OpenConnection,
}

/// The result of one request on the connection.
pub(super) enum H1Outcome {
    /// The head of the response came. The flag says that the whole request was sent before the head came.
    Answer(HeadFacts, bool),
    /// The connection ended before a byte of the request was written.
    Unsent(WireError),
    /// The connection ended later, so the upstream may have read the whole request.
    Failed(WireError),
}

// === impl H1Connection ===

impl H1Connection {
    /// The address of the other end, unless the connection is lost.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.io.peer()
    }

    /// Makes a connection of a connected stream. `response_timeout` sets its timer for the first request.
    pub(super) fn over(
        io: UpstreamStream,
        response_timeout: Duration,
        open: OpenConnection,
    ) -> Box<Self> {
        Box::new(Self {
            io,
            input: BytesMut::new(),
            next: READ_LEAST,
            came: 0,
            output: OutputBuffer::default(),
            names: KnownNames::default(),
            timer: Box::pin(sleep(response_timeout)),
            is_used: false,
            is_last: false,
            _open: open,
        })
    }

    /// Whether an idle connection can take a request: it is open, and the upstream has sent nothing on it meanwhile.
    pub(super) fn is_ready(&mut self) -> bool {
        self.is_clean() && !self.io.has_input()
    }

    /// Sends a request and reads the head of its response into `answer`. `inform` is called with each interim response (1xx).
    ///
    /// # Errors
    ///
    /// [`UpstreamError::ResponseTimeout`] if the head has not come by the deadline.
    pub(super) async fn send(
        &mut self,
        request: &Request<Upload>,
        added: &AddedHeaders<'_>,
        sending: &mut OutgoingBody,
        deadline: &Deadline,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
        answer: &mut Response<()>,
    ) -> Result<H1Outcome, UpstreamError> {
        let until = deadline.at();
        if self.timer.deadline() > until {
            // This is the first request of the connection, and it was sent in vain on another one before.
            self.timer.as_mut().reset(until);
        }
        head::write(request, added, &mut self.output.text);
        (self.came, self.output.count) = (0, 0);
        let (mut sent, has_body) = (None, sending.is_some());
        poll_fn(|cx| {
            if sent.is_none() {
                match self.output.poll_all(&mut self.io, sending, cx) {
                    Poll::Ready(Err(broken @ (WireError::Upload(_) | WireError::Length))) => {
                        return Poll::Ready(Ok(H1Outcome::Failed(broken)));
                    }
                    // The bytes that the upstream sent before it closed the connection may be a response.
                    Poll::Ready(end) => sent = Some(end),
                    Poll::Pending => {}
                }
            }
            if let Poll::Ready(head) = self.poll_head(cx, inform, answer) {
                return Poll::Ready(Ok(match (head, sent.take()) {
                    (Ok(mut head), end) => {
                        head.stays_open &= !matches!(end, Some(Err(_)));
                        H1Outcome::Answer(head, end.is_some())
                    }
                    (Err(_), Some(Err(broken))) if self.is_untouched() && !has_body => {
                        H1Outcome::Unsent(broken)
                    }
                    (Err(_), Some(Err(broken))) | (Err(broken), _) => H1Outcome::Failed(broken),
                }));
            }
            // The timer may be set for an earlier request. It may fire too early then, never too late.
            while self.timer.as_mut().poll(cx).is_ready() {
                let deadline = deadline.at();
                if Instant::now() >= deadline {
                    return Poll::Ready(Err(UpstreamError::ResponseTimeout));
                }
                self.timer.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }

    /// Whether no byte was written or read since the current request began.
    fn is_untouched(&self) -> bool {
        self.output.count == 0 && self.came == 0
    }

    /// Whether the upstream has sent no byte since the current request began.
    pub(super) fn is_silent(&self) -> bool {
        self.came == 0
    }

    /// Reads until the head of a final response has come into `answer`; interim ones are passed to `inform`.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        inform: &impl Fn(StatusCode, HeaderMap),
        answer: &mut Response<()>,
    ) -> Poll<Result<HeadFacts, WireError>> {
        loop {
            while !self.input.is_empty()
                && let Some(head) = head::take(&mut self.input, &mut self.names, answer)?
            {
                let status = answer.status();
                if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                    return Poll::Ready(Ok(head));
                }
                inform(status, mem::take(answer).into_parts().0.headers);
            }
            if self.came >= BEFORE_THE_ANSWER {
                return Poll::Ready(Err(WireError::Limit("what comes before the answer")));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(WireError::Ended));
            }
        }
    }

    /// Reads the next piece of a response's body; `None` at its end.
    pub(super) fn poll_body(
        &mut self,
        decoder: &mut Decoder,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        loop {
            match decoder.take(&mut self.input) {
                Ok(None) if decoder.is_done() => return Poll::Ready(None),
                Ok(None) => {}
                frame => return Poll::Ready(frame.transpose()),
            }
            match ready!(self.poll_fill(cx)) {
                Ok(0) => match decoder.end() {
                    Ok(()) => return Poll::Ready(None),
                    Err(broken) => return Poll::Ready(Some(Err(broken))),
                },
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    /// The whole body, if it came together with the head and nothing came after it. Most responses of APIs do.
    pub(super) fn whole(&mut self, decoder: Decoder) -> Option<Bytes> {
        let length = decoder.size_hint().exact()?;
        (length == self.input.len() as u64).then(|| self.input.split().freeze())
    }

    /// Reads once from the socket into `input`, and adapts the room for the next read.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.reserve(self.next);
        let count = ready!(pin!(self.io.read_buf(&mut self.input)).poll(cx))?;
        self.came = self.came.saturating_add(count);
        if count >= self.next {
            self.next = READ_MOST.min(2 * self.next);
        } else if count < self.next / 4 {
            self.next = READ_LEAST.max(self.next / 2);
        }
        Poll::Ready(Ok(count))
    }

    /// Whether no byte is left of the last exchange, on either side, and another one may follow.
    fn is_clean(&self) -> bool {
        !self.is_last && self.input.is_empty() && self.output.is_empty()
    }

    /// Prepares the connection for being idle, once its response has ended: large buffers are freed. False if it cannot be
    /// used again.
    pub(super) fn rest(&mut self) -> bool {
        if !self.is_clean() {
            return false;
        }
        if self.next > READ_LEAST {
            self.next = READ_LEAST;
            self.input = BytesMut::new();
        }
        true
    }
}

/// Whether a request with this method may be sent twice (RFC 9110 section 9.2.2).
pub fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].contains(method)
}
