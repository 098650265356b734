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

/// What is known of how the origins behind the gateway read a path. What is not known is tried in both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paths {
    /// Differences from the plain normal form that every reading has.
    always: Differences,
    /// Differences that a reading may have or not.
    maybe: Differences,
    /// Every reading strips dots and spaces, at the end of the path or of each segment.
    strips: bool,
}

/// A set of differences between an origin's reading of a path and the plain normal form, one bit for each.
type Differences = u16;

/// `;` is a character as any other (nginx, Apache, Node, WSGI), not the start of parameters (Tomcat).
const SEMICOLON: Differences = 1;
/// `\` is a character as any other (nginx, Apache), not a slash (IIS, WHATWG URL).
const BACKSLASH: Differences = 1 << 1;
/// `%u` escapes are some (IIS). Other escaped slashes are data, also for those origins that decode them first.
const UNICODE: Differences = 1 << 2;
/// `..` takes an empty segment along (RFC 3986 section 5.2.4, WHATWG URL): `/a//..` is `/a/`.
const EMPTY: Differences = 1 << 3;
/// Escaped dots are no dot segments (Java's URI.normalize).
const DOTS: Differences = 1 << 4;
/// Parameters run to the next `/`, also past a `\` (Tomcat).
const PARAMETERS: Differences = 1 << 5;
/// `%2f` and `%5c` are decoded before the path is split (nginx, Caddy, Go, WSGI, ASGI, PHP).
const SLASH: Differences = 1 << 6;
/// Dots and spaces at the end of the path are cut off, before dot segments are resolved (Caddy).
const END: Differences = 1 << 7;
/// Dots and spaces at the end of each segment are cut off (Windows file names).
const SEGMENTS: Differences = 1 << 8;
/// Line ends at the end of the path are cut off: `$` of a regular expression matches before them (PCRE in nginx, Python in
/// Starlette).
const NEWLINE: Differences = 1 << 9;
/// Upper and lower case are one (Express, Caddy, IIS).
const FOLD: Differences = 1 << 10;

const TRAILING: Differences = END | SEGMENTS;
const ALL: Differences = (1 << 11) - 1;

/// LF and CR as [`decode`] leaves them, and a slash between or after them.
const LINE_ENDS: [&[u8]; 3] = [b"%0A", b"%0D", b"/"];

/// A byte that every reading leaves as it is, at any place.
const PLAIN: u8 = 0;
/// `/` and `.`: their meaning depends on the byte before.
const SEPARATOR: u8 = 1;
/// A letter that some origins take for another one.
const CASED: u8 = 2;
/// `%`, `;` and `\`: only the slow way can tell.
const SPECIAL: u8 = 3;

static CLASSES: [u8; 256] = {
    let mut classes = [PLAIN; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'%' | b';' | b'\\' => SPECIAL,
            b'/' | b'.' => SEPARATOR,
            b'A'..=b'Z' | 0x80.. => CASED,
            _ => PLAIN,
        };
        byte += 1;
    }
    classes
};

/// What a quick look at a path tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// It is its own normal form, and every origin reads it so.
    Plain,
    /// The same, but for origins that fold case.
    Cased,
    /// It may be anything.
    Odd,
}

/// The path of a request target in normal form; it starts with `/` and ends in one only when it is the root.
///
/// `/` and `\` separate segments; a segment ends at its first `;` (parameters); escapes are decoded, but
/// for the delimiters `/ \ % ; ? #` and control characters, whose escapes stay, in capitals; empty
/// segments and `.` vanish, `..` takes the segment before it along (RFC 3986 section 6.2.2, WHATWG URL
/// for `\`). A query or fragment must be cut off before. Case counts.
pub fn normal<P: AsRef<[u8]> + ?Sized>(path: &P) -> Cow<'_, [u8]> {
    let bytes = path.as_ref();
    match look(bytes) {
        Look::Plain | Look::Cased => Cow::Borrowed(bytes),
        Look::Odd => Cow::Owned(read(bytes, 0)),
    }
}

