//! An HTTP/1.1 connection: one request at a time, and how it ended when it had no answer. Driven by whoever waits for
//! the answer, so that nobody else has to be woken.

mod early;
pub(super) mod framing;
#[cfg(fuzzing)]
pub mod fuzzing;
mod head;
mod output;
mod tunnel;

pub(super) use early::EarlyResponse;
pub(super) use head::HEAD_BYTES;
pub(super) use output::OutgoingBody;
pub use tunnel::Tunnel;

use super::{
    Upload, UploadError, UpstreamError, connection::Deadline, headers::AddedHeaders,
    pool::OpenConnection, stream::UpstreamStream,
};
use bytes::{Bytes, BytesMut};
use framing::Decoder;
use head::ResponseHead;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use output::OutputBuffer;
use std::{
    future::{Future, poll_fn},
    io::{self, ErrorKind},
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// One read: this much at first, and while most of it stays empty.
const READ_LEAST: usize = 4 << 10;
/// One read of an upstream that sends faster.
const READ_MOST: usize = 64 << 10;
/// What an upstream may say before the head of its response has ended: interim responses (1xx), any number of them.
const BEFORE_THE_ANSWER: usize = 1 << 20;

/// An HTTP/1.1 connection.
pub(super) struct H1Connection {
    io: UpstreamStream,
    /// What has come and was not taken.
    input: BytesMut,
    /// How much to read at once.
    next: usize,
    /// Octets that have come since the last request.
    came: usize,
    output: OutputBuffer,
    /// For the time-outs of its requests, one after the other. It is set anew only when it fires, not for each
    /// request: most of them leave it as it is.
    timer: Pin<Box<Sleep>>,
    /// It has answered before, and may have been closed since.
    pub(super) is_used: bool,
    /// What comes behind its response belongs to nobody.
    pub(super) is_last: bool,
    _counted: OpenConnection,
}

/// Why an upstream's answer has no beginning or no end.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// It ended too early.
    #[error("the connection ended")]
    Ended,
    /// What came is no head, or no trailers.
    #[error("this is not as HTTP/1.1 writes it")]
    Syntax(#[from] httparse::Error),
    /// What came is no chunk.
    #[error("this is no chunk as HTTP/1.1 frames it")]
    Chunk,
    /// It has no end.
    #[error("there is no end of {0}")]
    Limit(&'static str),
    /// The request is not as long as it says.
    #[error("the body of the request has not the length that was announced")]
    Length,
    /// The client's side of it broke off.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// Of HTTP/2.
    #[error(transparent)]
    Http2(#[from] hyper::Error),
}

/// What became of a request.
pub(super) enum H1Outcome {
    /// Whether what follows on the connection may be another answer, and whether all of the request went before it.
    Answer(Response<()>, bool, bool),
    /// Nothing of it was written.
    Unsent(WireError),
    /// All of it may have been.
    Failed(WireError),
}

// === impl H1Connection ===

impl H1Connection {
    /// Over a stream that is connected.
    pub(super) fn over(
        io: UpstreamStream,
        response_timeout: Duration,
        counted: OpenConnection,
    ) -> Box<Self> {
        Box::new(Self {
            io,
            input: BytesMut::new(),
            next: READ_LEAST,
            came: 0,
            output: OutputBuffer::default(),
            timer: Box::pin(sleep(response_timeout)),
            is_used: false,
            is_last: false,
            _counted: counted,
        })
    }

    /// Whether nothing has come that nobody asked for, the end included.
    pub(super) fn is_ready(&mut self) -> bool {
        let mut nothing = [0; 1];
        let mut cx = Context::from_waker(Waker::noop());
        let came = Pin::new(&mut self.io).poll_read(&mut cx, &mut ReadBuf::new(&mut nothing));
        self.is_clean() && came.is_pending()
    }

    /// The answer to a request, or why there is none. `inform` hears of interim ones.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::ResponseTimeout`].
    pub(super) async fn send(
        &mut self,
        request: &Request<Upload>,
        own: &AddedHeaders,
        sending: &mut OutgoingBody,
        deadline: &Deadline,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Result<H1Outcome, UpstreamError> {
        let until = deadline.at();
        if self.timer.deadline() > until {
            // The first request of this connection, after it was sent in vain on another.
            self.timer.as_mut().reset(until);
        }
        head::write(request, own, &mut self.output.text);
        (self.came, self.output.count) = (0, 0);
        let (mut sent, has_body) = (None, sending.is_some());
        poll_fn(|cx| {
            if sent.is_none() {
                match self.output.poll_all(&mut self.io, sending, cx) {
                    Poll::Ready(Err(broken @ (WireError::Upload(_) | WireError::Length))) => {
                        return Poll::Ready(Ok(H1Outcome::Failed(broken)));
                    }
                    // What the upstream has said before it broke off may be an answer.
                    Poll::Ready(end) => sent = Some(end),
                    Poll::Pending => {}
                }
            }
            if let Poll::Ready(answer) = self.poll_head(cx, inform) {
                return Poll::Ready(Ok(match (answer, sent.take()) {
                    (Ok(ResponseHead { response, stays_open }), end) => {
                        let (is_sent, has_failed) = (end.is_some(), matches!(end, Some(Err(_))));
                        H1Outcome::Answer(response, stays_open && !has_failed, is_sent)
                    }
                    (Err(_), Some(Err(broken))) if self.is_untouched() && !has_body => {
                        H1Outcome::Unsent(broken)
                    }
                    (Err(_), Some(Err(broken))) | (Err(broken), _) => H1Outcome::Failed(broken),
                }));
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
        .await
    }

    /// Whether nothing went either way since the last request.
    fn is_untouched(&self) -> bool {
        self.output.count == 0 && self.came == 0
    }

    /// Whether the upstream has not said anything since the last request.
    pub(super) fn is_silent(&self) -> bool {
        self.came == 0
    }

    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        inform: &impl Fn(StatusCode, HeaderMap),
    ) -> Poll<Result<ResponseHead, WireError>> {
        loop {
            while !self.input.is_empty()
                && let Some(head) = head::take(&mut self.input)?
            {
                let status = head.response.status();
                if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                    return Poll::Ready(Ok(head));
                }
                inform(status, head.response.into_parts().0.headers);
            }
            if self.came >= BEFORE_THE_ANSWER {
                return Poll::Ready(Err(WireError::Limit("what comes before the answer")));
            }
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(WireError::Ended));
            }
        }
    }

    /// The next piece of a body; `None` at its end.
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

    /// All of a body, if it is there already and nothing else is.
    pub(super) fn whole(&mut self, decoder: Decoder) -> Option<Bytes> {
        let length = decoder.size_hint().exact()?;
        (length == self.input.len() as u64).then(|| self.input.split().freeze())
    }

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

    /// Whether nothing is left of the last request and its answer, and nothing stands behind it.
    fn is_clean(&self) -> bool {
        !self.is_last && self.input.is_empty() && self.output.is_empty()
    }

    /// Its response has been taken: whether it can be kept. Then it gives large buffers back.
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

// === impl WireError ===

impl WireError {
    /// Whether the peer ended the connection, rather than say something wrong.
    pub(super) fn is_end(&self) -> bool {
        use ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        const ENDS: [ErrorKind; 5] =
            [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
        match self {
            Self::Ended => true,
            Self::Io(error) => ENDS.contains(&error.kind()),
            _ => false,
        }
    }
}

/// Whether a request may be made twice (RFC 9110 section 9.2.2).
pub(super) fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].contains(method)
}
