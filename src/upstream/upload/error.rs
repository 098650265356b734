//! Names the reasons why the body of a request has no end. Decides nothing.

use crate::json::JsonFault;

/// The reason why the body of a request has no end. The upstream never receives such a body as a complete one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// The chunks of the body are not framed as HTTP/1.1 frames them (RFC 9112 section 7.1).
    #[error("the body is not framed as HTTP frames it")]
    Malformed,
    /// The body is larger than `limits.body`.
    #[error("the body is too large")]
    TooLarge,
    /// The bodies that the gateway holds have used up `limits.retry_bodies`, or the room for large ones.
    #[error("the gateway holds too many bodies")]
    NoRoom,
    /// A limiter reads the body, and programs may read it in different ways.
    #[error(transparent)]
    Unclear(#[from] JsonFault),
    /// The trailers are larger than `limits.header_bytes`.
    #[error("the trailers are too large")]
    Trailers,
    /// No piece of the body came within the time-out for bodies, 30 s by default.
    #[error("the body did not come in time")]
    Slow,
    /// The client closed its connection, or reset its stream, in the middle of the body.
    #[error("the client broke off in the middle of the body")]
    ClientGone,
    /// The upstream sent its complete response without asking for the body (no `100 Continue`).
    #[error("the upstream answered without the body")]
    Unwanted,
}
