//! A condition under `when`: which answers of an upstream mean "slow down". Read once, when the configuration is loaded.

use super::pointer;
use crate::key::JsonPointer;
use crate::suggest::nearest;
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::Value;
use std::fmt;

/// A condition such as `429`, `503 with retry-after`, or `200 with json /errors/0/extensions/code=THROTTLED`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub(super) status: StatusCode,
    /// All of them must hold. Empty if the status alone is a refusal.
    needs: Vec<Need>,
}

/// A part of an answer that a condition asks for, beside the status.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Need {
    /// A header, with one value of any or of these characters. Case does not matter.
    Header { name: HeaderName, value: Option<String> },
    /// A member of a JSON body, of any value but null or of this one.
    Json { pointer: JsonPointer, value: Option<String> },
}

/// The most needs of one condition.
const MAX_NEEDS: usize = 8;
const FORMS: &str = "write a status, as in `429`, or one with a condition, as in `503 with retry-after`, \
                     `403 with x-ratelimit-remaining=0` or `200 with json /errors/0/extensions/code=THROTTLED`";
/// Words that users write in place of `with`.
const NOT_WITH: &[&str] = &["if", "when", "where", "having", "and", "has", "wiht", "w/"];
/// Names near to which a header is probably misspelt.
const KNOWN_HEADERS: &[&str] = &[
    "retry-after",
    "retry-after-ms",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-rate-limit-remaining",
    "stripe-rate-limited-reason",
    "sforce-limit-info",
];

// === impl Condition ===

impl Condition {
    /// Reads a condition.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` names no status; ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (status, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let status = read_status(status)?;
        let rest = rest.trim_start();
        if rest.is_empty() {
            if status.as_u16() < 400 {
                return Err(format!(
                    "would take every answer of {status} for a refusal; name what tells them apart, as in \
                     `{} with retry-after`",
                    status.as_u16()
                ));
            }
            return Ok(Self { status, needs: Vec::new() });
        }
        let Some(needs) = rest.strip_prefix("with").filter(|rest| rest.starts_with(' ')) else {
            let (word, _) = rest.split_once(' ').unwrap_or((rest, ""));
            return Err(match NOT_WITH.contains(&word.to_lowercase().as_str()) {
                true => format!("has `{word}` after the status; did you mean `with`?"),
                false => format!("has no `with` after the status; {FORMS}"),
            });
        };
        let needs: Vec<_> = needs.split(" and ").map(Need::parse).collect::<Result<_, _>>()?;
        match needs.len() > MAX_NEEDS {
            true => Err(format!("has more than {MAX_NEEDS} conditions for one status")),
            false => Ok(Self { status, needs }),
        }
    }

    /// Whether the condition reads the body of an answer.
    pub fn reads_body(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Json { .. }))
    }

    /// Whether an answer meets the condition. Without a `body`, one that reads the body is not met.
    pub(super) fn is_met(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: Option<&Value>,
    ) -> bool {
        self.status == status && self.needs.iter().all(|need| need.is_met(headers, body))
    }

    /// Whether the body of an answer with this head decides whether it meets the condition.
    pub(super) fn asks_body(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        let head_fits = |need: &Need| need.reads_body() || need.is_met(headers, None);
        self.status == status && self.reads_body() && self.needs.iter().all(head_fits)
    }

    /// Returns the reason why no answer can meet the condition.
    pub fn never(&self) -> Option<&'static str> {
        let has_no_body = matches!(self.status.as_u16(), 204 | 205 | 304);
        (has_no_body && self.reads_body()).then_some("an answer with this status has no body")
    }

    /// Whether every answer that meets `other` meets this condition as well.
    pub fn covers(&self, other: &Self) -> bool {
        let follows = |own: &Need| other.needs.iter().any(|its| own.follows_from(its));
        self.status == other.status && self.needs.iter().all(follows)
    }

    /// Returns the header that a user probably meant, if one of the condition's is nearly that.
    pub fn likely_header(&self) -> Option<(&HeaderName, &'static str)> {
        self.needs.iter().find_map(|need| {
            let Need::Header { name, .. } = need else { return None };
            let near = nearest(name.as_str(), KNOWN_HEADERS.iter().copied())?;
            // Two letters: `x-ratelimit-reset` is not `x-ratelimit-remaining`, and `x-retry-after` may exist.
            let is_close = strsim::damerau_levenshtein(name.as_str(), near) <= 2;
            (is_close && !KNOWN_HEADERS.contains(&name.as_str())).then_some((name, near))
        })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.status.as_u16())?;
        for (i, need) in self.needs.iter().enumerate() {
            f.write_str(if i == 0 { " with " } else { " and " })?;
            let value = match need {
                Need::Header { name, value } => {
                    write!(f, "{name}")?;
                    value
                }
                Need::Json { pointer, value } => {
                    write!(f, "json {}", pointer.text())?;
                    value
                }
            };
            if let Some(value) = value {
                write!(f, "={value}")?;
            }
        }
        Ok(())
    }
}

