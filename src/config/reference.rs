//! Writes the JSON Schema and the tables of docs/configuration.md from the list of keys. `cargo run --example reference`
//! stores both, and a test compares them.

mod kinds;

use super::keys::{Choice, DefaultValue, KINDS, KeySpec, Keys, LIMITER, ROOT, RuleKind, SECTIONS};
use std::fmt::Write;

const BEGIN: &str = "<!-- begin keys: ";
const END: &str = "<!-- end keys -->";

/// Returns the JSON Schema of the configuration file, as `src/config/schema.json` holds it.
pub fn schema() -> String {
    let mut out = String::from("{\n");
    out.push_str("  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n");
    out.push_str("  \"title\": \"Paceway configuration\",\n");
    out.push_str(&indented(&object(&ROOT), 1));
    out.push_str(",\n  \"$defs\": {\n");
    for section in SECTIONS {
        let body = indented(&object(section), 1);
        let body = format!("{}: {{\n{body}\n}},", quoted(section.name));
        out.push_str(&indented(&body, 2));
        out.push('\n');
    }
    let kinds = KINDS.trim().trim_start_matches('{').trim_end_matches('}').trim_matches('\n');
    out.push_str(&indented(kinds, 1));
    out.push_str("\n  }\n}\n");
    out
}

/// Returns a page with its tables of keys replaced by current ones. A table is between `<!-- begin keys: SECTION -->` and
/// `<!-- end keys -->`.
pub fn page(old: &str) -> String {
    let mut out = String::with_capacity(old.len());
    let mut is_table = false;
    for line in old.lines() {
        let begins = line.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(" -->"));
        if line == END {
            is_table = false;
        }
        if !is_table {
            out.push_str(line);
            out.push('\n');
        }
        if let Some(name) = begins {
            is_table = true;
            let section = [&ROOT].into_iter().chain(SECTIONS).find(|keys| keys.name == name);
            out.push_str(&section.map_or_else(String::new, table));
        }
    }
    out
}

/// The table of a section. Only that of limiters has a column for algorithms.
fn table(keys: &Keys) -> String {
    let is_of_limiters = keys.name == LIMITER.name;
    let mut out = if is_of_limiters {
        "| key | algorithm | type | default | meaning |\n|---|---|---|---|---|\n".to_owned()
    } else {
        "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned()
    };
    for key in keys.specs {
        let (name, kind, default, meaning) =
            (key.name, kinds::words(key), default_words(key), key.meaning);
        let algorithms = match algorithms(key) {
            _ if !is_of_limiters => String::new(),
            algorithms if algorithms.is_empty() => "all | ".into(),
            algorithms => format!("{algorithms} | "),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| `{name}` | {algorithms}{kind} | {default} | {meaning} |");
    }
    out
}

/// The default of a key, in Markdown.
fn default_words(key: &KeySpec) -> String {
    match key.default {
        DefaultValue::Required => format!("required{}", key.but),
        DefaultValue::Value(value) => format!("`{value}`{}", key.but),
        DefaultValue::Words(words) => words.into(),
    }
}

/// The algorithms whose limiters have a key, in Markdown; empty for a key that all limiters have.
fn algorithms(key: &KeySpec) -> String {
    const AUTO: &str = "those with `rate: auto`";
    let named: Vec<_> = key.rules.iter().map(|kind| format!("`{}`", kind.word())).collect();
    let missing = RuleKind::CHOICES.iter().filter(|(_, kind)| !key.rules.contains(kind));
    match &*missing.map(|(word, _)| *word).collect::<Vec<_>>() {
        [] => String::new(),
        [word] => format!("all but `{word}`"),
        _ if named.is_empty() => AUTO.into(),
        _ if key.is_for_auto_rates => format!("{}, and {AUTO}", named.join(" ")),
        _ => named.join(" "),
    }
}

/// The members of the schema of a section.
fn object(keys: &Keys) -> String {
    let mut out = format!("\"description\": {},\n", quoted(keys.meaning));
    let rules = kinds::shape(keys.name);
    if !rules.starts_with("\"type\":") {
        out.push_str("\"type\": \"object\",\n");
    }
    out.push_str("\"additionalProperties\": false,\n");
    let must_be_there = |key: &&KeySpec| {
        matches!(key.default, DefaultValue::Required)
            && key.but.is_empty()
            && key.rules.len() == RuleKind::CHOICES.len()
    };
    let required = keys.specs.iter().filter(must_be_there).map(|key| quoted(key.name));
    let required = required.collect::<Vec<_>>().join(", ");
    if !required.is_empty() {
        let _ = writeln!(out, "\"required\": [{required}],");
    }
    if !rules.is_empty() {
        let _ = writeln!(out, "{rules},");
    }
    let properties: Vec<_> =
        keys.specs.iter().map(|key| indented(&property(keys, key), 1)).collect();
    let _ = write!(out, "\"properties\": {{\n{}\n}}", properties.join(",\n"));
    out
}

fn property(keys: &Keys, key: &KeySpec) -> String {
    let mut text = format!("{}.", capital(key.meaning));
    let algorithms = algorithms(key);
    if keys.name == LIMITER.name && !algorithms.is_empty() {
        text.push_str(&format!(" For {algorithms}."));
    }
    let kind = kinds::words(key);
    // The schema itself lists the words of a key that takes nothing else.
    if !kind.starts_with(['`', '[']) {
        text.push_str(&format!(" {}.", capital(&kind)));
    }
    let schema = kinds::schema(&format!("{}.{}", keys.name, key.name), key);
    let (mut default, mut is_known) = (String::new(), schema.contains("\"default\":"));
    if let (DefaultValue::Value(value), "", false) = (key.default, key.but, is_known) {
        let value = if value.parse::<f64>().is_ok() { value.into() } else { quoted(value) };
        default = format!("\"default\": {value},\n");
        is_known = true;
    }
    let words = default_words(key);
    if !is_known && !matches!(&*words, "" | "required") {
        text.push_str(&format!(" Default: {words}."));
    }
    let description = quoted(&plain(&text));
    let members = indented(&format!("\"description\": {description},\n{default}{schema}"), 1);
    format!("{}: {{\n{members}\n}}", quoted(key.name))
}

/// Removes the marks of Markdown: `[text](target)` becomes the text, inline code loses its backticks, and a reference such as
/// `, see [text](target)` is left out.
fn plain(markdown: &str) -> String {
    let mut out = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once('[') {
        let link = after.split_once("](").and_then(|(text, target)| {
            let is_text = !text.contains(['[', ']']);
            is_text.then_some((text, target.split_once(')')?.1))
        });
        out.push_str(before);
        match link {
            Some((text, after)) => {
                match out.strip_suffix(", see ").map(str::len) {
                    Some(length) => out.truncate(length),
                    None => out.push_str(text),
                }
                rest = after;
            }
            None => {
                out.push('[');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out.replace('`', "").replace("\\|", "|")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Each line of a text with `levels` of indentation before it.
fn indented(text: &str, levels: usize) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("{:1$}{line}", "", 2 * levels)).collect();
    lines.join("\n")
}
