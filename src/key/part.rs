//! The parts of a request that a template can name, and how each gets its value. Escapes nothing.

use super::{
    Parts,
    secret::{fold, is_secret},
};
use crate::{json::JsonPointer, path::Paths, suggest::nearest};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION},
};
use ipnet::Ipv6Net;
use std::{borrow::Cow, net::IpAddr};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// The address of the caller, or the network of so many bits that its IPv6 address is in.
    ClientIp(Option<u8>),
    Host,
    Method,
    Path,
    /// A parameter of the path template of the route, as a number if `is_integer`.
    PathParameter {
        name: String,
        is_integer: bool,
    },
    Header(HeaderName),
    Query(String),
    /// A segment of the path, counted from 0; templates count from 1. As a number if `is_integer`.
    Segment {
        index: usize,
        is_integer: bool,
    },
    /// A place in a JSON body.
    Body(JsonPointer),
    /// A key of a descriptor of Envoy.
    Descriptor(String),
    /// The account that the request is sent with.
    Account,
    /// The quota of that account.
    AccountQuota,
}

/// The parts that are whole by themselves, such as `{client_ip}`, for hints.
pub(super) const WHOLE: [&str; 5] = ["client_ip", "host", "method", "path", "account"];
/// The parts that need more after a dot, such as `{header.x-shop}`, for hints. `path` may have more, too.
const DOTTED: [&str; 5] = ["header", "query", "segment", "body", "descriptor"];
const MAX_SEGMENT: usize = 1000;
/// The end of a part of the path whose value is an integer, as in `{path.id:int}`.
const INTEGER: &str = ":int";

/// Says what an unknown part may have been meant to be.
fn hint_for(kind: &str, of: Option<&str>) -> String {
    let of = of.map_or(String::new(), |of| format!(".{of}"));
    match nearest(kind, WHOLE.into_iter().chain(DOTTED)) {
        Some(kind) => format!("did you mean `{{{kind}{of}}}`?"),
        None => "there are {client_ip}, {client_ip/BITS}, {host}, {method}, {path}, {path.NAME}, {header.NAME}, \
                 {query.NAME}, {segment.N}, {body./POINTER}, {descriptor.NAME}, {account} and {account.quota}"
            .into(),
    }
}

// === impl Part ===

