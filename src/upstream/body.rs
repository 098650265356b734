//! Streams the body of a response, and returns its connection to the pool at its end.

use super::{
    connection::Connection,
    error::WireError,
    h1::{EarlyResponse, HEAD_BYTES, Tunnel, framing::Decoder},
    headers::list_size,
    wire::Wire,
};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::time::Instant;

/// The body of a response. At its end the connection returns to the pool; dropping it earlier closes an HTTP/1.1
/// connection, or resets the HTTP/2 stream.
#[derive(Debug)]
pub struct ResponseBody {
    source: Kind,
    /// The connection that the body comes from; `None` once it has ended.
    connection: Option<Connection>,
}

#[derive(Debug)]
enum Kind {
    /// The whole body, which came together with the head; `None` once it is taken.
    Whole(Option<Bytes>),
    /// The rest of a body on an HTTP/1.1 connection.
    Http1(Decoder),
    /// A body on an HTTP/1.1 connection on which the rest of the request is still being sent.
    Early(Decoder, EarlyResponse),
    /// A body on an HTTP/2 stream.
    Http2(Incoming),
    /// No body: the connection has switched to another protocol.
    Upgraded,
}

// === impl ResponseBody ===

impl ResponseBody {
    /// The body on an HTTP/1.1 connection, which `decoder` takes out of its framing. Its head came at `at`.
    pub(super) fn http1(decoder: Decoder, mut connection: Connection, at: Instant) -> Self {
        let whole = match &mut connection.wire {
            Wire::Http1(wire) => wire.whole(decoder),
            Wire::Http2(_) => None,
        };
        if let Some(bytes) = whole {
            connection.recycle_since(at);
            let source = Kind::Whole((!bytes.is_empty()).then_some(bytes));
            return Self { source, connection: None };
        }
        Self { source: Kind::Http1(decoder), connection: Some(connection) }
    }

    /// The body on an HTTP/1.1 connection on which the rest of the request is still being sent.
    pub(super) fn early(decoder: Decoder, early: EarlyResponse) -> Self {
        Self { source: Kind::Early(decoder, early), connection: None }
    }

    /// The body on an HTTP/2 stream.
    pub(super) fn http2(incoming: Incoming, connection: Connection) -> Self {
        let mut body = Self { source: Kind::Http2(incoming), connection: Some(connection) };
        body.recycle_at_end();
        body
    }

    /// The empty body of a 101 response. It holds the connection until [`Self::tunnel`] takes it.
    pub(super) fn upgraded(connection: Connection) -> Self {
        Self { source: Kind::Upgraded, connection: Some(connection) }
    }

    /// A body that has ended, in place of one that was read ahead.
    pub fn ended() -> Self {
        Self { source: Kind::Whole(None), connection: None }
    }

    /// Takes the connection out of the body of a 101 response; `None` for any other.
    pub fn tunnel(self) -> Option<Tunnel> {
        let Connection { wire, picked, .. } = self.connection?;
        match (self.source, wire) {
            (Kind::Upgraded, Wire::Http1(wire)) => Some(Tunnel::new(wire, picked)),
            _ => None,
        }
    }

    /// The whole body, if it came together with the head, so that it need not be streamed.
    ///
    /// # Errors
    ///
    /// The body itself, if it has to be streamed.
    pub fn whole(self) -> Result<Bytes, Self> {
        match self.source {
            Kind::Whole(bytes) => Ok(bytes.unwrap_or_default()),
            _ => Err(self),
        }
    }

    fn recycle_at_end(&mut self) {
        if self.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            connection.recycle();
        }
    }
}

/// Refuses trailers that are larger than a head may be. The h2 crate hands such trailers over because of
/// `h2::HEAD_SLACK`.
fn check_trailers(frame: Frame<Bytes>) -> Result<Frame<Bytes>, WireError> {
    match frame.trailers_ref() {
        Some(trailers) if list_size(trailers) > HEAD_BYTES => Err(WireError::Limit("the trailers")),
        _ => Ok(frame),
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = WireError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, WireError>>> {
        let this = &mut *self;
        let frame = match (&mut this.source, &mut this.connection) {
            (Kind::Whole(bytes), _) => {
                return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))));
            }
            (Kind::Http1(decoder), Some(Connection { wire: Wire::Http1(wire), .. })) => {
                ready!(wire.poll_body(decoder, cx))
            }
            (Kind::Early(decoder, early), _) => ready!(early.poll_body(decoder, cx)),
            (Kind::Http2(incoming), Some(_)) => {
                let frame = ready!(Pin::new(incoming).poll_frame(cx));
                frame.map(|frame| check_trailers(frame.map_err(WireError::from)?))
            }
            // The body has ended.
            _ => None,
        };
        match &frame {
            Some(Ok(_)) => this.recycle_at_end(),
            Some(Err(_)) => this.connection = None,
            None => {
                if let Some(connection) = this.connection.take() {
                    connection.recycle();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::Http1(decoder) | Kind::Early(decoder, _) => decoder.is_done(),
            Kind::Http2(incoming) => incoming.is_end_stream(),
            Kind::Upgraded => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Kind::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Http1(decoder) | Kind::Early(decoder, _) => decoder.size_hint(),
            Kind::Http2(incoming) => incoming.size_hint(),
            Kind::Upgraded => SizeHint::with_exact(0),
        }
    }
}
