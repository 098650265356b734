//! The parts of a request that a template can name, and how each gets its value. Escapes nothing.

use super::{
    Parts,
    json::JsonPointer,
    secret::{fold, is_secret},
};
use crate::{path::Paths, suggest::nearest};
use http::{HeaderMap, HeaderName, header::COOKIE};
use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Part {
    ClientIp,
    Host,
    Method,
    Path,
    /// A parameter of the path template of the route.
    PathParameter(String),
    Header(HeaderName),
    Query(String),
    /// A segment of the path, counted from 0; templates count from 1.
    Segment(usize),
    /// A place in a JSON body.
    Body(JsonPointer),
    /// A key of a descriptor of Envoy.
    Descriptor(String),
}

/// The parts that are whole by themselves, such as `{client_ip}`, for hints.
pub(super) const WHOLE: [&str; 4] = ["client_ip", "host", "method", "path"];
/// The parts that need more after a dot, such as `{header.x-shop}`, for hints. `path` may have more, too.
const DOTTED: [&str; 5] = ["header", "query", "segment", "body", "descriptor"];
const MAX_SEGMENT: usize = 1000;

// === impl Part ===

impl Part {
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let (kind, of) = match name.split_once('.') {
            Some((kind, of)) => (kind, Some(of)),
            None => (name, None),
        };
        let wants = |what: &str| Err(format!("has the part `{{{name}}}`, which {what}"));
        match (kind, of) {
            ("client_ip", None) => Ok(Self::ClientIp),
            ("host", None) => Ok(Self::Host),
            ("method", None) => Ok(Self::Method),
            ("path", None) => Ok(Self::Path),
            ("path", Some("")) => {
                wants("needs the name of a parameter of the route's `path`, as in `{path.channel}`")
            }
            ("path", Some(of)) => Ok(Self::PathParameter(of.to_owned())),
            ("client_ip" | "host" | "method", Some(_)) => {
                wants(&format!("takes no name; write `{{{kind}}}`"))
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
            ("segment", of) => match of.map(str::parse) {
                Some(Ok(n @ 1..=MAX_SEGMENT)) => Ok(Self::Segment(n - 1)),
                _ => wants("needs the number of a segment of the path, from 1: `{segment.1}`"),
            },
            _ => {
                let of = of.map_or(String::new(), |of| format!(".{of}"));
                let hint = match nearest(kind, WHOLE.into_iter().chain(DOTTED)) {
                    Some(kind) => format!("did you mean `{{{kind}{of}}}`?"),
                    None => "there are {client_ip}, {host}, {method}, {path}, {path.NAME}, {header.NAME}, \
                             {query.NAME}, {segment.N}, {body./POINTER} and {descriptor.NAME}"
                        .into(),
                };
                Err(format!("has the unknown part `{{{name}}}`; {hint}"))
            }
        }
    }

    pub(super) fn is_secret(&self) -> bool {
        match self {
            // The header `Cookie` may hold any cookie, also that of a session.
            Self::Header(name) => *name == COOKIE || is_secret(&fold(name.as_str().as_bytes())),
            Self::Query(name) | Self::PathParameter(name) | Self::Descriptor(name) => {
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
        matches!(self, Self::ClientIp | Self::Host | Self::Method | Self::Path)
    }

    /// The value of this part in a request, `None` if the request does not have it.
    pub(super) fn value<'a>(&self, parts: &Parts<'a>) -> Option<Cow<'a, [u8]>> {
        match self {
            Self::ClientIp => Some(parts.client_ip.to_string().into_bytes().into()),
            Self::Host => Some(parts.host?.to_ascii_lowercase().into_bytes().into()),
            Self::Method => Some(parts.method.as_str().as_bytes().into()),
            Self::Path => Some(parts.paths.key_form(parts.uri.path())),
            Self::PathParameter(name) => {
                parts.template?.value(name, parts.uri.path(), &parts.paths)
            }
            Self::Header(name) => header(parts.headers, name),
            Self::Query(name) => parameter(parts.uri.query()?, name),
            Self::Body(pointer) => Some(pointer.find(parts.body?)?.into_bytes().into()),
            Self::Descriptor(name) => {
                let pairs = parts.descriptor?.0;
                let value = pairs.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
                Some(value?.as_bytes().into())
            }
            Self::Segment(n) => segment(parts.uri.path(), parts.paths, *n),
        }
    }
}

/// Returns all header fields with this name, joined by commas (RFC 9110 section 5.3).
fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    let mut fields = headers.get_all(name).iter();
    let mut value = Cow::Borrowed(fields.next()?.as_bytes());
    for field in fields {
        let value = value.to_mut();
        value.push(b',');
        value.extend_from_slice(field.as_bytes());
    }
    Some(value)
}

/// Returns the decoded value of the first query parameter with this name.
fn parameter<'a>(query: &'a str, name: &str) -> Option<Cow<'a, [u8]>> {
    query.split('&').find_map(|pair| {
        let (own, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*decoded(own) == *name.as_bytes()).then(|| decoded(value))
    })
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
