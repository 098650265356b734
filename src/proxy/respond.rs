//! The end of a request: makes the answer of every failure, and decides whether the connection closes after it. No other
//! place does either.

use super::{Body, Exchange};
use crate::{answer::Failure, metrics::Outcome};
use http::{HeaderValue, Response, header::CONNECTION};

/// The consequence of an answer for the connection that the request came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The connection stays open, unless the server closes it for reasons of its own.
    Open,
    /// The answer is no success and closes the connection, while the client may still be sending its request.
    Refused,
    /// The client left before its answer; no client reads it.
    ClientGone,
}

/// The answer to a request, without its head.
pub(crate) struct Replied {
    pub(crate) body: Body,
    pub(crate) ending: Ending,
}

/// Puts the head of a response where the answer has its own, and returns the body.
pub(crate) fn put_head<B>(response: Response<B>, head: &mut Response<()>) -> B {
    let (parts, body) = response.into_parts();
    *head = Response::from_parts(parts, ());
    body
}

// === impl Exchange ===

impl Exchange<'_> {
    /// Makes the answer of a request, and counts and logs the request. `head` is that of the answer, unless there is a
    /// failure.
    pub(crate) fn finish(
        &mut self,
        outcome: Result<Body, Failure>,
        head: &mut Response<()>,
    ) -> Replied {
        let (body, is_gone) = match outcome {
            Ok(body) => {
                self.record.note_answer(head.status());
                (body, false)
            }
            Err(failure) => {
                let refusal = self.record.refusal(&failure, self.is_grpc);
                self.closes |= failure.ends_connection();
                let is_gone = failure.outcome() == Outcome::Cancelled;
                (Body::whole(put_head(refusal, head)), is_gone)
            }
        };
        self.end(body, head, is_gone)
    }

    /// Ends a request whose record has its outcome. `is_gone` says that its client has left. The end of the body writes the
    /// access line and the trace.
    #[inline]
    pub(crate) fn end(&mut self, body: Body, head: &mut Response<()>, is_gone: bool) -> Replied {
        let body = match self.record.ending(&body) {
            Some(end) => body.logged(end),
            None => body,
        };
        let stays_open = self.is_http2 || !(self.closes || self.client.boundary.is_doubtful());
        if !stays_open {
            head.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let ending = if is_gone {
            Ending::ClientGone
        } else if stays_open || head.status().is_success() {
            Ending::Open
        } else {
            Ending::Refused
        };
        Replied { body, ending }
    }
}
