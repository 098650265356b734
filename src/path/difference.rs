//! The differences between the ways in which origins read one path, and which of them matter to a given path. Reads no
//! path itself: see `reading.rs`.

/// A set of differences between an origin's reading of a path and the plain normal form, one bit for each.
pub(super) type Differences = u16;

/// `;` is a character like any other (nginx, Apache, Node, WSGI) and does not start parameters, as it does in Tomcat.
pub(super) const SEMICOLON: Differences = 1;
/// `\` is a character like any other (nginx, Apache) and no slash, as it is for IIS and in WHATWG URLs.
pub(super) const BACKSLASH: Differences = 1 << 1;
/// `%u0061` is an escape for `a` (IIS). Other escaped slashes are data, also for origins that decode `%u` first.
pub(super) const UNICODE: Differences = 1 << 2;
/// `..` removes an empty segment before it (RFC 3986 section 5.2.4, WHATWG URL), so that `/a//..` is `/a/`.
pub(super) const EMPTY: Differences = 1 << 3;
/// Escaped dots make no dot segments, so that `/a/%2e%2e` stays as it is (Java's `URI.normalize`).
pub(super) const DOTS: Differences = 1 << 4;
/// Parameters end at the next `/` and may contain a `\`, so that `/a;x\b` is `/a` (Tomcat).
pub(super) const PARAMETERS: Differences = 1 << 5;
/// `%2f` and `%5c` are decoded before the path is split into segments (nginx, Caddy, Go, WSGI, ASGI, PHP).
pub(super) const SLASH: Differences = 1 << 6;
/// Dots and spaces at the end of the path are cut off before dot segments are resolved (Caddy).
pub(super) const END: Differences = 1 << 7;
/// Dots and spaces at the end of each segment are cut off, as Windows does with file names (IIS).
pub(super) const SEGMENTS: Differences = 1 << 8;
/// Line ends at the end of the path are cut off, because `$` of a regular expression matches before them (PCRE in nginx,
/// Python in Starlette).
pub(super) const NEWLINE: Differences = 1 << 9;
/// Upper and lower case are the same, so that `/Search` is `/search` (Express, Caddy, IIS).
pub(super) const FOLD: Differences = 1 << 10;

/// The path ends at an escaped NUL, as every C string does: `/search%00.json` is `/search` (CGI, old PHP, file systems).
pub(super) const NUL: Differences = 1 << 11;

/// Dot segments stay as they are (WSGI, Starlette, Express), so that `/a/../b` begins with `/a`. Only routes for whole paths
/// tell such paths apart.
pub(super) const UNRESOLVED: Differences = 1 << 12;

pub(super) const TRAILING: Differences = END | SEGMENTS;
/// All differences that matter to every configuration.
pub(super) const ALL: Differences = (1 << 12) - 1;

/// A byte that every reading leaves as it is, at any place in the path, such as `a` or `-`.
const PLAIN: u8 = 0;
/// `/` and `.`: the byte before them decides whether they change the path, as in `//` and `/.`.
const SEPARATOR: u8 = 1;
/// A letter that origins without regard to case take for another letter: `A` to `Z`, and all above ASCII.
const CASED: u8 = 2;
/// `%`, `;` and `\`: only [`differences`] can tell what they change in the path.
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
/// The result of one quick pass over a path, which is all that almost every request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// The path is its own normal form, and every origin reads it in the same way.
    Plain,
    /// The path is its own normal form, and only origins that ignore case read it in another way.
    Cased,
    /// The path may differ from its normal form, and origins may read it in several ways.
    Odd,
}

/// Looks at each byte once, without a copy. It may answer [`Look::Odd`] for a path that is plain, never the reverse.
pub(super) fn look(bytes: &[u8]) -> Look {
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

/// Lists the differences that change how a path is read. The list may be too long, never too short.
pub(super) fn differences(path: &[u8]) -> Differences {
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
                [b'2', b'e' | b'E', rest @ ..] => EMPTY | DOTS | UNRESOLVED | ends_segment(rest),
                [b'0', b'0', ..] => NUL,
                [b'2', b'0', rest @ ..] => ends_segment(rest),
                [b'2', b'f' | b'F', ..] => SLASH,
                [b'5', b'c' | b'C', ..] => SLASH | BACKSLASH,
                [b'0', b'a' | b'A' | b'd' | b'D', ..] => NEWLINE,
                [b'4' | b'5' | b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', ..] => FOLD,
                // The character that it encodes may be any of the others.
                [b'u' | b'U', b'0', b'0', b'0', b'0', ..] => UNICODE | NUL,
                [b'u' | b'U', ..] => UNICODE | FOLD | TRAILING | UNRESOLVED,
                _ => 0,
            },
            b'A'..=b'Z' | 0x80.. => FOLD,
            _ => 0,
        };
        previous = *byte;
    }
    if backslash && found & SEMICOLON != 0 { found | PARAMETERS } else { found }
}

/// The differences that matter to a dot or a space before `after`, which may be the last character of its segment.
fn ends_segment(after: &[u8]) -> Differences {
    match after.first() {
        None | Some(b'/' | b'\\' | b';' | b'%' | b'.') => TRAILING | UNRESOLVED,
        Some(_) => 0,
    }
}
