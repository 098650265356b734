//! A connection that is ready for one request: how the request is sent, and when it may be sent once more. Nothing is
//! repeated that the upstream may have acted upon. Asks no limiter: the caller pays for a second attempt.

use super::{
    ResponseBody, Target, Upload, UploadControl, UpstreamError, WireError,
    balance::{Address, AddressFailure, PickedAddress},
    h1::{
        self, EarlyResponse, H1Connection, HEAD_BYTES, OutgoingBody, framing::Decoder,
        is_idempotent,
    },
    h2::{self, H2Stream, is_own_reset, is_refused},
    headers::{AddedHeaders, list_size},
    pool::{Pool, keep},
    response::{check_response, leaves_in_step},
};
use http::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{HOST, UPGRADE},
};
use hyper::body::Incoming;
use std::{fmt, mem, sync::Arc, time::Duration};
use tokio::time::Instant;

/// A connection that is ready for one request.
pub struct Connection {
    pub(super) wire: Wire,
    pub(super) address: Arc<Address>,
    /// Where there was a choice.
    pub(super) picked: Option<PickedAddress>,
    pub(super) upstream: Pool,
}

pub(super) enum Wire {
    Http1(Box<H1Connection>),
    Http2(H2Stream),
}

/// What became of a request on its first connection.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are answers, and a box costs each of them"
)]
pub enum Sent {
    /// The head of its response came.
    Answer(Response<ResponseBody>),
    /// It has no response, and may be sent once more.
    Resend(Box<Resend>),
}

/// A request without a response that may be sent once more, on a fresh connection.
pub struct Resend {
    address: Arc<Address>,
    upstream: Pool,
    /// Why the first attempt failed.
    why: WireError,
    /// Something of the request was written to the first connection.
    is_seen: bool,
}

/// Until when the head of a response must come: counted from the last piece of the request that the upstream took.
pub(super) struct Deadline {
    patience: Duration,
    least: Instant,
    upload: Option<UploadControl>,
}

/// What became of a request.
enum Dispatched {
    Http1(H1Answer),
    /// From one of HTTP/2.
    Http2(Response<Incoming>),
    /// It may be sent once more; why, and whether the upstream may have seen it.
    Resend(WireError, bool),
    Failed(UpstreamError),
}

/// From a connection of HTTP/1.1.
struct H1Answer {
    response: Response<()>,
    /// To a HEAD.
    is_bare: bool,
    /// To a request that asked for an upgrade.
    is_upgrade: bool,
    /// What is left of the request.
    sending: Option<OutgoingBody>,
    /// Other answers may follow.
    stays_open: bool,
}

// === impl Connection ===

impl Connection {
    /// Where it leads: requests name its host, behind its base path.
    pub fn target(&self) -> &Target {
        self.upstream.target_of(&self.address)
    }

    /// Whether it speaks HTTP/2, which knows no upgrades.
    pub fn is_http2(&self) -> bool {
        matches!(self.wire, Wire::Http2(_))
    }

