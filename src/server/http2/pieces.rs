//! The body of an HTTP/2 response, in pieces of one frame. Counts what the client takes of it.

use super::stall::{Progress, progress};
use crate::proxy::{Body, BodyError};
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
};

/// The size of a piece: the largest frame that every client accepts (RFC 9113 section 6.5.2).
const PIECE: usize = 16 << 10;

/// The body of an HTTP/2 response, in pieces of one frame.
pub(in crate::server) struct PiecedBody {
    body: Body,
    /// The part of the last chunk that has not been handed over.
    rest: Bytes,
    /// The error that ends the body, kept for one poll.
    cut: Option<BodyError>,
    progress: Arc<Progress>,
}

/// One piece of a response. h2 takes its bytes as the windows of the client allow.
pub(in crate::server) struct ResponsePiece {
    bytes: Bytes,
    progress: Arc<Progress>,
}

// === impl PiecedBody ===

impl PiecedBody {
    /// Makes the body of the response that the present task sends.
    pub(in crate::server) fn new(body: Body) -> Self {
        Self { body, rest: Bytes::new(), cut: None, progress: progress() }
    }
}

impl http_body::Body for PiecedBody {
    type Data = ResponsePiece;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<ResponsePiece>, Self::Error>>> {
        let this = &mut *self;
        if !this.progress.pieces.load(Relaxed).is_multiple_of(2) {
            this.progress.pieces.fetch_add(1, Relaxed);
        }
        if let Some(cut) = this.cut.take() {
            return Poll::Ready(Some(Err(cut)));
        }
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                    }
                },
                Some(Err(cut)) => {
                    // A reset would drop the pieces that are not written yet. h2 writes them while this body is pending.
                    this.cut = Some(cut);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => return Poll::Ready(None),
            }
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE));
        this.progress.pieces.fetch_add(1, Relaxed);
        let piece = ResponsePiece { bytes, progress: this.progress.clone() };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // hyper asks before the first piece only.
        self.body.size_hint()
    }
}

// === impl ResponsePiece ===

impl Buf for ResponsePiece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.progress.bytes.fetch_add(count as u64, Relaxed);
        self.bytes.advance(count);
    }
}
