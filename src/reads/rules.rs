//! Which reads and answers may be shared and kept. Knows nothing of slots and memory.

use crate::throttle::instant;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version,
    header::{
        ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
        CONTENT_TYPE, DATE, ETAG, EXPECT, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
        IF_UNMODIFIED_SINCE, LAST_MODIFIED, PRAGMA, RANGE, SET_COOKIE, TRANSFER_ENCODING, UPGRADE,
        VARY,
    },
};
use std::time::Duration;

/// The headers of a request that make it conditional (RFC 9110 section 13.1).
pub const CONDITIONS: [HeaderName; 5] =
    [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, IF_RANGE];

/// The values of a request by which its answer was chosen, as `Vary` of the answer names them (RFC 9110 section 12.5.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant(Vec<(HeaderName, Vec<HeaderValue>)>);

/// Whether a request asks for a whole representation and for nothing else, so that its answer is that of others: no part of
/// it, no interim answer, no other protocol, and no call past all caches.
pub fn is_plain_read(method: &Method, headers: &HeaderMap) -> bool {
    let is_special =
        [RANGE, IF_RANGE, EXPECT, UPGRADE].iter().any(|name| headers.contains_key(name));
    let is_read = *method == Method::GET || *method == Method::HEAD;
    is_read && !is_special && !asks_for(headers, &["no-cache", "no-store"])
}

/// Whether a request has a condition of its own.
pub fn has_condition(headers: &HeaderMap) -> bool {
    CONDITIONS.iter().any(|name| headers.contains_key(name))
}

/// Whether the gateway writes a header, so that the value that a client sent, or did not, says nothing of the one that is sent.
pub fn is_of_the_gateway(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded") || matches!(name, "forwarded" | "via" | "x-real-ip" | "host")
}

/// Whether `Vary` names a header that the gateway writes.
pub fn varies_by_the_gateway(answer: &HeaderMap) -> bool {
    let names = members(answer, &VARY).filter_map(|member| member.parse().ok());
    names.into_iter().any(|name: HeaderName| is_of_the_gateway(&name))
}

/// Whether an answer may be given to identical requests that had waited when it was asked for. They arrived before, so that it
/// is as fresh for them as for the first. `is_authorized` says whether they all have the same `Authorization`: without it,
/// `private` leaves open whose answer it is.
pub fn may_be_shared(answer: &Response<()>, is_authorized: bool) -> bool {
    use StatusCode as S;
    let headers = answer.headers();
    let is_stream = headers
        .get(CONTENT_TYPE)
        .is_some_and(|of| of.as_bytes().to_ascii_lowercase().starts_with(b"text/event-stream"));
    let is_result = match answer.status() {
        S::PARTIAL_CONTENT => false,
        S::NOT_MODIFIED | S::NOT_FOUND | S::GONE => true,
        status => status.is_success() || status.is_redirection(),
    };
    is_result && !is_stream && is_for_others(headers, is_authorized)
}

/// Whether an answer to a GET may be kept, to be confirmed later: it has a validator, and is no caller's alone.
pub fn may_be_kept(answer: &Response<()>, is_authorized: bool) -> bool {
    let headers = answer.headers();
    answer.status() == StatusCode::OK
        && !headers.contains_key(CONTENT_RANGE)
        && has_certain_end(answer)
        && headers.get(ETAG).map_or_else(|| has_strong_date(headers), is_entity_tag)
        && is_for_others(headers, is_authorized)
}

/// Whether the end of the body is known. One that ends with its connection may be a part, which a 304 would confirm again and
/// again.
fn has_certain_end(answer: &Response<()>) -> bool {
    let announces = |name| answer.headers().contains_key(name);
    answer.version() == Version::HTTP_2 || announces(CONTENT_LENGTH) || announces(TRANSFER_ENCODING)
}

/// Whether a value is one entity tag: a condition with `*` would be true for ever (RFC 9110 section 8.8.3).
fn is_entity_tag(value: &HeaderValue) -> bool {
    let value = value.as_bytes();
    let opaque = value.strip_prefix(b"W/").unwrap_or(value);
    matches!(opaque, [b'"', tag @ .., b'"'] if !tag.contains(&b'"'))
}

/// Whether RFC 9111 section 3 lets a cache hand the answer to others with the same credentials.
fn is_for_others(headers: &HeaderMap, is_authorized: bool) -> bool {
    !headers.contains_key(SET_COOKIE)
        && !has_directive(headers, "no-store")
        && (is_authorized || !has_directive(headers, "private"))
}

/// Whether `Last-Modified` tells all versions apart: it is at least a second before `Date`, so that no later change has the
/// same one (RFC 9110 section 8.8.2.2).
fn has_strong_date(headers: &HeaderMap) -> bool {
    let time = |name: HeaderName| instant(headers.get(name)?.to_str().ok()?);
    let span = time(LAST_MODIFIED).zip(time(DATE)).map(|(from, to)| from.duration_until(to));
    span.and_then(|span| Duration::try_from(span).ok()).is_some_and(|span| span.as_secs() >= 1)
}

/// Whether a request has one of these directives, also in the form of HTTP/1.0 (RFC 9111 section 5.4).
fn asks_for(headers: &HeaderMap, directives: &[&str]) -> bool {
    directives.iter().any(|own| has_directive(headers, own))
        || headers
            .get(PRAGMA)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no-cache"))
}

/// Whether `Cache-Control` has a directive, with or without a value.
pub(super) fn has_directive(headers: &HeaderMap, directive: &str) -> bool {
    members(headers, &CACHE_CONTROL).any(|member| {
        let name = member.split('=').next().unwrap_or_default().trim();
        name.eq_ignore_ascii_case(directive)
    })
}

/// The members of a list in all fields of a name. A field that is no text has one that equals nothing.
fn members<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> {
    let values = headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or("*"));
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|member| !member.is_empty())
}

// === impl Variant ===

impl Variant {
    /// The variant that an answer with these headers is, for a request with those. `None` if the answer depends on more than
    /// the request (`Vary: *`). An answer that is encoded depends on `Accept-Encoding`, whether it says so or not.
    pub fn of(answer: &HeaderMap, request: &HeaderMap) -> Option<Self> {
        let mut chosen = Vec::new();
        let mut add = |name: HeaderName| {
            let values = request.get_all(&name).iter().cloned().collect();
            chosen.push((name, values));
        };
        for member in members(answer, &VARY) {
            // `*` is a token, and therefore a name for the parser.
            add(member.parse().ok().filter(|_| member != "*")?);
        }
        if answer.contains_key(CONTENT_ENCODING) {
            add(ACCEPT_ENCODING);
        }
        Some(Self(chosen))
    }

    /// Whether a request with these headers has the same variant.
    pub fn matches(&self, request: &HeaderMap) -> bool {
        self.0.iter().all(|(name, values)| request.get_all(name).iter().eq(values))
    }

    /// The bytes of its names and values, roughly.
    pub(super) fn bytes(&self) -> usize {
        let values = |values: &[HeaderValue]| values.iter().map(HeaderValue::len).sum::<usize>();
        self.0.iter().map(|(name, own)| name.as_str().len() + values(own) + 64).sum()
    }
}

#[cfg(test)]
mod tests;
