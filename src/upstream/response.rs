//! The heads of an upstream's responses: what is refused, and behind which of them a connection may be used again.

use super::{UpstreamError, headers::number};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

/// What the head of a response says of its body (RFC 9112 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Known(u64),
    Chunked,
    Unknown,
}

/// Refuses what no request of ours can be answered with: an upgrade nobody asked for, lengths that differ or are none,
/// two framings, codings that we cannot undo (RFC 9112 section 6), also where no body follows.
///
/// # Errors
///
/// [`UpstreamError::Invalid`].
pub(super) fn check_response<B>(
    response: &mut Response<B>,
    upgrade_asked: bool,
) -> Result<Length, UpstreamError> {
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS && !upgrade_asked {
        return Err(UpstreamError::Invalid("an upgrade that was not asked for"));
    }
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpstreamError::Invalid("an interim response in place of the final one"));
    }
    let version = response.version();
    let headers = response.headers_mut();
    let length = check_length(headers)?;
    if let Some(coding) = headers.get(TRANSFER_ENCODING) {
        check_coding(headers, coding, version, length.is_some())?;
        return Ok(Length::Chunked);
    }
    if status == StatusCode::NO_CONTENT || status == StatusCode::SWITCHING_PROTOCOLS {
        // It has no content to have a length (RFC 9110 section 8.6).
        headers.remove(CONTENT_LENGTH);
    }
    Ok(length.map_or(Length::Unknown, Length::Known))
}

/// Makes one of several equal lengths.
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

/// Only `chunked` alone, and no length beside it (RFC 9112 sections 6.1 and 6.3).
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

/// Whether the connection that it came on may be used again; `has_body` says whether one follows. Not where none can
/// and one was announced (HEAD, 204, 304), which may follow all the same and be taken for the answer to the next
/// request. Not behind a 408, which servers say to a connection and not to a request: it may have come before ours, and
/// the answer to ours be still to come.
pub(super) fn leaves_in_step<B>(response: &Response<B>, length: Length, has_body: bool) -> bool {
    let announces_none = matches!(length, Length::Known(0) | Length::Unknown);
    response.status() != StatusCode::REQUEST_TIMEOUT
        && (has_body || announces_none)
        && response.version() != Version::HTTP_10
}
