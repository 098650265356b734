//! The head of an answer as the client gets it. The rules of HTTP for it are in `upstream/headers`.

use super::{accounts::PACEWAY_ACCOUNT, record::Record, request_id::X_REQUEST_ID};
use crate::{
    answer::PACEWAY_ORIGIN,
    plan::RoutePolicy,
    upstream::headers::{self, HeaderFlags},
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use std::mem;

/// The times that a request was sent, if it was sent more than once.
static PACEWAY_ATTEMPTS: HeaderName = HeaderName::from_static("paceway-attempts");

/// Makes the head of the upstream's response one for the client.
pub(super) fn for_client(
    policy: &RoutePolicy,
    record: &Record<'_>,
    seen: HeaderFlags,
    is_forward: bool,
    response: &mut Response<()>,
) {
    let version = mem::replace(response.version_mut(), Version::HTTP_11);
    let status = response.status();
    let headers: &mut HeaderMap = response.headers_mut();
    headers::to_client(headers, seen, version);
    // An id that the upstream sends stays.
    if !(seen.has(HeaderFlags::REQUEST_ID) && headers.contains_key(&X_REQUEST_ID)) {
        headers.append(&X_REQUEST_ID, record.id.clone());
    }
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(PACEWAY_ORIGIN, HeaderValue::from_static("upstream"));
    }
    if record.attempts > 1 {
        headers.insert(&PACEWAY_ATTEMPTS, HeaderValue::from(record.attempts));
    }
    if let Some(account) = record.account_label() {
        headers.insert(&PACEWAY_ACCOUNT, account.clone());
    }
    record.tell(headers);
    for rules in policy.rules.as_ref().into_iter().flatten() {
        // A client of the forward proxy knows the upstream by its own URL.
        if is_forward {
            rules.response.apply_to_forwarded(headers)
        } else {
            rules.response.apply(headers)
        }
    }
}
