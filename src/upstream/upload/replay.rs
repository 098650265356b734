//! Keeps the body of a request that may be sent again: a copy of the pieces that the first attempt took, and the rest. It
//! keeps no more than a small body.

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use std::time::Duration;
use tokio::{sync::oneshot, time::timeout};

/// The most bytes that are kept, 16 KiB. A body of which the first attempt took more is not sent again: most calls that
/// an upstream refuses have smaller ones, and each call under way may hold this much.
///
/// The pieces are copied, not shared: a shared piece of 100 bytes would keep the whole read buffer of its client
/// connection in memory until the response comes. Copying 16 KiB takes 0.4 µs.
const MOST: usize = 16 << 10;
/// The time that hyper's task may take to drop the body after its stream was refused. It takes a moment as a rule.
const RETURN: Duration = Duration::from_secs(1);

/// Records the pieces that an attempt takes from a body, and hands the body `B` over when the attempt drops it.
#[derive(Debug)]
pub(super) struct ReplayRecorder<B> {
    taken: BytesMut,
    home: oneshot::Sender<B>,
}

/// Receives the body for a second attempt as soon as the first one has dropped it.
pub(in crate::upstream) struct Replay<B>(Option<oneshot::Receiver<B>>);

/// Makes the two ends for one request: one is put into its body, the other waits.
pub(super) fn pair<B>() -> (ReplayRecorder<B>, Replay<B>) {
    let (home, replay) = oneshot::channel();
    (ReplayRecorder { taken: BytesMut::new(), home }, Replay(Some(replay)))
}

// === impl ReplayRecorder ===

impl<B> ReplayRecorder<B> {
    /// Records a piece. False if the body is too large for that, has trailers, or no second attempt can follow.
    pub(super) fn record(&mut self, frame: &Frame<Bytes>) -> bool {
        let Some(data) = frame.data_ref() else { return false };
        if self.home.is_closed() || self.taken.len() + data.len() > MOST {
            return false;
        }
        self.taken.extend_from_slice(data);
        true
    }

    /// Ends the attempt: `body` makes the body of the second one from the bytes that the first one took.
    pub(super) fn finish(self, body: impl FnOnce(Bytes) -> B) {
        // An error means that no second attempt waits for the body.
        let _ = self.home.send(body(self.taken.freeze()));
    }
}

// === impl Replay ===

impl<B: Default> Replay<B> {
    /// For a request without a body: there is nothing to wait for.
    pub(super) fn empty() -> Self {
        Self(None)
    }

    /// The whole body again; `None` if the first attempt took more than is kept.
    pub(in crate::upstream) async fn body(self) -> Option<B> {
        match self.0 {
            Some(replay) => timeout(RETURN, replay).await.ok()?.ok(),
            None => Some(B::default()),
        }
    }
}
