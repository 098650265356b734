//! What changes in the headers on the way, in both directions. Everything not named here passes as it is: fields of
//! one name keep their number and order, values their bytes, obs-text among them (RFC 9110 section 5.5).
//!
//! Of a request, in this order:
//!
//! 1. what was meant for the connection goes: the fixed names and those that `Connection` nominates (RFC 9110
//!    section 7.6.1), a length beside a transfer coding too (RFC 9112 section 6.3); `TE: trailers` is said anew
//!    (RFC 9110 section 10.1.4);
//! 2. names that some origins take for one of ours, such as `X_Forwarded_For`, go, and so does `X-Real-IP` and the like
//!    from a client that is no trusted proxy; several `Cookie` fields become one (RFC 9113 section 8.2.3);
//!    `Max-Forwards` of OPTIONS is counted down (RFC 9110 section 7.6.2);
//! 3. the upstream hears who asked for what (RFC 7239; [`super::forwarded`]);
//! 4. `Host` becomes the upstream's, or what was asked for (RFC 9112 section 3.2.2);
//! 5. `Via` gets an element (RFC 9110 section 7.6.3);
//! 6. a body that does not say its length is chunked (RFC 9112 section 6.1), whatever the method;
//! 7. the operator's rules, of the upstream, then of the route ([`Edits`]).
//!
//! Of a response: 1, 5 and 7. `Server`, `Content-Type` and the like are never made up. `Date` is, by hyper: who
//! forwards a response without one records when it came (RFC 9110 section 6.6.1).

mod added;
mod flags;

pub use added::AddedHeaders;
pub use flags::HeaderFlags;

use super::forwarded::{
    self, X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO,
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{
        CONNECTION, CONTENT_LENGTH, COOKIE, FORWARDED, HOST, MAX_FORWARDS, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
    },
};
use smallvec::SmallVec;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Meant for one connection only (RFC 9110 section 7.6.1), and what clients and proxies misuse as such.
static HOP_BY_HOP: [HeaderName; 7] = [
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What delimits or routes a message, or tells its way, is not the other side's to take away.
static KEPT: [HeaderName; 8] = [
    HOST,
    CONTENT_LENGTH,
    VIA,
    FORWARDED,
    X_FORWARDED_FOR,
    X_FORWARDED_HOST,
    X_FORWARDED_PORT,
    X_FORWARDED_PROTO,
];

/// In which some proxies tell an upstream the address of the client. From a client that is no trusted proxy each of them
/// is a lie that an upstream may believe, so none is forwarded.
static CLIENT_ADDRESSES: [HeaderName; 16] = [
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("client-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("x-cluster-client-ip"),
    HeaderName::from_static("cf-connecting-ip"),
    HeaderName::from_static("cf-connecting-ipv6"),
    HeaderName::from_static("fastly-client-ip"),
    HeaderName::from_static("fly-client-ip"),
    HeaderName::from_static("forwarded-for"),
    HeaderName::from_static("x-forwarded"),
    HeaderName::from_static("x-original-forwarded-for"),
    HeaderName::from_static("x-originating-ip"),
    HeaderName::from_static("x-remote-ip"),
    HeaderName::from_static("x-remote-addr"),
    HeaderName::from_static("x-envoy-external-address"),
];

static TE_NAME: HeaderName = TE;
static HOST_NAME: HeaderName = HOST;
static VIA_NAME: HeaderName = VIA;
static CONNECTION_NAME: HeaderName = CONNECTION;
static TRANSFER_ENCODING_NAME: HeaderName = TRANSFER_ENCODING;

/// What is known of a request besides its headers.
#[derive(Debug)]
pub struct ForwardContext<'a> {
    /// The address of the peer.
    pub peer: &'a HeaderValue,
    /// Our port, as the peer knows it.
    pub port: &'a HeaderValue,
    /// It came over TLS.
    pub is_tls: bool,
    /// The peer is a proxy that is believed.
    pub is_trusted: bool,
    /// In which it came.
    pub version: Version,
    /// The authority of its target; outranks `Host`.
    pub asked_host: Option<HeaderValue>,
    /// The upstream's `Host`.
    pub upstream_host: &'a HeaderValue,
    /// The upstream gets the client's `Host` instead.
    pub preserve_host: bool,
    /// The upstream gets `Forwarded`.
    pub forwarded: bool,
    /// It has a body whose end is not known.
    pub is_open: bool,
    /// Its method is OPTIONS.
    pub is_options: bool,
}

/// What an operator changes in headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// Of requests.
    pub request: Edits,
    /// Of responses.
    pub response: Edits,
}

