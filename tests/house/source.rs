//! The Rust files of the packages without their tests, and the functions in them. It is no compiler: it knows comments,
//! texts and brackets, which is enough for what the rules of the house look at.

use std::{fs, path::Path};

/// A file without its tests.
pub(crate) struct SourceFile {
    /// Its path from the root of the repository.
    pub(crate) path: String,
    /// The number of lines, comments and empty ones included.
    pub(crate) lines: usize,
    /// The text with blanks in place of comments, and with empty texts.
    pub(crate) code: String,
}

/// A function with its signature.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// The text between the brackets of the parameters.
    pub(crate) parameters: String,
    /// The text after `->`.
    pub(crate) result: String,
    /// The number of lines from `fn` to the closing bracket; none for a function without a body.
    pub(crate) lines: Option<usize>,
}

/// Lists the files with this ending below `roots`, without those of tests.
pub(crate) fn files(roots: &[&str], ending: &str) -> Vec<String> {
    let mut folders: Vec<String> = roots.iter().map(ToString::to_string).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(Path::new(&folder)).into_iter().flatten().flatten() {
            let path = entry.path().display().to_string();
            if path.ends_with("tests") || path.ends_with("tests.rs") {
                continue;
            }
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.ends_with(ending) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Reads the Rust files of all packages.
pub(crate) fn source_files() -> Vec<SourceFile> {
    let read = |path: String| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        SourceFile { path, lines: text.lines().count(), code: code_of(text) }
    };
    files(&["src", "crates"], ".rs").into_iter().map(read).collect()
}

/// Replaces comments by nothing, and texts by empty ones. Line ends stay, so that places stay true.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let before = code.chars().last();
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if c == '"' {
            text_length(rest)
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            raw_length(rest).filter(|_| !before.is_some_and(is_word)).unwrap_or(0)
        } else if c == '\'' {
            char_length(rest)
        } else {
            0
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        if c != '/' {
            code.push_str("\"\"");
        }
        code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
        rest = &rest[skipped..];
    }
    code
}

/// The length of a text in quotes.
fn text_length(rest: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == '"' && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    rest.len()
}

/// The length of a raw text, if one begins here.
fn raw_length(rest: &str) -> Option<usize> {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let open = 2 + hashes;
    rest[1 + hashes..].starts_with('"').then_some(())?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(open + rest[open..].find(&end)? + end.len())
}

/// The length of a character in quotes; 0 for a lifetime.
fn char_length(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => rest[3..].find('\'').map_or(0, |end| 3 + end + 1),
        Some(_) => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The length of the text up to the bracket that closes the one at its start.
fn bracketed(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// Lists the functions of a file.
pub(crate) fn functions(file: &SourceFile) -> Vec<Function> {
    let code = &file.code;
    let starts = code.match_indices("fn ").map(|(at, _)| at);
    let starts = starts.filter(|at| !code[..*at].chars().last().is_some_and(is_word));
    starts.filter_map(|at| function_at(code, at)).collect()
}

/// Reads the function whose `fn` is at `at`. A type such as `fn(u8)` is none.
fn function_at(code: &str, at: usize) -> Option<Function> {
    let text = &code[at..];
    let name: String = text[3..].chars().take_while(|c| is_word(*c)).collect();
    let open = opening_parenthesis(text, 3 + name.len())?;
    let close = open + bracketed(&text[open..]);
    let mut end = close;
    while !text[end..].starts_with(['{', ';']) {
        let c = text[end..].chars().next()?;
        end += if c == '(' || c == '[' { bracketed(&text[end..]) } else { c.len_utf8() };
    }
    let result = text[close..end].split(" where").next().unwrap_or_default();
    let body = text[end..].starts_with('{').then(|| &text[..end + bracketed(&text[end..])]);
    Some(Function {
        name,
        line: 1 + code[..at].matches('\n').count(),
        parameters: text[open + 1..close - 1].to_owned(),
        result: result.to_owned(),
        lines: body.map(|body| body.lines().count()),
    })
}

/// Finds the bracket of the parameters after the generic parameters of a function.
fn opening_parenthesis(text: &str, from: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices().skip_while(|(at, _)| *at < from) {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            '(' if depth == 0 => return Some(at),
            '{' | ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Counts the tuples in a part of a signature. The pairs that an iterator gives are none: `Item = (A, B)`.
pub(crate) fn count_tuples(types: &str) -> usize {
    let opening = types.match_indices('(').map(|(at, _)| at);
    let is_tuple = |at: &usize| {
        let before = types[..*at].trim_end();
        let is_call = before.ends_with(is_word) || before.ends_with("Item =");
        !is_call && has_comma(&types[*at + 1..*at + bracketed(&types[*at..]) - 1])
    };
    opening.filter(is_tuple).count()
}

/// Whether a comma parts the text outside of brackets.
fn has_comma(text: &str) -> bool {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if !text[..at].ends_with(['-', '=']) => depth -= 1,
            ',' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// Counts the `match`es whose arms are `true` and `false`.
pub(crate) fn count_matched_flags(code: &str) -> usize {
    let arms = code.match_indices("match ").filter_map(|(at, _)| {
        let open = code[at..].find('{')?;
        Some(code[at + open + 1..].trim_start())
    });
    arms.filter(|arms| ["true =>", "false =>"].iter().any(|flag| arms.starts_with(flag))).count()
}

#[test]
fn reads_signatures_and_lengths() {
    let text = "/// A (b, c).\npub(crate) fn a<F: Fn(u8) -> u8>(&self, (b, c): (u8, u8), f: F) -> Option<(u8, u8)> {\n    \
                match b > 1 { true => \"}\", false => '}' }\n}\nfn d(e: impl Iterator<Item = (u8, u8)>, g: fn(u8, u8));\n";
    let file = SourceFile { path: String::new(), lines: 0, code: code_of(text) };
    let [a, d] = &functions(&file)[..] else { panic!("two functions") };
    assert_eq!((a.name.as_str(), a.line, a.lines), ("a", 2, Some(3)));
    assert_eq!((count_tuples(&a.parameters), count_tuples(&a.result)), (2, 1));
    assert_eq!((d.name.as_str(), d.line, d.lines), ("d", 5, None));
    assert_eq!(count_tuples(&d.parameters), 0);
    assert_eq!(count_matched_flags(&file.code), 1);
}
