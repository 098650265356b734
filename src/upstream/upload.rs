//! The body of a request on its way to the upstream: streamed, counted, held until the upstream wants it, and given
//! up when its client breaks the rules. It never holds more than what was looked at ahead.

mod control;
mod replay;

pub use control::{UnrequestedBody, UploadControl};

use super::{RequestBoundary, headers};
use bytes::Bytes;
use control::{Gate, UploadState};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use parking_lot::Mutex;
pub(super) use replay::Replay;
use replay::ReplayRecorder;
use std::{
    collections::VecDeque,
    error::Error,
    future::{Future, poll_fn},
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    task::yield_now,
    time::{Instant, Sleep, sleep_until},
};

/// An upstream that says nothing for so long gets the body unasked (RFC 9110 section 10.1.1).
const GO_AHEAD: Duration = Duration::from_secs(1);
/// Of a body without a length, so much is looked at before anything is charged: frames, and bytes after which no
/// other is taken.
const AHEAD: (usize, usize) = (16, 16 << 10);

/// The body of a request. The default is none.
#[derive(Debug, Default)]
pub struct Upload {
    /// `None`: there is no body.
    watch: Option<Box<Inner>>,
}

/// What a client may do with a body.
#[derive(Debug, Clone, Copy)]
pub struct UploadLimits {
    /// Bytes; `None`: any number.
    pub limit: Option<u64>,
    /// Between two pieces.
    pub patience: Duration,
    /// Bytes of the trailers, as a header list.
    pub trailers: usize,
}

/// Why a body has no end. The upstream never takes it for a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// Its framing is none.
    #[error("the body is not framed as HTTP frames it")]
    Malformed,
    /// It is larger than it may be.
    #[error("the body is too large")]
    TooLarge,
    /// Its trailers are larger than a head may be.
    #[error("the trailers are too large")]
    Trailers,
    /// Nothing came for too long.
    #[error("the body did not come in time")]
    Slow,
    /// The client broke off.
    #[error("the client broke off in the middle of the body")]
    ClientGone,
    /// The upstream answered without it.
    #[error("nobody wants the body any more")]
    Unwanted,
}

#[derive(Debug)]
struct Inner {
    incoming: Incoming,
    is_h2: bool,
    /// Taken before it was wanted.
    ahead: VecDeque<Frame<Bytes>>,
    /// The last piece has been taken.
    has_ended: bool,
    /// Bytes that may still come.
    left: u64,
    patience: Duration,
    /// Bytes that its trailers may have.
    trailers: usize,
    /// Nothing has come yet, and must until then.
    until: Option<Instant>,
    /// Made when it is needed for the first time; most bodies come without a pause.
    timer: Option<Pin<Box<Sleep>>>,
    /// The upstream is to ask for it.
    is_held: bool,
    /// Until its end has been seen; `None` where its framing cannot be wrong.
    ends: Option<Arc<RequestBoundary>>,
    state: UploadControl,
    /// For a request that may be sent once more.
    spare: Option<ReplayRecorder>,
}

// === impl Upload ===

