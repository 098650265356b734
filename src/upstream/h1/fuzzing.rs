//! Shows the parser of responses to the targets of `fuzz/`, which alone are built with `--cfg fuzzing`. Decides nothing.

use super::{
    framing::{Chunks, Decoder, Encoder},
    head,
    names::KnownNames,
};
use crate::upstream::{
    error::{UpstreamError, WireError},
    headers::HeaderFlags,
    response::{AnnouncedLength, check_response},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::Frame;
use hyper::ext::ReasonPhrase;

/// The most octets of a head, or of trailers.
pub const HEAD_BYTES: usize = head::HEAD_BYTES;
/// The most fields of one.
pub const FIELDS: usize = head::FIELDS;

/// The head of a response.
pub struct FuzzedHead {
    /// All but its body.
    pub response: Response<()>,
    /// The reason phrase after the status, if it is not the usual one.
    pub reason: Option<Vec<u8>>,
    /// Whether another response may follow on the connection.
    pub stays_open: bool,
}

/// The part of a response's body that is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyDecoder(Decoder);

/// Takes a head, when all of it is there.
///
/// # Errors
///
/// As those of the gateway.
pub fn take_head(input: &mut BytesMut) -> Result<Option<FuzzedHead>, WireError> {
    let mut response = Response::new(());
    let Some(head::HeadFacts { stays_open, .. }) =
        head::take(input, &mut KnownNames::default(), &mut response)?
    else {
        return Ok(None);
    };
    let reason = response.extensions().get::<ReasonPhrase>();
    let reason = reason.map(|reason| reason.as_bytes().to_vec());
    Ok(Some(FuzzedHead { response, reason, stays_open }))
}

/// Frames a body as it is sent to an upstream.
///
/// # Errors
///
/// When it has not the length that is announced.
pub fn framed(
    length: Option<u64>,
    pieces: &[Bytes],
    trailers: &HeaderMap,
) -> Result<Vec<u8>, WireError> {
    let mut encoder = length.map_or(Encoder::Chunks, Encoder::Sized);
    let mut out = Vec::new();
    for data in pieces {
        encoder.before(data, &mut out)?;
        out.extend_from_slice(data);
        out.extend_from_slice(encoder.after(data));
    }
    encoder.end(trailers.iter(), &mut out)?;
    Ok(out)
}

// === impl BodyDecoder ===

impl BodyDecoder {
    /// There is none.
    pub const NONE: Self = Self(Decoder::Done);
    /// All until the connection ends.
    pub const OPEN: Self = Self(Decoder::Open);
    /// Chunks.
    pub const CHUNKS: Self = Self(Decoder::Chunks(Chunks::Size));

    /// A body with a `Content-Length` of `length` octets.
    pub fn sized(length: u64) -> Self {
        if length == 0 { Self::NONE } else { Self(Decoder::Sized(length)) }
    }

    /// The body that follows a head; `is_bare` says that the request was a HEAD.
    ///
    /// # Errors
    ///
    /// As those of the gateway.
    pub fn of(
        response: &mut Response<()>,
        is_bare: bool,
        upgrade_asked: bool,
    ) -> Result<Self, UpstreamError> {
        let seen = HeaderFlags::of_response(response.headers());
        let announced = AnnouncedLength::of(response.headers(), seen);
        let length = check_response(response, seen, announced, upgrade_asked)?;
        Ok(Self(Decoder::of(is_bare, response.status(), length)))
    }

    /// Takes the next piece, if some of it is there.
    ///
    /// # Errors
    ///
    /// As those of the gateway.
    pub fn take(&mut self, input: &mut BytesMut) -> Result<Option<Frame<Bytes>>, WireError> {
        self.0.take(input)
    }

    /// Whether all of it has been taken.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// The connection has ended; whether the body may, too.
    pub fn may_end(mut self) -> bool {
        self.0.end().is_ok()
    }
}
