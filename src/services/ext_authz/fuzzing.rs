//! Shows the messages of `ext_authz` to the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::{messages::CheckRequest, restore};
use crate::services::unary::{decode, encode};
use axum::body::Body;
use bytes::Bytes;
use http::Request;

/// The message of a call as it is written again, and the request that it describes, if it does.
pub fn read_check(body: &[u8]) -> Option<(Bytes, Option<Request<Body>>)> {
    let asked: CheckRequest = decode(body)?;
    let again = encode(&asked);
    let attributes = asked.attributes.unwrap_or_default();
    let described = attributes.request.and_then(|request| request.http).unwrap_or_default();
    Some((again, restore(described).ok()))
}