impl Upload {
    /// The body as it comes; `is_h2` says from what kind of connection, one of HTTP/1 has `ends`.
    pub fn new(
        incoming: Incoming,
        is_h2: bool,
        terms: UploadLimits,
        ends: &Arc<RequestBoundary>,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::default();
        }
        let is_sized = incoming.size_hint().exact().is_some();
        let ends = (!is_sized && !is_h2).then(|| ends.clone());
        if let Some(ends) = &ends {
            ends.open();
        }
        let state = UploadState { gate: Gate::Open, fault: None, taken_at: None, waker: None };
        let watch = Inner {
            incoming,
            is_h2,
            ahead: VecDeque::new(),
            has_ended: false,
            left: terms.limit.unwrap_or(u64::MAX),
            patience: terms.patience,
            trailers: terms.trailers,
            until: None,
            timer: None,
            is_held: false,
            ends,
            state: UploadControl(Arc::new(Mutex::new(state))),
            spare: None,
        };
        Self { watch: Some(Box::new(watch)) }
    }

    /// Whether there never was one.
    pub(super) fn is_none(&self) -> bool {
        self.watch.is_none()
    }

    /// What becomes of it; `None` where there is no body.
    pub fn control(&self) -> Option<UploadControl> {
        self.watch.as_ref().map(|watch| watch.state.clone())
    }

    /// Takes nothing until the upstream asks for it, or has been silent for a second.
    pub fn hold(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.is_held = true;
            watch.state.0.lock().gate = Gate::Closed;
        }
    }

    /// Remembers what is taken of it from now on, as long as that is little: the body for a second attempt.
    pub(super) fn keep(&mut self) -> Replay {
        match &mut self.watch {
            Some(watch) => {
                let (spare, kept) = replay::pair();
                watch.spare = Some(spare);
                kept
            }
            None => Replay::nothing(),
        }
    }

    /// Looks at what has come already, where its framing can be wrong. Waits for nobody: a connection is only given
    /// the time to hand on what it has read.
    ///
    /// # Errors
    ///
    /// [`UploadError`].
    pub async fn look_ahead(&mut self) -> Result<(), UploadError> {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        if watch.ends.is_none() {
            return Ok(());
        }
        let mut bytes = 0;
        while watch.ahead.len() < AHEAD.0 && bytes < AHEAD.1 {
            let taken = poll_fn(|cx| Poll::Ready(watch.take(cx))).await;
            let Poll::Ready(Some(frame)) = taken else { break };
            let frame = frame?;
            bytes += frame.data_ref().map_or(0, Bytes::len);
            watch.ahead.push_back(frame);
            yield_now().await;
        }
        Ok(())
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(watch) = &mut self.watch else { return Poll::Ready(None) };
        if watch.is_held
            && let Err(fault) = ready!(watch.asked_for(cx))
        {
            return Poll::Ready(Some(Err(fault)));
        }
        if let Some(frame) = watch.ahead.pop_front() {
            watch.note(&Some(Ok(&frame)));
            return Poll::Ready(Some(Ok(frame)));
        }
        let frame = match watch.take(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => Some(Err(ready!(watch.slow(cx)))),
        };
        watch.note(&frame.as_ref().map(Result::as_ref));
        let mut state = watch.state.0.lock();
        match &frame {
            Some(Err(fault)) => state.fault = Some(*fault),
            _ => state.taken_at = Some(Instant::now()),
        }
        drop(state);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // Whether a body without a length has ended is seen when its end is taken.
        self.watch.as_ref().is_none_or(|watch| {
            !watch.has_ended && watch.ahead.is_empty() && watch.incoming.is_end_stream()
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(watch) = &self.watch else { return SizeHint::with_exact(0) };
        let ahead = watch.ahead.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64);
        let hint = watch.incoming.size_hint();
        hint.exact().map_or(hint, |left| SizeHint::with_exact(left + ahead.sum::<u64>()))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut watch) = self.watch.take()
            && let Some(spare) = watch.spare.take()
        {
            spare.give_back(watch);
        }
    }
}

// === impl Inner ===

impl Inner {
    /// The next piece that the client sent.
    fn take(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
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
            Some(Err(error)) => Some(Err(UploadError::of(&error))),
            // A stream that its client resets without an error is given out as one that has ended.
            None if self.is_h2 && !self.incoming.is_end_stream() => {
                Some(Err(UploadError::ClientGone))
            }
            None => {
                self.has_ended = true;
                if let Some(ends) = self.ends.take() {
                    ends.seen();
                }
                None
            }
        })
    }

    /// Remembers what was taken, for a second attempt.
    fn note(&mut self, frame: &Option<Result<&Frame<Bytes>, &UploadError>>) {
        if let Some(spare) = &mut self.spare
            && let Some(frame) = frame
            && !frame.is_ok_and(|frame| spare.take(frame))
        {
            self.spare = None;
        }
    }

    fn doubt(&mut self) {
        if let Some(ends) = self.ends.take() {
            ends.doubt();
        }
    }

    /// Resolves when the body may go.
    fn asked_for(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        let gate = {
            let mut state = self.state.0.lock();
            if matches!(state.gate, Gate::Closed | Gate::Barred) {
                state.waker = Some(cx.waker().clone());
            }
            state.gate
        };
        match gate {
            Gate::Closed => {
                ready!(self.in_time(GO_AHEAD, cx));
                self.state.go_on();
            }
            Gate::Barred => return Poll::Pending,
            Gate::Over => return Poll::Ready(Err(UploadError::Unwanted)),
            Gate::Open => {}
        }
        (self.is_held, self.until, self.timer) = (false, None, None);
        Poll::Ready(Ok(()))
    }

    /// Resolves when nothing has come for too long.
    fn slow(&mut self, cx: &mut Context<'_>) -> Poll<UploadError> {
        self.in_time(self.patience, cx).map(|()| UploadError::Slow)
    }

    /// Resolves `patience` after it was asked for the first time.
    fn in_time(&mut self, patience: Duration, cx: &mut Context<'_>) -> Poll<()> {
        let until = *self.until.get_or_insert_with(|| Instant::now() + patience);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        // Set for an earlier piece, it may fire too early, but never too late.
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            timer.as_mut().reset(until);
        }
        Poll::Pending
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.doubt();
    }
}

// === impl UploadError ===

impl UploadError {
    /// What the connection of the client says of its body.
    fn of(error: &hyper::Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(cause) = cause.downcast_ref::<io::Error>() {
                return match cause.kind() {
                    io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => Self::Malformed,
                    _ => Self::ClientGone,
                };
            }
            source = cause.source();
        }
        Self::ClientGone
    }
}
