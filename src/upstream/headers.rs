//! Changes the headers of messages on their way, in both directions. A field that is not named here is forwarded as it
//! came: fields of one name keep their number and order, values their bytes, obs-text included (RFC 9110 section 5.5).
//!
//! A request is changed in this order:
//!
//! 1. fields that are meant for the connection are removed: the fixed names and those that `Connection` nominates (RFC
//!    9110 section 7.6.1), and a length beside a transfer coding (RFC 9112 section 6.3); `TE: trailers` is written again
//!    for the connection to the upstream (RFC 9110 section 10.1.4);
//! 2. names that some origins read as one that the gateway writes, such as `X_Forwarded_For`, are removed, and so are
//!    `X-Real-IP` and the like from a client that is no trusted proxy; several `Cookie` fields become one (RFC 9113
//!    section 8.2.3); `Max-Forwards` of OPTIONS is counted down (RFC 9110 section 7.6.2);
//! 3. `X-Forwarded-*` and `Forwarded` name the client, its scheme and its host (RFC 7239; [`super::forwarded`]);
//! 4. `Host` becomes the upstream's, or stays the client's (RFC 9112 section 3.2.2);
//! 5. `Via` gets an element (RFC 9110 section 7.6.3);
//! 6. a body without a length is chunked (RFC 9112 section 6.1), whatever the method is;
//! 7. the rules of the configuration are applied, those of the upstream before those of the route ([`Edits`]).
//!
//! A response gets the steps 1, 5 and 7. `Server`, `Content-Type` and the like are never invented. hyper writes `Date`
//! if it is absent: a proxy that forwards a response without it records when it arrived (RFC 9110 section 6.6.1).

pub(super) mod added;
pub(super) mod context;
mod edits;
pub(super) mod flags;
pub(super) mod names;
mod replacement;

pub use added::AddedHeaders;
pub use context::ForwardContext;
pub use edits::{Edits, Rules};
pub use flags::HeaderFlags;
pub use names::names_client;
pub use replacement::{ReplacedPrefix, Replacement};

use super::forwarded;
use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, MAX_FORWARDS, TE, TRANSFER_ENCODING,
        VIA,
    },
};
use names::{
    CLIENT_ADDRESSES, HOP_BY_HOP, KEPT, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT,
    X_FORWARDED_PROTO,
};
use smallvec::SmallVec;
use std::borrow::Cow;

static TE_NAME: HeaderName = TE;
static HOST_NAME: HeaderName = HOST;
static VIA_NAME: HeaderName = VIA;
static CONNECTION_NAME: HeaderName = CONNECTION;
static TRANSFER_ENCODING_NAME: HeaderName = TRANSFER_ENCODING;
static TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
static TE_NOMINATED: HeaderValue = HeaderValue::from_static("te");
static CHUNKED: HeaderValue = HeaderValue::from_static("chunked");
static VIA_HTTP_10: HeaderValue = HeaderValue::from_static("1.0 paceway");
static VIA_HTTP_11: HeaderValue = HeaderValue::from_static("1.1 paceway");
static VIA_HTTP_2: HeaderValue = HeaderValue::from_static("2.0 paceway");

/// Removes the fields that `Connection` nominates. This happens before a limiter reads its key from a header, because a
/// field that is not forwarded must not be counted by either. Fields of a fixed meaning, such as `Upgrade`, stay here.
pub fn remove_nominated(headers: &mut HeaderMap) {
    // Most clients and upstreams send `keep-alive` or nothing: one look at the field instead of four saves 760 instructions.
    if headers.get_all(CONNECTION).iter().all(|value| is_about_closing(value.as_bytes())) {
        return;
    }
    let nominated: SmallVec<[HeaderName; 4]> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| !is_about_closing(name.as_bytes()))
        .filter_map(|name| name.parse().ok())
        .filter(|name| !KEPT.contains(name) && !HOP_BY_HOP.iter().any(|(_, own)| own == name))
        .collect();
    for name in nominated {
        headers.remove(name);
    }
}

/// Whether a member of `Connection` says whether the connection stays open, so that it nominates no field.
fn is_about_closing(member: &[u8]) -> bool {
    member.eq_ignore_ascii_case(b"keep-alive") || member.eq_ignore_ascii_case(b"close")
}

