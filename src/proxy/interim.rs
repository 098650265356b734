//! Forwards interim responses of the upstream to the client (1xx, RFC 9110 section 15.2), except a 101.

use super::Client;
use crate::upstream::{UploadControl, headers};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The most interim responses of one request that are forwarded.
const MOST: usize = 16;

/// Forwards the responses that the upstream sends before its final one. Its 100 releases the request's body and is not
/// forwarded: the client gets a 100 from the gateway when its body is asked for. `client` is `None` over HTTP/2, where
/// an interim response could not be assigned to its request.
pub(super) fn pass(
    client: Option<&Arc<Client>>,
    upload: &Option<UploadControl>,
) -> impl Fn(StatusCode, HeaderMap) + Sync {
    let count = AtomicUsize::new(0);
    move |status, mut headers| {
        if status == StatusCode::CONTINUE {
            if let Some(upload) = upload {
                upload.go_on();
            }
        } else if let Some(client) = client
            && count.fetch_add(1, Relaxed) < MOST
        {
            headers::remove_hop_by_hop(&mut headers);
            // An interim response has no body (RFC 9110 section 8.6).
            headers.remove(CONTENT_LENGTH);
            client.inform(status, &headers);
        }
    }
}
