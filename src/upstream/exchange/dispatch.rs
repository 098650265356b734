//! Makes one attempt at a request, over HTTP/1.1 or HTTP/2, and says whether another one is allowed. Checks no response.

use crate::upstream::{
    deadline::Deadline,
    error::{UpstreamError, WireError},
    h1::{self, H1Connection, H1Outcome, HeadFacts, OutgoingBody},
    h2::{self, H2Outcome, H2Stream},
    headers::added::AddedHeaders,
    target::Target,
    upload::{Replay, SMALL, Upload},
};
use http::{HeaderMap, Method, Request, Response, StatusCode, header::UPGRADE};
use hyper::body::Incoming;
use std::mem;

/// The result of one attempt.
pub(super) enum Dispatched {
    /// The head of a response came over HTTP/1.1.
    Http1(H1Answer),
    /// The head of a response came over HTTP/2, with this body.
    Http2(Incoming),
    /// The request may be sent once more. The flag says that a byte of it was written, so that the upstream may have
    /// counted the attempt.
    Again(WireError, bool),
    /// There is no response, and the upstream may have acted upon the request.
    Failed(UpstreamError),
}

/// The facts about a response whose head came over HTTP/1.1, and the state of its exchange.
pub(super) struct H1Answer {
    pub(super) facts: HeadFacts,
    /// The request was a HEAD, whose response has no body.
    pub(super) is_bare: bool,
    /// The response is a 101, and the request asked for an upgrade.
    pub(super) is_upgrade: bool,
    /// The rest of the request, if the head came before it was sent.
    pub(super) sending: Option<OutgoingBody>,
}

/// Makes an attempt over HTTP/1.1. The head of the response is put into `answer`.
pub(super) async fn dispatch_h1(
    wire: &mut H1Connection,
    request: &mut Request<Upload>,
    added: &AddedHeaders<'_>,
    deadline: &Deadline,
    inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    answer: &mut Response<()>,
) -> Dispatched {
    let mut sending = OutgoingBody::of(request);
    let has_body = sending.is_some();
    let sent = match wire.send(request, added, &mut sending, deadline, inform, answer).await {
        Ok(sent) => sent,
        Err(error) => return Dispatched::Failed(error),
    };
    match sent {
        H1Outcome::Answer(facts, is_sent) => Dispatched::Http1(H1Answer {
            is_bare: request.method() == Method::HEAD,
            is_upgrade: answer.status() == StatusCode::SWITCHING_PROTOCOLS
                && request.headers().contains_key(UPGRADE),
            facts,
            sending: (!is_sent).then_some(sending),
        }),
        H1Outcome::Unsent(why) => Dispatched::Again(why, false),
        H1Outcome::Failed(why) => {
            // An upstream may close a connection that was idle at any time. On a fresh one, the request is the cause.
            let may_repeat = wire.is_used && !has_body && h1::is_idempotent(request.method());
            if may_repeat && wire.is_silent() && why.is_end() {
                Dispatched::Again(why, true)
            } else {
                Dispatched::Failed(UpstreamError::Broken(why))
            }
        }
    }
}

/// Makes an attempt over HTTP/2. A request whose stream the upstream refused may be sent again with its body, if that is
/// kept, or small enough to be kept for this alone. The head of the response is put into `answer`.
pub(super) async fn dispatch_h2(
    stream: &mut H2Stream,
    request: &mut Request<Upload>,
    target: &Target,
    deadline: &Deadline,
    replay: &mut Replay<Upload>,
    answer: &mut Response<()>,
) -> Dispatched {
    let spare = head_of(request);
    if !replay.is_kept() {
        *replay = request.body_mut().record(SMALL, None);
    }
    match stream.send(mem::take(request), target, deadline).await {
        Ok(H2Outcome::Answer(response)) => {
            *request = spare;
            let (head, incoming) = response.into_parts();
            *answer = Response::from_parts(head, ());
            Dispatched::Http2(incoming)
        }
        Ok(H2Outcome::Unsent(unsent, why)) => {
            *request = *unsent;
            Dispatched::Again(why.into(), false)
        }
        Ok(H2Outcome::Failed(why)) if h2::is_refused(&why) => match replay.take().await {
            Some(upload) => {
                *request = spare;
                *request.body_mut() = upload;
                Dispatched::Again(why.into(), true)
            }
            None => Dispatched::Failed(UpstreamError::Broken(why.into())),
        },
        Ok(H2Outcome::Failed(why)) => Dispatched::Failed(UpstreamError::Broken(why.into())),
        Err(error) => Dispatched::Failed(error),
    }
}

/// Copies the head of a request, because hyper takes the request away.
fn head_of(request: &Request<Upload>) -> Request<Upload> {
    let mut copy = Request::new(Upload::default());
    *copy.method_mut() = Method::clone(request.method());
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}