/// The common case, without a copy; may say that a path is odd when it is not.
fn look(bytes: &[u8]) -> Look {
    let (mut previous, mut cased) = (b' ', false);
    for &byte in bytes {
        match CLASSES[usize::from(byte)] {
            PLAIN => {}
            SEPARATOR if previous != b'/' && (byte == b'.' || previous != b'.') => {}
            CASED => cased = true,
            _ => return Look::Odd,
        }
        previous = byte;
    }
    let is_whole = bytes.first() == Some(&b'/') && (previous != b'/' || bytes.len() == 1);
    match (is_whole && previous != b'.', cased) {
        (false, _) => Look::Odd,
        (true, false) => Look::Plain,
        (true, true) => Look::Cased,
    }
}

/// Which differences matter to a path. It may name more than that, never fewer.
fn differences(path: &[u8]) -> Differences {
    let (mut found, mut backslash, mut previous) = (0, false, b' ');
    for (i, byte) in path.iter().enumerate() {
        let after = path.get(i + 1..).unwrap_or_default();
        found |= match byte {
            b';' => SEMICOLON,
            b'\\' => {
                backslash = true;
                BACKSLASH
            }
            b'.' if previous == b'.' => EMPTY | ends_segment(after),
            b'.' => ends_segment(after),
            b'%' => match after {
                [b'2', b'e' | b'E', rest @ ..] => EMPTY | DOTS | ends_segment(rest),
                [b'2', b'0', rest @ ..] => ends_segment(rest),
                [b'2', b'f' | b'F', ..] => SLASH,
                [b'5', b'c' | b'C', ..] => SLASH | BACKSLASH,
                [b'0', b'a' | b'A' | b'd' | b'D', ..] => NEWLINE,
                [b'4' | b'5' | b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..] => FOLD,
                // The character that it encodes may be any of the others.
                [b'u' | b'U', ..] => UNICODE | FOLD | TRAILING,
                _ => 0,
            },
            b'A'..=b'Z' | 0x80.. => FOLD,
            _ => 0,
        };
        previous = *byte;
    }
    match backslash && found & SEMICOLON != 0 {
        true => found | PARAMETERS,
        false => found,
    }
}

/// Whether a dot or space before `after` may be the last character of its segment in some reading.
fn ends_segment(after: &[u8]) -> Differences {
    match after.first() {
        None | Some(b'/' | b'\\' | b';' | b'%' | b'.') => TRAILING,
        Some(_) => 0,
    }
}

