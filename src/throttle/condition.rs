//! A condition under `when`: which answers of an upstream mean "slow down". Read once, when the configuration is loaded.

use super::pointer;
use crate::json::JsonPointer;
use crate::suggest::nearest;
use http::{HeaderMap, HeaderName, StatusCode};
use serde_json::Value;
use std::{borrow::Cow, fmt};

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
    /// A header, one of whose values is the wanted one. Case does not matter.
    Header { name: HeaderName, wanted: Wanted },
    /// A member of a JSON body that is not null and has the wanted value.
    Json { pointer: JsonPointer, wanted: Wanted },
}

/// The values that meet a need.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Any,
    /// `=VALUE`, or `="VALUE"`, as in `="slow and steady"`.
    Equal(String),
    /// `~"PART"`: those that contain this text, in capitals or not.
    Part(String),
}

/// The most needs of one condition.
const MAX_NEEDS: usize = 8;
const AND: &str = " and ";
/// Begins a part of a value. Without the quote, the `~` is one of a JSON pointer.
const PART: &str = "~\"";
const QUOTED: &str = "=\"";
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
            return Err(if NOT_WITH.contains(&word.to_lowercase().as_str()) {
                format!("has `{word}` after the status; did you mean `with`?")
            } else {
                format!("has no `with` after the status; {FORMS}")
            });
        };
        let needs: Vec<_> = Need::parse_all(needs)?;
        if needs.len() > MAX_NEEDS {
            Err(format!("has more than {MAX_NEEDS} conditions for one status"))
        } else {
            Ok(Self { status, needs })
        }
    }

    /// Whether it takes some answers with this status.
    pub fn has_status(&self, status: StatusCode) -> bool {
        self.status == status
    }

    /// Whether it takes each answer with this status.
    pub(super) fn is_plain(&self, status: StatusCode) -> bool {
        self.needs.is_empty() && self.status == status
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
            match need {
                Need::Header { name, wanted } => write!(f, "{name}{wanted}")?,
                Need::Json { pointer, wanted } => write!(f, "json {}{wanted}", pointer.text())?,
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
    /// Reads the needs of a condition. An ` and ` within quotes joins nothing.
    fn parse_all(text: &str) -> Result<Vec<Self>, String> {
        let mut needs = Vec::new();
        let mut rest = Some(text);
        while let Some(text) = rest {
            let is_before_and = |at: &usize| text.find(AND).is_none_or(|and| *at < and);
            let quoted = text.find(PART).into_iter().chain(text.find(QUOTED)).min();
            let quoted = quoted.filter(is_before_and).map(|at| at + PART.len());
            let within = quoted.and_then(|from| Some(from + text[from..].find('"')?));
            let from = within.unwrap_or_default();
            let end = text[from..].find(AND).map(|at| from + at);
            needs.push(Self::parse(&text[..end.unwrap_or(text.len())])?);
            rest = end.map(|end| &text[end + AND.len()..]);
        }
        Ok(needs)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let at = text.find('=').into_iter().chain(text.find(PART)).min();
        let (name, value) = text.split_at(at.unwrap_or(text.len()));
        let (name, wanted) = (name.trim_end(), Wanted::parse(name.trim_end(), value)?);
        // `JSON` is no header either: it would be shown as `json`.
        let json = name.split_at_checked(4).filter(|(word, _)| word.eq_ignore_ascii_case("json"));
        let is_end = |rest: &str| rest.is_empty() || rest.starts_with([' ', '\t', '/']);
        if let Some((_, text)) = json.filter(|(_, rest)| is_end(rest)) {
            return Ok(Self::Json { pointer: pointer::parse(text.trim())?, wanted });
        }
        if name.starts_with('/') {
            return Err(format!("has a path without `json` before it: `with json {name}`"));
        }
        if name.contains(['<', '>', '!', '~']) {
            return Err(
                "compares; a condition can only ask for a value with `=`, or for a part of it \
                 with `~`, as in `~\"rate limit\"`"
                    .into(),
            );
        }
        if name.contains(':') {
            return Err("has a `:`; the value of a header is written after a `=`".into());
        }
        let header = name.to_ascii_lowercase().parse();
        let name = header.map_err(|_| format!("names `{name}`, which is no header; {FORMS}"))?;
        Ok(Self::Header { name, wanted })
    }

    fn reads_body(&self) -> bool {
        matches!(self, Self::Json { .. })
    }

    fn is_met(&self, headers: &HeaderMap, body: Option<&Value>) -> bool {
        match self {
            Self::Header { name, wanted } => headers.get_all(name).iter().any(|field| {
                let field = field.as_bytes().trim_ascii();
                match wanted {
                    Wanted::Any => true,
                    Wanted::Equal(value) => field.eq_ignore_ascii_case(value.as_bytes()),
                    Wanted::Part(part) => has_part(field, part),
                }
            }),
            Self::Json { pointer, wanted } => body.is_some_and(|body| {
                pointer::any(pointer.names(), body, &mut |found| match wanted {
                    Wanted::Any => !found.is_null(),
                    Wanted::Equal(value) => written(found).as_deref() == Some(value),
                    Wanted::Part(part) => {
                        written(found).is_some_and(|found| has_part(found.as_bytes(), part))
                    }
                })
            }),
        }
    }

    /// Whether this need is met wherever `other` is.
    fn follows_from(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Header { name, wanted }, Self::Header { name: its, wanted: other }) => {
                name == its && wanted.follows_from(other)
            }
            (Self::Json { pointer, wanted }, Self::Json { pointer: its, wanted: other }) => {
                pointer == its && wanted.follows_from(other)
            }
            _ => false,
        }
    }
}

// === impl Wanted ===

impl Wanted {
    /// Reads what follows the name of a header or the pointer `name`: nothing, `=VALUE` or `~"PART"`.
    fn parse(name: &str, text: &str) -> Result<Self, String> {
        let Some(part) = text.strip_prefix(PART) else {
            let Some(value) = text.strip_prefix('=').map(str::trim) else { return Ok(Self::Any) };
            let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            let value = inner.filter(|inner| !inner.contains('"')).unwrap_or(value);
            return if value.is_empty() || value.starts_with('=') {
                Err(format!("has no value after the `=`; leave it out, as in `with {name}`"))
            } else if !value.matches('"').count().is_multiple_of(2) {
                Err("needs the value in two quotes, or in none, as in `=\"rate limit\"`".into())
            } else {
                Ok(Self::Equal(value.to_owned()))
            };
        };
        match part.strip_suffix('"').filter(|part| !part.contains('"')) {
            Some("") => Err(format!("has no text between the quotes; write `with {name}`")),
            Some(part) => Ok(Self::Part(part.to_owned())),
            None => Err("needs the part of a value in two quotes, as in `~\"rate limit\"`".into()),
        }
    }

    /// Whether each value that `other` wants is wanted.
    fn follows_from(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Part(part), Self::Equal(text) | Self::Part(text)) => {
                has_part(text.as_bytes(), part)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => Ok(()),
            Self::Equal(value) if value.contains(AND) => write!(f, "=\"{value}\""),
            Self::Equal(value) => write!(f, "={value}"),
            Self::Part(part) => write!(f, "~\"{part}\""),
        }
    }
}

/// Whether `text` contains `part`, in capitals or not.
fn has_part(text: &[u8], part: &str) -> bool {
    text.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

/// A JSON value as text, if it is a text, a number or a truth value.
fn written(found: &Value) -> Option<Cow<'_, str>> {
    match found {
        Value::String(found) => Some(found.into()),
        Value::Number(_) | Value::Bool(_) => Some(found.to_string().into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests;
