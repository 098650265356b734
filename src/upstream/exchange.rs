//! Sends a request on a connection, and decides whether it may be sent again. A request that the upstream may have acted
//! upon is not. Asks no limiter: the caller pays for a second attempt.

mod dispatch;

use super::{
    balance::{Address, AddressFailure},
    body::ResponseBody,
    connection::Connection,
    deadline::Deadline,
    error::{UpstreamError, WireError},
    h1::{EarlyResponse, HEAD_BYTES, HeadFacts, framing::Decoder},
    headers::{added::AddedHeaders, flags::HeaderFlags, list_size},
    pool::state::PoolState,
    response::{AnnouncedLength, check_response, leaves_in_step},
    upload::{Replay, Upload},
    wire::Wire,
};
use dispatch::{Dispatched, H1Answer, dispatch_h1, dispatch_h2};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::HOST};
use std::sync::Arc;
use tokio::time::Instant;

/// The result of a request on one connection.
pub enum Sent {
    /// The head of the response came.
    Answer(Answered),
    /// No response came, and the request may be sent again.
    Resend(Box<Resend>),
}

/// A response without its head, which is where the caller wanted it.
pub struct Answered {
    /// Its body.
    pub body: ResponseBody,
    /// The special fields that the head has.
    pub seen: HeaderFlags,
    /// The instant at which the head was there.
    pub at: Instant,
}

/// The parts of a request that each attempt sends beside its head.
pub struct RequestExtras<'h> {
    /// The fields that the gateway adds.
    pub added: AddedHeaders<'h>,
    /// Has the body again when an attempt is over, if it is kept.
    pub replay: Replay<Upload>,
}

/// A request without a response that may be sent again, on a fresh connection.
pub struct Resend {
    pub(super) address: Arc<Address>,
    pub(super) pool: Arc<PoolState>,
    /// The reason why the last attempt failed.
    why: WireError,
    /// A byte of the request was written to the connection.
    is_seen: bool,
    /// A byte of it was written to an earlier one.
    was_seen: bool,
}

// === impl RequestExtras ===

impl RequestExtras<'_> {
    /// The extras of a request without added fields, whose body is not kept.
    #[inline(always)]
    pub fn none() -> Self {
        Self { added: AddedHeaders::default(), replay: Replay::none() }
    }
}

// === impl Connection ===

impl Connection {
    /// Sends a request and waits for the head of its response, which is put into `answer`. The time-out of the response begins
    /// `now`. `inform` is called with each interim response (1xx) of an HTTP/1.1 upstream. The head stays in `request`.
    ///
    /// The request may be sent again, on a fresh connection, in three cases: the upstream has seen no byte of it; the
    /// upstream declared that it did not process it (RFC 9113 section 8.7); a connection that was kept idle ended without
    /// a byte of a response, and the method may be repeated (RFC 9110 section 9.2.2). See [`Resend`].
    ///
    /// # Errors
    ///
    /// [`UpstreamError`] if there is no response and the request may not be sent again.
    pub async fn send(
        mut self,
        request: &mut Request<Upload>,
        extras: &mut RequestExtras<'_>,
        now: Instant,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
        answer: &mut Response<()>,
    ) -> Result<Sent, UpstreamError> {
        let deadline = Deadline::of(request, now, self.pool.timeouts().response);
        match self.dispatch(request, extras, &deadline, inform, answer).await {
            Dispatched::Again(why, is_seen) => {
                if let Wire::Http2(stream) = &self.wire {
                    stream.retire();
                }
                let Self { address, pool, .. } = self;
                Ok(Sent::Resend(Box::new(Resend { address, pool, why, is_seen, was_seen: false })))
            }
            outcome => self.respond(outcome, answer),
        }
    }

    async fn dispatch(
        &mut self,
        request: &mut Request<Upload>,
        extras: &mut RequestExtras<'_>,
        deadline: &Deadline,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
        answer: &mut Response<()>,
    ) -> Dispatched {
        match &mut self.wire {
            Wire::Http1(wire) => {
                dispatch_h1(wire, request, &extras.added, deadline, inform, answer).await
            }
            Wire::Http2(stream) => {
                // The box keeps the future of HTTP/1.1 requests small.
                let target = self.pool.target_of(&self.address);
                extras.added.merge_into(request.headers_mut());
                let replay = &mut extras.replay;
                Box::pin(dispatch_h2(stream, request, target, deadline, replay, answer)).await
            }
        }
    }