/// Changes in the headers of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edits {
    /// These go.
    pub remove: Vec<HeaderName>,
    /// Each replaces all of its name.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Each stands behind those of its name.
    pub add: Vec<(HeaderName, HeaderValue)>,
}

// === impl Rules ===

impl Rules {
    /// Whether they change nothing.
    pub fn is_empty(&self) -> bool {
        self.request.is_empty() && self.response.is_empty()
    }
}

// === impl Edits ===

impl Edits {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// Removes, then sets, then adds.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
    }
}

/// Removes what `Connection` nominates: what goes no further is not what a request is counted by, either. Fields of a
/// fixed meaning stay for those who read them.
pub fn remove_nominated(headers: &mut HeaderMap) {
    if !headers.contains_key(CONNECTION) {
        return;
    }
    let nominated: SmallVec<[HeaderName; 4]> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| {
            !name.eq_ignore_ascii_case("close") && !name.eq_ignore_ascii_case("keep-alive")
        })
        .filter_map(|name| name.parse().ok())
        .filter(|name| !KEPT.contains(name) && !HOP_BY_HOP.contains(name))
        .collect();
    for name in nominated {
        headers.remove(name);
    }
}

/// Removes what was meant for the connection it came on: the fixed names, and those that `Connection`
/// nominates (RFC 9110 section 7.6.1).
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // Most messages have none.
    if !HeaderFlags::of(headers).has(HeaderFlags::HOP_BY_HOP) {
        return;
    }
    remove_nominated(headers);
    headers.remove(CONNECTION);
    if headers.contains_key(TRANSFER_ENCODING) {
        // It overrides a length, which must not outlive it (RFC 9112 section 6.3).
        headers.remove(CONTENT_LENGTH);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes from the trailers of a request what an upstream that takes them for headers (RFC 9110 section 6.5.1) would
/// believe to be ours.
pub fn remove_from_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    remove_lookalikes(trailers);
    let who_asked = [X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO];
    let names = [HOST, CONTENT_LENGTH, FORWARDED, VIA];
    for name in names.iter().chain(&who_asked).chain(&CLIENT_ADDRESSES) {
        trailers.remove(name);
    }
}

/// Turns a client's headers into those for the upstream, together with what is returned. `seen` are those fields.
pub fn to_upstream(
    headers: &mut HeaderMap,
    seen: HeaderFlags,
    way: &ForwardContext<'_>,
) -> AddedHeaders {
    let mut own = AddedHeaders::default();
    // What a server looks for first.
    match (way.preserve_host, &way.asked_host) {
        (true, Some(asked)) => own.set(&HOST_NAME, asked.clone()),
        (true, None) if headers.contains_key(HOST) => {}
        (true, None) | (false, _) => own.set(&HOST_NAME, way.upstream_host.clone()),
    }
    let wants_trailers = seen.has(HeaderFlags::TE) && wants_trailers(headers);
    if seen.has(HeaderFlags::HOP_BY_HOP) {
        remove_hop_by_hop(headers);
    }
    if seen.has(HeaderFlags::UNDERSCORE) {
        remove_lookalikes(headers);
    }
    if seen.has(HeaderFlags::CLIENT_ADDRESS) && !way.is_trusted {
        for name in &CLIENT_ADDRESSES {
            headers.remove(name);
        }
    }
    if seen.has(HeaderFlags::MAX_FORWARDS) {
        count_down(headers, way.is_options);
    }
    if seen.has(HeaderFlags::COOKIE) {
        join_cookies(headers);
    }
    forwarded::say(headers, seen, way, &mut own);
    own.add(&VIA_NAME, via(way.version));
    if wants_trailers {
        own.set(&TE_NAME, const { HeaderValue::from_static("trailers") });
        own.set(&CONNECTION_NAME, const { HeaderValue::from_static("te") });
    }
    if way.is_open && !headers.contains_key(CONTENT_LENGTH) {
        own.set(&TRANSFER_ENCODING_NAME, const { HeaderValue::from_static("chunked") });
    }
    own
}

