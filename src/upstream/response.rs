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

/// Refuses a response that cannot answer a request of the gateway: an upgrade that was not asked for, lengths that differ
/// or are no numbers, a length beside a transfer coding, codings other than chunked (RFC 9112 section 6). `seen` are its
/// fields. A response to HEAD is checked in the same way, although no body follows.
///
/// # Errors
///
/// [`UpstreamError::Invalid`] with the rule that the response breaks.
pub(super) fn check_response<B>(
    response: &mut Response<B>,
    seen: HeaderFlags,
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
    let has_length = seen.has(HeaderFlags::CONTENT_LENGTH);
    let length = if has_length { check_length(headers)? } else { None };
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

/// Reads the `Content-Length`, and replaces several equal ones by one.
fn check_length(headers: &mut HeaderMap) -> Result<Option<u64>, UpstreamError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    let length = number(first.as_bytes()).ok_or(UpstreamError::Invalid("a length that is none"))?;
    let (mut twice, mut differ) = (false, false);
    for other in lengths {
        (twice, differ) = (true, differ || other != first);
    }
    if differ {
        return Err(UpstreamError::Invalid("two lengths"));
    }
    if twice {
        let first = first.clone();
        headers.insert(CONTENT_LENGTH, first);
    }
    Ok(Some(length))
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
