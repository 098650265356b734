//! Recognises characters that look like those of YAML and are others: spaces, quotes, dashes and wide forms that word processors and
//! input methods write. Refuses none of them by itself.

use super::mistake::{Mistake, Position};

/// Characters that no editor shows.
const INVISIBLE: [char; 5] = ['\u{200b}', '\u{200c}', '\u{200d}', '\u{ad}', '\u{feff}'];

/// Returns the text with the characters of YAML in the place of those that look like them. `None` if it has none of them
/// outside of comments.
pub(super) fn replace_all(text: &str) -> Option<String> {
    let body = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut plain = String::with_capacity(text.len());
    for line in body.split_inclusive('\n') {
        let code = before_comment(line);
        plain.extend(code.chars().filter_map(plain_form));
        plain.push_str(&line[code.len()..]);
    }
    (plain != body).then_some(plain)
}

/// Returns the mistakes of a file: those that it has with plain characters, too, and for the others the characters that
/// cause them.
pub(super) fn name_causes(text: &str, own: &[Mistake], plain: &[Mistake]) -> Vec<Mistake> {
    let remains = |mistake: &&Mistake| {
        plain.iter().any(|other| other.path == mistake.path && other.reason == mistake.reason)
    };
    let mut mistakes: Vec<_> = own.iter().filter(remains).cloned().collect();
    let caused = own.iter().filter(|mistake| !remains(mistake));
    let lines: Vec<_> = caused.filter_map(|mistake| Some(mistake.place?.line)).collect();
    let Some(last) = lines.iter().max() else { return own.to_vec() };
    let all: Vec<_> =
        text.lines().enumerate().filter_map(|(i, line)| find_in_line(i + 1, line)).collect();
    let line = |mistake: &Mistake| mistake.place.map_or(0, |place| place.line);
    let mut named: Vec<_> = all.iter().filter(|one| lines.contains(&line(one))).cloned().collect();
    if named.is_empty() {
        // The parser notices some of them in a later line.
        let before = all.iter().rev().find(|one| line(one) <= *last);
        named.extend(before.or(all.first()).cloned());
    }
    mistakes.append(&mut named);
    mistakes
}

/// Returns the first such character of a line, as a mistake.
fn find_in_line(line: usize, text: &str) -> Option<Mistake> {
    let (i, c) = before_comment(text).chars().enumerate().find(|(i, c)| {
        let is_mark = *c == '\u{feff}' && (line, *i) == (1, 0);
        !is_mark && plain_form(*c) != Some(*c)
    })?;
    let code_point = format!("U+{:04X}", u32::from(c));
    let reason = match plain_form(c) {
        Some(' ') => {
            let name = if c == '\u{a0}' { "no-break space" } else { "space of another kind" };
            format!("this is a {name} ({code_point}); write a plain space in its place")
        }
        None => format!("this character cannot be seen ({code_point}); delete it"),
        Some(meant @ ('"' | '\'')) => {
            let rest: String = text.chars().skip(i + 1).collect();
            let word =
                rest.split(is_quote).next().filter(|word| *word == "*" || word.starts_with('/'));
            let cure = word.map_or(meant.to_string(), |word| format!("{meant}{word}{meant}"));
            format!("`{c}` is a typographic quote ({code_point}); write `{cure}`")
        }
        Some(meant) => {
            format!("`{c}` ({code_point}) only looks like `{meant}`; write `{meant}`")
        }
    };
    Some(Mistake::new(Position { line, column: i + 1 }, "", reason))
}

fn is_quote(c: char) -> bool {
    matches!(plain_form(c), Some('"' | '\''))
}

/// The part of a line before its comment.
fn before_comment(line: &str) -> &str {
    let is_comment = |(i, _): &(usize, &str)| *i == 0 || line[..*i].ends_with(char::is_whitespace);
    line.match_indices('#').find(is_comment).map_or(line, |(i, _)| &line[..i])
}

/// The plain character that this one looks like; itself for a plain one, `None` for one that cannot be seen.
fn plain_form(c: char) -> Option<char> {
    Some(match c {
        c if c.is_ascii() => c,
        c if INVISIBLE.contains(&c) => return None,
        c if c.is_whitespace() => ' ',
        '\u{201c}'..='\u{201f}' | '\u{ab}' | '\u{bb}' | '\u{300c}' | '\u{300d}' => '"',
        '\u{2018}'..='\u{201b}' | '\u{2039}' | '\u{203a}' => '\'',
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2044}' | '\u{2215}' => '/',
        // The wide forms of ASCII, in the order of ASCII.
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        c => c,
    })
}
