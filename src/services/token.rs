//! The token of a call to a service. Every service checks it in the same way.

use crate::config::AdminToken;
use http::{HeaderMap, HeaderName};

/// The token of the service. `Authorization` is the caller's own.
static PACEWAY_TOKEN: HeaderName = HeaderName::from_static("paceway-token");

/// Whether a call has exactly one token, and that is the configured `token`.
pub(super) fn has_token(headers: &HeaderMap, token: &AdminToken) -> bool {
    let mut all = headers.get_all(&PACEWAY_TOKEN).iter();
    matches!((all.next(), all.next()), (Some(own), None) if token.is(own.as_bytes()))
}