    /// Makes the response of an attempt: checks its head, which is in `answer`, and gives its body the connection.
    fn respond(
        mut self,
        outcome: Dispatched,
        answer: &mut Response<()>,
    ) -> Result<Sent, UpstreamError> {
        let at = Instant::now();
        match outcome {
            Dispatched::Failed(error) => Err(self.failed(error)),
            Dispatched::Again(error, _) => Err(self.failed(UpstreamError::Broken(error))),
            Dispatched::Http1(came) => self.respond_h1(came, answer, at),
            Dispatched::Http2(incoming) => {
                self.note_answer();
                if list_size(answer.headers()) > HEAD_BYTES {
                    return Err(UpstreamError::Invalid("a head that is too large"));
                }
                // A response that is refused gives its stream up.
                let seen = HeaderFlags::of_response(answer.headers());
                let announced = AnnouncedLength::of(answer.headers(), seen);
                check_response(answer, seen, announced, false)?;
                Ok(Sent::Answer(Answered { body: ResponseBody::http2(incoming, self), seen, at }))
            }
        }
    }

    fn respond_h1(
        mut self,
        came: H1Answer,
        answer: &mut Response<()>,
        at: Instant,
    ) -> Result<Sent, UpstreamError> {
        let H1Answer { facts, is_bare, is_upgrade, sending } = came;
        let HeadFacts { stays_open, seen, length } = facts;
        self.note_answer();
        let length = check_response(answer, seen, length, is_upgrade)?;
        let decoder = Decoder::of(is_bare, answer.status(), length);
        let is_upgraded = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
        if let Wire::Http1(wire) = &mut self.wire {
            wire.is_used = true;
            wire.is_last = !stays_open
                || is_upgraded
                || decoder == Decoder::Open
                || !leaves_in_step(answer, length, !decoder.is_done());
        }
        let body = match (sending, self.wire) {
            // The upstream has not read the whole request. It may take the rest for the next request.
            (Some(sending), Wire::Http1(wire)) => {
                ResponseBody::early(decoder, EarlyResponse::new(wire, self.picked, sending))
            }
            (_, wire) => {
                let connection = Self { wire, ..self };
                if is_upgraded {
                    ResponseBody::upgraded(connection)
                } else {
                    ResponseBody::http1(decoder, connection, at)
                }
            }
        };
        Ok(Sent::Answer(Answered { body, seen, at }))
    }
}

// === impl Resend ===

impl Resend {
    /// Whether a byte of the request was written to the last connection. The upstream may have counted that attempt, even if
    /// it did nothing with the request, so the next one needs permits of its own.
    pub fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// Sends the request again, on a fresh `connection`. The time-out begins `now`. The head of the response is put into
    /// `answer`.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`] if there is no response and the request may not be sent again.
    pub async fn send(
        self,
        connection: Connection,
        request: &mut Request<Upload>,
        extras: &mut RequestExtras<'_>,
        now: Instant,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
        answer: &mut Response<()>,
    ) -> Result<Sent, UpstreamError> {
        let last = &self.pool.target_of(&self.address).host;
        move_host(request, &mut extras.added, last, &connection.target().host);
        let mut sent = connection.send(request, extras, now, inform, answer).await?;
        if let Sent::Resend(next) = &mut sent {
            next.was_seen = self.is_seen || self.was_seen;
        }
        Ok(sent)
    }

    /// The error of a request for which no connection could be made for its next attempt.
    pub fn unconnected(self, error: UpstreamError) -> UpstreamError {
        if self.is_seen || self.was_seen { UpstreamError::Broken(self.why) } else { error }
    }

    /// The error of a request for which no permit was free for its next attempt.
    pub fn unpaid(self) -> UpstreamError {
        if self.is_seen || self.was_seen {
            UpstreamError::Unpaid(self.why)
        } else {
            UpstreamError::Unsent(self.why)
        }
    }

    /// The error of a request that was sent as often as it may be. Its address counts as failing.
    pub fn given_up(self) -> UpstreamError {
        let error = if self.is_seen || self.was_seen {
            UpstreamError::Broken(self.why)
        } else {
            UpstreamError::Unsent(self.why)
        };
        self.pool.cluster.failed(&self.address, None, AddressFailure::NoAnswer, &error);
        error
    }
}

/// Makes a request one for another address of the upstream: a `Host` that names the address `from` names `to`.
pub fn move_host(
    request: &mut Request<Upload>,
    added: &mut AddedHeaders<'_>,
    from: &HeaderValue,
    to: &HeaderValue,
) {
    let host = added.get_mut(&HOST).or_else(|| request.headers_mut().get_mut(HOST));
    if let Some(host) = host
        && host == from
    {
        *host = to.clone();
    }
}
