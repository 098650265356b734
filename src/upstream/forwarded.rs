//! What the upstream is told of who asked for what: X-Forwarded-For, -Proto, -Host and -Port, and where it is wished
//! for, Forwarded (RFC 7239). Nobody is believed but proxies that are trusted.

use super::headers::{AddedHeaders, ForwardContext, HeaderFlags};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{FORWARDED, HOST},
};

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(super) const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

static FOR_NAME: HeaderName = X_FORWARDED_FOR;
static HOST_NAME: HeaderName = X_FORWARDED_HOST;
static PORT_NAME: HeaderName = X_FORWARDED_PORT;
static PROTO_NAME: HeaderName = X_FORWARDED_PROTO;
static FORWARDED_NAME: HeaderName = FORWARDED;

/// Says who asked for what. `seen` are the fields of the client, whose `Host` is still among them.
///
/// X-Forwarded-For and Forwarded list the way: behind a trusted proxy its address is appended. The others are what
/// the first proxy saw: behind a trusted proxy they stay as it wrote them.
pub(super) fn say(
    headers: &mut HeaderMap,
    seen: HeaderFlags,
    way: &ForwardContext<'_>,
    own: &mut AddedHeaders,
) {
    let host = way.asked_host.clone().or_else(|| headers.get(HOST).cloned());
    if way.forwarded {
        forwarded(headers, way, host.as_ref(), own);
    } else if seen.has(HeaderFlags::FORWARDED) {
        headers.remove(FORWARDED);
    }
    let is_told =
        |name| way.is_trusted && seen.has(HeaderFlags::FORWARDED) && headers.contains_key(name);
    let (has_proto, has_port) = (is_told(X_FORWARDED_PROTO), is_told(X_FORWARDED_PORT));
    let has_host = is_told(X_FORWARDED_HOST);
    // Who tells the scheme and not the port means the scheme's own.
    if !has_port && !has_proto {
        own.set(&PORT_NAME, way.port.clone());
    }
    if !has_proto {
        own.set(&PROTO_NAME, way.proto());
    }
    match host {
        _ if has_host => {}
        Some(host) => own.set(&HOST_NAME, host),
        None => drop(headers.remove(X_FORWARDED_HOST)),
    }
    let is_told = way.is_trusted && seen.has(HeaderFlags::FORWARDED);
    let through = if is_told { through(headers, way.peer) } else { None };
    own.set(&FOR_NAME, through.unwrap_or_else(|| way.peer.clone()));
}

/// The way that a trusted proxy tells, with the proxy at its end; `None` when it tells nothing.
fn through(headers: &HeaderMap, peer: &HeaderValue) -> Option<HeaderValue> {
    let told = headers.get_all(X_FORWARDED_FOR).iter().filter(|told| !told.is_empty());
    let mut way = told.fold(Vec::new(), |mut way, told| {
        way.extend([told.as_bytes(), b", "].concat());
        way
    });
    if way.is_empty() {
        return None;
    }
    way.extend(peer.as_bytes());
    HeaderValue::from_bytes(&way).ok()
}

/// Appends an element to what a trusted proxy tells. An open quote in that would swallow it: then it stands alone.
fn forwarded(
    headers: &HeaderMap,
    way: &ForwardContext<'_>,
    host: Option<&HeaderValue>,
    own: &mut AddedHeaders,
) {
    let told = headers.get_all(FORWARDED).iter();
    let is_sound = way.is_trusted && told.map(HeaderValue::as_bytes).all(is_list);
    let element = HeaderValue::from_bytes(&element(way, host));
    // It is made of what headers may hold.
    let element = element.unwrap_or(HeaderValue::from_static("for=unknown"));
    match is_sound {
        true => own.add(&FORWARDED_NAME, element),
        false => own.set(&FORWARDED_NAME, element),
    }
}

/// `for=...;host=...;proto=...` (RFC 7239 section 4).
fn element(way: &ForwardContext<'_>, host: Option<&HeaderValue>) -> Vec<u8> {
    let mut out = b"for=".to_vec();
    match way.peer.as_bytes() {
        // An IPv6 address (RFC 7239 section 6).
        six if six.contains(&b':') => out.extend([b"\"[", six, b"]\""].concat()),
        other => out.extend(other),
    }
    if let Some(host) = host {
        out.extend(b";host=");
        quote(host.as_bytes(), &mut out);
    }
    out.extend([b";proto=", way.proto().as_bytes()].concat());
    out
}

/// A token as it is, everything else as a quoted string (RFC 9110 section 5.6.4).
fn quote(value: &[u8], out: &mut Vec<u8>) {
    if !value.is_empty() && value.iter().all(|byte| is_token(*byte)) {
        return out.extend(value);
    }
    out.push(b'"');
    for byte in value {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether `value` is a list of forwarded elements (RFC 7239 section 4), so that what is appended to it is an
/// element of its own. More lenient than the RFC where that cannot change where an element ends: addresses with
/// `:` or brackets need no quotes, and spaces may stand around `;`.
pub fn is_list(value: &[u8]) -> bool {
    let mut rest = value;
    loop {
        rest = rest.trim_ascii_start();
        let token = rest.iter().take_while(|byte| is_token(**byte)).count();
        if token > 0 {
            let Some(value) = rest[token..].strip_prefix(b"=") else { return false };
            let Some(behind) = skip_value(value) else { return false };
            rest = behind.trim_ascii_start();
        }
        match rest.split_first() {
            None => return true,
            // Empty pairs and elements mean nothing.
            Some((b',' | b';', behind)) => rest = behind,
            Some(_) => return false,
        }
    }
}

/// What stands behind a value, quoted or not; `None` where there is none, or it has no end.
fn skip_value(value: &[u8]) -> Option<&[u8]> {
    let Some(mut quoted) = value.strip_prefix(b"\"") else {
        let is_plain = |byte: &&u8| is_token(**byte) || b":[]".contains(byte);
        let length = value.iter().take_while(is_plain).count();
        return (length > 0).then(|| &value[length..]);
    };
    loop {
        quoted = match quoted {
            [b'"', behind @ ..] => return Some(behind),
            [b'\\', _, behind @ ..] | [_, behind @ ..] => behind,
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests;
