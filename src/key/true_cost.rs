//! The true cost of a request, as its answer says it: a sum of parts of the answer. Reads no stream.

use super::sum::{MAX_TERMS, Sum, number};
use crate::json::JsonPointer;
use http::{HeaderMap, HeaderName};
use smallvec::SmallVec;
use std::{fmt, sync::Arc};

/// The true cost of a request, such as `{response.body./usage/input_tokens} + 5*{response.body./usage/output_tokens}`.
pub type TrueCost = Sum<AnswerPart>;

/// A part of an answer that holds a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AnswerPart {
    /// A header, such as `{response.header.x-cost}`.
    Header(HeaderName),
    /// A place in a JSON body, or in the last event of a stream that has it: `{response.body./usage/total_tokens}`.
    Body(JsonPointer),
}

/// The parts of a true cost that an answer has said so far.
#[derive(Debug)]
pub struct SaidCost {
    cost: Arc<TrueCost>,
    /// The number that was read last for each part.
    values: SmallVec<[Option<i64>; 2]>,
}

// === impl TrueCost ===

impl TrueCost {
    /// Reads a sum such as `1 + {response.header.x-cost}`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is no part ...".
    pub fn parse_answer(text: &str) -> Result<Self, String> {
        let cost = Self::parse(text, AnswerPart::parse)?;
        if cost.fixed().is_some() {
            return Err(format!("is no part of an answer; {WANTED}"));
        }
        Ok(cost)
    }

    /// Whether a part is in the body of the answer.
    pub fn reads_body(&self) -> bool {
        self.parts().any(|part| matches!(part, AnswerPart::Body(_)))
    }
}

// === impl AnswerPart ===

const WANTED: &str = "write `{response.header.NAME}` or `{response.body./POINTER}`";

impl AnswerPart {
    fn parse(text: &str) -> Result<Self, String> {
        let part = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        let Some(part) = part.and_then(|part| part.strip_prefix("response.")) else {
            return Err(format!("is no part of an answer; {WANTED}"));
        };
        match part.split_once('.') {
            Some(("header", name)) => HeaderName::from_bytes(name.as_bytes())
                .map(Self::Header)
                .map_err(|_| format!("has `{name}`, which is no name of a header")),
            Some(("body", pointer)) => JsonPointer::parse(pointer).map(Self::Body),
            _ => Err(format!("is no part of an answer; {WANTED}")),
        }
    }
}

impl fmt::Display for AnswerPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "{{response.header.{name}}}"),
            Self::Body(pointer) => write!(f, "{{response.body.{}}}", pointer.text()),
        }
    }
}

// === impl SaidCost ===

impl SaidCost {
    /// Reads the parts that are in the head of an answer.
    pub fn of_head(cost: &Arc<TrueCost>, headers: &HeaderMap) -> Self {
        let value = |part: &AnswerPart| match part {
            AnswerPart::Header(name) => number(headers.get(name)?.as_bytes()),
            AnswerPart::Body(_) => None,
        };
        Self { values: cost.parts().map(value).collect(), cost: cost.clone() }
    }

    /// Whether the body may say more.
    pub fn reads_body(&self) -> bool {
        self.cost.reads_body()
    }

    /// Reads the parts that a JSON document has, all in one pass. Parts that it does not have keep their values.
    pub fn hear(&mut self, document: &[u8]) {
        let mut open = SmallVec::<[_; MAX_TERMS]>::new();
        let mut pointers = SmallVec::<[_; MAX_TERMS]>::new();
        for (part, value) in self.cost.parts().zip(&mut self.values) {
            if let AnswerPart::Body(pointer) = part {
                open.push(value);
                pointers.push(pointer);
            }
        }
        for (value, found) in open.into_iter().zip(JsonPointer::find_all(&pointers, document)) {
            let said = found.and_then(|found| number(found.as_bytes()));
            *value = said.or(*value);
        }
    }

    /// The true cost; `None` before every part was read, and above 2^63 - 1.
    pub fn total(&self) -> Option<i64> {
        let values: SmallVec<[i64; MAX_TERMS]> =
            self.values.iter().copied().collect::<Option<_>>()?;
        self.cost.total(values)
    }
}
