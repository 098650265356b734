//! The body of a request on its way to the upstream: it is streamed and counted, held until the upstream wants it, and
//! given up when its client breaks a rule. It holds no more of the body than was looked at ahead.

mod ahead;
mod control;
mod error;
mod json;
mod kept;
mod reader;
mod replay;
mod request_body;

pub use ahead::BodyLine;
pub use control::{UnrequestedBody, UploadControl};
pub use error::UploadError;
pub use json::JsonReading;
pub use kept::{KeptBuffer, KeptBytes, KeptShare};
pub use replay::Replay;
pub use request_body::RequestBody;

use super::request_boundary::RequestBoundary;
use crate::json::JsonScanner;
use ahead::AheadPiece;
use bytes::Bytes;
use control::{Gate, UploadState};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use reader::UploadReader;
pub(super) use replay::SMALL;
use replay::{ReplayRecorder, TakenBytes};
use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};

/// The bounds of the part of a chunked body that is read before any limiter charges the request: 16 frames, and 16 KiB
/// after which no further frame is read.
const AHEAD: (usize, usize) = (16, 16 << 10);

/// The body of a request. The default is a request without a body.
#[derive(Debug, Default)]
pub struct Upload {
    /// `None` if there is no body.
    inner: Option<Box<Inner>>,
}

/// The bounds of a body that a client may send.
#[derive(Debug, Clone, Copy)]
pub struct UploadLimits {
    /// The most bytes; `None` allows any number.
    pub limit: Option<u64>,
    /// The longest pause between two pieces.
    pub patience: Duration,
    /// The most bytes of the trailers, counted as a header list.
    pub trailers: usize,
}

#[derive(Debug)]
struct Inner {
    reader: UploadReader,
    /// Pieces that were read before the request was charged, and are sent first.
    ahead: VecDeque<AheadPiece>,
    /// Checks the rest of a JSON body that was read in part.
    scanner: Option<Box<JsonScanner>>,
    /// The body is held until its gate opens.
    is_held: bool,
    control: UploadControl,
    /// Records the pieces of an attempt after which the request may be sent again.
    recorder: Option<ReplayRecorder<Upload>>,
}

// === impl Upload ===

impl Upload {
    /// The body that `incoming` streams from the client; `is_h2` says that its connection speaks HTTP/2. A body without a
    /// length from an HTTP/1 connection marks the `boundary` of that connection as open until it has ended.
    pub fn new(
        incoming: RequestBody,
        is_h2: bool,
        limits: UploadLimits,
        boundary: &Arc<RequestBoundary>,
    ) -> Self {
        if incoming.is_end_stream() {
            return Self::default();
        }
        let is_sized = incoming.size_hint().exact().is_some();
        let boundary = (!is_sized && !is_h2).then(|| boundary.clone());
        if let Some(boundary) = &boundary {
            boundary.open();
        }
        let state = UploadState { gate: Gate::Open, error: None, taken_at: None, waker: None };
        let inner = Inner {
            reader: UploadReader::new(incoming, is_h2, limits, boundary),
            ahead: VecDeque::new(),
            scanner: None,
            is_held: false,
            control: UploadControl(Arc::new(Mutex::new(state))),
            recorder: None,
        };
        Self { inner: Some(Box::new(inner)) }
    }

    /// The bytes of the whole body, if they are known before it is sent.
    pub fn length(&self) -> Option<u64> {
        let Some(inner) = &self.inner else { return Some(0) };
        let ahead = inner.ahead.iter().filter_map(|piece| piece.frame.data_ref());
        let ahead: u64 = ahead.map(|data| data.len() as u64).sum();
        let left =
            if inner.reader.has_ended() { Some(0) } else { inner.reader.size_hint().exact() };
        left.map(|left| left + ahead)
    }

    /// Whether the request had no body from the start.
    pub(super) fn is_none(&self) -> bool {
        self.inner.is_none()
    }

    /// The shared state of the upload; `None` if there is no body.
    pub fn control(&self) -> Option<UploadControl> {
        self.inner.as_ref().map(|inner| inner.control.clone())
    }

    /// Holds the body until the upstream asks for it, or has been silent for 1 s.
    pub fn hold(&mut self) {
        if let Some(inner) = &mut self.inner {
            inner.is_held = true;
            inner.control.0.lock().gate = Gate::Closed;
        }
    }

    /// Records the pieces that are taken from now on, up to `most` bytes: the body for the next attempt. They count in
    /// `bound`, if there is one. A body that is known to be larger is not recorded.
    pub fn record(&mut self, most: usize, bound: Option<&Arc<KeptBytes>>) -> Replay<Self> {
        let least = self.inner.is_some().then(|| self.size_hint().lower());
        let Some(inner) = &mut self.inner else { return Replay::empty() };
        if least.is_some_and(|least| least > most as u64) {
            inner.recorder = None;
            return Replay::none();
        }
        let share = bound.map_or_else(KeptShare::uncounted, KeptBytes::share);
        let (recorder, replay) = replay::pair(most, share);
        inner.recorder = Some(recorder);
        replay
    }

    /// Reads the part of a chunked body that has arrived already, so that a body with a framing error is refused before
    /// it is charged. It waits for no byte: the connection is only given the time to hand over what it has read.
    ///
    /// # Errors
    ///
    /// [`UploadError`] if that part breaks a rule.
    pub async fn look_ahead(&mut self) -> Result<(), UploadError> {
        let Some(inner) = &mut self.inner else { return Ok(()) };
        if !inner.reader.may_be_malformed() {
            return Ok(());
        }
        let mut bytes = 0;
        while inner.ahead.len() < AHEAD.0 && bytes < AHEAD.1 {
            let taken = poll_fn(|cx| Poll::Ready(inner.reader.poll_piece(cx))).await;
            let Poll::Ready(Some(frame)) = taken else { break };
            let frame = frame?;
            bytes += frame.data_ref().map_or(0, Bytes::len);
            inner.ahead.push_back(frame.into());
            yield_now().await;
        }
        Ok(())
    }
}