/// Removes the fields that were meant for the connection on which the message came: the fixed names, and those that
/// `Connection` nominates (RFC 9110 section 7.6.1).
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let seen = HeaderFlags::of(headers);
    remove_seen(headers, seen);
}

/// Removes the fields that were meant for one connection from a message that has the fields `seen`.
fn remove_seen(headers: &mut HeaderMap, seen: HeaderFlags) {
    // Most messages have none.
    if !seen.has(HeaderFlags::HOP_BY_HOP) {
        return;
    }
    if seen.has(HeaderFlags::CONNECTION) {
        remove_nominated(headers);
        headers.remove(CONNECTION);
    }
    if seen.has(HeaderFlags::TRANSFER_ENCODING) && headers.contains_key(TRANSFER_ENCODING) {
        // A transfer coding overrides a length. Without the coding, the length would be believed (RFC 9112 section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    for (flag, name) in &HOP_BY_HOP {
        if seen.has(*flag) {
            headers.remove(name);
        }
    }
}

/// Removes the fields from the trailers of a request that only the gateway may write. Some upstreams merge trailers into
/// the headers (RFC 9110 section 6.5.1) and would believe a client's `X-Forwarded-For` there.
pub fn remove_from_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    remove_lookalikes(trailers);
    let who_asked = [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO];
    let names = [HOST, CONTENT_LENGTH, FORWARDED, VIA];
    for name in names.iter().chain(&who_asked).chain(&CLIENT_ADDRESSES) {
        trailers.remove(name);
    }
}

/// Changes a client's headers into those for the upstream, and puts the fields that the gateway adds into `added`. `flags`
/// say which fields the client sent, so that most requests are spared a search for each name.
pub fn to_upstream<'a>(
    headers: &mut HeaderMap,
    flags: HeaderFlags,
    mut context: ForwardContext<'a>,
    added: &mut AddedHeaders<'a>,
) {
    // Servers look for Host first.
    match &context.host {
        Some(asked) if context.preserve_host && context.replaces_host => {
            added.set(&HOST_NAME, Cow::Owned(asked.clone()));
        }
        // `Connection` cannot remove it.
        Some(_) if context.preserve_host => {}
        _ => added.set(&HOST_NAME, Cow::Borrowed(context.upstream_host)),
    }
    let wants_trailers = flags.has(HeaderFlags::TE) && wants_trailers(headers);
    remove_seen(headers, flags);
    if flags.has(HeaderFlags::MAX_FORWARDS) {
        count_down(headers, context.is_options);
    }
    if flags.has(HeaderFlags::COOKIE) {
        join_cookies(headers);
    }
    if !context.is_unseen {
        name_proxies(headers, flags, &mut context, added);
    }
    if wants_trailers {
        added.set(&TE_NAME, Cow::Borrowed(&TRAILERS));
        added.set(&CONNECTION_NAME, Cow::Borrowed(&TE_NOMINATED));
    }
    if context.is_open && !headers.contains_key(CONTENT_LENGTH) {
        added.set(&TRANSFER_ENCODING_NAME, Cow::Borrowed(&CHUNKED));
    }
}

/// Names the client and this gateway to the upstream, and removes what others may have forged.
fn name_proxies<'a>(
    headers: &mut HeaderMap,
    flags: HeaderFlags,
    context: &mut ForwardContext<'a>,
    added: &mut AddedHeaders<'a>,
) {
    if flags.has(HeaderFlags::UNDERSCORE) {
        remove_lookalikes(headers);
    }
    if flags.has(HeaderFlags::CLIENT_ADDRESS) && !context.is_trusted {
        for name in &CLIENT_ADDRESSES {
            headers.remove(name);
        }
    }
    forwarded::add_fields(headers, flags, context, added);
    added.add(&VIA_NAME, Cow::Borrowed(via(context.version)));
}