fn read_status(text: &str) -> Result<StatusCode, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(class) = lower.strip_suffix("xx")
        && class.parse::<u8>().is_ok()
    {
        return Err("is a class of statuses; name each, as in `[429, 503]`".into());
    }
    if text.contains(',') {
        return Err(
            "names several statuses; write each as an item of the list: `[429, 503]`".into()
        );
    }
    let Ok(number) = text.parse::<u16>() else {
        let name: Result<HeaderName, _> = lower.parse();
        return Err(match name.ok().filter(|name| KNOWN_HEADERS.contains(&name.as_str())) {
            Some(name) => format!("names no status; did you mean `429 with {name}`?"),
            None => format!("names no status; {FORMS}"),
        });
    };
    match StatusCode::from_u16(number) {
        Ok(status) if (200..600).contains(&number) => Ok(status),
        _ => Err("is no status of an answer, which has 200 to 599".into()),
    }
}

// === impl Need ===

impl Need {
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim_end(), Some(value.trim())),
            None => (text, None),
        };
        if let Some(value) = value
            && (value.is_empty() || value.starts_with('='))
        {
            return Err(format!("has no value after the `=`; leave it out, as in `with {name}`"));
        }
        let value = value.map(str::to_owned);
        // `JSON` is no header either: it would be shown as `json`.
        let json = name.split_at_checked(4).filter(|(word, _)| word.eq_ignore_ascii_case("json"));
        let is_end = |rest: &str| rest.is_empty() || rest.starts_with([' ', '\t', '/']);
        if let Some((_, text)) = json.filter(|(_, rest)| is_end(rest)) {
            return Ok(Self::Json { pointer: pointer::parse(text.trim())?, value });
        }
        if name.starts_with('/') {
            return Err(format!("has a path without `json` before it: `with json {name}`"));
        }
        if name.contains(['<', '>', '!', '~']) {
            return Err("compares; a condition can only ask for a value with `=`".into());
        }
        if name.contains(':') {
            return Err("has a `:`; the value of a header is written after a `=`".into());
        }
        let header = name.to_ascii_lowercase().parse();
        let name = header.map_err(|_| format!("names `{name}`, which is no header; {FORMS}"))?;
        Ok(Self::Header { name, value })
    }

    fn reads_body(&self) -> bool {
        matches!(self, Self::Json { .. })
    }

    fn is_met(&self, headers: &HeaderMap, body: Option<&Value>) -> bool {
        match self {
            Self::Header { name, value: None } => headers.contains_key(name),
            Self::Header { name, value: Some(value) } => headers
                .get_all(name)
                .iter()
                .any(|field| field.as_bytes().trim_ascii().eq_ignore_ascii_case(value.as_bytes())),
            Self::Json { pointer, value } => body.is_some_and(|body| {
                pointer::any(pointer.names(), body, &mut |found| match value {
                    Some(value) => is_written(found, value),
                    None => !found.is_null(),
                })
            }),
        }
    }

    /// Whether this need is met wherever `other` is.
    fn follows_from(&self, other: &Self) -> bool {
        self == other
            || match (self, other) {
                (Self::Header { name, value: None }, Self::Header { name: its, .. }) => name == its,
                (
                    Self::Json { pointer, value: None },
                    Self::Json { pointer: its, value: Some(_) },
                ) => pointer == its,
                _ => false,
            }
    }
}

/// Whether a JSON value is a text, a number or a truth value that is written like `text`.
fn is_written(found: &Value, text: &str) -> bool {
    match found {
        Value::String(found) => found == text,
        Value::Number(number) => number.to_string() == text,
        Value::Bool(found) => text == if *found { "true" } else { "false" },
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests;
