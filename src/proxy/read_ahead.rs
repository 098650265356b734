//! The beginning of an answer's body that is read before the client gets the answer: to look into it, or because the
//! request may be sent again meanwhile. Streams are never read ahead, and no more is kept than a bound allows.

use crate::upstream::{KeptBuffer, KeptBytes, ResponseBody, WireError};
use bytes::Bytes;
use http_body::{Body as _, Frame};
use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::time::timeout;

/// The most bytes of a body that are kept, 64 KiB: an answer that says "slow down" is much smaller.
const MOST: usize = 64 << 10;
/// The longest time for which a body is read ahead. The rest of a slower one is streamed.
const PATIENCE: Duration = Duration::from_secs(2);

/// The part of a body that was read ahead.
#[derive(Debug)]
pub(super) struct ReadAhead {
    data: KeptBuffer,
    /// The frame after `data`: trailers, or a piece for which there is no room.
    next: Option<Frame<Bytes>>,
    end: ReadAheadEnd,
}

#[derive(Debug)]
enum ReadAheadEnd {
    /// More of the body may come.
    Open,
    /// The body is complete.
    Complete,
    /// The upstream broke off.
    Failed(Option<WireError>),
}

// === impl ReadAhead ===

impl ReadAhead {
    /// Reads `body` to its end, or as much as may be kept. The bytes count in `bound`.
    pub(super) async fn of(body: &mut ResponseBody, bound: &Arc<KeptBytes>) -> Self {
        let data = KeptBuffer::new(bound.share());
        let mut start = Self { data, next: None, end: ReadAheadEnd::Open };
        // A body that is slower than this is kept as far as it came.
        let _ = timeout(PATIENCE, start.read(body)).await;
        start
    }

    async fn read(&mut self, body: &mut ResponseBody) {
        while self.next.is_none() {
            let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx));
            match pin!(frame).await {
                Some(Ok(frame)) => self.put(frame),
                Some(Err(error)) => {
                    self.end = ReadAheadEnd::Failed(Some(error));
                    return;
                }
                None => {
                    self.end = ReadAheadEnd::Complete;
                    return;
                }
            }
        }
        if self.next.as_ref().is_some_and(Frame::is_trailers) {
            self.end = ReadAheadEnd::Complete;
        }
    }

    fn put(&mut self, frame: Frame<Bytes>) {
        if !frame.data_ref().is_some_and(|data| self.data.extend(data, MOST)) {
            self.next = Some(frame);
        }
    }

    /// Whether nothing more of the body can come: it is all here, or the upstream broke off.
    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.end, ReadAheadEnd::Open)
    }

    /// The whole body, if it is complete.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        matches!(self.end, ReadAheadEnd::Complete).then_some(&*self.data.bytes)
    }

    /// Whether all frames of it are given out.
    pub(super) fn is_empty(&self) -> bool {
        let is_done = !matches!(self.end, ReadAheadEnd::Failed(Some(_)));
        self.data.bytes.is_empty() && self.next.is_none() && is_done
    }

    /// The length of what is left, if only data is left.
    pub(super) fn length(&self) -> Option<u64> {
        let next = self.next.as_ref().map_or(Some(0), |frame| frame.data_ref().map(Bytes::len))?;
        let is_failed = matches!(self.end, ReadAheadEnd::Failed(Some(_)));
        (!is_failed).then(|| (self.data.bytes.len() + next) as u64)
    }

    /// Gives out the next frame; `None` once all are given out, and the rest of the body follows.
    pub(super) fn take(&mut self) -> Option<Result<Frame<Bytes>, WireError>> {
        if !self.data.bytes.is_empty() {
            return Some(Ok(Frame::data(mem::take(&mut self.data.bytes).into())));
        }
        if let Some(frame) = self.next.take() {
            return Some(Ok(frame));
        }
        match &mut self.end {
            ReadAheadEnd::Failed(error) => error.take().map(Err),
            ReadAheadEnd::Open | ReadAheadEnd::Complete => None,
        }
    }
}
