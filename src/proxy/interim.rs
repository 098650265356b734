//! Interim responses of the upstream (1xx, RFC 9110 section 15.2) on their way to the client. A 101 is none of them.

use super::Client;
use crate::upstream::{UploadControl, headers};
use http::{HeaderMap, StatusCode, header::CONTENT_LENGTH};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Those of one request that are passed on.
const MOST: usize = 16;

/// Passes on what the upstream says before its answer. Its 100 lets the body go, and stays here: the client gets one of
/// its own when its body is asked for. Over HTTP/2 there is no `client` to tell: nobody knows for which of its requests.
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
            // It has no body (RFC 9110 section 8.6).
            headers.remove(CONTENT_LENGTH);
            client.inform(status, &headers);
        }
    }
}
