//! The body of an HTTP/1 response, whose end the connection has to know: only then is the request over.

use super::edge::ClientStream;
use crate::proxy::{Body, BodyError};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

/// The body of an HTTP/1 response. Dropped at its end, or when the client leaves, it ends the request on its stream.
pub(super) struct TrackedBody {
    body: Body,
    /// The error that ends the body, kept for one poll.
    cut: Option<Box<BodyError>>,
    stream: Arc<ClientStream>,
}

// === impl TrackedBody ===

impl TrackedBody {
    pub(super) fn new(body: Body, stream: Arc<ClientStream>) -> Self {
        Self { body, cut: None, stream }
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(cut) = self.cut.take() {
            return Poll::Ready(Some(Err(*cut)));
        }
        match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Err(cut)) => {
                // hyper ends the connection at an error without writing what it has buffered. It writes that while this
                // body is pending.
                self.cut = Some(Box::new(cut));
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.stream.end();
    }
}