impl Part {
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let (kind, of) = match name.split_once('.') {
            Some((kind, of)) => (kind, Some(of)),
            None => (name, None),
        };
        let wants = |what: &str| Err(format!("has the part `{{{name}}}`, which {what}"));
        match (kind, of) {
            ("client_ip", None) => Ok(Self::ClientIp(None)),
            ("host", None) => Ok(Self::Host),
            ("method", None) => Ok(Self::Method),
            ("path", None) => Ok(Self::Path),
            ("account", None) => Ok(Self::Account),
            ("account", Some("quota")) => Ok(Self::AccountQuota),
            ("account", Some(_)) => wants("is none; there are `{account}` and `{account.quota}`"),
            ("path", Some("" | INTEGER)) => {
                wants("needs the name of a parameter of the route's `path`, as in `{path.channel}`")
            }
            ("path", Some(of)) => {
                let (name, is_integer) = integer_form(of);
                Ok(Self::PathParameter { name: name.to_owned(), is_integer })
            }
            ("client_ip" | "host" | "method", Some(_)) => {
                wants(&format!("takes no name; write `{{{kind}}}`"))
            }
            (_, None) if kind.starts_with("client_ip/") => {
                match kind["client_ip/".len()..].parse() {
                    Ok(bits @ 1..=128) => Ok(Self::ClientIp(Some(bits))),
                    _ => wants("needs the bits of an IPv6 network, 1 to 128: `{client_ip/64}`"),
                }
            }
            ("header", None | Some("")) => {
                wants("needs the name of a header, as in `{header.x-shop}`")
            }
            ("header", Some(of)) => HeaderName::from_bytes(of.as_bytes())
                .map(Self::Header)
                .or_else(|_| wants(&format!("is none: `{of}` is no name of a header"))),
            ("query", None | Some("")) => {
                wants("needs the name of a query parameter, as in `{query.shop}`")
            }
            ("query", Some(of)) => Ok(Self::Query(of.to_owned())),
            ("body", None | Some("")) => wants("needs a JSON pointer, as in `{body./max_tokens}`"),
            ("body", Some(of)) => JsonPointer::parse(of).map(Self::Body).or_else(|why| wants(&why)),
            ("descriptor", None | Some("")) => {
                wants("needs a key of a descriptor, as in `{descriptor.shop}`")
            }
            ("descriptor", Some(of)) => Ok(Self::Descriptor(of.to_owned())),
            ("segment", of) => {
                let (number, is_integer) = integer_form(of.unwrap_or_default());
                match number.parse() {
                    Ok(n @ 1..=MAX_SEGMENT) => Ok(Self::Segment { index: n - 1, is_integer }),
                    _ => wants("needs the number of a segment of the path, from 1: `{segment.1}`"),
                }
            }
            _ => Err(format!("has the unknown part `{{{name}}}`; {}", hint_for(kind, of))),
        }
    }

    pub(super) fn is_secret(&self) -> bool {
        match self {
            // The header `Cookie` may hold any cookie, also that of a session.
            Self::Header(name) => *name == COOKIE || is_secret(&fold(name.as_str().as_bytes())),
            Self::Query(name) | Self::PathParameter { name, .. } | Self::Descriptor(name) => {
                is_secret(&fold(name.as_bytes()))
            }
            Self::Body(pointer) => {
                let name = fold(pointer.last().as_bytes());
                // `max_tokens` is a number of words.
                is_secret(&name) && !name.ends_with("tokens")
            }
            _ => false,
        }
    }

    /// Whether no request can have a number in this part, so that it cannot be a cost.
    pub(super) fn is_never_a_number(&self) -> bool {
        matches!(
            self,
            Self::ClientIp(_)
                | Self::Host
                | Self::Method
                | Self::Path
                | Self::Account
                | Self::AccountQuota
        )
    }

    /// The form that all spellings of a value share, where there are several; `None` for text that is no value of this part.
    pub(super) fn one_spelling(&self, text: &str) -> Option<String> {
        let Self::Header(AUTHORIZATION | PROXY_AUTHORIZATION) = self else { return None };
        String::from_utf8(credentials(text.as_bytes()).ok()?.into_owned()).ok()
    }

    /// The value of this part in a request, `None` if the request does not have it.
    ///
    /// # Errors
    ///
    /// A message for the caller, if upstreams could read another value than this one.
    pub(super) fn value<'a>(&self, parts: &Parts<'a>) -> Result<Option<Cow<'a, [u8]>>, String> {
        Ok(match self {
            Self::ClientIp(bits) => Some(network(parts.client_ip, *bits).into_bytes().into()),
            Self::Host => parts.host.map(|host| host.to_ascii_lowercase().into_bytes().into()),
            Self::Method => Some(parts.method.as_str().as_bytes().into()),
            Self::Path => Some(parts.paths.key_form(parts.uri.path())),
            Self::PathParameter { name, is_integer } => {
                let value = parts
                    .template
                    .and_then(|template| template.value(name, parts.uri.path(), &parts.paths));
                return integer(value, *is_integer);
            }
            Self::Header(name) => return header(parts.headers, name),
            Self::Query(name) => return parameter(parts.uri.query().unwrap_or_default(), name),
            Self::Body(pointer) => {
                let value = parts.body.and_then(|body| body.get(pointer));
                value.map(|value| value.as_bytes().into())
            }
            Self::Descriptor(name) => parts.descriptor.and_then(|descriptor| {
                let own = descriptor.0.iter().find(|(key, _)| key == name);
                own.map(|(_, value)| value.as_bytes().into())
            }),
            Self::Account => parts.account.map(|account| account.name.as_bytes().into()),
            Self::AccountQuota => parts.account.map(|account| account.quota.as_bytes().into()),
            Self::Segment { index, is_integer } => {
                return integer(segment(parts.uri.path(), parts.paths, *index), *is_integer);
            }
        })
    }
}

/// Splits `id:int` into the name and whether the value is an integer.
fn integer_form(of: &str) -> (&str, bool) {
    of.strip_suffix(INTEGER).map_or((of, false), |name| (name, true))
}

/// The address, or the network of so many bits that an IPv6 address is in. Its owner can use each address of it.
fn network(ip: IpAddr, bits: Option<u8>) -> String {
    match (ip.to_canonical(), bits) {
        (IpAddr::V6(ip), Some(bits)) => {
            Ipv6Net::new(ip, bits).map_or_else(|_| ip.to_string(), |net| net.trunc().to_string())
        }
        (ip, _) => ip.to_string(),
    }
}