    /// Sends a request, with our own fields, from `now` on, and waits for the head of its response. `inform` hears of interim ones (1xx), where the
    /// connection is HTTP/1.1.
    ///
    /// It may be sent once more, on a fresh connection, when the upstream has seen nothing of it, has said that it did
    /// nothing with it (RFC 9113 section 8.7), or when a connection that was kept idle ended without a byte of
    /// an answer and the request may be repeated (RFC 9110 section 9.2.2). See [`Resend`].
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub async fn send(
        mut self,
        request: &mut Request<Upload>,
        own: &mut AddedHeaders,
        now: Instant,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Result<Sent, UpstreamError> {
        let deadline = Deadline::of(request, now, self.upstream.timeouts().response);
        match self.dispatch(request, own, &deadline, inform).await {
            Dispatched::Resend(why, is_seen) => {
                if let Wire::Http2(wire) = &self.wire {
                    wire.retire();
                }
                let Self { address, upstream, .. } = self;
                Ok(Sent::Resend(Box::new(Resend { address, upstream, why, is_seen })))
            }
            outcome => self.outcome(outcome).map(Sent::Answer),
        }
    }

    /// Keeps it for the next request.
    pub fn recycle(self) {
        if let Wire::Http1(wire) = self.wire {
            keep(&self.upstream, wire, self.address);
        }
    }

    async fn dispatch(
        &mut self,
        request: &mut Request<Upload>,
        own: &mut AddedHeaders,
        deadline: &Deadline,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Dispatched {
        match &mut self.wire {
            Wire::Http1(wire) => dispatch_one(wire, request, own, deadline, inform).await,
            Wire::Http2(wire) => {
                // What only upstreams of several versions pay stays out of the way of the others.
                let target = self.upstream.target_of(&self.address);
                own.merge_into(request.headers_mut());
                Box::pin(dispatch_many(wire, request, target, deadline)).await
            }
        }
    }

    fn outcome(mut self, outcome: Dispatched) -> Result<Response<ResponseBody>, UpstreamError> {
        match outcome {
            Dispatched::Failed(error) => Err(self.failed(error)),
            Dispatched::Resend(error, _) => Err(self.failed(UpstreamError::Broken(error))),
            Dispatched::Http1(answer) => self.answered_one(answer),
            Dispatched::Http2(mut response) => {
                self.answered();
                if list_size(response.headers()) > HEAD_BYTES {
                    return Err(UpstreamError::Invalid("a head that is too large"));
                }
                // What is refused takes its connection along.
                check_response(&mut response, false)?;
                Ok(response.map(|incoming| ResponseBody::many(incoming, self)))
            }
        }
    }

    fn answered_one(mut self, answer: H1Answer) -> Result<Response<ResponseBody>, UpstreamError> {
        let H1Answer { mut response, is_bare, is_upgrade, sending, stays_open } = answer;
        self.answered();
        let length = check_response(&mut response, is_upgrade)?;
        let decoder = Decoder::of(is_bare, response.status(), length);
        let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if let Wire::Http1(wire) = &mut self.wire {
            wire.is_used = true;
            wire.is_last = !stays_open
                || is_upgraded
                || decoder == Decoder::Open
                || !leaves_in_step(&response, length, !decoder.is_done());
        }
        let body = match (sending, self.wire) {
            // Of a request that it had not read to its end, the rest may be the next one to it.
            (Some(sending), Wire::Http1(wire)) => {
                ResponseBody::early(decoder, EarlyResponse::new(wire, self.picked, sending))
            }
            (_, wire) => {
                let connection = Self { wire, ..self };
                match is_upgraded {
                    true => ResponseBody::upgraded(connection),
                    false => ResponseBody::one(decoder, connection),
                }
            }
        };
        Ok(response.map(|_| body))
    }

    fn answered(&mut self) {
        if let Some(picked) = &mut self.picked {
            self.upstream.cluster().answered(picked);
        }
    }

    fn failed(&mut self, error: UpstreamError) -> UpstreamError {
        // When the client's side of it broke off, the upstream is not to blame.
        let is_ours = match &error {
            UpstreamError::Broken(WireError::Upload(_) | WireError::Length) => true,
            UpstreamError::Broken(WireError::Http2(error)) => {
                error.is_user() || is_own_reset(error)
            }
            _ => false,
        };
        if !is_ours {
            let (address, picked) = (&self.address, self.picked.as_mut());
            self.upstream.cluster().failed(address, picked, AddressFailure::NoAnswer, &error);
        }
        error
    }
}

// === impl Resend ===

impl Resend {
    /// Whether something of the request was written to the first connection. The upstream may have counted that attempt,
    /// also when it did nothing with the request, so the second one needs permits of its own.
    pub fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// A fresh connection, to the same address if it can be reached.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub async fn connection(&self) -> Result<Connection, UpstreamError> {
        self.upstream.fresh(&self.address).await
    }

    /// Sends the request for the second and last time, from `now` on.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub async fn send(
        self,
        mut connection: Connection,
        request: &mut Request<Upload>,
        own: &mut AddedHeaders,
        now: Instant,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        let host = own.get_mut(&HOST).or_else(|| request.headers_mut().get_mut(HOST));
        if let Some(host) = host
            && *host == self.upstream.target_of(&self.address).host
        {
            *host = connection.target().host.clone();
        }
        let deadline = Deadline::of(request, now, self.upstream.timeouts().response);
        let outcome = match connection.dispatch(request, own, &deadline, inform).await {
            Dispatched::Resend(error, false) if !self.is_seen => {
                Dispatched::Failed(UpstreamError::Unsent(error))
            }
            Dispatched::Resend(error, _) => Dispatched::Failed(UpstreamError::Broken(error)),
            outcome => outcome,
        };
        connection.outcome(outcome)
    }