/// A path as an origin with these differences reads it.
fn read(path: &[u8], differences: Differences) -> Vec<u8> {
    let differs = |difference| differences & difference != 0;
    let mut flat = flat(path, differences);
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
            b"." => {}
            b"" if !differs(EMPTY) => {}
            b".." => {
                let before = out.iter().rposition(|byte| *byte == b'/');
                out.truncate(before.unwrap_or(0));
            }
            _ => {
                out.push(b'/');
                // Dots again, now that they cannot be segments.
                let mut rest = kept;
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
    if differs(NEWLINE) {
        // Slashes at the end go anyway.
        while let Some(end) = LINE_ENDS.iter().find(|end| out.ends_with(end)) {
            out.truncate(out.len() - end.len());
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    if differs(FOLD) { fold(&out) } else { out }
}

fn without_trailing(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| !matches!(byte, b'.' | b' '));
    &text[..end.map_or(0, |end| end + 1)]
}

/// One spelling for all that differ in case: of each character the small letter of its capital, where that is a single
/// one. So the Kelvin sign is a `k`, as Go has it, and the long s is an `s`, as Java has it.
fn fold(text: &[u8]) -> Vec<u8> {
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

/// Decoded, and without parameters. A `/` in it separates: one that is data stays escaped.
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
        let Some((separator, behind)) = rest[end..].split_first() else { return flat };
        flat.push(if differs(BACKSLASH) { *separator } else { b'/' });
        rest = behind;
    }
}

fn decode(segment: &[u8], differences: Differences, out: &mut Vec<u8>) {
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
}

/// The number that the first `length` digits are.
fn hex(digits: &[u8], length: usize) -> Option<u32> {
    let digits = digits.get(..length)?;
    digits.iter().try_fold(0, |all, digit| Some(all << 4 | (*digit as char).to_digit(16)?))
}

// === impl Paths ===

impl Default for Paths {
    fn default() -> Self {
        Self::new(None, None, None)
    }
}

impl Paths {
    /// What the origins are known to do; `None` where that is not known. `separates`: an escaped slash is a slash, else
    /// data. `folds`: upper and lower case are one. `strips`: dots and spaces at ends are cut off.
    pub fn new(separates: Option<bool>, folds: Option<bool>, strips: Option<bool>) -> Self {
        let bits = |known: Option<bool>, wanted: Option<bool>, bits| {
            if known == wanted { bits } else { 0 }
        };
        let unknown = bits(separates, None, SLASH) | bits(folds, None, FOLD);
        let strips_maybe = if strips == Some(false) { 0 } else { TRAILING };
        let known = ALL & !(SLASH | FOLD | TRAILING);
        Self {
            always: bits(separates, Some(true), SLASH) | bits(folds, Some(true), FOLD),
            maybe: known | unknown | strips_maybe,
            strips: strips == Some(true),
        }
    }

    /// The path in the normal form that these origins have.
    pub fn normal<'p, P: AsRef<[u8]> + ?Sized>(&self, path: &'p P) -> Cow<'p, [u8]> {
        self.normal_with(path.as_ref(), self.own())
    }

    /// The normal form, and whether it is the only reading.
    pub fn read<'p>(&self, path: &'p str) -> (Cow<'p, [u8]>, bool) {
        let bytes = path.as_bytes();
        match look(bytes) {
            Look::Plain => (Cow::Borrowed(bytes), true),
            Look::Cased if self.folds() => (Cow::Owned(fold(bytes)), true),
            Look::Cased => (Cow::Borrowed(bytes), !self.may_fold()),
            Look::Odd => (Cow::Owned(read(bytes, self.own())), false),
        }
    }

    /// The path as keys have it: one form for all spellings that an origin may take for one, but for an escaped slash,
    /// which is data unless the origins are known to take it for a slash.
    pub fn key_form<'p, P: AsRef<[u8]> + ?Sized>(&self, path: &'p P) -> Cow<'p, [u8]> {
        self.normal_with(path.as_ref(), self.own() | self.maybe & (FOLD | SEGMENTS | NEWLINE))
    }

    /// The normal form of what an origin reads, which may fold case.
    pub fn normal_of<'p>(&self, reading: &'p [u8], folds: bool) -> Cow<'p, [u8]> {
        self.normal_with(reading, self.own() | if folds { FOLD } else { 0 })
    }

    fn normal_with<'p>(&self, bytes: &'p [u8], differences: Differences) -> Cow<'p, [u8]> {
        match look(bytes) {
            Look::Plain => Cow::Borrowed(bytes),
            Look::Cased if differences & FOLD == 0 => Cow::Borrowed(bytes),
            Look::Cased => Cow::Owned(fold(bytes)),
            Look::Odd => Cow::Owned(read(bytes, differences)),
        }
    }

    /// The differences that the normal form has.
    fn own(&self) -> Differences {
        self.always | if self.strips { SEGMENTS } else { 0 }
    }

    /// What origins may take a path for that is not its normal form, and whether case is folded in it; none for almost all.
    /// [`Self::is_legible`] bounds their number and their length.
    pub fn readings<'p>(&self, path: &'p str) -> impl Iterator<Item = (Vec<u8>, bool)> + use<'p> {
        let Self { always, maybe, strips } = *self;
        let (bytes, own) = (path.as_bytes(), self.own());
        let of_path = match look(bytes) {
            Look::Plain => 0,
            Look::Cased => FOLD,
            Look::Odd => differences(bytes),
        };
        let varied = of_path & maybe;
        let has_trailing = strips && varied & TRAILING != 0;
        // The normal form has them all, where they make no difference.
        let own = if has_trailing { own } else { own & !TRAILING };
        (0..=varied)
            .filter(move |reading| reading & !varied == 0)
            .map(move |reading| reading | always)
            .filter(move |reading| *reading != own && !(has_trailing && reading & TRAILING == 0))
            .map(move |reading| (read(bytes, reading), reading & FOLD != 0))
    }

    /// Whether all readings of the path together cost little. A long path with many readings is most likely an attack, and
    /// each reading is one more look-up.
    pub fn is_legible(&self, path: &str) -> bool {
        const MOST: usize = 64 << 10;
        const MOST_DIFFERENCES: u32 = 8;
        if look(path.as_bytes()) != Look::Odd {
            return true;
        }
        // A reading with other letters is a copy of one without.
        let varied = (differences(path.as_bytes()) & self.maybe & !FOLD).count_ones();
        varied <= MOST_DIFFERENCES && path.len() << varied <= MOST
    }

    /// Whether origins of both kinds are thought of: those that fold case, and those that do not.
    pub fn may_fold(&self) -> bool {
        self.maybe & FOLD != 0
    }

    /// Whether all origins fold case.
    pub fn folds(&self) -> bool {
        self.always & FOLD != 0
    }

    /// Each key that says more of the origins, with what a path has in it for which that matters, and what is left to think
    /// of when it has the value that is named.
    pub fn narrower(&self) -> impl Iterator<Item = (&'static str, &'static str, Self)> {
        let of = *self;
        let keys = [
            ("upper case", "`fold_case: off`, or `on`", FOLD),
            ("an escaped slash", "`encoded_slash: data`, or `separator`", SLASH),
            ("dots or spaces at an end", "`trailing_dots: keep`, or `strip`", TRAILING),
        ];
        keys.into_iter()
            .filter(move |(_, _, bits)| of.maybe & bits != 0 && !(of.strips && *bits == TRAILING))
            .map(move |(what, key, bits)| (what, key, Self { maybe: of.maybe & !bits, ..of }))
    }
}

