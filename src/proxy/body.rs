//! The body of a response: the upstream's, streamed, or our own. It never ends well when the upstream's did not.

use super::{
    client::DisconnectWatch, kept_body::KeptBody, pumped_body::PumpedBody, read_ahead::ReadAhead,
    record::AnswerEnd, settling::Settling,
};
use crate::{
    limit::Reservation,
    reads::Keeping,
    upstream::{self, UnrequestedBody},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body as _, Frame, SizeHint};
use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// The body of a response.
#[derive(Debug)]
pub struct Body(BodySource);

/// Why a response has no end. Its client never takes it for a whole one.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The upstream broke off.
    #[error("the upstream broke off")]
    Upstream(#[source] upstream::WireError),
    /// It reset the stream without an error.
    #[error("the upstream reset the stream")]
    Reset,
    /// The client of the response has left, so no client reads it.
    #[error("the client has left")]
    ClientLeft,
}

#[derive(Debug)]
enum BodySource {
    /// In a box, because most bodies are whole, and each is moved some ten times.
    Streamed(Box<Streamed>),
    /// Our own, or an upstream's that came whole with its head. `None` once it is taken, or if it is empty.
    Whole(Option<Bytes>),
    /// A body whose beginning was read ahead, with the rest of it: another body.
    ReadAhead(Box<ReadAheadBody>),
    /// Another body, which says the true cost of its request.
    Settling(Box<SettlingBody>),
    /// The one message of a gRPC answer that is a success, and its trailers.
    Unary(Box<UnaryBody>),
    /// Another body, which is kept at its end.
    Kept(Box<KeptBody>),
    /// A body that others wait for, too.
    Pumped(Box<PumpedBody>),
    /// Another body, whose end writes an access line and a trace.
    Logged(Box<LoggedBody>),
}

#[derive(Debug)]
struct UnaryBody {
    /// `None` once it is taken.
    message: Option<Bytes>,
    /// The trailers are not taken yet.
    has_trailers: bool,
}

#[derive(Debug)]
struct LoggedBody {
    body: Body,
    end: AnswerEnd,
}

#[derive(Debug)]
struct ReadAheadBody {
    start: ReadAhead,
    rest: Body,
}

#[derive(Debug)]
struct SettlingBody {
    body: Body,
    /// `None` once the cost is settled, or cannot be known any more. If it is there in the end, the client has left.
    settling: Option<Box<Settling>>,
}

#[derive(Debug)]
struct Streamed {
    body: upstream::ResponseBody,
    is_h2: bool,
    /// `None` once the body is read for its cost alone.
    client: Option<DisconnectWatch>,
    /// Holds concurrency permits until the body has ended or the client has left.
    lease: Option<Box<Reservation>>,
    /// The request's body was never asked for; that is over when this body is.
    unasked: Option<UnrequestedBody>,
}

// === impl Body ===

impl Body {
    /// As it comes from the upstream, by HTTP/2 or not, for as long as the client is there.
    pub(super) fn streamed(
        body: upstream::ResponseBody,
        is_h2: bool,
        client: impl FnOnce() -> DisconnectWatch,
    ) -> Self {
        match body.whole() {
            Ok(bytes) => Self::whole(bytes),
            Err(body) => Self(BodySource::Streamed(Box::new(Streamed {
                body,
                is_h2,
                client: Some(client()),
                lease: None,
                unasked: None,
            }))),
        }
    }

    /// Bytes that are all there: our own, or an upstream's whole body.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self(BodySource::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    /// None.
    pub(crate) fn empty() -> Self {
        Self(BodySource::Whole(None))
    }

    /// The one message of a gRPC answer that is a success.
    pub(crate) fn unary(message: Bytes) -> Self {
        Self(BodySource::Unary(Box::new(UnaryBody { message: Some(message), has_trailers: true })))
    }

    /// The same body with the beginning that was read ahead.
    pub(super) fn after(self, start: ReadAhead) -> Self {
        Self(BodySource::ReadAhead(Box::new(ReadAheadBody { start, rest: self })))
    }

    /// The same body, beside which the true cost of its request is read.
    pub(super) fn settling(self, settling: Box<Settling>) -> Self {
        let settling = Some(settling);
        Self(BodySource::Settling(Box::new(SettlingBody { body: self, settling })))
    }

    /// The same body, which `keeping` has at its end.
    pub(super) fn with_keeping(self, mut keeping: Keeping) -> Self {
        if let Some(bytes) = self.whole_bytes() {
            if keeping.add(bytes) {
                keeping.end();
            }
            return self;
        }
        Self(BodySource::Kept(Box::new(KeptBody::new(self, keeping))))
    }

    /// A body that others wait for, too.
    pub(super) fn of_pump(body: PumpedBody) -> Self {
        Self(BodySource::Pumped(Box::new(body)))
    }