/// Refuses a value that is no integer in its one decimal form, if it has to be one: many origins read `005`, `+5` and `5.0`
/// as 5, and numbers that do not fit into 64 bits as others.
fn integer(
    value: Option<Cow<'_, [u8]>>,
    is_integer: bool,
) -> Result<Option<Cow<'_, [u8]>>, String> {
    let Some(text) = value.as_deref().filter(|_| is_integer) else { return Ok(value) };
    let is_decimal = |text: &str| {
        let digits = text.strip_prefix('-').filter(|digits| *digits != "0").unwrap_or(text);
        let is_shortest = digits == "0" || !digits.starts_with('0');
        let fits = text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
        is_shortest && fits && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if std::str::from_utf8(text).is_ok_and(is_decimal) {
        Ok(value)
    } else {
        let why = "a number in the path is written with digits alone, without zeros before it, and has 64 bits";
        Err(why.into())
    }
}

/// The one field with a name. Programs differ in whether they take the first of several, the last, or all of them.
///
/// # Errors
///
/// A message for the caller, if there are several.
pub fn only_field<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> Result<Option<&'h HeaderValue>, String> {
    let mut fields = headers.get_all(name).iter();
    match (fields.next(), fields.next()) {
        (first, None) => Ok(first),
        _ => Err(format!("the header `{name}` comes more than once, and a limiter reads it")),
    }
}

/// The value of a header. Cookies in several fields, as HTTP/2 sends them, are one header (RFC 9113 section 8.2.3).
fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, [u8]>>, String> {
    if *name == COOKIE {
        let fields: Vec<_> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        return Ok((!fields.is_empty()).then(|| fields.join(&b"; "[..]).into()));
    }
    let Some(value) = only_field(headers, name)? else { return Ok(None) };
    if [AUTHORIZATION, PROXY_AUTHORIZATION].contains(name) {
        credentials(value.as_bytes()).map(Some)
    } else {
        Ok(Some(value.as_bytes().into()))
    }
}

/// Credentials in the one form that all their spellings share: the scheme is not case-sensitive, and spaces follow it (RFC
/// 9110 section 11.4).
fn credentials(value: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let value = value.trim_ascii();
    let end = value.iter().position(u8::is_ascii_whitespace);
    let Some((scheme, rest)) = end.map(|end| value.split_at(end)) else {
        return Ok(value.into());
    };
    let rest = rest.trim_ascii_start();
    // Decoders of base64 differ in what they skip, so that one user would have many spellings.
    if scheme.eq_ignore_ascii_case(b"basic") && BASE64.decode(rest).is_err() {
        return Err("the credentials of the scheme Basic are no base64 with padding".into());
    }
    let mut one = scheme.to_ascii_lowercase();
    one[..1].make_ascii_uppercase();
    one.push(b' ');
    one.extend_from_slice(rest);
    Ok(one.into())
}

/// The decoded value of the one query parameter with this name.
fn parameter<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, [u8]>>, String> {
    let mut values = query.split('&').filter_map(|pair| {
        let (own, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*decoded(own) == *name.as_bytes()).then(|| decoded(value))
    });
    match (values.next(), values.next()) {
        (first, None) => Ok(first),
        _ => Err(format!(
            "the query parameter `{name}` comes more than once, and a limiter reads it"
        )),
    }
}

/// Decodes a name or value as forms encode it (WHATWG URL, application/x-www-form-urlencoded). A broken escape stays.
fn decoded(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return bytes.into();
    }
    let hex = |i: usize| bytes.get(i).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(i) {
        let escaped = (byte == b'%').then(|| hex(i + 1).zip(hex(i + 2))).flatten();
        let escaped = escaped.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        out.push(escaped.unwrap_or(if byte == b'+' { b' ' } else { byte }));
        i += if escaped.is_some() { 3 } else { 1 };
    }
    out.into()
}

/// Returns segment `n` of the path in the form that all its spellings share, so that no spelling gets another bucket.
fn segment(path: &str, paths: Paths, n: usize) -> Option<Cow<'_, [u8]>> {
    match paths.key_form(path) {
        Cow::Borrowed(path) => nth(path, n).map(Cow::from),
        Cow::Owned(path) => nth(&path, n).map(|segment| segment.to_vec().into()),
    }
}

/// Returns segment `n` of a path in normal form, which starts with a slash and has an empty segment only as the root.
fn nth(path: &[u8], n: usize) -> Option<&[u8]> {
    let mut segments = path.split(|byte| *byte == b'/').skip(1);
    segments.nth(n).filter(|segment| !segment.is_empty())
}
