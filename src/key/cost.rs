//! Determines the cost of a request at one limiter. Never charges it.

use super::{
    Part, Parts, Template, TrueCost,
    sum::{MAX_TERMS, Sum, is_number, number},
};
use smallvec::SmallVec;
use std::{borrow::Cow, fmt, sync::Arc};

/// The number of permits that a request takes from a limiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cost {
    /// The same number for each request, at least 1.
    Fixed(i64),
    /// A sum with parts of the request, such as `1 + 2*{header.x-cost}`.
    FromRequest(Sum<Template>),
    /// A number that is reserved until the answer says the true one.
    Reserved(Box<ReservedCost>),
}

/// A cost that is reserved until the answer says the true one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReservedCost {
    /// The permits that are reserved.
    pub reserve: Reserve,
    /// The number for each part of the request that is missing or no number, at least 1. `None`: 1, except for a part of
    /// the body beyond what is read, without which the request is refused.
    pub default: Option<i64>,
    /// The true cost, as the answer says it. Without it the reserved permits are the cost.
    pub settle: Option<Arc<TrueCost>>,
}

/// The permits that are reserved for a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// A number, a part of the request, or their sum.
    Sum(Sum<Template>),
    /// The cost of nearly all calls of its key with so many bytes, as their answers said.
    Learned,
}

/// Bytes of a wrong cost that the answer quotes.
const MAX_QUOTED: usize = 32;

// === impl Cost ===

impl Cost {
    /// The cost of a request at a limiter that is named without `cost`.
    pub const ONE: Self = Self::Fixed(1);

    /// Reads a number such as `5`, a part such as `{header.x-cost}`, or a sum such as `1 + 2*{header.x-cost}`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is negative; ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        let sum = Sum::parse_request(text)?;
        Ok(sum.fixed().map_or(Self::FromRequest(sum), Self::Fixed))
    }

    /// Whether a part of the request's body is needed.
    pub fn reads_body(&self) -> bool {
        self.templates().any(Template::reads_body)
    }

    /// Whether a part of the body beyond the bytes that are read has a default.
    pub fn has_default(&self) -> bool {
        matches!(self, Self::Reserved(cost) if cost.default.is_some())
    }

    /// Whether a part of the answer's body is needed.
    pub fn reads_answer(&self) -> bool {
        self.settle().is_some_and(|cost| cost.reads_body())
    }

    /// The parts of the request that say the permits that are taken; none for a number.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        self.sum().into_iter().flat_map(Sum::parts)
    }

    /// The true cost, as the answer says it.
    pub fn settle(&self) -> Option<&Arc<TrueCost>> {
        match self {
            Self::Reserved(cost) => cost.settle.as_ref(),
            Self::Fixed(_) | Self::FromRequest(_) => None,
        }
    }

    /// The permits that each request takes, if they do not depend on it.
    pub fn fixed(&self) -> Option<i64> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            _ => self.sum()?.fixed(),
        }
    }

    /// Whether the permits that are reserved are learned.
    pub fn learns(&self) -> bool {
        matches!(self, Self::Reserved(cost) if cost.reserve == Reserve::Learned)
    }

    /// The permits that each request takes at least.
    pub fn least(&self) -> i64 {
        match self {
            Self::Fixed(cost) => *cost,
            _ => self.sum().map_or(0, Sum::number),
        }
    }

    /// Whether a request can take nothing.
    pub fn may_be_zero(&self) -> bool {
        self.least() == 0 && self.settle().is_none()
    }

    fn sum(&self) -> Option<&Sum<Template>> {
        match self {
            Self::Fixed(_) => None,
            Self::FromRequest(sum) => Some(sum),
            Self::Reserved(cost) => match &cost.reserve {
                Reserve::Sum(sum) => Some(sum),
                Reserve::Learned => None,
            },
        }
    }

    /// Returns the permits that a request takes from `limiter`, at most its `capacity`; 0 takes nothing. A part that the
    /// request does not have counts 1. A cost that is reserved has a default of its own, and is cut to the capacity: a
    /// greater one would be refused for ever, and the answer says the true cost. Where it does, at least 1 is reserved, so
    /// that a caller who names 0 waits for the debts of its calls like all others. A reserve that is learned is its default.
    ///
    /// # Errors
    ///
    /// A message for the caller, if a part is no whole number, can be read in several ways, or makes the cost exceed
    /// `capacity` or 2^63 - 1.
    pub fn of(&self, parts: &Parts<'_>, capacity: i64, limiter: &str) -> Result<i64, String> {
        let unpayable = |cost: &str, of: &dyn fmt::Display| {
            format!(
                "the cost {cost} in `{of}` is not between 0 and {capacity}, the most that the limiter `{limiter}` \
                 gives at once"
            )
        };
        let (sum, total) = match self {
            Self::Fixed(cost) => return Ok(*cost),
            Self::FromRequest(sum) => {
                let total = sum.of(parts, |part, value| match value {
                    None => Ok(1),
                    Some(value) => number(&value)
                        .ok_or_else(|| unpayable(&format!("`{}`", quotable(&value)), part)),
                });
                (sum, total?)
            }
            Self::Reserved(cost) => {
                let Reserve::Sum(sum) = &cost.reserve else {
                    return Ok(cost.default.unwrap_or(1).min(capacity));
                };
                let least = cost.settle.is_some().into();
                let total = cost.total(sum, parts)?;
                (sum, total.map(|total| total.max(least).min(capacity)))
            }
        };
        match total {
            Some(total) if total <= capacity => Ok(total),
            Some(total) => Err(unpayable(&format!("`{total}`"), sum)),
            None => Err(unpayable(&format!("of more than {}", i64::MAX), sum)),
        }
    }
}

