//! The body of a request that may be sent once more: what was taken of it for the first attempt, and what is left. Holds
//! no more than a small body.

use super::{Inner, Upload};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use std::time::Duration;
use tokio::{sync::oneshot, time::timeout};

/// A body of which the first attempt took more is not sent again. Most calls that are refused have smaller ones, and each
/// call under way may hold this much.
const MOST: usize = 16 << 10;
/// The task that writes a body lets go of it a moment after its stream was refused.
const RETURN: Duration = Duration::from_secs(1);

/// What was taken for an attempt, on the body's side.
#[derive(Debug)]
pub(super) struct ReplayRecorder {
    taken: BytesMut,
    home: oneshot::Sender<Upload>,
}

/// The body for a second attempt, when the first one has let go of it.
pub(in crate::upstream) struct Replay(Option<oneshot::Receiver<Upload>>);

pub(super) fn pair() -> (ReplayRecorder, Replay) {
    let (home, kept) = oneshot::channel();
    (ReplayRecorder { taken: BytesMut::new(), home }, Replay(Some(kept)))
}

// === impl ReplayRecorder ===

impl ReplayRecorder {
    /// Remembers a piece; false when the body is too large for that, or no second attempt can follow any more.
    pub(super) fn take(&mut self, frame: &Frame<Bytes>) -> bool {
        let Some(data) = frame.data_ref() else { return false };
        if self.home.is_closed() || self.taken.len() + data.len() > MOST {
            return false;
        }
        self.taken.extend_from_slice(data);
        true
    }

    /// The attempt is over.
    pub(super) fn give_back(self, mut watch: Box<Inner>) {
        if !self.taken.is_empty() {
            watch.ahead.push_front(Frame::data(self.taken.freeze()));
        }
        // An error means that there is no second attempt.
        let _ = self.home.send(Upload { watch: Some(watch) });
    }
}

// === impl Replay ===

impl Replay {
    /// For a request without a body.
    pub(super) fn nothing() -> Self {
        Self(None)
    }

    /// The whole body again; `None` when more was taken of it than is kept.
    pub(in crate::upstream) async fn upload(self) -> Option<Upload> {
        match self.0 {
            Some(kept) => timeout(RETURN, kept).await.ok()?.ok(),
            None => Some(Upload::default()),
        }
    }
}
