//! Recognises text of other tools: TOML, templates that were not rendered, variables in another spelling. Reads no values.

use super::mistake::{Mistake, Position};
use crate::key::is_part;

const TEMPLATE: &str = "this looks like a template; render it first, and give Paceway the result";
/// The marks with which templates of Helm, Jinja, ERB and others begin.
const MARKS: [&str; 3] = ["{{", "{%", "<%"];

/// Returns the mistake of a whole file in another format.
pub(super) fn other_format(text: &str) -> Option<Mistake> {
    let is_empty = |line: &str| line.is_empty() || line.starts_with('#');
    let mut lines = text.lines().map(str::trim).enumerate();
    let (i, line) = lines.find(|(_, line)| !is_empty(line))?;
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    };
    let table = line.trim_start_matches('[').trim_end_matches(']');
    let is_table = line.starts_with('[') && line.ends_with(']') && is_name(table);
    let is_pair = line.split_once('=').is_some_and(|(name, _)| is_name(name.trim_end()));
    let place = Position { line: i + 1, column: 1 };
    let reason = "this looks like TOML, and a configuration is YAML: `listen = \"IP:PORT\"` is written `listen: IP:PORT`";
    (is_table || is_pair).then(|| Mistake::new(place, "", reason))
}

/// Returns the hint for a line that is not YAML because its template was not rendered, or because of a variable in another spelling.
pub(super) fn hint_in_line(line: &str) -> Option<String> {
    let value = line.split_once(": ").map_or("", |(_, value)| value.trim());
    hint(line, value)
}

fn template(line: &str) -> Option<&'static str> {
    let (_, rest) = MARKS.iter().find_map(|mark| line.split_once(mark))?;
    let name = rest.split(['}', '%']).next().unwrap_or_default();
    (!is_part(name.trim())).then_some(TEMPLATE)
}

/// Adds to the `reason` why a value cannot be read that it is a template or a variable in another spelling.
pub(super) fn add_hint(written: &str, reason: String) -> String {
    match hint(written, written) {
        Some(hint) => format!("{}; {hint}", reason.split(';').next().unwrap_or_default()),
        None => reason,
    }
}

fn hint(line: &str, value: &str) -> Option<String> {
    let of_variable = |name| match of_nginx(name) {
        Some(part) => format!("this part of a request is written `{{{part}}}`"),
        None => format!("a variable of the environment is written `\"${{{name}}}\"`"),
    };
    template(line).map(str::to_owned).or_else(|| variable(value).map(of_variable))
}

/// The part of a request that a variable of nginx has, such as `header.x-shop` for `http_x_shop`.
fn of_nginx(name: &str) -> Option<String> {
    let header = name.strip_prefix("http_").filter(|name| *name != "proxy");
    match name {
        "remote_addr" | "binary_remote_addr" => Some("client_ip".into()),
        _ => header
            .map(|name| format!("header.{}", name.replace('_', "-")))
            .or_else(|| name.strip_prefix("arg_").map(|name| format!("query.{name}"))),
    }
}

/// The name in `$NAME`, `$env:NAME`, `$(NAME)`, `%NAME%`, `#{NAME}` or `@NAME@`.
fn variable(text: &str) -> Option<&str> {
    let within = |open: &str, close: &str| text.strip_prefix(open)?.strip_suffix(close);
    let name = within("$(", ")")
        .or_else(|| within("%", "%"))
        .or_else(|| within("#{", "}"))
        .or_else(|| within("@", "@"))
        .or_else(|| within("$env:", ""))
        .or_else(|| within("$", ""));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let name = name.or_else(|| {
        // The text after a `$` in a login may be a part of the password.
        let authority = text.split_once("://").filter(|_| !text.contains('@'))?.1;
        let (_, rest) = authority.split_once('$')?;
        rest.split(|c: char| !is_name(c)).next()
    })?;
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    (begins && name.chars().all(is_name)).then_some(name)
}
