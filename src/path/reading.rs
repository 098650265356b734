//! One reading of a path: how an origin with given differences decodes, splits and resolves it. Knows neither which
//! readings are possible nor what routes exist.

use super::difference::{
    BACKSLASH, DOTS, Differences, EMPTY, END, FOLD, Look, NEWLINE, NUL, PARAMETERS, SEGMENTS,
    SEMICOLON, SLASH, UNICODE, UNRESOLVED, look,
};
use std::borrow::Cow;

/// LF and CR as [`decode`] leaves them, and a slash, which may be between or after them.
const LINE_ENDS: [&[u8]; 3] = [b"%0A", b"%0D", b"/"];

/// Returns the path of a request target in normal form; it starts with `/` and ends with one only when it is the root.
///
/// `/` and `\` separate segments. A segment ends at its first `;` (parameters). Escapes are decoded, except those of the
/// delimiters `/ \ % ; ? #` and of control characters: they stay, in capitals. Empty segments and `.` are removed, and `..`
/// removes the segment before it (RFC 3986 section 6.2.2, WHATWG URL for `\`). The caller cuts off a query or fragment
/// first. Case counts: `/A` and `/a` are two paths.
pub fn normal<P: AsRef<[u8]> + ?Sized>(path: &P) -> Cow<'_, [u8]> {
    let bytes = path.as_ref();
    match look(bytes) {
        Look::Plain | Look::Cased => Cow::Borrowed(bytes),
        Look::Odd => Cow::Owned(read(bytes, 0)),
    }
}

/// Reads a path as an origin with these differences from the plain normal form reads it.
pub(super) fn read(path: &[u8], differences: Differences) -> Vec<u8> {
    let differs = |difference| differences & difference != 0;
    let mut flat = flat(path, differences);
    if differs(NUL) {
        // Control characters stay escaped by the decoding; only `%u0000` becomes the character itself.
        let is_nul = |at: &usize| flat[*at] == 0 || flat[*at..].starts_with(b"%00");
        let end = (0..flat.len()).find(is_nul).unwrap_or(flat.len());
        flat.truncate(end);
    }
    if differs(END) {
        flat.truncate(without_trailing(&flat).len());
    }
    let mut out = Vec::with_capacity(flat.len());
    for segment in flat.split(|byte| *byte == b'/') {
        let kept = match segment {
            b"." | b".." => segment,
            _ if differs(SEGMENTS) => without_trailing(segment),
            _ => segment,
        };
        match kept {
            b"." if !differs(UNRESOLVED) => {}
            b"" if !differs(EMPTY) => {}
            b".." if !differs(UNRESOLVED) => {
                let before = out.iter().rposition(|byte| *byte == b'/');
                out.truncate(before.unwrap_or(0));
            }
            _ => {
                out.push(b'/');
                let mut rest = kept;
                // `%2E` becomes a dot only here, after the dot segments have been resolved.
                while differs(DOTS)
                    && let Some(at) = memchr::memchr(b'%', rest)
                {
                    out.extend_from_slice(&rest[..at]);
                    let dot = rest[at..].strip_prefix(b"%2E");
                    out.push(if dot.is_some() { b'.' } else { b'%' });
                    rest = dot.unwrap_or(&rest[at + 1..]);
                }
                out.extend_from_slice(rest);
            }
        }
    }
    if differs(EMPTY) {
        // The `..` above have removed empty segments; the other empty segments merge now.
        out.dedup_by(|one, before| *one == b'/' && *before == b'/');
        if out.len() > 1 && out.last() == Some(&b'/') {
            out.pop();
        }
    }
    if differs(NEWLINE) {
        // No normal form ends with a slash, so slashes between line ends are removed with them.
        while let Some(end) = LINE_ENDS.iter().find(|end| out.ends_with(end)) {
            out.truncate(out.len() - end.len());
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    if differs(FOLD) { fold(&out) } else { out }
}

pub(super) fn without_trailing(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !matches!(byte, b'.' | b' '));
    &text[..end.map_or(0, |end| end + 1)]
}

/// Gives texts that differ only in case one spelling: each character becomes the small letter of its capital, if it has a
/// single capital. So the Kelvin sign becomes `k`, as in Go, and the long s becomes `s`, as in Java.
pub(super) fn fold(text: &[u8]) -> Vec<u8> {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let mut out = Vec::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut capitals = c.to_uppercase();
            let capital = match (capitals.next(), capitals.next()) {
                (Some(capital), None) => capital,
                _ => c,
            };
            let small = capital.to_lowercase().next().unwrap_or(capital);
            out.extend(small.encode_utf8(&mut [0; 4]).bytes());
        }
        out.extend(chunk.invalid());
    }
    out
}

