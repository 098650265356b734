//! The rules that a request must keep before any limiter is asked for it: it must be one message that every program on
//! its way reads alike (RFC 9110, 9112, 9113). Reads no body. hyper has already refused bytes that are no HTTP.

use super::Client;
use crate::{
    answer::Failure,
    config::{Config, Limits},
    path::Paths,
    upstream::headers::{self, HeaderFlags},
};
use http::{
    HeaderMap, HeaderValue, Method, Request, StatusCode, Version,
    header::{CONTENT_LENGTH, EXPECT, HOST, TRANSFER_ENCODING},
    uri::Authority,
};
use hyper::ext::Protocol;
use std::net::Ipv6Addr;

/// Refuses a request that is malformed, too large, or not for a gateway; `seen` are its fields. Returns its `Host`.
///
/// # Errors
///
/// [`Failure::Malformed`] (400), [`Failure::TooLarge`] (413, 414, 431), [`Failure::Method`] (405),
/// [`Failure::Expectation`] (417), [`Failure::Coding`] (501), [`Failure::LastHop`] (204).
pub(super) fn request<B>(
    client: &Client,
    config: &Config,
    request: &Request<B>,
    seen: HeaderFlags,
) -> Result<Option<HeaderValue>, Failure> {
    let is_coded = seen.has(HeaderFlags::TRANSFER_ENCODING);
    if is_coded && client.framed_twice(seen.has(HeaderFlags::CONTENT_LENGTH)) {
        return malformed("both Content-Length and Transfer-Encoding (RFC 9112 section 6.1)");
    }
    if !client.boundary.is_known() {
        return malformed("the end of the request before this one is in doubt");
    }
    message(config, request, seen).map(|host| host.cloned())
}

/// Checks the rules that depend on the message alone, and not on the connection that it came on. Returns its `Host`.
///
/// # Errors
///
/// Those of [`request`].
pub(super) fn message<'r, B>(
    config: &Config,
    request: &'r Request<B>,
    seen: HeaderFlags,
) -> Result<Option<&'r HeaderValue>, Failure> {
    method(request)?;
    size(&config.limits, request)?;
    target(&config.paths, request)?;
    let host = host(request)?;
    if seen.has(HeaderFlags::TRANSFER_ENCODING) {
        coding(request)?;
    }
    if seen.has(HeaderFlags::CONTENT_LENGTH) {
        length(request.headers())?;
    }
    if seen.has(HeaderFlags::MAX_FORWARDS) && is_last_hop(request) {
        Err(Failure::LastHop)
    } else {
        Ok(host)
    }
}

/// Refuses what a message asks for. Its answer has the headers of its route: a page of another origin may read it.
///
/// # Errors
///
/// [`Failure::TooLarge`] (413), [`Failure::Expectation`] (417).
pub(super) fn demands<B>(
    limits: &Limits,
    request: &Request<B>,
    seen: HeaderFlags,
) -> Result<(), Failure> {
    let headers = request.headers();
    let length = || headers::number(headers.get(CONTENT_LENGTH)?.as_bytes());
    if let Some(most) = limits.body
        && length().is_some_and(|length| length > most)
    {
        let why = format!("the body is larger than {most} bytes");
        return Err(Failure::TooLarge(StatusCode::PAYLOAD_TOO_LARGE, why.into()));
    }
    let as_expected =
        |expected: &HeaderValue| expected.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if seen.has(HeaderFlags::EXPECT) && !headers.get_all(EXPECT).iter().all(as_expected) {
        return Err(Failure::Expectation);
    }
    Ok(())
}

/// Whether the request may be forwarded no further, so that this gateway answers it (RFC 9110 section 7.6.2). The field
/// has a meaning for OPTIONS and TRACE alone, and TRACE is refused.
fn is_last_hop<B>(request: &Request<B>) -> bool {
    *request.method() == Method::OPTIONS
        && headers::max_forwards(request.headers()).is_some_and(|left| left == 0)
}

fn malformed<T>(why: &'static str) -> Result<T, Failure> {
    Err(Failure::Malformed(why.into()))
}

/// Refuses methods that are not for a gateway: a tunnel (CONNECT) and an echo (TRACE). Methods are case-sensitive (RFC
/// 9110 section 9.1), but some origins fold them: then `get` would take the route of another method. nginx refuses
/// small letters, too.
fn method<B>(request: &Request<B>) -> Result<(), Failure> {
    let method = request.method();
    match *method {
        Method::GET | Method::POST => Ok(()),
        // WebSockets over HTTP/2 (RFC 8441).
        Method::CONNECT if is_websocket(request) => Ok(()),
        Method::CONNECT | Method::TRACE => Err(Failure::Method),
        _ if method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) => {
            malformed("a method is written in capitals")
        }
        _ => Ok(()),
    }
}

