//! Tracks whether every proxy between client and gateway saw the end of a request at the same byte. Only then are the
//! bytes after it the next request; otherwise they may be smuggled. It reads no byte itself.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

const KNOWN: u8 = 0;
const OPEN: u8 = 1;
const DOUBTFUL: u8 = 2;

/// The state of the end of the last request on one HTTP/1 connection.
///
/// A body with a `Content-Length` ends where that says. In a chunked body the parser accepts trailers written like
/// headers, where a bare LF ends a line and two of them end the section; another proxy may have seen the end earlier.
#[derive(Debug, Default)]
pub struct RequestBoundary(AtomicU8);

// === impl RequestBoundary ===

impl RequestBoundary {
    /// Notes that a body without a length begins: its end is open until the last chunk has been read.
    pub(super) fn open(&self) {
        self.0.fetch_max(OPEN, Relaxed);
    }

    /// Notes that the body ended with its last chunk and no trailers, which every parser reads in the same way.
    pub(super) fn known(&self) {
        let _ = self.0.compare_exchange(OPEN, KNOWN, Relaxed, Relaxed);
    }

    /// Notes that the body had trailers, or that it was dropped before its end. The connection cannot be used again.
    pub(super) fn doubt(&self) {
        self.0.store(DOUBTFUL, Relaxed);
    }

    /// Whether every request so far ended at a byte on which all parsers agree.
    pub fn is_known(&self) -> bool {
        self.0.load(Relaxed) == KNOWN
    }

    /// Whether the end of a request can never be known, so that the response must say `Connection: close`.
    pub fn is_doubtful(&self) -> bool {
        self.0.load(Relaxed) == DOUBTFUL
    }
}
