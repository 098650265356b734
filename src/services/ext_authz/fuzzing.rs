//! Shows the messages of `ext_authz` to the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::{messages::CheckRequest, restore};
use crate::services::unary::{decode, encode};
use axum::body::Body;
use bytes::Bytes;
use http::Request;

/// A message that was read.
#[derive(Debug)]
pub struct FuzzedCheck {
    /// The message as it is written again.
    pub again: Bytes,
    /// The request that it describes, if it does.
    pub described: Option<Request<Body>>,
}

/// Reads the message of a call.
pub fn read_check(body: &[u8]) -> Option<FuzzedCheck> {
    let asked: CheckRequest = decode(body)?;
    let again = encode(&asked);
    let attributes = asked.attributes.unwrap_or_default();
    let described = attributes.request.and_then(|request| request.http).unwrap_or_default();
    Some(FuzzedCheck { again, described: restore(described).ok() })
}
