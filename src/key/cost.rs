//! Determines the cost of a request at one limiter. Never charges it.

use super::{Part, Parts, Template, TrueCost};

/// The number of permits that a request takes from a limiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cost {
    /// The same number for each request, at least 1.
    Fixed(i64),
    /// The number that a part of the request holds, such as `{header.x-cost}`.
    FromRequest(Template),
    /// A number that is reserved until the answer says the true one.
    Reserved(Box<ReservedCost>),
}

/// A cost that is reserved until the answer says the true one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReservedCost {
    /// The permits that are reserved.
    pub reserve: Reserve,
    /// The permits that are reserved where the part of the request is missing or no number, at least 1.
    pub default: i64,
    /// The part of the answer that has the true cost. Without one the reserved permits are the cost.
    pub settle: Option<TrueCost>,
}

/// The permits that are reserved for a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// The same number for each request, at least 1.
    Fixed(i64),
    /// The number that a part of the request holds.
    FromRequest(Template),
}

/// Bytes of a wrong cost that the answer quotes.
const MAX_QUOTED: usize = 32;

// === impl Cost ===

impl Cost {
    /// The cost of a request at a limiter that is named without `cost`.
    pub const ONE: Self = Self::Fixed(1);

    /// Reads a number such as `5` or a part such as `{header.x-cost}`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is negative; ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains(['{', '}']) {
            return template(text).map(Self::FromRequest);
        }
        fixed(text).map(Self::Fixed)
    }

    /// Whether a part of the request's body is needed.
    pub fn reads_body(&self) -> bool {
        self.template().is_some_and(Template::reads_body)
    }

    /// The template that says the permits that are taken; `None` for a number.
    pub fn template(&self) -> Option<&Template> {
        match self {
            Self::FromRequest(template) => Some(template),
            Self::Reserved(cost) => match &cost.reserve {
                Reserve::FromRequest(template) => Some(template),
                Reserve::Fixed(_) => None,
            },
            Self::Fixed(_) => None,
        }
    }

    /// The part of the answer that has the true cost.
    pub fn settle(&self) -> Option<&TrueCost> {
        match self {
            Self::Reserved(cost) => cost.settle.as_ref(),
            Self::Fixed(_) | Self::FromRequest(_) => None,
        }
    }

    /// The permits that each request takes, if they do not depend on it.
    pub fn fixed(&self) -> Option<i64> {
        match self {
            Self::Fixed(cost) => Some(*cost),
            Self::FromRequest(_) => None,
            Self::Reserved(cost) => match cost.reserve {
                Reserve::Fixed(cost) => Some(cost),
                Reserve::FromRequest(_) => None,
            },
        }
    }

    /// Returns the permits that a request takes from `limiter`, at most its `capacity`; 0 takes nothing. A request without
    /// the part costs 1. A cost that is reserved has a default of its own, and is cut to the capacity: a greater one would
    /// be refused for ever, and the answer says the true cost. Where it does, at least 1 is reserved, so that a caller who
    /// names 0 waits for the debts of its calls like all others.
    ///
    /// # Errors
    ///
    /// A message for the caller, if the part is not a whole number up to `capacity`, or can be read in several ways.
    pub fn of(&self, parts: &Parts<'_>, capacity: i64, limiter: &str) -> Result<i64, String> {
        let template = match self {
            Self::Fixed(cost) => return Ok(*cost),
            Self::FromRequest(template) => template,
            Self::Reserved(cost) => return Ok(cost.of(parts)?.min(capacity)),
        };
        let Some(value) = value(template, parts)? else { return Ok(1) };
        let cost = number(&value).filter(|cost| (0..=capacity).contains(cost));
        cost.ok_or_else(|| {
            format!(
                "the cost `{}` in `{}` is not between 0 and {capacity}, the most that the limiter `{limiter}` \
                 gives at once",
                quotable(&value),
                template.text()
            )
        })
    }
}

// === impl ReservedCost ===

impl ReservedCost {
    fn of(&self, parts: &Parts<'_>) -> Result<i64, String> {
        let named = match &self.reserve {
            Reserve::Fixed(cost) => return Ok(*cost),
            Reserve::FromRequest(template) => value(template, parts)?,
        };
        let named = named.filter(|value| is_number(value));
        let named = named.map_or(self.default, |value| number(&value).unwrap_or(i64::MAX));
        Ok(named.max(self.settle.is_some().into()))
    }
}

// === impl Reserve ===

impl Reserve {
    /// Reads a number such as `1000` or a part such as `{body./max_tokens}`.
    ///
    /// # Errors
    ///
    /// As those of [`Cost::parse`].
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains(['{', '}']) {
            template(text).map(Self::FromRequest)
        } else {
            fixed(text).map(Self::Fixed)
        }
    }
}

/// The value of the one part of a template.
fn value<'p>(
    template: &Template,
    parts: &Parts<'p>,
) -> Result<Option<std::borrow::Cow<'p, [u8]>>, String> {
    template.only().map_or(Ok(None), |part| part.value(parts))
}

/// Reads a number that can be a cost.
///
/// # Errors
///
/// The reason, worded so that it completes a sentence that begins with the text.
pub fn fixed(text: &str) -> Result<i64, String> {
    let wanted = "a cost is a whole number, at least 1, or a part such as `{header.x-cost}`";
    match number(text.as_bytes()) {
        Some(0) => Err(format!("is no cost; {wanted}")),
        Some(cost) => Ok(cost),
        None if text.starts_with('-') => Err(format!("is negative; {wanted}")),
        None => Err(format!("is not a number that can be a cost; {wanted}")),
    }
}

/// Reads a part that can hold a cost.
fn template(text: &str) -> Result<Template, String> {
    let template = Template::parse(text)?;
    if template.only().is_none() {
        return Err("is more than one part; a cost is one, as in `{header.x-cost}`".into());
    }
    if template.only().is_some_and(Part::is_never_a_number) {
        return Err("is never a number; a cost comes from a part such as `{header.x-cost}`".into());
    }
    if template.is_secret() {
        return Err("is a credential; a cost comes from another part".into());
    }
    Ok(template)
}

/// Reads a whole number. `None` for a text with other characters than digits, or a number above 2^63.
pub(super) fn number(text: &[u8]) -> Option<i64> {
    is_number(text).then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
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
