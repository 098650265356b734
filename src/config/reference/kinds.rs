//! The words of the tables for the kind of a key, and its JSON Schema.

use crate::config::keys::{DefaultValue, KINDS, KeySpec, Kind, SHAPES};

/// The kind of a key's values, in Markdown: `number, 1 to 100`.
pub(super) fn words(key: &KeySpec) -> String {
    match key.written {
        "" => format!("{}{}", words_of(&key.kind), key.more),
        written => with_bounds(key, written),
    }
}

fn words_of(kind: &Kind) -> String {
    let what = match kind {
        Kind::Number { most: u64::MAX, .. } | Kind::Fraction => return "number".into(),
        Kind::Number { .. } => "number",
        Kind::Duration { .. } => "duration",
        Kind::Size { least, most: u64::MAX } => return format!("size from {least}B"),
        Kind::Size { .. } => "size",
        Kind::Rate => "rate",
        Kind::Switch => "switch",
        Kind::Word(words) => {
            return words().iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ");
        }
        Kind::Address => "address",
        Kind::Secret | Kind::Text => "text",
        Kind::Url => "URL",
        Kind::File => "file",
        Kind::Template => "template",
        Kind::List { .. } => return "list".into(),
        Kind::Map { .. } | Kind::Section(_) => return "map".into(),
    };
    match kind.bounds() {
        Some([least, most]) if least.starts_with('0') => format!("{what}, at most {most}"),
        Some([least, most]) => format!("{what}, {least} to {most}"),
        None => what.into(),
    }
}

/// The members of the schema of the key `place`, such as `client.header_timeout`: those of `shapes.json` if it has them,
/// otherwise those of the key's kind. If it has examples alone, they are added to those of the kind.
pub(super) fn schema(place: &str, key: &KeySpec) -> String {
    let shape = shape(place);
    let is_example = shape.starts_with("\"examples\":") && !shape.contains('\n');
    if !shape.is_empty() && !is_example {
        return with_bounds(key, &shape);
    }
    let (before, after) = match &*shape {
        "" => (String::new(), String::new()),
        example => (format!("{example},\n"), format!(",\n{example}")),
    };
    let defined = |name: &str| format!("\"$ref\": \"#/$defs/{name}\"");
    let is_defined = |name: &str| KINDS.contains(&format!("\n  \"{name}\": {{"));
    let name = match &key.kind {
        Kind::Number { least, most } => {
            return format!(
                "{},\n\"minimum\": {least},\n\"maximum\": {most}{after}",
                defined("count")
            );
        }
        Kind::Size { least: 0, .. } => {
            return format!("\"anyOf\": [{{ \"enum\": [0, \"0\"] }}, {{ {} }}]", defined("size"));
        }
        Kind::Word(_) if is_defined(key.name) => key.name,
        Kind::Word(words) => {
            let (words, variable) = (json_words(&words()), defined("variable"));
            return format!("\"anyOf\": [{{ \"enum\": [{words}] }}, {{ {variable} }}]");
        }
        Kind::Section(keys) => {
            let optional = format!("optional_{}", keys.name);
            if is_defined(&optional) {
                return defined(&optional);
            }
            let title = key.written.split(['[', ']']).nth(1).unwrap_or_default();
            let section = defined(keys.name);
            return format!(
                "\"anyOf\": [{{ \"title\": \"{title}\", {section} }}, {{ \"type\": \"null\" }}]"
            );
        }
        Kind::Secret => return defined("token") + &after,
        Kind::File if matches!(key.default, DefaultValue::Required) => {
            return defined("file") + &after;
        }
        Kind::File => return defined("optional_file") + &after,
        Kind::Duration { .. } => "duration",
        Kind::Size { .. } => "size",
        Kind::Rate => "rate",
        Kind::Switch => "switch",
        Kind::Address => "address",
        Kind::Template => "template",
        Kind::Fraction | Kind::Url | Kind::Text | Kind::List { .. } | Kind::Map { .. } => "",
    };
    before + &defined(name)
}

/// The words of a choice as JSON. Tools that read YAML 1.1 make truth values of `on` and `off`.
fn json_words(words: &[&str]) -> String {
    let is_number = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    let quoted = |word: &&str| if is_number(word) { (*word).into() } else { format!("\"{word}\"") };
    let mut all: Vec<_> = words.iter().map(quoted).collect();
    all.extend(words.contains(&"on").then(|| "true".into()));
    all.extend(words.contains(&"off").then(|| "false".into()));
    all.push("null".into());
    all.join(", ")
}

/// The members that `shapes.json` has at a place; empty if it has none.
pub(super) fn shape(place: &str) -> String {
    let begin = format!("  \"{place}\": {{");
    let lines = SHAPES.lines().skip_while(|line| *line != begin).skip(1);
    let lines = lines.take_while(|line| line.starts_with("    "));
    lines.map(|line| &line[4..]).collect::<Vec<_>>().join("\n")
}

/// Fills the bounds of a key into a text.
fn with_bounds(key: &KeySpec, text: &str) -> String {
    match key.kind.bounds() {
        Some([least, most]) => text
            .replace("\"{least}\"", &least)
            .replace("\"{most}\"", &most)
            .replace("{least}", &least)
            .replace("{most}", &most),
        None => text.to_owned(),
    }
}
