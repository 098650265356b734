//! Finds the bucket of a request and its cost: templates that are filled from the request, and the address of a caller
//! behind proxies. Never asks a store, and never shows a secret.
//!
//! A filled key has at most [`MAX_LEN`] visible ASCII characters. Two requests that differ in a part of the template have
//! different keys.

mod account;
mod body;
mod client;
mod cost;
mod cost_model;
mod escape;
mod media_type;
mod part;
mod secret;
mod sum;
mod true_cost;

pub use body::BodyParts;
pub use client::{client_ip, is_trusted};
pub use cost::{Cost, Reserve, ReservedCost};
pub use cost_model::CostModel;
pub use escape::{MAX_LEN, canonical, hashed, shown};
pub use media_type::is_json;
pub use paceway_limit::key::StateNames;
pub use part::only_field;
pub use secret::{fold, is_secret};
pub use sum::{Sum, fixed as fixed_cost};
pub use true_cost::{AnswerPart, SaidCost, TrueCost};

use crate::{
    json::{JsonPointer, JsonValues},
    path::{PathTemplate, Paths},
    suggest::nearest,
};
use escape::{Escapes, bounded, escape_text, pasted};
use http::{HeaderMap, HeaderName, Method, Uri};
use part::Part;
use std::{fmt, net::IpAddr};

/// The key of a limiter as the configuration writes it: texts and parts of a request, such as `{client_ip}:{header.x-shop}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Template {
    /// The template as written, for messages and pages.
    text: String,
    /// Texts and parts in their order. Two parts never touch: [`SEPARATOR`] is between them.
    pieces: Vec<TemplatePiece>,
    /// The characters that end a part. They are escaped in values, so that no value contains the end of its part.
    escapes: Escapes,
    /// Whether a part is a credential, such as `{header.authorization}`. Then all keys are hashed.
    secret: bool,
}

/// The values of one request from which templates are filled.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The address of the caller, as [`client_ip`] finds it.
    pub client_ip: IpAddr,
    /// The host that the request names, without its port.
    pub host: Option<&'a str>,
    /// The method in the request line.
    pub method: &'a Method,
    /// The target in the request line.
    pub uri: &'a Uri,
    /// The headers as the caller sent them, before any rule changes them.
    pub headers: &'a HeaderMap,
    /// The values in the body, if a template names a part of it.
    pub body: Option<&'a JsonValues>,
    /// The bytes of the body; `None` if they are not known yet.
    pub body_length: Option<u64>,
    /// How the origins read paths, so that two spellings of one path share a key.
    pub paths: Paths,
    /// The path of the route, if it is a template: it names the parameters that keys can have.
    pub template: Option<&'a PathTemplate>,
    /// The descriptor in place of a request, if Envoy asks.
    pub descriptor: Option<Descriptor<'a>>,
    /// The account that the request is sent with, if its upstream has several.
    pub account: Option<AccountNames<'a>>,
}

/// The names of an account that keys can have.
#[derive(Debug, Clone, Copy)]
pub struct AccountNames<'a> {
    /// The name of the account.
    pub name: &'a str,
    /// The name of its quota.
    pub quota: &'a str,
}

/// The keys of a descriptor of Envoy, each with its value.
#[derive(Debug, Clone, Copy)]
pub struct Descriptor<'a>(pub &'a [(&'a str, &'a str)]);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TemplatePiece {
    Text(String),
    Part(Part),
}

/// The text between two parts that touch in the template. Without it `ab` and `c` would give the same key as `a` and `bc`.
const SEPARATOR: &str = "|";

/// Whether `{NAME}` is a part that a template can have, such as `{client_ip}` or `{header.x-shop}`.
pub fn is_part(name: &str) -> bool {
    Part::parse(name).is_ok()
}

fn is_of_account(piece: &TemplatePiece) -> bool {
    matches!(piece, TemplatePiece::Part(Part::Account | Part::AccountQuota))
}

// === impl Template ===

