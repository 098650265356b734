//! Values that YAML reads otherwise than they were meant, because they stand without quotes. Parses no YAML.

use crate::key::is_part;

/// What to put in quotes in a line that is not YAML, if that is what is wrong with it: a `*`, or a part of a request
/// in braces.
pub(super) fn wanted(line: &str) -> Option<String> {
    let mut bare = String::with_capacity(line.len());
    let mut quote = None;
    for c in line.chars() {
        match quote {
            None if matches!(c, '"' | '\'') => quote = Some(c),
            Some(open) if open == c => quote = None,
            _ => {}
        }
        bare.push(if quote.is_some() { '"' } else { c });
    }
    let bare = bare.split(" #").next().unwrap_or_default();
    let words = bare.split([' ', '\t', ',', '[', ']', '"']);
    words.filter_map(|word| star(word).or_else(|| template(word))).next()
}

/// A template with its part in simple braces, of a text with something else around it: `${client_ip}`, `{{host}}`.
fn template(word: &str) -> Option<String> {
    let simple = word.replace("${", "{").replace("{{", "{").replace("}}", "}");
    let parts = simple.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    parts.map(|(name, _)| name).any(is_part).then_some(simple)
}

fn star(word: &str) -> Option<String> {
    let word = word.trim_end_matches('}');
    word.starts_with('*').then(|| word.to_owned())
}
