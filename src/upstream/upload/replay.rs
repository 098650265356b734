//! Keeps the body of a request that may be sent again: a copy of the pieces that an attempt took, and the rest. It keeps
//! no more than its bound allows.

use super::kept::{KeptBuffer, KeptShare};
use bytes::Bytes;
use http_body::Frame;
use std::{mem, time::Duration};
use tokio::{sync::oneshot, time::timeout};

/// The most bytes that are kept only because an HTTP/2 upstream may refuse the stream, 16 KiB. A body of which the first
/// attempt took more is not sent again: most calls that an upstream refuses have smaller ones, and each call under way may
/// hold this much.
///
/// The pieces are copied, not shared: a shared piece of 100 bytes would keep the whole read buffer of its client
/// connection in memory until the response comes. Copying 16 KiB takes 0.4 µs.
pub(in crate::upstream) const SMALL: usize = 16 << 10;
/// The time that an attempt may take to drop the body after it has ended. It takes a moment as a rule: the body is dropped
/// by hyper's task, or by the task that still sends it.
const RETURN: Duration = Duration::from_secs(1);

/// Records the pieces that an attempt takes from a body, and hands the body `B` over when the attempt drops it.
#[derive(Debug)]
pub(super) struct ReplayRecorder<B> {
    /// The piece that earlier attempts took, once this one has taken it, too.
    again: Option<Bytes>,
    /// The pieces that it took. Its share counts both.
    taken: KeptBuffer,
    /// The most bytes of both.
    most: usize,
    home: oneshot::Sender<B>,
}

/// The bytes that an attempt took from a body, for the next attempt.
pub(super) struct TakenBytes<B> {
    /// `None` if it took nothing.
    pub(super) bytes: Option<Bytes>,
    pub(super) share: KeptShare,
    pub(super) home: oneshot::Sender<B>,
}

/// Receives the body `B` of a request for its next attempt, as soon as the attempt before has dropped it.
#[derive(Debug)]
pub struct Replay<B>(ReplaySource<B>);

#[derive(Debug)]
enum ReplaySource<B> {
    /// The body is not kept.
    None,
    /// The request has no body.
    Empty,
    /// The attempt under way has the body.
    Taken(oneshot::Receiver<B>),
}

/// Makes the two ends for one attempt: one is put into the body, the other waits. At most `most` bytes are recorded, and as
/// many as `share` may have.
pub(super) fn pair<B>(most: usize, share: KeptShare) -> (ReplayRecorder<B>, Replay<B>) {
    let (home, body) = oneshot::channel();
    let recorder = ReplayRecorder { again: None, taken: KeptBuffer::new(share), most, home };
    (recorder, Replay(ReplaySource::Taken(body)))
}

// === impl ReplayRecorder ===

impl<B> ReplayRecorder<B> {
    /// Whether the attempt has taken nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.again.is_none() && self.taken.bytes.is_empty()
    }

    /// Records a piece. False if the body is too large for that, has trailers, or no further attempt can follow.
    pub(super) fn record(&mut self, frame: &Frame<Bytes>) -> bool {
        let Some(data) = frame.data_ref() else { return false };
        let most = self.most.checked_sub(self.again.as_ref().map_or(0, Bytes::len));
        !self.home.is_closed() && most.is_some_and(|most| self.taken.extend(data, most))
    }

    /// Records the first piece of a body that has come back from an earlier attempt, with the bytes that it counts. It is
    /// not copied once more. False if it is too large for this attempt.
    pub(super) fn record_again(&mut self, frame: &Frame<Bytes>, share: KeptShare) -> bool {
        self.again = frame.data_ref().cloned();
        // It is the first piece: nothing else is counted yet.
        self.taken.share = share;
        !self.home.is_closed() && self.again.as_ref().is_some_and(|data| data.len() <= self.most)
    }

    /// Ends the attempt.
    pub(super) fn finish(self) -> TakenBytes<B> {
        let Self { again, taken: KeptBuffer { bytes: taken, share }, home, .. } = self;
        let bytes = match again {
            Some(again) if taken.is_empty() => Some(again),
            Some(again) => Some([again, taken.into()].concat().into()),
            None => (!taken.is_empty()).then(|| taken.into()),
        };
        TakenBytes { bytes, share, home }
    }
}

// === impl Replay ===

impl<B: Default> Replay<B> {
    /// For a body that is not kept.
    pub fn none() -> Self {
        Self(ReplaySource::None)
    }

    /// For a request without a body: there is nothing to wait for.
    pub(super) fn empty() -> Self {
        Self(ReplaySource::Empty)
    }

    /// Whether the body is kept, or there is none. It may still turn out to be too large.
    pub fn is_kept(&self) -> bool {
        !matches!(self.0, ReplaySource::None)
    }

    /// The whole body again; `None` if an attempt took more than is kept. It can be taken once.
    pub async fn take(&mut self) -> Option<B> {
        match mem::replace(&mut self.0, ReplaySource::None) {
            ReplaySource::Taken(body) => timeout(RETURN, body).await.ok()?.ok(),
            ReplaySource::Empty => Some(B::default()),
            ReplaySource::None => None,
        }
    }
}
