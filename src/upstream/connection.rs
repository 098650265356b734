//! A connection that is ready for one request: how the request is sent, and when it may be sent once more. Nothing is
//! repeated that the upstream may have acted upon. Asks no limiter: the caller pays for a second attempt.

use super::{
    Body, Broken, Control, Target, Upload, UpstreamError,
    balance::{Address, Chosen, Fault},
    h1::{self, Early, H1, HEAD_BYTES, Sending, framing::Decoder, is_idempotent},
    h2::{self, H2Stream, is_own_reset, is_refused},
    headers::{Own, list_size},
    pool::{Upstream, keep},
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
    pub(super) chosen: Option<Chosen>,
    pub(super) upstream: Upstream,
}

pub(super) enum Wire {
    One(Box<H1>),
    Many(H2Stream),
}

/// What became of a request on its first connection.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are answers, and a box costs each of them"
)]
pub enum Sent {
    /// The head of its response came.
    Answer(Response<Body>),
    /// It has no response, and may be sent once more.
    Again(Box<Again>),
}

/// A request without a response that may be sent once more, on a fresh connection.
pub struct Again {
    address: Arc<Address>,
    upstream: Upstream,
    /// Why the first attempt failed.
    why: Broken,
    /// Something of the request was written to the first connection.
    is_seen: bool,
}

/// Until when the head of a response must come: counted from the last piece of the request that the upstream took.
pub(super) struct Deadline {
    patience: Duration,
    least: Instant,
    upload: Option<Control>,
}

/// What became of a request.
enum Outcome {
    One(Answer),
    /// From one of HTTP/2.
    Many(Response<Incoming>),
    /// It may be sent once more; why, and whether the upstream may have seen it.
    Again(Broken, bool),
    Failed(UpstreamError),
}

