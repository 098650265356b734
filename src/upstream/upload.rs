//! The body of a request on its way to the upstream, streamed.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// The body of a request, as it comes.
#[derive(Debug)]
pub struct Upload {
    incoming: Option<Incoming>,
}

// === impl Upload ===

impl Upload {
    /// As it comes.
    pub fn new(incoming: Incoming) -> Self {
        Self { incoming: Some(incoming) }
    }

    /// Of a request that has none.
    pub fn none() -> Self {
        Self { incoming: None }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.incoming {
            Some(incoming) => Pin::new(incoming).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}
