//! Forwards interim responses of the upstream to the client (1xx, RFC 9110 section 15.2), except a 101.

use super::Client;
use crate::upstream::{Upload, UploadControl, headers};
use http::{HeaderMap, Request, StatusCode, Version, header::CONTENT_LENGTH};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The most interim responses of one request that are forwarded.
const MOST: usize = 16;

/// The client of a request under way: gets interim responses, and sends the body when it is asked for it.
pub(super) struct ClientSide<'h> {
    /// `None` where an interim response could not be assigned to its request, as over HTTP/2.
    listener: Option<&'h Client>,
    /// The state of the body; `None` if the request has none.
    pub(super) upload: Option<UploadControl>,
    /// The interim responses of the attempt under way.
    count: AtomicUsize,
}

// === impl ClientSide ===

impl<'h> ClientSide<'h> {
    #[inline(always)]
    pub(super) fn of(client: &'h Client, request: &Request<Upload>) -> Self {
        let listener = (request.version() == Version::HTTP_11).then_some(client);
        Self { listener, upload: request.body().control(), count: AtomicUsize::new(0) }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self) {
        *self.count.get_mut() = 0;
    }

    /// Forwards a response that the upstream sends before its final one. A 100 of the upstream releases the request's body and
    /// is not forwarded: the client gets a 100 from the gateway when its body is asked for.
    pub(super) fn inform(&self, status: StatusCode, mut headers: HeaderMap) {
        if status == StatusCode::CONTINUE {
            if let Some(upload) = &self.upload {
                upload.go_on();
            }
        } else if let Some(client) = self.listener
            && self.count.fetch_add(1, Relaxed) < MOST
        {
            headers::remove_hop_by_hop(&mut headers);
            // An interim response has no body (RFC 9110 section 8.6).
            headers.remove(CONTENT_LENGTH);
            client.inform(status, &headers);
        }
    }
}
