//! Recognises values that YAML reads in an unintended way because they have no quotes. Parses no YAML.

use crate::key::is_part;
use std::net::Ipv6Addr;

/// Returns the value that needs quotes in a line that is not YAML: a `*`, a part of a request in braces, a path with a
/// parameter, an IPv6 address, or a variable. `None` if the line has none of them.
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
    let mut words = bare.split([' ', '\t', ',', '[', ']', '"']);
    let word = words.find_map(|word| star(word).or_else(|| template(word)).or_else(|| path(word)));
    word.or_else(|| {
        bare.split_whitespace().find_map(|word| address(word).or_else(|| variable(word)))
    })
}

/// Returns `a: { rate: 5/s }` for a line such as `a: rate: 5/s`, which has two keys.
pub(super) fn map_in_a_line(line: &str) -> Option<String> {
    let is_key = |text: &str| {
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        !text.is_empty() && text.chars().all(good)
    };
    let (key, rest) = line.trim().split_once(": ")?;
    let (second, value) = rest.trim().split_once(": ")?;
    let is_plain = !value.contains([':', '{', '}', '"', '\'', '#']);
    (is_key(key) && is_key(second) && is_plain)
        .then(|| format!("{key}: {{ {second}: {} }}", value.trim()))
}

/// Recognises an IPv6 address with its port, such as `[::]:8080`. YAML reads its brackets as a list.
fn address(word: &str) -> Option<String> {
    let word = word.trim_end_matches([',', '}']);
    let (ip, port) = word.strip_prefix('[')?.split_once("]:")?;
    let is_ip = ip.parse::<Ipv6Addr>().is_ok();
    (is_ip && port.parse::<u16>().is_ok()).then(|| word.to_owned())
}

/// Recognises a variable such as `${RATE}`, alone or within a text. YAML reads its braces as a map.
fn variable(word: &str) -> Option<String> {
    // The brackets of the list or map around the value are not part of it.
    let word = word.trim_start_matches(['[', '{']).trim_end_matches([',', ']']);
    word.contains("${").then_some(())?;
    let surplus = word.matches('}').count().saturating_sub(word.matches("${").count());
    let end = (0..surplus).fold(word, |word, _| word.strip_suffix('}').unwrap_or(word));
    Some(end.to_owned())
}

/// Recognises a template, and returns it with its part in single braces: `{host}` for `{{host}}` or `${host}`.
fn template(word: &str) -> Option<String> {
    let simple = word.replace("${", "{").replace("{{", "{").replace("}}", "}");
    let parts = simple.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    parts.map(|(name, _)| name).any(is_part).then_some(simple)
}

/// Recognises a path with parameters, such as `/channels/{id}`. YAML reads its braces as a map.
fn path(word: &str) -> Option<String> {
    let opened = word.matches('{').count();
    (word.starts_with('/') && opened > 0).then_some(())?;
    // A map around the value ends with a brace of its own.
    let surplus = word.matches('}').count().checked_sub(opened)?;
    let end = (0..surplus).fold(word, |word, _| word.strip_suffix('}').unwrap_or(word));
    Some(end.to_owned())
}

fn star(word: &str) -> Option<String> {
    let word = word.trim_end_matches('}');
    word.starts_with('*').then(|| word.to_owned())
}
