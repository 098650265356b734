//! The body of a response, streamed; at its end the connection goes back.

use super::{
    Connection, Tunnel, WireError,
    connection::Wire,
    h1::{EarlyResponse, HEAD_BYTES, framing::Decoder},
    headers::list_size,
};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// The body of a response; at its end the connection is ready for others. Dropped before, it ends the call.
#[derive(Debug)]
pub struct ResponseBody {
    source: Kind,
    /// Until it has ended.
    connection: Option<Connection>,
}

#[derive(Debug)]
enum Kind {
    /// All of it, until it is taken.
    Whole(Option<Bytes>),
    /// From an HTTP/1.1 connection.
    Http1(Decoder),
    /// From one that is still taking the request.
    Early(Decoder, EarlyResponse),
    /// From an HTTP/2 connection.
    Http2(Incoming),
    /// From one that is no longer HTTP.
    Upgraded,
}

// === impl ResponseBody ===

impl ResponseBody {
    /// From an HTTP/1.1 connection, to be taken out of its frames.
    pub(super) fn one(decoder: Decoder, mut connection: Connection) -> Self {
        let whole = match &mut connection.wire {
            Wire::Http1(wire) => wire.whole(decoder),
            Wire::Http2(_) => None,
        };
        if let Some(bytes) = whole {
            connection.recycle();
            let source = Kind::Whole((!bytes.is_empty()).then_some(bytes));
            return Self { source, connection: None };
        }
        Self { source: Kind::Http1(decoder), connection: Some(connection) }
    }

    /// From an HTTP/1.1 connection that is still taking the request.
    pub(super) fn early(decoder: Decoder, early: EarlyResponse) -> Self {
        Self { source: Kind::Early(decoder, early), connection: None }
    }

    /// From an HTTP/2 connection.
    pub(super) fn many(incoming: Incoming, connection: Connection) -> Self {
        let mut body = Self { source: Kind::Http2(incoming), connection: Some(connection) };
        body.recycle_at_end();
        body
    }

    /// Of a connection that is no longer HTTP: it counts as in use as long as this is held.
    pub(super) fn upgraded(connection: Connection) -> Self {
        Self { source: Kind::Upgraded, connection: Some(connection) }
    }

    /// The connection, if it is no longer HTTP.
    pub fn tunnel(self) -> Option<Tunnel> {
        let Connection { wire, picked, .. } = self.connection?;
        match (self.source, wire) {
            (Kind::Upgraded, Wire::Http1(wire)) => Some(Tunnel::new(wire, picked)),
            _ => None,
        }
    }

    /// All of it, if that is there already; what is left of it otherwise.
    ///
    /// # Errors
    ///
    /// The body.
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

/// Refuses trailers that are larger than a head may be; HTTP/2 is asked to hand these over (see `h2::HEAD_SLACK`).
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
            // It has ended.
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
