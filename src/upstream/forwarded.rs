//! Writes the fields that name the client to the upstream: X-Forwarded-For, -Proto, -Host and -Port, and Forwarded (RFC
//! 7239) if the configuration asks for it. Only trusted proxies are believed.

use super::headers::{
    added::AddedHeaders,
    context::ForwardContext,
    flags::HeaderFlags,
    names::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PORT, X_FORWARDED_PROTO},
};
use http::{HeaderMap, HeaderName, HeaderValue, header::FORWARDED};
use std::borrow::Cow;

static FOR_NAME: HeaderName = X_FORWARDED_FOR;
static HOST_NAME: HeaderName = X_FORWARDED_HOST;
static PORT_NAME: HeaderName = X_FORWARDED_PORT;
static PROTO_NAME: HeaderName = X_FORWARDED_PROTO;
static FORWARDED_NAME: HeaderName = FORWARDED;

/// Adds the fields that name the client. `flags` are the special fields of the client.
///
/// X-Forwarded-For and Forwarded list all proxies on the way, so the address of a trusted proxy is appended to what it
/// sent. The others describe what the first proxy saw, so they stay as a trusted proxy wrote them.
pub(super) fn add_fields<'a>(
    headers: &mut HeaderMap,
    flags: HeaderFlags,
    context: &mut ForwardContext<'a>,
    added: &mut AddedHeaders<'a>,
) {
    if context.forwarded {
        forwarded(headers, context, added);
    } else if flags.has(HeaderFlags::FORWARDED) {
        headers.remove(FORWARDED);
    }
    let is_kept = |name| {
        context.is_trusted && flags.has(HeaderFlags::FORWARDED) && headers.contains_key(name)
    };
    let (has_proto, has_port) = (is_kept(X_FORWARDED_PROTO), is_kept(X_FORWARDED_PORT));
    let has_host = is_kept(X_FORWARDED_HOST);
    // A proxy that names the scheme and no port means the default port of the scheme.
    if !has_port && !has_proto {
        added.set(&PORT_NAME, Cow::Borrowed(context.port));
    }
    if !has_proto {
        added.set(&PROTO_NAME, Cow::Borrowed(context.proto()));
    }
    match context.host.take() {
        _ if has_host => {}
        Some(host) => added.set(&HOST_NAME, Cow::Owned(host)),
        None => drop(headers.remove(X_FORWARDED_HOST)),
    }
    let is_kept = context.is_trusted && flags.has(HeaderFlags::FORWARDED);
    let all = if is_kept { with_peer(headers, context.peer) } else { None };
    added.set(&FOR_NAME, all.map_or(Cow::Borrowed(context.peer), Cow::Owned));
}

/// The `X-Forwarded-For` of a trusted proxy with the address of that proxy appended; `None` if it sent none.
fn with_peer(headers: &HeaderMap, peer: &HeaderValue) -> Option<HeaderValue> {
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

/// Appends an element to the `Forwarded` of a trusted proxy. A quote that is left open there would swallow the element,
/// so it replaces the field then.
fn forwarded(headers: &HeaderMap, context: &ForwardContext<'_>, added: &mut AddedHeaders<'_>) {
    let told = headers.get_all(FORWARDED).iter();
    let is_sound = context.is_trusted && told.map(HeaderValue::as_bytes).all(is_list);
    let element = HeaderValue::from_bytes(&element(context));
    // The element is made of octets that headers may hold.
    let element = Cow::Owned(element.unwrap_or(HeaderValue::from_static("for=unknown")));
    if is_sound { added.add(&FORWARDED_NAME, element) } else { added.set(&FORWARDED_NAME, element) }
}

/// The element of this gateway, `for=192.0.2.1;host=api.example;proto=https` for example (RFC 7239 section 4).
fn element(context: &ForwardContext<'_>) -> Vec<u8> {
    let mut out = b"for=".to_vec();
    match context.peer.as_bytes() {
        // An IPv6 address (RFC 7239 section 6).
        six if six.contains(&b':') => out.extend([b"\"[", six, b"]\""].concat()),
        other => out.extend(other),
    }
    if let Some(host) = &context.host {
        out.extend(b";host=");
        quote(host.as_bytes(), &mut out);
    }
    out.extend([b";proto=", context.proto().as_bytes()].concat());
    out
}

/// Writes a token as it is, and any other value as a quoted string (RFC 9110 section 5.6.4).
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

/// Whether a byte may be part of a token (RFC 9110 section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether `value` is a list of forwarded elements (RFC 7239 section 4), so that an element appended to it is read as one
/// of its added. The check is more lenient than the RFC where that cannot move the end of an element: addresses with `:` or
/// brackets need no quotes, and spaces may surround `;`.
pub fn is_list(value: &[u8]) -> bool {
    let mut rest = value;
    loop {
        rest = rest.trim_ascii_start();
        let token = rest.iter().take_while(|byte| is_token(**byte)).count();
        if token > 0 {
            let Some(value) = rest[token..].strip_prefix(b"=") else { return false };
            let Some(after) = skip_value(value) else { return false };
            rest = after.trim_ascii_start();
        }
        match rest.split_first() {
            None => return true,
            // Empty pairs and elements mean nothing.
            Some((b',' | b';', after)) => rest = after,
            Some(_) => return false,
        }
    }
}

/// The bytes after a value, quoted or not; `None` if there is no value, or a quote is left open.
fn skip_value(value: &[u8]) -> Option<&[u8]> {
    let Some(mut quoted) = value.strip_prefix(b"\"") else {
        let is_plain = |byte: &&u8| is_token(**byte) || b":[]".contains(byte);
        let length = value.iter().take_while(is_plain).count();
        return (length > 0).then(|| &value[length..]);
    };
    loop {
        quoted = match quoted {
            [b'"', after @ ..] => return Some(after),
            [b'\\', _, after @ ..] | [_, after @ ..] => after,
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests;
