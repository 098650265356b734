//! The part of an answer that holds the true cost of its request. Reads no stream.

use super::{cost::number, json::JsonPointer};
use http::{HeaderMap, HeaderName};
use std::fmt;

/// The part of an answer that holds the true cost of its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TrueCost {
    /// A header, such as `{response.header.x-cost}`.
    Header(HeaderName),
    /// A place in a JSON body, or in the last event of a stream that has it: `{response.body./usage/total_tokens}`.
    Body(JsonPointer),
}

// === impl TrueCost ===

impl TrueCost {
    /// Reads a part such as `{response.header.x-cost}`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is no part ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = "write `{response.header.NAME}` or `{response.body./POINTER}`";
        let part = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let Some(part) = part.and_then(|part| part.strip_prefix("response.")) else {
            return Err(format!("is no part of an answer; {wanted}"));
        };
        match part.split_once('.') {
            Some(("header", name)) => HeaderName::from_bytes(name.as_bytes())
                .map(Self::Header)
                .map_err(|_| format!("has `{name}`, which is no name of a header")),
            Some(("body", pointer)) => JsonPointer::parse(pointer).map(Self::Body),
            _ => Err(format!("is no part of an answer; {wanted}")),
        }
    }

    /// The true cost that the head of an answer holds.
    pub fn of_head(&self, headers: &HeaderMap) -> Option<i64> {
        let Self::Header(name) = self else { return None };
        number(headers.get(name)?.as_bytes())
    }

    /// The true cost that a JSON document holds.
    pub fn of_document(&self, document: &[u8]) -> Option<i64> {
        let Self::Body(pointer) = self else { return None };
        number(pointer.find(document)?.as_bytes())
    }
}

impl fmt::Display for TrueCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "{{response.header.{name}}}"),
            Self::Body(pointer) => write!(f, "{{response.body.{}}}", pointer.text()),
        }
    }
}
