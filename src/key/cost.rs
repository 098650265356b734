//! Determines the cost of a request at one limiter. Never charges it.

use super::{Part, Parts, Template};

/// The number of permits that a request takes from a limiter.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cost {
    /// The same number for each request, at least 1.
    Fixed(i64),
    /// The number that a part of the request holds, such as `{header.x-cost}`.
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
            let template = Template::parse(text)?;
            if template.only().is_none() {
                return Err("is more than one part; a cost is one, as in `{header.x-cost}`".into());
            }
            if template.only().is_some_and(Part::is_never_a_number) {
                return Err(
                    "is never a number; a cost comes from a part such as `{header.x-cost}`".into(),
                );
            }
            if template.is_secret() {
                return Err("is a credential; a cost comes from another part".into());
            }
            return Ok(Self::FromRequest(template));
        }
        let wanted = "a cost is a whole number, at least 1, or a part such as `{header.x-cost}`";
        match number(text.as_bytes()) {
            Some(0) => Err(format!("is no cost; {wanted}")),
            Some(cost) => Ok(Self::Fixed(cost)),
            None if text.starts_with('-') => Err(format!("is negative; {wanted}")),
            None => Err(format!("is not a number that can be a cost; {wanted}")),
        }
    }

    /// Returns the permits that a request takes from `limiter`, 1 to its `capacity`. A request without the part costs 1.
    ///
    /// # Errors
    ///
    /// A message for the caller, if the part is not a whole number from 1 to `capacity`.
    pub fn of(&self, parts: &Parts<'_>, capacity: i64, limiter: &str) -> Result<i64, String> {
        let template = match self {
            Self::Fixed(cost) => return Ok(*cost),
            Self::FromRequest(template) => template,
        };
        let Some(value) = template.only().and_then(|part| part.value(parts)) else { return Ok(1) };
        let cost = number(&value).filter(|cost| (1..=capacity).contains(cost));
        cost.ok_or_else(|| {
            format!(
                "the cost `{}` in `{}` is not between 1 and {capacity}, the most that the limiter `{limiter}` \
                 gives at once",
                quotable(&value),
                template.text()
            )
        })
    }
}

/// Reads a whole number. `None` for a text with other characters than digits, or a number above 2^63.
fn number(text: &[u8]) -> Option<i64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
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
