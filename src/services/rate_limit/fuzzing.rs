//! Shows the messages of the rate limit service to the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides
//! nothing.

use super::messages::RateLimitRequest;
use crate::services::unary::{decode, encode};
use bytes::Bytes;

/// The message of a call as it is written again.
pub fn read_rate_limit(body: &[u8]) -> Option<Bytes> {
    decode::<RateLimitRequest>(body).map(|asked| encode(&asked))
}