// === impl Suffix ===

impl Suffix {
    /// Reads a suffix as it stands in a configuration.
    ///
    /// # Errors
    ///
    /// Why no path could ever end in it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        Self::parse_for(text, &Paths::new(Some(false), Some(false), Some(false)))
    }

    /// The same for origins that read paths so.
    ///
    /// # Errors
    ///
    /// Why no path could ever end in it.
    pub fn parse_for(text: &str, paths: &Paths) -> Result<Self, &'static str> {
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
            return Ok(Self::Segments(paths.normal(text).into_owned().into()));
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
            decode(segment.as_bytes(), paths.own(), &mut characters);
        }
        if paths.strips && without_trailing(&characters).len() < characters.len() {
            return Err(
                "can never match: paths are compared without dots and spaces at their ends",
            );
        }
        let characters = if paths.folds() { fold(&characters) } else { characters };
        Ok(Self::Characters(characters.into()))
    }

    /// The same suffix for paths whose case is folded.
    pub fn folded(&self) -> Self {
        match self {
            Self::Any => Self::Any,
            Self::Segments(bytes) => Self::Segments(fold(bytes).into()),
            Self::Characters(bytes) => Self::Characters(fold(bytes).into()),
        }
    }

    /// Whether the same paths end in both, for an origin that folds case.
    pub fn is_folded(&self, other: &Self) -> bool {
        let is_same = |own: &[u8], other: &[u8]| match own.is_ascii() && other.is_ascii() {
            true => own.eq_ignore_ascii_case(other),
            false => fold(own) == fold(other),
        };
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Segments(own), Self::Segments(other))
            | (Self::Characters(own), Self::Characters(other)) => is_same(own, other),
            _ => false,
        }
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
