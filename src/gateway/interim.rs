//! Interim responses of the upstream (1xx, RFC 9110 section 15.2) on their way to the client. A 101 is none of them.

use super::Peer;
use crate::upstream::{Control, Upload, headers};
use http::{Request, StatusCode, header::CONTENT_LENGTH};
use hyper::ext::on_informational;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Those of one request that are passed on.
const MOST: usize = 16;

/// Passes on what the upstream says before its answer to `request`. Its 100 lets the body go, and stays here: the
/// client gets one of its own when its body is asked for. Over HTTP/2 there is no `peer` to tell: nobody knows for
/// which of its requests.
pub(super) fn pass(
    request: &mut Request<Upload>,
    peer: Option<&Arc<Peer>>,
    upload: &Option<Control>,
) {
    if peer.is_none() && upload.is_none() {
        return;
    }
    let (peer, upload, count) = (peer.cloned(), upload.clone(), AtomicUsize::new(0));
    on_informational(request, move |response| {
        if response.status() == StatusCode::CONTINUE {
            if let Some(upload) = &upload {
                upload.go_on();
            }
        } else if let Some(peer) = &peer
            && count.fetch_add(1, Relaxed) < MOST
        {
            let mut passed = response.headers().clone();
            headers::remove_hop_by_hop(&mut passed);
            // It has no body (RFC 9110 section 8.6).
            passed.remove(CONTENT_LENGTH);
            peer.inform(response.status(), &passed);
        }
    });
}