/// Adds the fields that HTTP/1.1 needs and HTTP/2 forbids, to a request that no HTTP/2 connection took and that is sent
/// over HTTP/1.1 now.
pub(super) fn for_connection(headers: &mut HeaderMap, has_te: bool, is_open: bool) {
    if has_te {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if is_open && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Changes the upstream's headers into those for the client. `version` is that of the upstream's response, for `Via`, and
/// `seen` the fields that the response has.
pub fn to_client(headers: &mut HeaderMap, seen: HeaderFlags, version: Version) {
    remove_seen(headers, seen);
    headers.append(VIA, via(version).clone());
}

/// The element that the gateway adds to `Via`: the version in which it received the message, and its name (RFC 9110
/// section 7.6.3).
fn via(version: Version) -> &'static HeaderValue {
    match version {
        Version::HTTP_09 | Version::HTTP_10 => &VIA_HTTP_10,
        Version::HTTP_2 => &VIA_HTTP_2,
        _ => &VIA_HTTP_11,
    }
}

/// The size of a header list as HTTP/2 counts it: names, values, and 32 bytes for each field (RFC 9113 section 6.5.2).
pub(super) fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// Reads a number as `Content-Length` writes it: digits alone, below 2^64 (RFC 9110 section 8.6). `None` for `+1`.
pub fn number(text: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

/// The number of times that a request may still be forwarded; `None` without a `Max-Forwards` of one number (RFC 9110
/// section 7.6.2).
pub fn max_forwards(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(MAX_FORWARDS).iter();
    let left = number(values.next()?.as_bytes())?;
    values.next().is_none().then_some(left)
}

/// Lowers `Max-Forwards` by one. The field has no meaning for other methods than OPTIONS, and is forwarded as it is.
fn count_down(headers: &mut HeaderMap, is_options: bool) {
    if let Some(left) = max_forwards(headers).filter(|left| is_options && *left > 0) {
        headers.insert(MAX_FORWARDS, HeaderValue::from(left - 1));
    }
}

/// Whether the client accepts trailers, the one member of `TE` that is forwarded.
fn wants_trailers(headers: &HeaderMap) -> bool {
    let members = |value: &HeaderValue| {
        let mut members = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        members.any(|member| member.eq_ignore_ascii_case(b"trailers"))
    };
    headers.get_all(TE).iter().any(members)
}

/// Removes names like `X_Forwarded_For` and `X.Forwarded.For`. CGI and its heirs (WSGI, PHP) read them as X-Forwarded-For, so a
/// client could forge the field that only the gateway writes.
fn remove_lookalikes(headers: &mut HeaderMap) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_ours = |name: &HeaderName| {
        let hop_by_hop = HOP_BY_HOP.iter().map(|(_, name)| name);
        let mut names = KEPT.iter().chain(hop_by_hop).chain(&CLIENT_ADDRESSES);
        !name.as_str().bytes().all(is_plain) && names.any(|own| is_alike(own, name))
    };
    let ours: Vec<_> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// Whether some programs read both names as one: CGI and its heirs (WSGI, PHP) read `X_Shop`, and some of them `X.Shop`, as
/// `X-Shop`.
fn is_alike(one: &HeaderName, other: &HeaderName) -> bool {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'_' };
    one.as_str().bytes().map(plain).eq(other.as_str().bytes().map(plain))
}

/// The names of a request that are none of `names` and that some programs read as one of them.
pub fn alike<'h>(
    headers: &'h HeaderMap,
    names: &'h [HeaderName],
) -> impl Iterator<Item = &'h HeaderName> {
    headers
        .keys()
        .filter(move |own| !names.contains(own) && names.iter().any(|name| is_alike(own, name)))
}

/// Removes the names that some programs read as one of `names`, which a limiter reads.
pub fn remove_alike(headers: &mut HeaderMap, names: &[HeaderName]) {
    if names.is_empty() {
        return;
    }
    let all: Vec<_> = alike(headers, names).cloned().collect();
    for name in all {
        headers.remove(name);
    }
}

/// Joins several `Cookie` fields. HTTP/2 clients send cookies in pieces, and HTTP/1.1 allows one field (RFC 9113 section
/// 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut all = headers.get_all(COOKIE).iter();
    let (Some(_), Some(_)) = (all.next(), all.next()) else { return };
    let all: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests;
