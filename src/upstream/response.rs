//! The heads of an upstream's responses: what is refused, and behind which of them a connection may be used again.

use super::UpstreamError;
use http::{
    HeaderMap, Response, StatusCode, Version,
    header::{CONTENT_LENGTH, TRANSFER_ENCODING},
};

/// Refuses what no request of ours can be answered with: an upgrade nobody asked for, lengths that differ or are none,
/// two framings, codings that we cannot undo (RFC 9112 section 6), also where no body follows.
///
/// # Errors
///
/// [`UpstreamError::Invalid`].
pub(super) fn check_response<B>(
    response: &mut Response<B>,
    upgrade_asked: bool,
) -> Result<(), UpstreamError> {
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS && !upgrade_asked {
        return Err(UpstreamError::Invalid("an upgrade that was not asked for"));
    }
    if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
        return Err(UpstreamError::Invalid("an interim response in place of the final one"));
    }
    let has_length = check_lengths(response.headers_mut())?;
    check_coding(response, has_length)?;
    if status == StatusCode::NO_CONTENT || status == StatusCode::SWITCHING_PROTOCOLS {
        // It has no content to have a length (RFC 9110 section 8.6).
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    Ok(())
}

/// Makes one of several equal lengths; false when there is none.
fn check_lengths(headers: &mut HeaderMap) -> Result<bool, UpstreamError> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(false) };
    let number = first.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    if number.is_none_or(|text| text.parse::<u64>().is_err()) {
        return Err(UpstreamError::Invalid("a length that is none"));
    }
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
    Ok(true)
}

/// Only `chunked` alone, and no length beside it (RFC 9112 sections 6.1 and 6.3).
fn check_coding<B>(response: &Response<B>, has_length: bool) -> Result<(), UpstreamError> {
    let mut codings = response.headers().get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else { return Ok(()) };
    if response.version() == Version::HTTP_10 {
        return Err(UpstreamError::Invalid("a transfer coding in HTTP/1.0"));
    }
    if has_length {
        return Err(UpstreamError::Invalid("both a length and a transfer coding"));
    }
    let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    if !is_chunked || codings.next().is_some() {
        return Err(UpstreamError::Invalid("a transfer coding other than chunked"));
    }
    Ok(())
}

/// Whether the connection that it came on may be used again; `has_body` says whether one follows. Not where none can
/// and one was announced (HEAD, 204, 304), which may follow all the same and be taken for the answer to the next
/// request. Not behind a 408, which servers say to a connection and not to a request: it may have come before ours, and
/// the answer to ours be still to come.
pub(super) fn leaves_in_step<B>(response: &Response<B>, has_body: bool) -> bool {
    let announces_more = || {
        let headers = response.headers();
        headers.contains_key(TRANSFER_ENCODING)
            || headers.get(CONTENT_LENGTH).is_some_and(|length| length != "0")
    };
    match response.status() {
        StatusCode::REQUEST_TIMEOUT => false,
        _ if !has_body && announces_more() => false,
        _ => response.version() != Version::HTTP_10,
    }
}
