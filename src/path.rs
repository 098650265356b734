//! The normal form of a path, for matching only: what is forwarded stays as the client sent it. No two
//! spellings that common origins serve as one resource have two normal forms, but where origins read one spelling
//! in several ways: then there are several readings.

use std::borrow::Cow;

/// What a route wants a path to end in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Suffix {
    /// `*`: every path.
    Any,
    /// Starts with `/`: whole segments, in normal form.
    Segments(Box<[u8]>),
    /// The last characters of the path, in normal form.
    Characters(Box<[u8]>),
}

/// The path of a request target in normal form; it starts with `/` and ends in one only when it is the root.
///
/// `/` and `\` separate segments; a segment ends at its first `;` (parameters); escapes are decoded, but
/// for the delimiters `/ \ % ; ? #` and control characters, whose escapes stay, in capitals; empty
/// segments and `.` vanish, `..` takes the segment before it along (RFC 3986 section 6.2.2, WHATWG URL
/// for `\`). A query or fragment must be cut off before. Case counts: an origin that folds it (IIS) needs a route
/// for each case that it wants limited.
pub fn normal<P: AsRef<[u8]> + ?Sized>(path: &P) -> Cow<'_, [u8]> {
    let bytes = path.as_ref();
    if is_normal(bytes) {
        return Cow::Borrowed(bytes);
    }
    Cow::Owned(read(bytes, 0))
}

// How an origin may differ from the normal form. Each is a bit, so that all that a path has in it can be combined.

/// `;` is a character as any other (nginx, Apache, Node, WSGI), not the start of parameters (Tomcat).
const SEMICOLON: u8 = 1;
/// `\` is a character as any other (nginx, Apache), not a slash (IIS, WHATWG URL).
const BACKSLASH: u8 = 2;
/// `%u` escapes are some (IIS). Other escaped slashes are data, also for those origins that decode them first.
const UNICODE: u8 = 4;
/// `..` takes an empty segment along (RFC 3986 section 5.2.4, WHATWG URL): `/a//..` is `/a/`.
const EMPTY: u8 = 8;
/// Escaped dots are no dot segments (Java's URI.normalize).
const DOTS: u8 = 16;

/// Parameters run to the next `/`, also past a `\` (Tomcat).
const PARAMETERS: u8 = 32;

/// What origins may take a path for that is not its normal form; none for almost all. At most 63 of them, each as long
/// as the path at most.
pub fn readings(path: &str) -> impl Iterator<Item = Vec<u8>> {
    let bytes = path.as_bytes();
    let differences = if is_normal(bytes) { 0 } else { differences(bytes) };
    let possible = (1..=differences).filter(move |reading| reading & !differences == 0);
    possible.map(move |reading| read(bytes, reading))
}

/// Whether its readings cost little: who needs many ways to read a long path is up to no good.
pub fn is_legible(path: &str) -> bool {
    const MOST: usize = 64 << 10;
    path.len() <= MOST >> 6
        || is_normal(path.as_bytes())
        || path.len() << differences(path.as_bytes()).count_ones() <= MOST
}

/// Which differences matter to a path.
fn differences(path: &[u8]) -> u8 {
    let (mut found, mut backslash, mut previous) = (0, false, b' ');
    for (i, byte) in path.iter().enumerate() {
        found |= match byte {
            b';' => SEMICOLON,
            b'\\' => {
                backslash = true;
                BACKSLASH
            }
            b'.' if previous == b'.' => EMPTY,
            b'%' => match path.get(i + 1..).unwrap_or_default() {
                [b'2', b'e' | b'E', ..] => EMPTY | DOTS,
                [b'u' | b'U', ..] => UNICODE,
                _ => 0,
            },
            _ => 0,
        };
        previous = *byte;
    }
    match backslash && found & SEMICOLON != 0 {
        true => found | PARAMETERS,
        false => found,
    }
}

/// The common case, without a copy; may say no to what is normal.
fn is_normal(bytes: &[u8]) -> bool {
    let mut previous = b' ';
    for &byte in bytes {
        let suspicious = match byte {
            b'%' | b';' | b'\\' => true,
            b'/' | b'.' => previous == b'/',
            _ => false,
        };
        if suspicious {
            return false;
        }
        previous = byte;
    }
    bytes.first() == Some(&b'/') && (previous != b'/' || bytes.len() == 1)
}

