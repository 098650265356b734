//! A connection that is ready for one request: how the request is sent, and when it is sent once more. Nothing is
//! repeated that the upstream may have acted upon.

use super::{
    Body, Control, Target, Upload, UpstreamError,
    balance::{Address, Chosen, Fault},
    h1::{H1, Sent, is_end, is_idempotent},
    h2::{H2Stream, is_own_reset, is_refused},
    pool::{Upstream, keep},
    response::{check_response, leaves_in_step},
};
use http::{
    Request, Response, StatusCode,
    header::{HOST, UPGRADE},
    request::Parts,
};
use http_body::Body as _;
use hyper::body::Incoming;
use std::{fmt, sync::Arc, time::Duration};
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
    One(H1),
    Many(H2Stream),
}

/// Until when the head of a response must come: counted from the last piece of the request that the upstream took.
pub(super) struct Deadline {
    patience: Duration,
    least: Instant,
    upload: Option<Control>,
}

/// A request without a body, to be sent once more when the first has come to nothing.
struct Spare {
    head: Parts,
    /// What had come on the connection before it was sent.
    read: u64,
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

    /// Sends a request and waits for the head of its response.
    ///
    /// It is sent once more, on a fresh connection, when the upstream has seen nothing of it, has said that it did
    /// nothing with it (RFC 9113 section 8.7), or when a connection that was kept idle ended without a byte of
    /// an answer and the request may be repeated (RFC 9110 section 9.2.2).
    ///
    /// `prepare` has a last word each time that it goes out in HTTP/1.1.
    ///
    /// # Errors
    ///
    /// [`UpstreamError`].
    pub async fn send(
        mut self,
        request: Request<Upload>,
        prepare: impl Fn(&mut Request<Upload>) + Sync,
    ) -> Result<Response<Body>, UpstreamError> {
        let deadline = Deadline::of(&request, self.upstream.timeouts().response);
        let is_upgrade = request.headers().contains_key(UPGRADE);
        let spare = self.spare(&request);
        match self.dispatch(request, &deadline, &prepare).await {
            Ok(Sent::Answer(response)) => self.answered(response, is_upgrade, &deadline),
            Err(error) => Err(self.failed(error)),
            Ok(Sent::Unsent(request, _)) => {
                Box::pin(self.once_more(*request, None, &deadline, &prepare, is_upgrade)).await
            }
            Ok(Sent::Failed(error)) => match spare {
                Some(spare) if self.may_repeat(&spare, &error) => {
                    let request = Request::from_parts(spare.head, Upload::none());
                    let again =
                        self.once_more(request, Some(error), &deadline, &prepare, is_upgrade);
                    Box::pin(again).await
                }
                _ => Err(self.failed(UpstreamError::Broken(error))),
            },
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
        mut request: Request<Upload>,
        deadline: &Deadline,
        prepare: &(impl Fn(&mut Request<Upload>) + Sync),
    ) -> Result<Sent, UpstreamError> {
        match &mut self.wire {
            Wire::One(wire) => {
                prepare(&mut request);
                wire.send(request, deadline).await
            }
            Wire::Many(wire) => {
                // What only upstreams of several versions pay stays out of the way of the others.
                let target = self.upstream.target_of(&self.address);
                Box::pin(wire.send(request, target, deadline)).await
            }
        }
    }

    /// A copy of a request that may have to be sent once more. A fresh connection has no excuse.
    fn spare(&self, request: &Request<Upload>) -> Option<Spare> {
        let (may_fail, read) = match &self.wire {
            Wire::One(wire) => (wire.is_used && is_idempotent(request.method()), wire.read()),
            Wire::Many(_) => (true, 0),
        };
        if !may_fail || !request.body().is_end_stream() {
            return None;
        }
        let mut copy = Request::new(());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        Some(Spare { head: copy.into_parts().0, read })
    }

    fn may_repeat(&self, spare: &Spare, error: &hyper::Error) -> bool {
        match &self.wire {
            Wire::One(wire) => wire.read() == spare.read && is_end(error),
            Wire::Many(_) => is_refused(error),
        }
    }

    /// On a fresh connection, to the same address if it can be reached. It is the last time. `first` is why the
    /// first did not do, where the upstream may have seen it.
    async fn once_more(
        self,
        mut request: Request<Upload>,
        first: Option<hyper::Error>,
        deadline: &Deadline,
        prepare: &(impl Fn(&mut Request<Upload>) + Sync),
        is_upgrade: bool,
    ) -> Result<Response<Body>, UpstreamError> {
        if let Wire::Many(wire) = &self.wire {
            wire.retire();
        }
        let is_unsent = first.is_none();
        let other = self.upstream.fresh(&self.address).await;
        let mut other = other.map_err(|error| first.map_or(error, UpstreamError::Broken))?;
        let host = &other.target().host;
        if other.address.target != self.address.target
            && request.headers().get(HOST) == Some(&self.target().host)
        {
            request.headers_mut().insert(HOST, host.clone());
        }
        drop(self);
        match other.dispatch(request, deadline, prepare).await {
            Ok(Sent::Answer(response)) => other.answered(response, is_upgrade, deadline),
            Ok(Sent::Unsent(_, error)) if is_unsent => {
                Err(other.failed(UpstreamError::Unsent(error)))
            }
            Ok(Sent::Unsent(_, error) | Sent::Failed(error)) => {
                Err(other.failed(UpstreamError::Broken(error)))
            }
            Err(error) => Err(other.failed(error)),
        }
    }

    fn answered(
        mut self,
        mut response: Response<Incoming>,
        is_upgrade: bool,
        deadline: &Deadline,
    ) -> Result<Response<Body>, UpstreamError> {
        if let Some(chosen) = &mut self.chosen {
            self.upstream.site().answered(chosen);
        }
        let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let may_upgrade = match &mut self.wire {
            Wire::One(wire) => {
                wire.is_used = true;
                // Of a request that it had not read to its end, the rest may be the next one to it.
                wire.is_last = is_upgraded || deadline.is_early() || !leaves_in_step(&response);
                is_upgrade
            }
            Wire::Many(_) => false,
        };
        // What is refused takes its connection along.
        check_response(&mut response, may_upgrade)?;
        Ok(response.map(|incoming| match is_upgraded {
            true => Body::upgraded(incoming, self),
            false => Body::new(incoming, self),
        }))
    }

    fn failed(&mut self, error: UpstreamError) -> UpstreamError {
        // When the client's side of it broke off, the upstream is not to blame.
        let is_ours = match &error {
            UpstreamError::Broken(error) => error.is_user() || is_own_reset(error),
            _ => false,
        };
        if !is_ours {
            let (address, chosen) = (&self.address, self.chosen.as_mut());
            self.upstream.site().failed(address, chosen, Fault::NoAnswer, &error);
        }
        error
    }
}

// === impl Deadline ===

impl Deadline {
    fn of(request: &Request<Upload>, patience: Duration) -> Self {
        Self { patience, least: Instant::now() + patience, upload: request.body().control() }
    }

    /// Some of the request is still to be sent.
    fn is_early(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| !upload.has_ended())
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
