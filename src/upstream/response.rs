//! Checks the heads of an upstream's responses: refuses those whose end would be uncertain, and decides after which of
//! them a connection may be used again.

use super::{
    error::UpstreamError,
    headers::{flags::HeaderFlags, number},
};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

/// The length of a response's body, as its head announces it (RFC 9112 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyLength {
    /// A `Content-Length` of this number of octets.
    Known(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Neither: the body lasts until the connection ends.
    Unannounced,
}

/// The values of all `Content-Length` fields of a response, as far as they were noted. Several equal ones count as one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AnnouncedLength {
    /// The first one, and the number of its digits.
    first: Option<(u64, usize)>,
    is_repeated: bool,
    /// The rule that they break.
    broken: Option<&'static str>,
}

/// Refuses a response that cannot answer a request of the gateway: an upgrade that was not asked for, lengths that differ
/// or are no numbers, a length beside a transfer coding, codings other than chunked (RFC 9112 section 6). `seen` are its
/// fields, and `announced` its lengths. A response to HEAD is checked in the same way, although no body follows.
///
/// # Errors
///
/// [`UpstreamError::Invalid`] with the rule that the response breaks.
pub(super) fn check_response<B>(
    response: &mut Response<B>,
    seen: HeaderFlags,
    announced: AnnouncedLength,
    upgrade_asked: bool,
) -> Result<BodyLength, UpstreamError> {
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS && !upgrade_asked {
        return Err(UpstreamError::Invalid("an upgrade that was not asked for"));
    }
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpstreamError::Invalid("an interim response in place of the final one"));
    }
    let version = response.version();
    let headers = response.headers_mut();
    let length = announced.check(headers)?;
    if seen.has(HeaderFlags::TRANSFER_ENCODING)
        && let Some(coding) = headers.get(TRANSFER_ENCODING)
    {
        check_coding(headers, coding, version, length.is_some())?;
        return Ok(BodyLength::Chunked);
    }
    if status == StatusCode::NO_CONTENT || status == StatusCode::SWITCHING_PROTOCOLS {
        // A response without content has no length (RFC 9110 section 8.6).
        headers.remove(CONTENT_LENGTH);
    }
    Ok(length.map_or(BodyLength::Unannounced, BodyLength::Known))
}

/// Accepts the transfer coding `chunked` alone, without a length beside it (RFC 9112 sections 6.1 and 6.3).
fn check_coding(
    headers: &HeaderMap,
    coding: &HeaderValue,
    version: Version,
    has_length: bool,
) -> Result<(), UpstreamError> {
    if version == Version::HTTP_10 {
        return Err(UpstreamError::Invalid("a transfer coding in HTTP/1.0"));
    }
    if has_length {
        return Err(UpstreamError::Invalid("both a length and a transfer coding"));
    }
    let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if !is_chunked || headers.get_all(TRANSFER_ENCODING).iter().count() > 1 {
        return Err(UpstreamError::Invalid("a transfer coding other than chunked"));
    }
    Ok(())
}

/// Whether the connection may be used again after this response; `has_body` says whether a body follows.
///
/// It may not if no body can follow and one was announced (HEAD, 204, 304): a faulty upstream sends it nevertheless, and
/// it would be read as the response to the next request. It may not after a 408 either. Servers send that to an idle
/// connection, so it may have come before the request, and the response to the request would follow it.
pub(super) fn leaves_in_step<B>(
    response: &Response<B>,
    length: BodyLength,
    has_body: bool,
) -> bool {
    let announces_none = matches!(length, BodyLength::Known(0) | BodyLength::Unannounced);
    response.status() != StatusCode::REQUEST_TIMEOUT
        && (has_body || announces_none)
        && response.version() != Version::HTTP_10
}

// === impl AnnouncedLength ===

impl AnnouncedLength {
    /// The lengths that `headers` announce; `seen` are their special fields.
    pub(super) fn of(headers: &HeaderMap, seen: HeaderFlags) -> Self {
        let mut all = Self::default();
        if seen.has(HeaderFlags::CONTENT_LENGTH) {
            headers.get_all(CONTENT_LENGTH).iter().for_each(|value| all.note(value));
        }
        all
    }

    /// Notes the value of one more field.
    pub(super) fn note(&mut self, value: &HeaderValue) {
        let length = number(value.as_bytes()).map(|length| (length, value.len()));
        match (self.first, length) {
            (None, Some(_)) => self.first = length,
            (None, None) => self.broken = self.broken.or(Some("a length that is none")),
            // The same number with as many digits is the same text.
            (Some(_), _) if self.first == length => self.is_repeated = true,
            (Some(_), _) => self.broken = self.broken.or(Some("two lengths")),
        }
    }

    /// Returns the length, and leaves one field of several equal ones in `headers`.
    fn check(self, headers: &mut HeaderMap) -> Result<Option<u64>, UpstreamError> {
        if let Some(rule) = self.broken {
            return Err(UpstreamError::Invalid(rule));
        }
        if self.is_repeated
            && let Some(first) = headers.get(CONTENT_LENGTH).cloned()
        {
            headers.insert(CONTENT_LENGTH, first);
        }
        Ok(self.first.map(|(length, _)| length))
    }
}