impl Upload {
    /// Reads the whole body before the request is charged, and returns its bytes, which are sent first. They count in `bound`
    /// as long as they are here. A client that waits for `100 Continue` gets it through this read. A body that comes byte by
    /// byte is given up after the time that is else for one pause.
    ///
    /// # Errors
    ///
    /// [`UploadError`] if the body breaks a rule; [`UploadError::TooLarge`] if it has more than `most` bytes, and
    /// [`UploadError::NoRoom`] if `bound` has no room for it.
    pub async fn read_ahead(
        &mut self,
        most: usize,
        bound: &Arc<KeptBytes>,
    ) -> Result<Bytes, UploadError> {
        if self.size_hint().lower() > most as u64 {
            return Err(UploadError::TooLarge);
        }
        let Some(inner) = &mut self.inner else { return Ok(Bytes::new()) };
        if mem::take(&mut inner.is_held) {
            inner.control.0.lock().gate = Gate::Open;
        }
        let mut whole = KeptBuffer::new(bound.share_of_needed());
        let patience = inner.reader.patience();
        let reading = timeout(patience, inner.read_into(&mut whole, most));
        let trailers = reading.await.unwrap_or(Err(UploadError::Slow))?;
        let KeptBuffer { bytes, share } = whole;
        let whole = Bytes::from(bytes);
        if !whole.is_empty() {
            inner.ahead.push_back(AheadPiece::new(whole.clone(), share));
        }
        inner.ahead.extend(trailers.map(AheadPiece::from));
        Ok(whole)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        if inner.is_held {
            if let Err(error) = ready!(inner.reader.poll_gate(&inner.control, cx)) {
                return Poll::Ready(Some(Err(error)));
            }
            inner.is_held = false;
        }
        if let Some(piece) = inner.ahead.pop_front() {
            return Poll::Ready(Some(Ok(inner.record_ahead(piece))));
        }
        let frame = match inner.reader.poll_piece(cx) {
            Poll::Ready(Some(Err(error))) => Some(Err(error)),
            Poll::Ready(frame) if inner.scanner.is_none() => frame,
            Poll::Ready(frame) => {
                let frame = frame.and_then(Result::ok);
                inner.check(frame.as_ref()).map(|()| frame).transpose()
            }
            Poll::Pending => Some(Err(ready!(inner.reader.poll_slow(cx)))),
        };
        inner.record(frame.as_ref().map(Result::as_ref));
        let mut state = inner.control.0.lock();
        match &frame {
            Some(Err(error)) => state.error = Some(*error),
            _ => state.taken_at = Some(Instant::now()),
        }
        drop(state);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // The end of a body without a length is only known when it is taken.
        self.inner.as_ref().is_none_or(|inner| inner.ahead.is_empty() && inner.reader.is_at_end())
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.inner else { return SizeHint::with_exact(0) };
        let ahead = inner.ahead.iter().filter_map(|piece| piece.frame.data_ref());
        let hint = inner.reader.size_hint();
        hint.exact().map_or(hint, |left| {
            SizeHint::with_exact(left + ahead.map(|data| data.len() as u64).sum::<u64>())
        })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut inner) = self.inner.take()
            && let Some(recorder) = inner.recorder.take()
        {
            let TakenBytes { bytes, share, home } = recorder.finish();
            if let Some(bytes) = bytes {
                inner.ahead.push_front(AheadPiece::new(bytes, share));
            }
            // An error means that no further attempt waits for the body.
            let _ = home.send(Self { inner: Some(inner) });
        }
    }
}

// === impl Inner ===

impl Inner {
    /// Reads the body to its end, and returns its trailers.
    async fn read_into(
        &mut self,
        whole: &mut KeptBuffer,
        most: usize,
    ) -> Result<Option<Frame<Bytes>>, UploadError> {
        let mut trailers = None;
        loop {
            let frame = match self.ahead.pop_front() {
                Some(piece) => piece.frame,
                None => match poll_fn(|cx| self.reader.poll_piece(cx)).await {
                    Some(frame) => frame?,
                    None => return Ok(trailers),
                },
            };
            match frame.into_data() {
                Ok(data) if data.len() > most - whole.bytes.len() => {
                    return Err(UploadError::TooLarge);
                }
                Ok(data) if !whole.extend(&data, most) => return Err(UploadError::NoRoom),
                Ok(_) => {}
                Err(frame) => trailers = Some(frame),
            }
        }
    }

    /// Records a piece that an attempt takes. Recording stops for good at the first one that cannot be kept.
    fn record(&mut self, frame: Option<Result<&Frame<Bytes>, &UploadError>>) {
        if let Some(recorder) = &mut self.recorder
            && let Some(frame) = frame
            && !frame.is_ok_and(|frame| recorder.record(frame))
        {
            self.recorder = None;
        }
    }

    /// Records a piece that was read ahead. The first one is recorded with the bytes that it counts.
    fn record_ahead(&mut self, piece: AheadPiece) -> Frame<Bytes> {
        let AheadPiece { frame, share, .. } = piece;
        match (share, &mut self.recorder) {
            (Some(share), Some(recorder)) if recorder.is_empty() => {
                if !recorder.record_again(&frame, share) {
                    self.recorder = None;
                }
            }
            _ => self.record(Some(Ok(&frame))),
        }
        frame
    }
}

#[cfg(test)]
mod tests;