impl Template {
    /// Reads a template such as `{header.x-shop}:{client_ip}`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is empty; ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty; name a part of the request, as in `{client_ip}`".into());
        }
        single_braces(text)?;
        let pieces = pieces(text)?;
        let is_part = |piece: &TemplatePiece| matches!(piece, TemplatePiece::Part(_));
        if !pieces.iter().any(is_part) {
            let hint = match nearest(text, part::WHOLE.into_iter()) {
                Some(name) => format!("did you mean `{{{name}}}`?"),
                None => "write parts in braces, as in `{client_ip}`".into(),
            };
            return Err(format!("names no part of the request; {hint}"));
        }
        let secret = pieces.iter().any(|piece| match piece {
            TemplatePiece::Text(_) => false,
            TemplatePiece::Part(part) => part.is_secret(),
        });
        let mut escapes = Escapes::default();
        for around in pieces.windows(3) {
            // A value ends at the first character of the text after it.
            if let [TemplatePiece::Part(_), TemplatePiece::Text(text), TemplatePiece::Part(_)] =
                around
            {
                text.bytes().take(1).for_each(|byte| escapes.add(byte));
            }
        }
        Ok(Self { text: text.to_owned(), pieces, escapes, secret })
    }

    /// Fills the template from a request and returns its key, hashed if it is secret or longer than [`MAX_LEN`].
    ///
    /// # Errors
    ///
    /// A message for the caller, if upstreams could read another value than this one.
    pub fn fill(&self, parts: &Parts<'_>) -> Result<String, String> {
        let mut key = String::new();
        for piece in &self.pieces {
            match piece {
                TemplatePiece::Text(text) => key.push_str(text),
                TemplatePiece::Part(part) => match part.value(parts)? {
                    None => key.push_str(self.missing()),
                    Some(value) if *value == *b"-" => key.push_str("%2D"),
                    Some(value) => self.escapes.push(&value, &mut key),
                },
            }
        }
        Ok(bounded(key, self.secret))
    }

    /// Brings a key that an operator typed into the form that [`Self::fill`] gives it. A key that `fill` returned does not
    /// change. A hash may be pasted as [`shown`] prints it, or as the end of the name of a state in logs or Redis.
    pub fn canonical(&self, text: &str) -> String {
        match (pasted(text), self.secret) {
            (Some(hash), _) => hash,
            (None, true) => {
                let one = self.only().and_then(|part| part.one_spelling(text));
                bounded(escape_text(one.as_deref().unwrap_or(text)), true)
            }
            (None, false) => canonical(text),
        }
    }

    /// The same for a name in which each `*` stands for any text.
    pub fn canonical_name(&self, text: &str) -> String {
        let pieces = text.split('*').map(|piece| match piece {
            "" => String::new(),
            piece => self.canonical(piece),
        });
        pieces.collect::<Vec<_>>().join("*")
    }

    /// Whether a part is in the body of the request.
    pub fn reads_body(&self) -> bool {
        self.body_pointers().next().is_some()
    }

    /// The places of its parts in the body of the request.
    pub(crate) fn body_pointers(&self) -> impl Iterator<Item = &JsonPointer> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Part(Part::Body(pointer)) => Some(pointer),
            _ => None,
        })
    }

    /// The template as the configuration writes it, such as `{header.x-shop}`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of its parts that have one, such as `shop` for `{query.shop}`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Part(Part::Header(name)) => Some(name.as_str()),
            TemplatePiece::Part(Part::Query(name) | Part::PathParameter { name, .. }) => Some(name),
            _ => None,
        })
    }

    /// The headers that are parts of the template, such as `x-shop` for `{header.x-shop}`.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Part(Part::Header(name)) => Some(name),
            _ => None,
        })
    }

    /// Whether a part is the account of the request, or its quota.
    pub fn names_account(&self) -> bool {
        self.pieces.iter().any(is_of_account)
    }

    /// The parameters of the route's path that are parts of the template, such as `channel` for `{path.channel}`.
    pub fn path_parameters(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Part(Part::PathParameter { name, .. }) => Some(&**name),
            _ => None,
        })
    }

    /// Whether a part is a credential, so that its keys are shown as hashes only.
    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// The text for a part that the request does not have: `-`. A value never has this form, because a lone `-` is `%2D`.
    fn missing(&self) -> &'static str {
        // In such a template a `-` is the end of a value.
        if self.escapes.has(b'-') { "%2d" } else { "-" }
    }

    /// Returns the part of a template that has one part and no text.
    fn only(&self) -> Option<&Part> {
        match &*self.pieces {
            [TemplatePiece::Part(part)] => Some(part),
            _ => None,
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Refuses the braces of other programs' templates.
fn single_braces(text: &str) -> Result<(), String> {
    if text.contains("{{") || text.contains("}}") {
        let single = text.replace("{{", "{").replace("}}", "}");
        return Err(format!("has double braces; write parts in single ones: `{single}`"));
    }
    Ok(())
}

/// Splits a template into texts and parts, and adds a separator where two parts touch.
fn pieces(text: &str) -> Result<Vec<TemplatePiece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(['{', '}']).unwrap_or(rest.len());
        let (plain, brace) = rest.split_at(end);
        if !plain.is_empty() {
            check_plain(plain)?;
            pieces.push(TemplatePiece::Text(plain.to_owned()));
        }
        if brace.is_empty() {
            break;
        }
        let Some(part) = brace.strip_prefix('{') else {
            return Err("has a `}` without its `{`".into());
        };
        let Some((name, after)) = part.split_once('}').filter(|(name, _)| !name.contains('{'))
        else {
            return Err("has a `{` without its `}`".into());
        };
        if let Some(TemplatePiece::Part(_)) = pieces.last() {
            pieces.push(TemplatePiece::Text(SEPARATOR.into()));
        }
        pieces.push(TemplatePiece::Part(Part::parse(name)?));
        rest = after;
    }
    Ok(pieces)
}

fn check_plain(text: &str) -> Result<(), String> {
    match text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '%' | '#')) {
        Some(c) => Err(format!(
            "has {c:?} outside of braces, where only visible ASCII characters except % and # are allowed"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