    /// The error of a request that had no fresh connection for its second attempt.
    pub fn unconnected(self, error: UpstreamError) -> UpstreamError {
        if self.is_seen { UpstreamError::Broken(self.why) } else { error }
    }

    /// The error of a request that had no permit for its second attempt.
    pub fn unpaid(self) -> UpstreamError {
        match self.is_seen {
            true => UpstreamError::Unpaid(self.why),
            false => UpstreamError::Unsent(self.why),
        }
    }
}

async fn dispatch_one(
    wire: &mut H1Connection,
    request: &mut Request<Upload>,
    own: &AddedHeaders,
    deadline: &Deadline,
    inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
) -> Dispatched {
    let mut sending = OutgoingBody::of(request);
    let has_body = sending.is_some();
    let sent = match wire.send(request, own, &mut sending, deadline, inform).await {
        Ok(sent) => sent,
        Err(error) => return Dispatched::Failed(error),
    };
    match sent {
        h1::H1Outcome::Answer(response, stays_open, is_sent) => Dispatched::Http1(H1Answer {
            is_bare: request.method() == Method::HEAD,
            is_upgrade: response.status() == StatusCode::SWITCHING_PROTOCOLS
                && request.headers().contains_key(UPGRADE),
            response,
            sending: (!is_sent).then_some(sending),
            stays_open,
        }),
        h1::H1Outcome::Unsent(why) => Dispatched::Resend(why, false),
        h1::H1Outcome::Failed(why) => {
            // A fresh connection has no excuse.
            let may_repeat = wire.is_used && !has_body && is_idempotent(request.method());
            match may_repeat && wire.is_silent() && why.is_end() {
                true => Dispatched::Resend(why, true),
                false => Dispatched::Failed(UpstreamError::Broken(why)),
            }
        }
    }
}

async fn dispatch_many(
    wire: &mut H2Stream,
    request: &mut Request<Upload>,
    target: &Target,
    deadline: &Deadline,
) -> Dispatched {
    let (spare, kept) = (copy(request), request.body_mut().keep());
    match wire.send(mem::take(request), target, deadline).await {
        Ok(h2::H2Outcome::Answer(response)) => Dispatched::Http2(response),
        Ok(h2::H2Outcome::Unsent(unsent, why)) => {
            *request = *unsent;
            Dispatched::Resend(why.into(), false)
        }
        Ok(h2::H2Outcome::Failed(why)) if is_refused(&why) => match kept.upload().await {
            Some(upload) => {
                *request = spare;
                *request.body_mut() = upload;
                Dispatched::Resend(why.into(), true)
            }
            None => Dispatched::Failed(UpstreamError::Broken(why.into())),
        },
        Ok(h2::H2Outcome::Failed(why)) => Dispatched::Failed(UpstreamError::Broken(why.into())),
        Err(error) => Dispatched::Failed(error),
    }
}

/// A copy of a request, without its body.
fn copy(request: &Request<Upload>) -> Request<Upload> {
    let mut copy = Request::new(Upload::default());
    *copy.method_mut() = Method::clone(request.method());
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

// === impl Deadline ===

impl Deadline {
    fn of(request: &Request<Upload>, now: Instant, patience: Duration) -> Self {
        Self { patience, least: now + patience, upload: request.body().control() }
    }

    /// It may move, never back.
    pub(super) fn at(&self) -> Instant {
        let taken_at = self.upload.as_ref().and_then(UploadControl::taken_at);
        taken_at.map_or(self.least, |at| self.least.max(at + self.patience))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.address).finish()
    }
}
