//! Whether everybody before us has seen the end of a request where we did. What follows on its connection is the next
//! request only then.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const SEEN: u8 = 0;
const OPEN: u8 = 1;
const DOUBTFUL: u8 = 2;

/// The ends of the requests of one HTTP/1 connection.
///
/// A body with a length ends where that says. In one without, the parser takes trailers for the same as headers, where
/// a bare LF ends a line and two of them the rest, and looks for the end behind that: others may have seen it before.
#[derive(Debug, Default)]
pub struct RequestBoundary(AtomicU8);

// === impl RequestBoundary ===

impl RequestBoundary {
    /// A body without a length begins.
    pub(super) fn open(&self) {
        self.0.fetch_max(OPEN, Relaxed);
    }

    /// It ended with nothing but its last chunk.
    pub(super) fn seen(&self) {
        let _ = self.0.compare_exchange(OPEN, SEEN, Relaxed, Relaxed);
    }

    /// It ended otherwise, or nobody looks for its end any more.
    pub(super) fn doubt(&self) {
        self.0.store(DOUBTFUL, Relaxed);
    }

    /// Whether the end of every request so far is where everybody saw it.
    pub fn are_seen(&self) -> bool {
        self.0.load(Relaxed) == SEEN
    }

    /// Whether one will never be known.
    pub fn are_doubtful(&self) -> bool {
        self.0.load(Relaxed) == DOUBTFUL
    }
}
