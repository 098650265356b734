//! A place in a JSON body, written as a JSON Pointer (RFC 6901). Changes no body.

use serde_json::Value;
use std::fmt;

/// A pointer such as `/errors/0/extensions/code`. At an array, `*` stands for each of its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyPointer {
    written: String,
    /// The names and indices, with `~1` and `~0` read as `/` and `~`.
    steps: Vec<String>,
}

const MAX_STEPS: usize = 32;

// === impl BodyPointer ===

impl BodyPointer {
    /// Reads a pointer.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` has a path without `/`".
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(steps) = text.strip_prefix('/') else {
            let plain = text.trim_start_matches(['$', '.']).replace(['.', '['], "/");
            let plain = plain.replace([']', '"', '\''], "");
            return Err(match plain.is_empty() {
                true => "has no path after `json`; write one as in `json /error/code`".into(),
                false => {
                    format!("has a path that begins without `/`; did you mean `json /{plain}`?")
                }
            });
        };
        let steps: Vec<_> = steps.split('/').map(step).collect::<Result<_, _>>()?;
        match steps.len() > MAX_STEPS {
            true => Err(format!("has a path of more than {MAX_STEPS} steps")),
            false => Ok(Self { written: text.to_owned(), steps }),
        }
    }

    /// Whether `test` is true for a value at this place.
    pub fn any(&self, body: &Value, test: &mut dyn FnMut(&Value) -> bool) -> bool {
        any(&self.steps, body, test)
    }
}

impl fmt::Display for BodyPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

/// Reads one name of a pointer.
fn step(text: &str) -> Result<String, String> {
    let is_escape = |after: &str| after.starts_with(['0', '1']);
    if text.split('~').skip(1).any(|after| !is_escape(after)) {
        return Err("has a `~` in its path that is neither `~0` (a `~`) nor `~1` (a `/`)".into());
    }
    Ok(text.replace("~1", "/").replace("~0", "~"))
}

/// Whether `test` is true for a value that `steps` lead to. `serde_json` bounds the depth of `value`, and the steps are
/// bounded as well.
pub(super) fn any<S: AsRef<str>>(
    steps: &[S],
    value: &Value,
    test: &mut dyn FnMut(&Value) -> bool,
) -> bool {
    let Some((first, rest)) = steps.split_first() else { return test(value) };
    match (value, first.as_ref()) {
        (Value::Array(items), "*") => items.iter().any(|item| any(rest, item, test)),
        (Value::Array(items), index) => {
            let index = index.parse().ok().filter(|_| !index.starts_with('+'));
            let item = index.and_then(|index: usize| items.get(index));
            item.is_some_and(|item| any(rest, item, test))
        }
        (Value::Object(members), name) => {
            members.get(name).is_some_and(|member| any(rest, member, test))
        }
        _ => false,
    }
}