/// A path as an origin with these differences reads it.
fn read(path: &[u8], differences: u8) -> Vec<u8> {
    let differs = |difference| differences & difference != 0;
    let flat = flat(path, differences);
    let mut out = Vec::with_capacity(flat.len());
    for segment in flat.split(|byte| *byte == b'/') {
        match segment {
            b"." => {}
            b"" if !differs(EMPTY) => {}
            b".." => {
                let before = out.iter().rposition(|byte| *byte == b'/');
                out.truncate(before.unwrap_or(0));
            }
            _ => {
                out.push(b'/');
                // Dots again, now that they cannot be segments.
                let mut rest = segment;
                while let Some((byte, after)) = rest.split_first() {
                    let dot = after.strip_prefix(b"2E").filter(|_| *byte == b'%' && differs(DOTS));
                    out.push(if dot.is_some() { b'.' } else { *byte });
                    rest = dot.unwrap_or(after);
                }
            }
        }
    }
    if differs(EMPTY) {
        // What is empty has done its work.
        out.dedup_by(|one, before| *one == b'/' && *before == b'/');
        if out.len() > 1 && out.last() == Some(&b'/') {
            out.pop();
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    out
}

/// Decoded, and without parameters. A `/` in it separates: one that is data stays escaped.
fn flat(path: &[u8], differences: u8) -> Vec<u8> {
    let differs = |difference| differences & difference != 0;
    let is_separator = |byte: &u8| *byte == b'/' || *byte == b'\\' && !differs(PARAMETERS);
    let mut flat = Vec::with_capacity(path.len() + 1);
    let mut rest = path;
    loop {
        let end = rest.iter().position(is_separator).unwrap_or(rest.len());
        let segment = &rest[..end];
        let name = segment.iter().position(|byte| *byte == b';' && !differs(SEMICOLON));
        decode(&segment[..name.unwrap_or(segment.len())], differences, &mut flat);
        let Some((separator, behind)) = rest[end..].split_first() else { return flat };
        flat.push(if differs(BACKSLASH) { *separator } else { b'/' });
        rest = behind;
    }
}

fn decode(segment: &[u8], differences: u8, out: &mut Vec<u8>) {
    let differs = |difference| differences & difference != 0;
    let mut rest = segment;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(if byte == b'\\' && !differs(BACKSLASH) { b'/' } else { byte });
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
        // No escape, so a percent sign, which must not become one with what is decoded behind it.
        let Some(decoded) = hex(after, 2).and_then(|code| u8::try_from(code).ok()) else {
            out.extend(b"%25");
            continue;
        };
        rest = &after[2..];
        match decoded {
            b'.' if differs(DOTS) => out.extend(b"%2E"),
            b'/' | b'\\' | b'%' | b';' | b'?' | b'#' | 0..0x20 | 0x7f => {
                out.push(b'%');
                let digits = [decoded >> 4, decoded & 15];
                out.extend(digits.map(|digit| b"0123456789ABCDEF"[usize::from(digit)]));
            }
            decoded => out.push(decoded),
        }
    }
}

/// The number that the first `length` digits are.
fn hex(digits: &[u8], length: usize) -> Option<u32> {
    let digits = digits.get(..length)?;
    digits.iter().try_fold(0, |all, digit| Some(all << 4 | (*digit as char).to_digit(16)?))
}

// === impl Suffix ===

impl Suffix {
    /// Reads a suffix as it stands in a configuration.
    ///
    /// # Errors
    ///
    /// Why no path could ever end in it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if text.is_empty() {
            return Err("is empty; write \"*\" for every path");
        }
        if text.contains('*') {
            return Err(
                "may not hold `*`: a suffix is compared as it stands, and only \"*\" alone matches all",
            );
        }
        if text.contains(['?', '#', ';', '\\']) {
            return Err("holds one of ? # ; \\, which no path in normal form has");
        }
        if text.starts_with('/') {
            return Ok(Self::Segments(normal(text).into_owned().into()));
        }
        if text.ends_with('/') || text.contains("//") {
            return Err("can never match: paths are compared without double and trailing slashes");
        }
        let mut characters = Vec::new();
        for (i, segment) in text.split('/').enumerate() {
            if i > 0 {
                characters.push(b'/');
                if matches!(segment, "." | "..") {
                    return Err("can never match: paths are compared with dot segments resolved");
                }
            }
            decode(segment.as_bytes(), 0, &mut characters);
        }
        Ok(Self::Characters(characters.into()))
    }

    /// Bytes compared: the longer suffix wins.
    pub fn len(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Segments(bytes) | Self::Characters(bytes) => bytes.len(),
        }
    }

    /// Whether every path matches.
    pub fn is_empty(&self) -> bool {
        *self == Self::Any
    }
}

#[cfg(test)]
mod tests;