    /// All of its bytes, if they are there and no other part reads them.
    pub(super) fn whole_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            BodySource::Whole(bytes) => Some(bytes.as_deref().unwrap_or_default()),
            _ => None,
        }
    }

    /// The same body, at whose end the access line and the trace are written.
    pub(super) fn logged(self, end: AnswerEnd) -> Self {
        Self(BodySource::Logged(Box::new(LoggedBody { body: self, end })))
    }

    /// Lets it be read to its end although its client has left.
    pub(super) fn forget_client(&mut self) {
        match &mut self.0 {
            BodySource::Streamed(streamed) => streamed.client = None,
            BodySource::ReadAhead(body) => body.rest.forget_client(),
            BodySource::Kept(body) => body.body.forget_client(),
            BodySource::Settling(body) => body.body.forget_client(),
            BodySource::Whole(_)
            | BodySource::Unary(_)
            | BodySource::Pumped(_)
            | BodySource::Logged(_) => {}
        }
    }

    /// The number of its bytes, if all of them are there.
    pub(super) fn whole_len(&self) -> Option<u64> {
        match &self.0 {
            BodySource::Whole(bytes) => Some(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            _ => self.is_end_stream().then_some(0),
        }
    }

    /// Keeps these until it has ended.
    #[inline]
    pub(super) fn keep(
        &mut self,
        lease: Option<Box<Reservation>>,
        unasked: Option<UnrequestedBody>,
    ) {
        if lease.is_some() || unasked.is_some() {
            self.keep_until_end(lease, unasked);
        }
    }

    fn keep_until_end(
        &mut self,
        lease: Option<Box<Reservation>>,
        unasked: Option<UnrequestedBody>,
    ) {
        match &mut self.0 {
            BodySource::Streamed(streamed) if !streamed.body.is_end_stream() => {
                streamed.lease = lease;
                streamed.unasked = unasked;
            }
            BodySource::ReadAhead(body) => body.rest.keep_until_end(lease, unasked),
            // A response without a body ends here.
            BodySource::Streamed(_)
            | BodySource::Whole(_)
            | BodySource::Unary(_)
            | BodySource::Settling(_)
            | BodySource::Kept(_)
            | BodySource::Pumped(_)
            | BodySource::Logged(_) => {}
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            BodySource::Streamed(streamed) => streamed.poll_frame(cx),
            BodySource::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes))))
            }
            BodySource::ReadAhead(body) => match body.start.take() {
                Some(frame) => Poll::Ready(Some(frame.map_err(BodyError::Upstream))),
                None if body.start.has_ended() => Poll::Ready(None),
                None => Pin::new(&mut body.rest).poll_frame(cx),
            },
            BodySource::Unary(body) => {
                let data = body.message.take().map(Frame::data);
                let end = || mem::take(&mut body.has_trailers).then(success);
                Poll::Ready(data.or_else(end).map(Ok))
            }
            BodySource::Settling(settling) => settling.poll_frame(cx),
            BodySource::Kept(kept) => kept.poll_frame(cx),
            BodySource::Pumped(pumped) => pumped.poll_frame(cx),
            BodySource::Logged(logged) => logged.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Streamed(streamed) => streamed.body.is_end_stream(),
            BodySource::Whole(bytes) => bytes.is_none(),
            BodySource::ReadAhead(body) => body.is_end_stream(),
            BodySource::Unary(body) => !body.has_trailers,
            BodySource::Settling(settling) => settling.body.is_end_stream(),
            BodySource::Kept(kept) => kept.body.is_end_stream(),
            BodySource::Pumped(pumped) => pumped.has_ended(),
            BodySource::Logged(logged) => logged.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Streamed(streamed) => streamed.body.size_hint(),
            BodySource::Settling(settling) => settling.body.size_hint(),
            BodySource::Kept(kept) => kept.body.size_hint(),
            BodySource::Pumped(pumped) => pumped.size_hint(),
            BodySource::Logged(logged) => logged.body.size_hint(),
            BodySource::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            // Trailers follow.
            BodySource::Unary(_) => SizeHint::default(),
            BodySource::ReadAhead(body) => body.size_hint(),
        }
    }
}

/// The trailers of a gRPC call that is a success.
fn success() -> Frame<Bytes> {
    let status = [(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))];
    Frame::trailers(HeaderMap::from_iter(status))
}

// === impl ReadAheadBody ===

impl ReadAheadBody {
    fn is_end_stream(&self) -> bool {
        self.start.is_empty() && (self.start.has_ended() || self.rest.is_end_stream())
    }

    /// The length, if it is known and no trailers follow.
    fn size_hint(&self) -> SizeHint {
        let rest = if self.start.has_ended() { Some(0) } else { self.rest.size_hint().exact() };
        let length = self.start.length().zip(rest).map(|(start, rest)| start + rest);
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

// === impl LoggedBody ===

impl LoggedBody {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            self.end.count_sent(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }
}

// === impl SettlingBody ===

impl SettlingBody {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let has_more = match (&frame, &mut self.settling) {
            (Some(Ok(frame)), Some(settling)) => {
                frame.data_ref().is_none_or(|data| settling.read(data))
            }
            (Some(Err(BodyError::ClientLeft)), _) => true,
            (Some(Err(_)), settling) => {
                if let Some(settling) = settling.take() {
                    settling.end_early();
                }
                true
            }
            (None, _) => false,
            (_, None) => true,
        };
        if (!has_more || self.body.is_end_stream())
            && let Some(settling) = self.settling.take()
        {
            settling.end();
        }
        Poll::Ready(frame)
    }
}

impl Drop for SettlingBody {
    fn drop(&mut self) {
        if let Some(settling) = self.settling.take() {
            settling.read_on(mem::replace(&mut self.body, Body::empty()));
        }
    }
}

// === impl Streamed ===

impl Streamed {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let end = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => return Poll::Ready(Some(Ok(frame))),
            Poll::Pending => {
                let left = self.client.as_mut().map_or(Poll::Pending, |client| client.poll(cx));
                // The permits are kept until the body is dropped: it may be read on.
                return left.map(|()| Some(Err(BodyError::ClientLeft)));
            }
            Poll::Ready(Some(Err(error))) => Some(Err(BodyError::Upstream(error))),
            // A stream that is reset without an error is given out as one that has ended.
            Poll::Ready(None) if self.is_h2 && !self.body.is_end_stream() => {
                Some(Err(BodyError::Reset))
            }
            Poll::Ready(None) => None,
        };
        (self.lease, self.unasked) = (None, None);
        Poll::Ready(end)
    }
}