// === impl ReservedCost ===

impl ReservedCost {
    /// The permits that are reserved; `None` above 2^63 - 1. A number above that in a part alone counts as that.
    fn total(&self, sum: &Sum<Template>, parts: &Parts<'_>) -> Result<Option<i64>, String> {
        sum.of(parts, |_, value| {
            let value = value.filter(|value| is_number(value));
            Ok(value.map_or(self.default.unwrap_or(1), |value| number(&value).unwrap_or(i64::MAX)))
        })
    }
}

// === impl Sum ===

impl Sum<Template> {
    /// Reads a sum of numbers and parts of a request.
    ///
    /// # Errors
    ///
    /// As those of [`Cost::parse`].
    pub fn parse_request(text: &str) -> Result<Self, String> {
        Self::parse(text, template)
    }

    /// The sum in a request; `None` above 2^63 - 1. `read` makes a number of the value of each part, if the request has it.
    fn of(
        &self,
        parts: &Parts<'_>,
        read: impl Fn(&Template, Option<Cow<'_, [u8]>>) -> Result<i64, String>,
    ) -> Result<Option<i64>, String> {
        let values = self.parts().map(|template| {
            let value = template.only().map_or(Ok(None), |part| part.value(parts))?;
            read(template, value)
        });
        let values = values.collect::<Result<SmallVec<[i64; MAX_TERMS]>, String>>()?;
        Ok(self.total(values))
    }
}

/// Reads a part that can hold a cost.
fn template(text: &str) -> Result<Template, String> {
    if text.starts_with("{response.") {
        return Err("is a part of the answer, which comes later; write it as `settle` of \
                    `cost: { reserve: ..., settle: ... }`"
            .into());
    }
    let template = Template::parse(text)?;
    if template.only().is_some_and(Part::is_never_a_number) {
        return Err("is never a number; a cost comes from a part such as `{header.x-cost}`".into());
    }
    if template.is_secret() {
        return Err("is a credential; a cost comes from another part".into());
    }
    Ok(template)
}

/// Returns the start of a value for a message, with `?` in place of backticks and control characters.
fn quotable(value: &[u8]) -> String {
    let good = |byte: u8| (byte == b' ' || byte.is_ascii_graphic()) && byte != b'`';
    let shown = value.iter().take(MAX_QUOTED);
    let mut text: String =
        shown.map(|&byte| if good(byte) { char::from(byte) } else { '?' }).collect();
    if value.len() > MAX_QUOTED {
        text.push_str("...");
    }
    text
}
