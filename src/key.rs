//! Which bucket a request belongs to: templates filled from it, the caller's address behind proxies, and what it
//! costs. Never asks a store, and never lets a secret out.
//!
//! A filled key is made of visible ASCII characters, at most [`MAX_LEN`] of them, and no two requests
//! that differ in a part of the template have one key.

mod client;
mod cost;
mod escape;
mod part;
mod secret;

pub use client::{client_ip, is_trusted};
pub use cost::Cost;
pub use escape::{MAX_LEN, canonical, shown};
pub use paceway_limit::key::StateNames;
pub use secret::{fold, is_secret};

use crate::{path::Paths, suggest::nearest};
use escape::{Escapes, bounded, escape_text, pasted};
use http::{HeaderMap, Method, Uri};
use part::{KNOWN, Part};
use std::net::IpAddr;

/// Text and parts of a request, in the order in which they are joined.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Template {
    /// As written.
    text: String,
    /// Between two parts there is always a text.
    pieces: Vec<Piece>,
    /// What ends a part, so that no value may hold it.
    escapes: Escapes,
    /// Some part is a credential.
    secret: bool,
}

/// What templates are filled from.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// As [`client_ip`] says.
    pub client_ip: IpAddr,
    /// Without port.
    pub host: Option<&'a str>,
    /// Of the request line.
    pub method: &'a Method,
    /// Of the request line.
    pub uri: &'a Uri,
    /// As the caller sent them.
    pub headers: &'a HeaderMap,
    /// How the origins read paths.
    pub paths: Paths,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Piece {
    Text(String),
    Part(Part),
}

/// Stands between two parts that touch: without it `ab` and `c` were `a` and `bc`.
const SEPARATOR: &str = "|";

/// Whether `{NAME}` is a part that a template can have.
pub fn is_part(name: &str) -> bool {
    Part::parse(name).is_ok()
}

// === impl Template ===

impl Template {
    /// Reads a template such as `{header.x-shop}:{client_ip}`.
    ///
    /// # Errors
    ///
    /// What is wrong, for behind "`TEXT` ".
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty; name a part of the request, as in `{client_ip}`".into());
        }
        if text.contains("{{") || text.contains("}}") {
            let single = text.replace("{{", "{").replace("}}", "}");
            return Err(format!("has double braces; parts stand in single ones: `{single}`"));
        }
        let pieces = pieces(text)?;
        let is_part = |piece: &Piece| matches!(piece, Piece::Part(_));
        if !pieces.iter().any(is_part) {
            let hint = match nearest(text, KNOWN[..4].iter().copied()) {
                Some(name) => format!("did you mean `{{{name}}}`?"),
                None => "parts stand in braces, as in `{client_ip}`".into(),
            };
            return Err(format!("names no part of the request; {hint}"));
        }
        let secret = pieces.iter().any(|piece| match piece {
            Piece::Text(_) => false,
            Piece::Part(part) => part.is_secret(),
        });
        let mut escapes = Escapes::default();
        for around in pieces.windows(3) {
            // The first character of a text is where the value before it ends.
            if let [Piece::Part(_), Piece::Text(text), Piece::Part(_)] = around {
                text.bytes().take(1).for_each(|byte| escapes.add(byte));
            }
        }
        Ok(Self { text: text.to_owned(), pieces, escapes, secret })
    }

    /// The key of a request.
    pub fn fill(&self, parts: &Parts<'_>) -> String {
        let mut key = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => key.push_str(text),
                Piece::Part(part) => match part.value(parts) {
                    None => key.push_str(self.missing()),
                    Some(value) if *value == *b"-" => key.push_str("%2D"),
                    Some(value) => self.escapes.push(&value, &mut key),
                },
            }
        }
        bounded(key, self.secret)
    }

    /// A key as somebody types it, in the form that [`Self::fill`] gives it. What `fill` returned stays as it is. A
    /// hash may be pasted as [`shown`] shows it, or as the end of the name of a state, which logs and Redis show.
    pub fn canonical(&self, text: &str) -> String {
        match (pasted(text), self.secret) {
            (Some(hash), _) => hash,
            (None, true) => bounded(escape_text(text), true),
            (None, false) => canonical(text),
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether a part is a credential, so that its keys are shown as hashes only.
    pub fn is_secret(&self) -> bool {
        self.secret
    }

    /// Stands for a part that is not there. No value is written so: a `-` alone is `%2D`.
    fn missing(&self) -> &'static str {
        // A `-` would be taken for the end of the value.
        if self.escapes.has(b'-') { "%2d" } else { "-" }
    }

    /// The part that is the whole template.
    fn only(&self) -> Option<&Part> {
        match &*self.pieces {
            [Piece::Part(part)] => Some(part),
            _ => None,
        }
    }
}

/// The texts and parts of a template, with a separator where two parts touch.
fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(['{', '}']).unwrap_or(rest.len());
        let (plain, behind) = rest.split_at(end);
        if !plain.is_empty() {
            check_plain(plain)?;
            pieces.push(Piece::Text(plain.to_owned()));
        }
        if behind.is_empty() {
            break;
        }
        let Some(behind) = behind.strip_prefix('{') else {
            return Err("has a `}` without its `{`".into());
        };
        let Some((name, after)) = behind.split_once('}').filter(|(name, _)| !name.contains('{'))
        else {
            return Err("has a `{` without its `}`".into());
        };
        if let Some(Piece::Part(_)) = pieces.last() {
            pieces.push(Piece::Text(SEPARATOR.into()));
        }
        pieces.push(Piece::Part(Part::parse(name)?));
        rest = after;
    }
    Ok(pieces)
}

fn check_plain(text: &str) -> Result<(), String> {
    match text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '%' | '#')) {
        Some(c) => Err(format!(
            "has {c:?} outside of braces, where only visible ASCII characters but % and # may stand"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
