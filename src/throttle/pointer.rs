//! Places in a JSON body, written as JSON pointers (RFC 6901). At an array, `*` stands for each of its elements.

use crate::json::{JsonPointer, index};
use serde_json::Value;

/// Reads the pointer of a condition.
///
/// # Errors
///
/// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` has a path without `/`".
pub(super) fn parse(text: &str) -> Result<JsonPointer, String> {
    if !text.starts_with('/') {
        let plain = text.trim_start_matches(['$', '.']).replace(['.', '['], "/");
        let plain = plain.replace([']', '"', '\''], "");
        return Err(if plain.is_empty() {
            "has no path after `json`; write one as in `json /error/code`".into()
        } else {
            format!("has a path that begins without `/`; did you mean `json /{plain}`?")
        });
    }
    JsonPointer::parse(text).map_err(|reason| {
        if text.contains('~') {
            format!("{reason}; a part of a value is written in quotes, as in `~\"rate limit\"`")
        } else {
            reason
        }
    })
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
        (Value::Array(items), name) => {
            let item = index(name).and_then(|index| items.get(index));
            item.is_some_and(|item| any(rest, item, test))
        }
        (Value::Object(members), name) => {
            members.get(name).is_some_and(|member| any(rest, member, test))
        }
        _ => false,
    }
}
