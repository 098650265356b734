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

/// The same body, whose end writes the access line and the trace.
#[inline]
fn logged(body: Body, exchange: &mut Exchange<'_>) -> Body {
    match exchange.record.ending(&body) {
        Some(end) => body.logged(end),
        None => body,
    }
}

/// Makes the answer of a request, and counts and logs the request. `head` is that of the answer, unless there is a failure.
pub(super) fn finish(
    outcome: Result<Body, Failure>,
    exchange: &mut Exchange<'_>,
    head: &mut Response<()>,
) -> (Body, Ending) {
    let (body, is_gone) = match outcome {
        Ok(body) => {
            exchange.record.answered(head.status());
            (body, false)
        }
        Err(failure) => {
            let refusal = exchange.record.refusal(&failure, exchange.is_grpc);
            let (parts, body) = refusal.into_parts();
            *head = Response::from_parts(parts, ());
            exchange.closes |= failure.ends_connection();
            (Body::whole(body), failure.outcome() == Outcome::Cancelled)
        }
    };
    ended((body, head), exchange, is_gone)
}

/// Makes the answer of a call to a service, and counts and logs the call.
pub(super) fn finish_call(
    outcome: Result<Response<Body>, Failure>,
    exchange: &mut Exchange<'_>,
) -> (Response<Body>, Ending) {
    let (outcome, mut head) = match outcome.map(Response::into_parts) {
        Ok((parts, body)) => (Ok(body), Response::from_parts(parts, ())),
        Err(failure) => (Err(failure), Response::new(())),
    };
    let (body, ending) = finish(outcome, exchange, &mut head);
    (head.map(|()| body), ending)
}

/// Ends a request whose record has its outcome, with this answer. `is_gone` says that its client has left.
#[inline]
pub(super) fn ended(
    (body, head): (Body, &mut Response<()>),
    exchange: &mut Exchange<'_>,
    is_gone: bool,
) -> (Body, Ending) {
    let body = logged(body, exchange);
    if exchange.is_http2 || !(exchange.closes || exchange.client.boundary.is_doubtful()) {
        return (body, if is_gone { Ending::ClientGone } else { Ending::Open });
    }
    head.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let ending = match head.status().is_success() {
        _ if is_gone => Ending::ClientGone,
        true => Ending::Open,
        false => Ending::Refused,
    };
    (body, ending)
}
