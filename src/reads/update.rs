//! Brings the head of a kept answer up to date by the 304 that confirms it (RFC 9111 section 3.2). Decides nothing.

use crate::upstream::headers::remove_hop_by_hop;
use http::{
    HeaderMap, HeaderName, Response,
    header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, SET_COOKIE},
};

/// The fields that describe the bytes that are kept. A 304 sends none, so what it says of them counts for nothing.
const OF_THE_BYTES: [HeaderName; 4] =
    [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE];
static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The head of an answer without all that belongs to one call: the connection's fields, and the id of the request.
pub(super) fn storable(answer: &Response<()>) -> Response<()> {
    let mut head = answer.clone();
    let headers = head.headers_mut();
    remove_hop_by_hop(headers);
    headers.remove(&X_REQUEST_ID);
    head
}

/// Replaces the fields of `kept` by those of the `confirmation`.
pub(super) fn update(kept: &mut HeaderMap, confirmation: &HeaderMap) {
    let mut new = confirmation.clone();
    remove_hop_by_hop(&mut new);
    OF_THE_BYTES.iter().for_each(|name| drop(new.remove(name)));
    for name in new.keys() {
        kept.remove(name);
    }
    for (name, value) in &new {
        kept.append(name, value.clone());
    }
}

/// Removes the fields of an answer that are for its caller alone.
pub(super) fn remove_own(headers: &mut HeaderMap) {
    headers.remove(SET_COOKIE);
    headers.remove(&X_REQUEST_ID);
}