/// From a connection of HTTP/1.1.
struct Answer {
    response: Response<()>,
    /// To a HEAD.
    is_bare: bool,
    /// To a request that asked for an upgrade.
    is_upgrade: bool,
    /// What is left of the request.
    sending: Option<Sending>,
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
        matches!(self.wire, Wire::Many(_))
    }

    /// Sends a request, with our own fields, from `now` on, and waits for the head of its response. `inform` hears of interim ones (1xx), where the
    /// connection is HTTP/1.1.
    ///
    /// It may be sent once more, on a fresh connection, when the upstream has seen nothing of it, has said that it did
    /// nothing with it (RFC 9113 section 8.7), or when a connection that was kept idle ended without a byte of
    /// an answer and the request may be repeated (RFC 9110 section 9.2.2). See [`Again`].
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub async fn send(
        mut self,
        request: &mut Request<Upload>,
        own: &mut Own,
        now: Instant,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Result<Sent, UpstreamError> {
        let deadline = Deadline::of(request, now, self.upstream.timeouts().response);
        match self.dispatch(request, own, &deadline, inform).await {
            Outcome::Again(why, is_seen) => {
                if let Wire::Many(wire) = &self.wire {
                    wire.retire();
                }
                let Self { address, upstream, .. } = self;
                Ok(Sent::Again(Box::new(Again { address, upstream, why, is_seen })))
            }
            outcome => self.outcome(outcome).map(Sent::Answer),
        }
    }

    /// Keeps it for the next request.
    pub fn recycle(self) {
        if let Wire::One(wire) = self.wire {
            keep(&self.upstream, wire, self.address);
        }
    }

    async fn dispatch(
        &mut self,
        request: &mut Request<Upload>,
        own: &mut Own,
        deadline: &Deadline,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Outcome {
        match &mut self.wire {
            Wire::One(wire) => dispatch_one(wire, request, own, deadline, inform).await,
            Wire::Many(wire) => {
                // What only upstreams of several versions pay stays out of the way of the others.
                let target = self.upstream.target_of(&self.address);
                own.merge_into(request.headers_mut());
                Box::pin(dispatch_many(wire, request, target, deadline)).await
            }
        }
    }

    fn outcome(mut self, outcome: Outcome) -> Result<Response<Body>, UpstreamError> {
        match outcome {
            Outcome::Failed(error) => Err(self.failed(error)),
            Outcome::Again(error, _) => Err(self.failed(UpstreamError::Broken(error))),
            Outcome::One(answer) => self.answered_one(answer),
            Outcome::Many(mut response) => {
                self.answered();
                if list_size(response.headers()) > HEAD_BYTES {
                    return Err(UpstreamError::Invalid("a head that is too large"));
                }
                // What is refused takes its connection along.
                check_response(&mut response, false)?;
                Ok(response.map(|incoming| Body::many(incoming, self)))
            }
        }
    }

    fn answered_one(mut self, answer: Answer) -> Result<Response<Body>, UpstreamError> {
        let Answer { mut response, is_bare, is_upgrade, sending, stays_open } = answer;
        self.answered();
        let length = check_response(&mut response, is_upgrade)?;
        let decoder = Decoder::of(is_bare, response.status(), length);
        let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if let Wire::One(wire) = &mut self.wire {
            wire.is_used = true;
            wire.is_last = !stays_open
                || is_upgraded
                || decoder == Decoder::Open
                || !leaves_in_step(&response, length, !decoder.is_done());
        }
        let body = match (sending, self.wire) {
            // Of a request that it had not read to its end, the rest may be the next one to it.
            (Some(sending), Wire::One(wire)) => {
                Body::early(decoder, Early::new(wire, self.chosen, sending))
            }
            (_, wire) => {
                let connection = Self { wire, ..self };
                match is_upgraded {
                    true => Body::upgraded(connection),
                    false => Body::one(decoder, connection),
                }
            }
        };
        Ok(response.map(|_| body))
    }

    fn answered(&mut self) {
        if let Some(chosen) = &mut self.chosen {
            self.upstream.site().answered(chosen);
        }
    }

    fn failed(&mut self, error: UpstreamError) -> UpstreamError {
        // When the client's side of it broke off, the upstream is not to blame.
        let is_ours = match &error {
            UpstreamError::Broken(Broken::Upload(_) | Broken::Length) => true,
            UpstreamError::Broken(Broken::Http2(error)) => error.is_user() || is_own_reset(error),
            _ => false,
        };
        if !is_ours {
            let (address, chosen) = (&self.address, self.chosen.as_mut());
            self.upstream.site().failed(address, chosen, Fault::NoAnswer, &error);
        }
        error
    }
}

// === impl Again ===

impl Again {
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
        own: &mut Own,
        now: Instant,
        inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
    ) -> Result<Response<Body>, UpstreamError> {
        let host = own.get_mut(&HOST).or_else(|| request.headers_mut().get_mut(HOST));
        if let Some(host) = host
            && *host == self.upstream.target_of(&self.address).host
        {
            *host = connection.target().host.clone();
        }
        let deadline = Deadline::of(request, now, self.upstream.timeouts().response);
        let outcome = match connection.dispatch(request, own, &deadline, inform).await {
            Outcome::Again(error, false) if !self.is_seen => {
                Outcome::Failed(UpstreamError::Unsent(error))
            }
            Outcome::Again(error, _) => Outcome::Failed(UpstreamError::Broken(error)),
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
    wire: &mut H1,
    request: &mut Request<Upload>,
    own: &Own,
    deadline: &Deadline,
    inform: &(impl Fn(StatusCode, HeaderMap) + Sync),
) -> Outcome {
    let mut sending = Sending::of(request);
    let has_body = sending.is_some();
    let sent = match wire.send(request, own, &mut sending, deadline, inform).await {
        Ok(sent) => sent,
        Err(error) => return Outcome::Failed(error),
    };
    match sent {
        h1::Sent::Answer(response, stays_open, is_sent) => Outcome::One(Answer {
            is_bare: request.method() == Method::HEAD,
            is_upgrade: response.status() == StatusCode::SWITCHING_PROTOCOLS
                && request.headers().contains_key(UPGRADE),
            response,
            sending: (!is_sent).then_some(sending),
            stays_open,
        }),
        h1::Sent::Unsent(why) => Outcome::Again(why, false),
        h1::Sent::Failed(why) => {
            // A fresh connection has no excuse.
            let may_repeat = wire.is_used && !has_body && is_idempotent(request.method());
            match may_repeat && wire.is_silent() && why.is_end() {
                true => Outcome::Again(why, true),
                false => Outcome::Failed(UpstreamError::Broken(why)),
            }
        }
    }
}

async fn dispatch_many(
    wire: &mut H2Stream,
    request: &mut Request<Upload>,
    target: &Target,
    deadline: &Deadline,
) -> Outcome {
    let (spare, kept) = (copy(request), request.body_mut().keep());
    match wire.send(mem::take(request), target, deadline).await {
        Ok(h2::Sent::Answer(response)) => Outcome::Many(response),
        Ok(h2::Sent::Unsent(unsent, why)) => {
            *request = *unsent;
            Outcome::Again(why.into(), false)
        }
        Ok(h2::Sent::Failed(why)) if is_refused(&why) => match kept.upload().await {
            Some(upload) => {
                *request = spare;
                *request.body_mut() = upload;
                Outcome::Again(why.into(), true)
            }
            None => Outcome::Failed(UpstreamError::Broken(why.into())),
        },
        Ok(h2::Sent::Failed(why)) => Outcome::Failed(UpstreamError::Broken(why.into())),
        Err(error) => Outcome::Failed(error),
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
        let taken_at = self.upload.as_ref().and_then(Control::taken_at);
        taken_at.map_or(self.least, |at| self.least.max(at + self.patience))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.address).finish()
    }
}
