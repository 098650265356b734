//! The names of the Redis script. Redis meets a name that nothing declares only when it executes it, and the parts of the script
//! are looked up by name: a test of a rare step would be the first to notice.

use crate::algorithm::SCRIPT;
use std::collections::{BTreeMap, BTreeSet};

/// The globals of the script: those of Redis, and those of Lua that Redis has.
const GLOBALS: &[&str] = &[
    "ARGV",
    "KEYS",
    "error",
    "ipairs",
    "math",
    "pairs",
    "redis",
    "setmetatable",
    "string",
    "struct",
    "table",
    "tonumber",
    "type",
    "unpack",
];
const KEYWORDS: &[&str] = &[
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

#[derive(Debug, Clone, Copy)]
struct Token<'s> {
    text: &'s str,
    line: usize,
}

/// The names, the signs and the texts of a script in order, without comments and numbers.
fn tokens(script: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (line, mut rest) in script.lines().enumerate() {
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match first {
                _ if rest.starts_with("--") => break,
                '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
                _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                '=' | '~' | '<' | '>' if rest[1..].starts_with('=') => 2,
                '.' if rest.starts_with("...") => 3,
                '.' if rest.starts_with("..") => 2,
                _ => first.len_utf8(),
            };
            let (text, after) = rest.split_at(length);
            if !text.trim().is_empty() && !first.is_ascii_digit() {
                tokens.push(Token { text, line: line + 1 });
            }
            rest = after;
        }
    }
    tokens
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && !KEYWORDS.contains(&text)
}

/// The names from this token on that commas separate.
fn list<'s>(tokens: &[Token<'s>]) -> Vec<&'s str> {
    let names = tokens.chunks(2).map_while(|pair| {
        let is_last = pair.get(1).is_none_or(|comma| comma.text != ",");
        Some((pair.first()?.text, is_last)).filter(|(name, _)| is_name(name) || *name == "...")
    });
    let mut list = Vec::new();
    for (name, is_last) in names {
        list.push(name);
        if is_last {
            break;
        }
    }
    list
}

#[test]
fn each_name_is_declared_where_it_is_used() {
    let tokens = tokens(SCRIPT);
    let mut scopes: Vec<BTreeSet<&str>> = vec![GLOBALS.iter().copied().collect()];
    // The innermost brackets, whether the next `do` belongs to a `for`, and the line whose end ends a scope.
    let (mut brackets, mut is_for, mut until) = (Vec::new(), false, None);
    let mut unknown = Vec::new();
    for (i, Token { text, line }) in tokens.iter().copied().enumerate() {
        if until.is_some_and(|until| line > until) {
            scopes.pop();
            until = None;
        }
        let before = i.checked_sub(1).map_or("", |before| tokens[before].text);
        let after = tokens.get(i + 1).map_or("", |after| after.text);
        match text {
            "local" if after == "function" => {
                scopes.last_mut().expect("a scope").insert(tokens[i + 2].text);
            }
            "local" => scopes.last_mut().expect("a scope").extend(list(&tokens[i + 1..])),
            "function" => {
                let open = tokens[i..].iter().position(|token| token.text == "(").expect("(");
                scopes.push(list(&tokens[i + open + 1..]).into_iter().collect());
            }
            "for" => {
                scopes.push(list(&tokens[i + 1..]).into_iter().collect());
                is_for = true;
            }
            "do" if std::mem::take(&mut is_for) => {}
            "do" | "then" | "repeat" => scopes.push(BTreeSet::new()),
            "else" => drop(scopes.pop().map(|_| scopes.push(BTreeSet::new()))),
            "until" => until = Some(line),
            "end" | "elseif" => drop(scopes.pop()),
            "{" | "(" | "[" => brackets.push(text),
            "}" | ")" | "]" => drop(brackets.pop()),
            name if is_name(name) && before != "." => {
                let is_field = brackets.last() == Some(&"{") && after == "=";
                if !is_field && !scopes.iter().any(|scope| scope.contains(name)) {
                    unknown.push(format!("{name} in line {line}"));
                }
            }
            _ => {}
        }
    }
    assert_eq!((unknown, scopes.len()), (Vec::new(), 1));
}

#[test]
fn each_part_exists_and_has_what_others_use_of_it() {
    // The texts of the parts by their names. Algorithms have numbers.
    let parts: BTreeMap<&str, &str> = SCRIPT
        .split("\nif part == ")
        .skip(1)
        .filter_map(|text| text.strip_prefix('\'')?.split_once('\''))
        .collect();
    let mut used = 0;
    for text in SCRIPT.split("\nif part == ") {
        let tokens = tokens(text);
        // A name that stands for a part: `local stored, queue = lazy.stored, lazy.queue`.
        let mut known = BTreeMap::new();
        for at in tokens.windows(3).filter(|at| at[0].text == "lazy" && at[1].text == ".") {
            let part = at[2].text;
            assert!(parts.contains_key(part), "no part {part}");
            if text.contains(&format!("lazy.{part},")) || text.contains(&format!("lazy.{part}\n")) {
                known.insert(part, part);
            }
        }
        for (i, at) in tokens.windows(3).enumerate() {
            let is_whole = i == 0 || tokens[i - 1].text != ".";
            let part = match at {
                [name, dot, _] if dot.text == "." && is_whole => known.get(name.text).copied(),
                [dot, name, after] if dot.text == "." && after.text == "." => {
                    Some(name.text).filter(|_| i > 0 && tokens[i - 1].text == "lazy")
                }
                _ => None,
            };
            let Some(part) = part else { continue };
            let field = if at[1].text == "." { at[2].text } else { tokens[i + 3].text };
            let text = parts[part];
            let has = [format!("{field} ="), format!(".{field}(")];
            assert!(has.iter().any(|it| text.contains(it)), "{part} has no {field}");
            used += 1;
        }
    }
    assert!(used > 100, "{used}");
}
