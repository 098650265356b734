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

/// The same answer, whose end writes the access line and the trace.
#[inline]
fn logged(response: Response<Body>, exchange: &mut Exchange<'_>) -> Response<Body> {
    match exchange.record.ending(response.body()) {
        Some(end) => response.map(|body| body.logged(end)),
        None => response,
    }
}

/// Makes the answer of a request, and counts and logs the request.
pub(super) fn finish(
    outcome: Result<Response<Body>, Failure>,
    exchange: &mut Exchange<'_>,
) -> (Response<Body>, Ending) {
    match outcome {
        Ok(response) => {
            exchange.record.answered(response.status());
            ended(response, exchange, false)
        }
        Err(failure) => {
            let response = exchange.record.refusal(&failure, exchange.is_grpc);
            let is_gone = failure.outcome() == Outcome::Cancelled;
            exchange.closes |= failure.ends_connection();
            ended(response.map(Body::whole), exchange, is_gone)
        }
    }
}

/// Ends a request whose record has its outcome, with this answer. `is_gone` says that its client has left.
#[inline]
pub(super) fn ended(
    response: Response<Body>,
    exchange: &mut Exchange<'_>,
    is_gone: bool,
) -> (Response<Body>, Ending) {
    let mut response = logged(response, exchange);
    if exchange.is_http2 || !(exchange.closes || exchange.client.boundary.is_doubtful()) {
        return (response, if is_gone { Ending::ClientGone } else { Ending::Open });
    }
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let ending = match response.status().is_success() {
        _ if is_gone => Ending::ClientGone,
        true => Ending::Open,
        false => Ending::Refused,
    };
    (response, ending)
}
