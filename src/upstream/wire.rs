//! The two kinds of connections: HTTP/1.1 with one request at a time, HTTP/2 with many.

use super::{h1::H1Connection, h2::H2Stream};

/// The part of a connection that one request uses.
pub(super) enum Wire {
    /// The whole HTTP/1.1 connection. It is idle again when the response has ended.
    Http1(Box<H1Connection>),
    /// One stream of an HTTP/2 connection, which other requests use at the same time.
    Http2(H2Stream),
}
