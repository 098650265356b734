//! Names the reasons why a request has no response, or a response has no end. Decides nothing.

use super::{upload::UploadError, via::ViaError};
use std::{
    error::Error,
    io::{self, ErrorKind},
};

/// The reason why a request got no response from its upstream.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No connection could be made: the address refused it, the name has no address, or TLS failed.
    #[error("the upstream cannot be reached")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    /// The proxy on the way to the upstream cannot be reached, or opened no tunnel in time.
    #[error(transparent)]
    Via(ViaError),
    /// No TCP connection was made within `connect_timeout`.
    #[error("the upstream did not accept a connection in time")]
    ConnectTimeout,
    /// TCP was connected within `connect_timeout`, but the TLS handshake did not end within it.
    #[error(
        "the upstream accepted a connection and did not answer the TLS handshake in time; does it speak TLS on this port?"
    )]
    TlsTimeout,
    /// The head of the response did not arrive within `response_timeout`.
    #[error("the upstream did not answer in time")]
    ResponseTimeout,
    /// The upstream closed the connection before its response, or sent bytes that are not HTTP.
    #[error("the upstream broke off or did not speak HTTP")]
    Broken(#[source] WireError),
    /// The first attempt got no response, and no limiter had a permit for a second one within the request's budget.
    #[error(
        "the upstream gave no answer, and no permit for sending the request once more was free in time"
    )]
    Unpaid(#[source] WireError),
    /// The upstream closed the connection before any byte of the request was written.
    #[error("the upstream took no request")]
    Unsent(#[source] WireError),
    /// The response breaks a rule of HTTP that decides where it ends, such as two different lengths.
    #[error("the upstream gave an answer that HTTP does not allow: {0}")]
    Invalid(&'static str),
}

/// The reason why an exchange on one connection broke off: the response has no head, or its body has no end.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Reading from the socket or writing to it failed, with a reset for example.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The upstream closed the connection in the middle of a head or a body.
    #[error("the connection ended")]
    Ended,
    /// The bytes are no head of a response and no trailers (RFC 9112 sections 4 and 5).
    #[error("this is not as HTTP/1.1 writes it")]
    Syntax(#[from] httparse::Error),
    /// The bytes are no chunk (RFC 9112 section 7.1).
    #[error("this is no chunk as HTTP/1.1 frames it")]
    Chunk,
    /// A head, a line or the trailers are longer than the gateway reads: a head has at most 64 KiB, for example.
    #[error("there is no end of {0}")]
    Limit(&'static str),
    /// The body of the request is shorter or longer than its `Content-Length`.
    #[error("the body of the request has not the length that was announced")]
    Length,
    /// The body of the request ended without its last byte, because its client broke a rule or closed the connection.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// An HTTP/2 connection or stream failed.
    #[error(transparent)]
    Http2(#[from] hyper::Error),
}

// === impl UpstreamError ===

impl UpstreamError {
    /// Whether connecting again may help, as after a restart of the upstream or of its proxy.
    pub(super) fn is_unconnected(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Via(error) => error.of_tcp().is_some(),
            _ => false,
        }
    }

    /// Whether the upstream cannot have read a byte of the request, so that its permits can be refunded.
    pub fn is_unsent(&self) -> bool {
        matches!(
            self,
            Self::Connect(_)
                | Self::Via(_)
                | Self::ConnectTimeout
                | Self::TlsTimeout
                | Self::Unsent(_)
        )
    }
}

// === impl WireError ===

impl WireError {
    /// Whether the upstream closed the connection, in contrast to sending bytes that are not HTTP.
    pub(super) fn is_end(&self) -> bool {
        use ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof,
        };
        const ENDS: [ErrorKind; 5] =
            [BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof];
        match self {
            Self::Ended => true,
            Self::Io(error) => ENDS.contains(&error.kind()),
            _ => false,
        }
    }
}
