//! Reads the body of a request from its client, and checks each piece: the length, the trailers, the framing and the time
//! between two pieces. Keeps no piece.

use super::{
    UploadLimits,
    control::{Gate, UploadControl},
    error::UploadError,
    request_body::RequestBody,
};
use crate::upstream::{headers, request_boundary::RequestBoundary};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::time::{Instant, Sleep, sleep_until};

/// An upstream that does not answer `Expect: 100-continue` for 1 s gets the body unasked (RFC 9110 section 10.1.1).
const GO_AHEAD: Duration = Duration::from_secs(1);

/// The client's side of a body: what may still come, and until when.
#[derive(Debug)]
pub(super) struct UploadReader {
    incoming: RequestBody,
    is_h2: bool,
    /// The end of the body has been taken.
    has_ended: bool,
    /// The bytes that may still come until the body is too large.
    left: u64,
    patience: Duration,
    /// The most bytes of the trailers, counted as a header list.
    trailers: usize,
    /// The instant until which the next piece must come; `None` if nothing waits for one.
    until: Option<Instant>,
    /// The timer of `until`. It is made when it is needed for the first time; most bodies come without a pause.
    timer: Option<Pin<Box<Sleep>>>,
    /// The boundary that this body left open; `None` once its end is known, and if its framing cannot be wrong.
    boundary: Option<Arc<RequestBoundary>>,
}

// === impl UploadReader ===

impl UploadReader {
    pub(super) fn new(
        incoming: RequestBody,
        is_h2: bool,
        limits: UploadLimits,
        boundary: Option<Arc<RequestBoundary>>,
    ) -> Self {
        Self {
            incoming,
            is_h2,
            has_ended: false,
            left: limits.limit.unwrap_or(u64::MAX),
            patience: limits.patience,
            trailers: limits.trailers,
            until: None,
            timer: None,
            boundary,
        }
    }

    /// Whether the framing of the body can still be wrong: only chunks from an HTTP/1 connection can.
    pub(super) fn may_be_malformed(&self) -> bool {
        self.boundary.is_some()
    }

    /// Whether the connection knows that no piece follows, before the end is taken.
    pub(super) fn is_at_end(&self) -> bool {
        !self.has_ended && self.incoming.is_end_stream()
    }

    /// Whether the end has been taken.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The longest pause between two pieces.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }

    /// The next piece that the client sent; `None` at the end of the body.
    pub(super) fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        self.until = None;
        Poll::Ready(match frame {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    self.doubt();
                    if headers::list_size(trailers) > self.trailers {
                        return Poll::Ready(Some(Err(UploadError::Trailers)));
                    }
                    headers::remove_from_trailers(trailers);
                }
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match self.left.checked_sub(length) {
                    Some(left) => self.left = left,
                    None => return Poll::Ready(Some(Err(UploadError::TooLarge))),
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(cause(&*error))),
            // hyper reports a stream that its client reset without an error as one that has ended.
            None if self.is_h2 && !self.incoming.is_end_stream() => {
                Some(Err(UploadError::ClientGone))
            }
            None => {
                self.has_ended = true;
                if let Some(boundary) = self.boundary.take() {
                    boundary.known();
                }
                None
            }
        })
    }

    /// Resolves when a held body may be sent, or fails when the upstream has sent its complete response without it.
    pub(super) fn poll_gate(
        &mut self,
        control: &UploadControl,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>> {
        let gate = {
            let mut state = control.0.lock();
            if matches!(state.gate, Gate::Closed | Gate::Barred) {
                state.waker = Some(cx.waker().clone());
            }
            state.gate
        };
        match gate {
            Gate::Closed => {
                ready!(self.poll_timer(GO_AHEAD, cx));
                control.go_on();
            }
            Gate::Barred => return Poll::Pending,
            Gate::Over => return Poll::Ready(Err(UploadError::Unwanted)),
            Gate::Open => {}
        }
        (self.until, self.timer) = (None, None);
        Poll::Ready(Ok(()))
    }

    /// Resolves when no piece has come for the time that `UploadLimits::patience` allows.
    pub(super) fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<UploadError> {
        self.poll_timer(self.patience, cx).map(|()| UploadError::Slow)
    }

    /// Resolves `patience` after it was polled for the first time since the last piece.
    fn poll_timer(&mut self, patience: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let until = *self.until.get_or_insert_with(|| Instant::now() + patience);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        // The timer may be set for an earlier piece. It may fire too early then, never too late.
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }

    fn doubt(&mut self) {
        if let Some(boundary) = self.boundary.take() {
            boundary.doubt();
        }
    }
}

impl Drop for UploadReader {
    fn drop(&mut self) {
        self.doubt();
    }
}

/// The reason why the client's connection gave no further piece: an I/O error of the kind `InvalidData` is hyper's word
/// for a wrong chunk, any other error means that the client is gone.
fn cause(error: &(dyn Error + 'static)) -> UploadError {
    let mut source = Some(error);
    while let Some(cause) = source {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return match cause.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => UploadError::Malformed,
                _ => UploadError::ClientGone,
            };
        }
        source = cause.source();
    }
    UploadError::ClientGone
}