/// Decodes a path and removes its parameters. A `/` in the result separates segments; one that is data stays `%2F`.
fn flat(path: &[u8], differences: Differences) -> Vec<u8> {
    let differs = |difference| differences & difference != 0;
    let is_separator = |byte: &u8| *byte == b'/' || *byte == b'\\' && !differs(PARAMETERS);
    let mut flat = Vec::with_capacity(path.len() + 1);
    let mut rest = path;
    loop {
        let end = rest.iter().position(is_separator).unwrap_or(rest.len());
        let segment = &rest[..end];
        let name = segment.iter().position(|byte| *byte == b';' && !differs(SEMICOLON));
        decode(&segment[..name.unwrap_or(segment.len())], differences, &mut flat);
        let Some((separator, after)) = rest[end..].split_first() else { return flat };
        flat.push(if differs(BACKSLASH) { *separator } else { b'/' });
        rest = after;
    }
}

pub(super) fn decode(segment: &[u8], differences: Differences, out: &mut Vec<u8>) {
    let differs = |difference| differences & difference != 0;
    let mut rest = segment;
    while let Some(at) = memchr::memchr2(b'%', b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let after = &rest[at + 1..];
        let byte = rest[at];
        rest = after;
        if byte != b'%' {
            out.push(if differs(BACKSLASH) { byte } else { b'/' });
            continue;
        }
        if let (true, [b'u' | b'U', after @ ..]) = (differs(UNICODE), after)
            && let Some(decoded) = hex(after, 4).and_then(char::from_u32)
        {
            rest = &after[4..];
            match decoded {
                '/' => out.push(b'/'),
                '\\' if !differs(BACKSLASH) => out.push(b'/'),
                _ => out.extend(decoded.encode_utf8(&mut [0; 4]).bytes()),
            }
            continue;
        }
        // This percent sign starts no escape. It becomes `%25`, so that it cannot form one with the bytes after it.
        let Some(decoded) = hex(after, 2).and_then(|code| u8::try_from(code).ok()) else {
            out.extend(b"%25");
            continue;
        };
        rest = &after[2..];
        match decoded {
            b'.' if differs(DOTS) => out.extend(b"%2E"),
            b'/' if differs(SLASH) => out.push(b'/'),
            b'\\' if differs(SLASH) => out.push(if differs(BACKSLASH) { b'\\' } else { b'/' }),
            b'/' | b'\\' | b'%' | b';' | b'?' | b'#' | 0..0x20 | 0x7f => {
                out.push(b'%');
                let digits = [decoded >> 4, decoded & 15];
                out.extend(digits.map(|digit| b"0123456789ABCDEF"[usize::from(digit)]));
            }
            decoded => out.push(decoded),
        }
    }
    out.extend_from_slice(rest);
}

/// Reads the first `length` bytes of `digits` as one hexadecimal number, if all of them are hexadecimal digits.
fn hex(digits: &[u8], length: usize) -> Option<u32> {
    let digits = digits.get(..length)?;
    digits.iter().try_fold(0, |all, digit| Some(all << 4 | (*digit as char).to_digit(16)?))
}