fn is_websocket<B>(request: &Request<B>) -> bool {
    let protocol = request.extensions().get::<Protocol>();
    protocol.is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// Accepts the origin-form, the absolute-form, and `*` for OPTIONS (RFC 9112 section 3.2). hyper's parser has cut off a
/// fragment, so it is neither matched nor forwarded.
fn target<B>(paths: &Paths, request: &Request<B>) -> Result<(), Failure> {
    let uri = request.uri();
    if let Some(scheme) = uri.scheme_str()
        && !scheme.eq_ignore_ascii_case("http")
        && !scheme.eq_ignore_ascii_case("https")
    {
        return malformed("the target is no http or https URL");
    }
    if uri.path() == "*" {
        return if *request.method() == Method::OPTIONS && uri.query().is_none() {
            Ok(())
        } else {
            malformed("the target `*` is for OPTIONS alone (RFC 9112 section 3.2.4)")
        };
    }
    if !uri.path().starts_with('/') {
        return malformed("the target is neither a path nor a URL (RFC 9112 section 3.2)");
    }
    if !paths.is_legible(uri.path()) {
        return malformed("the path can be read in too many ways");
    }
    Ok(())
}

fn size<B>(limits: &Limits, request: &Request<B>) -> Result<(), Failure> {
    let uri = request.uri();
    let scheme = uri.scheme_str().map_or(0, |scheme| scheme.len() + "://".len());
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    // In HTTP/2 scheme, authority and path are separate fields, and all of them are always present.
    let whole = if is_http2(request) { target } else { scheme + authority + target };
    if whole > limits.uri {
        let why = format!("the target of the request is longer than {} bytes", limits.uri);
        return Err(Failure::TooLarge(StatusCode::URI_TOO_LONG, why.into()));
    }
    // The parser has measured a head of HTTP/1.1 already.
    if !is_http2(request) {
        return Ok(());
    }
    let headers = request.headers();
    let too_large = |why: String| {
        Err(Failure::TooLarge(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why.into()))
    };
    if headers.len() > limits.headers {
        return too_large(format!("there are more than {} headers", limits.headers));
    }
    // The bytes that HTTP/1.1 would need for a field.
    let bytes = |(name, value): (&http::HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    if authority + target + headers.iter().map(bytes).sum::<usize>() > limits.header_bytes {
        return too_large(format!("the headers are larger than {} bytes", limits.header_bytes));
    }
    Ok(())
}

/// Requires one host, which is the same in each place that names it (RFC 9112 section 3.2, RFC 9113 section 8.3.1).
fn host<B>(request: &Request<B>) -> Result<Option<&HeaderValue>, Failure> {
    let authority = request.uri().authority();
    if authority.is_some_and(|authority| !is_host(authority.as_str().as_bytes())) {
        return malformed(
            "the target's host is no host with or without a port (RFC 3986 section 3.2)",
        );
    }
    let headers = request.headers();
    let Some(host) = headers.get(HOST) else {
        let is_needed = if is_http2(request) {
            authority.is_none()
        } else {
            request.version() == Version::HTTP_11
        };
        return if is_needed {
            malformed("a request names its host (RFC 9112 section 3.2)")
        } else {
            Ok(None)
        };
    };
    // Most requests have no field twice.
    if headers.len() > headers.keys_len() && headers.get_all(HOST).iter().nth(1).is_some() {
        return malformed("a request names its host once (RFC 9112 section 3.2)");
    }
    if !is_host(host.as_bytes()) {
        return malformed("`Host` is no host with or without a port (RFC 9110 section 7.2)");
    }
    let differs = |authority: &Authority| {
        !authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes())
    };
    // In HTTP/1.1 the target outranks `Host`, which is replaced.
    if is_http2(request) && authority.is_some_and(differs) {
        return malformed("`:authority` and `Host` differ (RFC 9113 section 8.3.1)");
    }
    Ok(Some(host))
}

/// The bytes that the name of a host may have. RFC 3986 allows a comma, but servers that join fields by commas read a
/// host with one as two hosts.
static IN_NAMES: [bool; 256] = {
    let mut names = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        names[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"-._~!$&'()*+;=";
    let mut i = 0;
    while i < others.len() {
        names[others[i] as usize] = true;
        i += 1;
    }
    names
};

/// Whether `text` is `host[:port]` (RFC 3986 section 3.2), without credentials, escapes, and characters that no host
/// name has.
pub(super) fn is_host(text: &[u8]) -> bool {
    let behind = match text {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let address = std::str::from_utf8(&rest[..end]);
            if address.map_or(true, |address| address.parse::<Ipv6Addr>().is_err()) {
                return false;
            }
            &rest[end + 1..]
        }
        _ => {
            let end = text.iter().position(|byte| !IN_NAMES[usize::from(*byte)]);
            let (name, behind) = text.split_at(end.unwrap_or(text.len()));
            if name.is_empty() {
                return false;
            }
            behind
        }
    };
    match behind {
        b"" | b":" => true,
        [b':', port @ ..] => headers::number(port).is_some_and(|port| port <= u16::MAX.into()),
        _ => false,
    }
}

/// Requires that a body is `chunked` and has no other coding (RFC 9112 section 6.1).
fn coding<B>(request: &Request<B>) -> Result<(), Failure> {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    let Some(first) = codings.next() else { return Ok(()) };
    if request.version() != Version::HTTP_11 {
        return malformed("Transfer-Encoding is for HTTP/1.1 alone (RFC 9112 section 6.1)");
    }
    if codings.next().is_none() && first.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    let all = request.headers().get_all(TRANSFER_ENCODING).iter();
    let all = all.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut names = all.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty());
    if names.all(|coding| coding.eq_ignore_ascii_case(b"chunked")) {
        malformed("a body is chunked once (RFC 9112 section 6.1)")
    } else {
        Err(Failure::Coding)
    }
}

/// Requires one number. The parser of HTTP/1.1 has checked this; HTTP/2 lets an empty value pass, and several.
fn length(fields: &HeaderMap) -> Result<(), Failure> {
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let Some(length) = lengths.next() else { return Ok(()) };
    match (headers::number(length.as_bytes()), lengths.next()) {
        (Some(_), None) => Ok(()),
        _ => malformed("`Content-Length` is one number (RFC 9110 section 8.6)"),
    }
}

fn is_http2<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_2
}

#[cfg(test)]
mod tests;
