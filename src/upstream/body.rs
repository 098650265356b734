//! The body of a response, streamed; at its end the connection goes back.

use super::Connection;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// The body of a response; at its end the connection is ready for others. Dropped before, it ends the call.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    connection: Option<Connection>,
}

// === impl Body ===

impl Body {
    pub(super) fn new(incoming: Incoming, connection: Connection) -> Self {
        let mut body = Self { incoming, connection: Some(connection) };
        body.recycle_at_end();
        body
    }

    /// Of a connection that is no longer HTTP: it counts as in use as long as this is held.
    pub(super) fn upgraded(incoming: Incoming, connection: Connection) -> Self {
        Self { incoming, connection: Some(connection) }
    }

    fn recycle_at_end(&mut self) {
        if self.incoming.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            connection.recycle();
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.recycle_at_end(),
            Some(Err(_)) => self.connection = None,
            None => {
                if let Some(connection) = self.connection.take() {
                    connection.recycle();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
