//! What a request costs at one limiter. Never charges it.

use super::{Part, Parts, Template};

/// Permits that a request takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cost {
    /// So many, at least 1.
    Fixed(i64),
    /// What a part of the request says.
    FromRequest(Template),
}

const MAX_QUOTED: usize = 32;

// === impl Cost ===

impl Cost {
    /// Of a limiter that is named without a cost.
    pub const ONE: Self = Self::Fixed(1);

    /// Reads a number such as `5` or a part such as `{header.x-cost}`.
    ///
    /// # Errors
    ///
    /// What is wrong, for behind "`TEXT` ".
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

    /// Permits that a request takes of `limiter`, 1 to its `capacity`. A part that it does not have costs 1.
    ///
    /// # Errors
    ///
    /// A message for the caller, when the part is no whole number from 1 to `capacity`.
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

/// `None` for what is not made of digits, or too large for any limiter.
fn number(text: &[u8]) -> Option<i64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

/// The start of a value, without what could break the text that quotes it.
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
