//! Shares the state of an upload with the code that waits for its response: whether the body may be sent, when the last
//! piece was taken, and why it failed. Moves no byte of the body.

use super::error::UploadError;
use parking_lot::Mutex;
use std::{sync::Arc, task::Waker};
use tokio::time::Instant;

/// The state of one upload, as the code that waits for its response sees and steers it.
#[derive(Debug, Clone)]
pub struct UploadControl(pub(super) Arc<Mutex<UploadState>>);

/// Marks a body that the upstream did not ask for, although it has begun its response. On drop, when the response
/// has ended, the body ends with [`UploadError::Unwanted`].
#[derive(Debug)]
pub struct UnrequestedBody(UploadControl);

/// The state that the body and its controls share.
#[derive(Debug)]
pub(super) struct UploadState {
    pub(super) gate: Gate,
    pub(super) error: Option<UploadError>,
    /// The instant at which the upstream took the last piece, for the time-out of its response.
    pub(super) taken_at: Option<Instant>,
    /// Wakes the task that sends the body when the gate changes.
    pub(super) waker: Option<Waker>,
}

/// Whether a body may be sent. It opens at once unless the client expects `100 Continue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    /// The body is sent as it comes.
    Open,
    /// The body is held until the upstream asks for it with `100 Continue`, or for 1 s.
    Closed,
    /// The upstream has begun its response without asking for the body. The body waits until that has ended.
    Barred,
    /// The upstream sent its complete response without asking for the body (no `100 Continue`).
    Over,
}

// === impl UploadControl ===

impl UploadControl {
    /// The reason why the upload failed; `None` while it has not.
    pub fn error(&self) -> Option<UploadError> {
        self.0.lock().error
    }

    /// The instant at which the upstream took the last piece; `None` before the first one.
    pub fn taken_at(&self) -> Option<Instant> {
        self.0.lock().taken_at
    }

    /// Lets the body be sent, because the upstream has asked for it (`100 Continue`).
    pub fn go_on(&self) {
        self.turn(Gate::Closed, Gate::Open);
    }

    /// Notes that the response has begun. If the upstream had not asked for the body by then, it never will, and the
    /// returned value says so until it is dropped.
    pub fn answered(&self) -> Option<UnrequestedBody> {
        self.turn(Gate::Closed, Gate::Barred).then(|| UnrequestedBody(self.clone()))
    }

    /// Changes the gate if it is `from`, and wakes the sending task; false if it is anything else.
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
