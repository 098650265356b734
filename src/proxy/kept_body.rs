//! A body that is kept at its end, beside the stream and without delaying a byte.

use super::{Body, BodyError};
use crate::reads::Keeping;
use bytes::Bytes;
use http_body::{Body as _, Frame};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A body that is kept at its end.
#[derive(Debug)]
pub(super) struct KeptBody {
    pub(super) body: Body,
    /// `None` once the body is kept, or cannot be kept any more.
    keeping: Option<Keeping>,
}

// === impl KeptBody ===

impl KeptBody {
    pub(super) fn new(body: Body, keeping: Keeping) -> Self {
        Self { body, keeping: Some(keeping) }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let may_be_kept = match (&frame, &mut self.keeping) {
            // Trailers are not kept, so neither is a body that has some.
            (Some(Ok(frame)), Some(keeping)) => {
                frame.data_ref().is_some_and(|data| keeping.add(data))
            }
            (frame, _) => frame.is_none(),
        };
        if !may_be_kept {
            self.keeping = None;
        } else if (frame.is_none() || self.body.is_end_stream())
            && let Some(keeping) = self.keeping.take()
        {
            keeping.end();
        }
        Poll::Ready(frame)
    }
}
