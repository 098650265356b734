//! Says until when the head of a response must have arrived. A long upload moves that instant, never back.

use super::upload::{Upload, UploadControl};
use http::Request;
use std::time::Duration;
use tokio::time::Instant;

/// The end of `response_timeout` for one attempt, counted from the last piece of the request that the upstream took: an
/// upload of ten minutes does not end in a time-out of 30 s.
pub(super) struct Deadline {
    response_timeout: Duration,
    earliest: Instant,
    upload: Option<UploadControl>,
}

// === impl Deadline ===

impl Deadline {
    /// The deadline of an attempt that begins `now`.
    pub(super) fn of(request: &Request<Upload>, now: Instant, response_timeout: Duration) -> Self {
        let upload = request.body().control();
        Self { response_timeout, earliest: now + response_timeout, upload }
    }

    /// The instant as it is known now. It is later when it is asked again after the upstream took another piece.
    pub(super) fn at(&self) -> Instant {
        let taken_at = self.upload.as_ref().and_then(UploadControl::taken_at);
        taken_at.map_or(self.earliest, |at| self.earliest.max(at + self.response_timeout))
    }
}
