//! A sum of numbers and of parts, each part times a number: the one form of every cost. Knows no part and reads no request.

use super::single_braces;
use std::fmt;

/// The most terms of a sum.
pub(super) const MAX_TERMS: usize = 8;
/// The greatest factor of a part.
const MAX_FACTOR: i64 = 1_000_000_000;

/// A sum such as `1 + 2*{query.n}`. Its numbers are added when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sum<P> {
    /// The sum of its numbers, 0 if it has none.
    number: i64,
    products: Vec<Product<P>>,
}

/// A part and its factor, from 1 to [`MAX_FACTOR`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Product<P> {
    factor: i64,
    part: P,
}

// === impl Sum ===

impl<P> Sum<P> {
    /// Reads a sum whose parts `part` reads, each with its braces.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` is negative; ...".
    pub(super) fn parse(
        text: &str,
        part: impl Fn(&str) -> Result<P, String>,
    ) -> Result<Self, String> {
        single_braces(text)?;
        let terms = terms(text)?;
        if terms.len() > MAX_TERMS {
            return Err(format!(
                "has {} terms; a cost is a sum of at most {MAX_TERMS}",
                terms.len()
            ));
        }
        let mut sum = Self { number: 0, products: Vec::new() };
        for term in terms {
            sum.add(term, &part).map_err(|reason| {
                if term == text { reason } else { format!("has the term `{term}`, which {reason}") }
            })?;
        }
        Ok(sum)
    }

    /// Adds a term: a number, a part, or a number times a part.
    fn add(&mut self, term: &str, part: &impl Fn(&str) -> Result<P, String>) -> Result<(), String> {
        let Some((before, rest)) = term.find('{').map(|at| term.split_at(at)) else {
            if term.contains('*') {
                return Err("multiplies no part; a number is written as one".into());
            }
            let more = fixed(term)?;
            self.number = self.number.checked_add(more).ok_or("makes the cost exceed 2^63")?;
            return Ok(());
        };
        let end = rest.find('}').map_or(rest.len(), |at| at + 1);
        let (named, after) = rest.split_at(end);
        check_end(named, after.trim_start())?;
        let factor = match before.trim_end().strip_suffix('*') {
            Some(number) => factor(number.trim_end())?,
            None if before.is_empty() => 1,
            None => {
                let before = before.trim_end();
                return Err(format!(
                    "has no `*` after `{before}`; a factor is written as in `5*{named}`"
                ));
            }
        };
        self.products.push(Product { factor, part: part(named)? });
        Ok(())
    }

    /// Its parts, in their order.
    pub fn parts(&self) -> impl Iterator<Item = &P> {
        self.products.iter().map(|product| &product.part)
    }

    /// The sum of its numbers: what it is at least.
    pub(super) fn number(&self) -> i64 {
        self.number
    }

    /// The sum, if it has no part.
    pub fn fixed(&self) -> Option<i64> {
        self.products.is_empty().then_some(self.number)
    }

    /// Adds up the `values` of its parts, which come in their order. `None` above 2^63 - 1.
    pub(super) fn total(&self, values: impl IntoIterator<Item = i64>) -> Option<i64> {
        let mut terms = self.products.iter().zip(values);
        terms.try_fold(self.number, |sum, (product, value)| {
            sum.checked_add(product.factor.checked_mul(value)?)
        })
    }
}

impl<P: fmt::Display> fmt::Display for Sum<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if self.number > 0 {
            write!(f, "{}", self.number)?;
            between = " + ";
        }
        for Product { factor, part } in &self.products {
            f.write_str(between)?;
            if *factor > 1 {
                write!(f, "{factor}*")?;
            }
            write!(f, "{part}")?;
            between = " + ";
        }
        Ok(())
    }
}

/// Splits a sum at each `+` outside of braces.
fn terms(text: &str) -> Result<Vec<&str>, String> {
    let (mut terms, mut begin, mut is_within) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' if is_within => return Err("has a `{` without its `}`".into()),
            b'}' if !is_within => return Err("has a `}` without its `{`".into()),
            b'{' => is_within = true,
            b'}' => is_within = false,
            b'(' | b')' if !is_within => {
                return Err("has a parenthesis; give each part its own factor".into());
            }
            b'+' if !is_within => {
                terms.push(text[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    if is_within {
        return Err("has a `{` without its `}`".into());
    }
    terms.push(text[begin..].trim());
    if terms.len() > 1 && terms.contains(&"") {
        return Err("has a `+` without a term on each side of it".into());
    }
    Ok(terms)
}

/// Refuses what comes `after` a part within its term.
fn check_end(part: &str, after: &str) -> Result<(), String> {
    match after.strip_prefix('*') {
        _ if after.is_empty() => Ok(()),
        Some(more) if more.contains('{') => {
            let cure = "a term is a number, a part, or a number times a part";
            Err(format!("multiplies two parts; {cure}"))
        }
        Some(_) => Err(format!("has its factor after the part; write it as in `5*{part}`")),
        None => {
            let cure = "a cost is a sum, as in `{header.x-a} + 5*{header.x-b}`";
            Err(format!("has no `+` before `{after}`; {cure}"))
        }
    }
}

fn factor(text: &str) -> Result<i64, String> {
    let factor = number(text.as_bytes()).filter(|factor| (1..=MAX_FACTOR).contains(factor));
    factor.ok_or_else(|| {
        format!("has the factor `{text}`; a factor is a whole number from 1 to {MAX_FACTOR}")
    })
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

/// Reads a whole number. `None` for a text with other characters than digits, or a number above 2^63 - 1.
pub(super) fn number(text: &[u8]) -> Option<i64> {
    is_number(text).then(|| std::str::from_utf8(text).ok()?.parse().ok()).flatten()
}

pub(super) fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}
