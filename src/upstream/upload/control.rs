//! What becomes of an upload, for who waits for the answer to it: when it may go, how far it is, why it failed. Moves no
//! body.

use super::UploadError;
use parking_lot::Mutex;
use std::{sync::Arc, task::Waker};
use tokio::time::Instant;

/// What becomes of an upload, for who waits for the answer to it.
#[derive(Debug, Clone)]
pub struct UploadControl(pub(super) Arc<Mutex<UploadState>>);

/// An answer came before the body was asked for: with this, the wish for it ends.
#[derive(Debug)]
pub struct UnrequestedBody(UploadControl);

#[derive(Debug)]
pub(super) struct UploadState {
    pub(super) gate: Gate,
    pub(super) fault: Option<UploadError>,
    /// When the last piece went on its way.
    pub(super) taken_at: Option<Instant>,
    pub(super) waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// Until the upstream asks for the body.
    Closed,
    /// The upstream has answered without it, and its answer is under way.
    Barred,
    /// So has it, and that was all.
    Over,
}

// === impl UploadControl ===

impl UploadControl {
    /// Why the upload has failed, if so.
    pub fn fault(&self) -> Option<UploadError> {
        self.0.lock().fault
    }

    /// When the upstream took a piece for the last time.
    pub fn taken_at(&self) -> Option<Instant> {
        self.0.lock().taken_at
    }

    /// The upstream asks for the body.
    pub fn go_on(&self) {
        self.turn(Gate::Closed, Gate::Open);
    }

    /// The upstream has answered; did it so before it asked for the body, nobody will any more.
    pub fn answered(&self) -> Option<UnrequestedBody> {
        self.turn(Gate::Closed, Gate::Barred).then(|| UnrequestedBody(self.clone()))
    }

    fn turn(&self, from: Gate, to: Gate) -> bool {
        let mut state = self.0.lock();
        if state.gate != from {
            return false;
        }
        state.gate = to;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

// === impl UnrequestedBody ===

impl Drop for UnrequestedBody {
    fn drop(&mut self) {
        self.0.turn(Gate::Barred, Gate::Over);
    }
}