/// Says what a connection of HTTP/1.1 must be told, of a request that one of HTTP/2 has not taken.
pub(super) fn for_connection(headers: &mut HeaderMap, has_te: bool, is_open: bool) {
    if has_te {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if is_open && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Turns the upstream's headers into those for the client; `version` is that of the upstream's response.
pub fn to_client(headers: &mut HeaderMap, version: Version) {
    remove_hop_by_hop(headers);
    headers.append(VIA, via(version));
}

/// By whom a message was received, and in which version (RFC 9110 section 7.6.3).
fn via(version: Version) -> HeaderValue {
    match version {
        Version::HTTP_09 | Version::HTTP_10 => const { HeaderValue::from_static("1.0 paceway") },
        Version::HTTP_2 => const { HeaderValue::from_static("2.0 paceway") },
        _ => const { HeaderValue::from_static("1.1 paceway") },
    }
}

/// The size of a header list: names, values, and 32 bytes for each field (RFC 9113 section 6.5.2).
pub(super) fn list_size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum()
}

/// The number that a `Content-Length` is: digits alone (RFC 9110 section 8.6).
pub fn number(text: &[u8]) -> Option<u64> {
    let digit = |number: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    };
    if text.is_empty() { None } else { text.iter().try_fold(0, digit) }
}

/// How often a request may still be forwarded, where it says so in one number (RFC 9110 section 7.6.2).
pub fn max_forwards(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(MAX_FORWARDS).iter();
    let left = number(values.next()?.as_bytes())?;
    values.next().is_none().then_some(left)
}

/// One forward fewer is left to the next gateway. For other methods than OPTIONS the field means nothing.
fn count_down(headers: &mut HeaderMap, is_options: bool) {
    if let Some(left) = max_forwards(headers).filter(|left| is_options && *left > 0) {
        headers.insert(MAX_FORWARDS, HeaderValue::from(left - 1));
    }
}

/// Whether the client takes trailers: the one member of `TE` that may go on.
fn wants_trailers(headers: &HeaderMap) -> bool {
    let members = |value: &HeaderValue| {
        let mut members = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        members.any(|member| member.eq_ignore_ascii_case(b"trailers"))
    };
    headers.get_all(TE).iter().any(members)
}

/// CGI and its heirs (WSGI, PHP) read `X_Forwarded_For` as X-Forwarded-For: what is ours to say, nobody else says so.
fn remove_lookalikes(headers: &mut HeaderMap) {
    let is_ours = |name: &HeaderName| {
        let plain = name.as_str().replace('_', "-");
        let mut names = KEPT.iter().chain(&HOP_BY_HOP).chain(&CLIENT_ADDRESSES);
        plain != name.as_str() && names.any(|own| own.as_str() == plain)
    };
    let ours: Vec<_> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// HTTP/2 clients send cookies in pieces; who does not know HTTP/2 wants one field (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut all = headers.get_all(COOKIE).iter();
    let (Some(_), Some(_)) = (all.next(), all.next()) else { return };
    let all: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

// === impl ForwardContext ===

impl ForwardContext<'_> {
    /// The scheme in which it came.
    pub fn proto(&self) -> HeaderValue {
        match self.is_tls {
            true => const { HeaderValue::from_static("https") },
            false => const { HeaderValue::from_static("http") },
        }
    }
}

#[cfg(test)]
mod tests;
