//! The normal form of a path, for matching only: what is forwarded stays as the client sent it. No two
//! spellings that common origins serve as one resource have two normal forms.

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
/// for `\`). A query or fragment must be cut off before.
pub fn normal(path: &str) -> Cow<'_, [u8]> {
    let bytes = path.as_bytes();
    if is_normal(bytes) {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len() + 1);
    for segment in bytes.split(|byte| matches!(byte, b'/' | b'\\')) {
        let segment = segment.split(|byte| *byte == b';').next().unwrap_or_default();
        let start = out.len();
        out.push(b'/');
        decode(segment, &mut out);
        match &out[start + 1..] {
            b"" | b"." => out.truncate(start),
            b".." => {
                let before = out[..start].iter().rposition(|byte| *byte == b'/');
                out.truncate(before.unwrap_or(0));
            }
            _ => {}
        }
    }
    if out.is_empty() {
        out.push(b'/');
    }
    Cow::Owned(out)
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

fn decode(segment: &[u8], out: &mut Vec<u8>) {
    let mut rest = segment;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| Some((hex(*after.first()?)?, hex(*after.get(1)?)?)));
        rest = after;
        match escaped.flatten() {
            Some((high, low)) => {
                rest = &after[2..];
                match high << 4 | low {
                    b'/' | b'\\' | b'%' | b';' | b'?' | b'#' | 0..0x20 | 0x7f => {
                        out.push(b'%');
                        out.extend(
                            [high, low].map(|digit| b"0123456789ABCDEF"[usize::from(digit)]),
                        );
                    }
                    decoded => out.push(decoded),
                }
            }
            // No escape, so a percent sign, which must not become one with what is decoded behind it.
            None if byte == b'%' => out.extend(b"%25"),
            None => out.push(byte),
        }
    }
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
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
            decode(segment.as_bytes(), &mut characters);
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain("/v2/search", "/v2/search")]
    #[case::root("/", "/")]
    #[case::empty("", "/")]
    #[case::double("//v2///search", "/v2/search")]
    #[case::trailing("/v2/search/", "/v2/search")]
    #[case::dot("/v2/./search/.", "/v2/search")]
    #[case::dot_dot("/v2/x/../search", "/v2/search")]
    #[case::above_root("/../../search", "/search")]
    #[case::escaped_dots("/v2/x/%2e%2E/search", "/v2/search")]
    #[case::unreserved("/v2/%73e%61rch", "/v2/search")]
    #[case::sub_delims("/a%40b%3A", "/a@b:")]
    #[case::parameters("/v2/search;x=1", "/v2/search")]
    #[case::parameters_within("/v2;a/search;b;c", "/v2/search")]
    #[case::parameters_on_dots("/v2/x/..;a/search", "/v2/search")]
    #[case::slash_is_data("/v2%2fsearch", "/v2%2Fsearch")]
    #[case::percent_is_data("/%2573earch", "/%2573earch")]
    #[case::semicolon_is_data("/search%3bx", "/search%3Bx")]
    #[case::nul("/search%00", "/search%00")]
    #[case::backslash("/v2\\search", "/v2/search")]
    #[case::broken_escape("/%zz/%4", "/%25zz/%254")]
    #[case::escape_of_an_escape("/%0%61", "/%250a")]
    #[case::utf8("/caf%c3%a9", "/café")]
    #[case::dots_in_names("/.well-known/a..b", "/.well-known/a..b")]
    fn normal_forms(#[case] path: &str, #[case] expected: &str) {
        assert_eq!(String::from_utf8_lossy(&normal(path)), expected);
    }

    #[rstest]
    #[case::any("*", Ok(Suffix::Any))]
    #[case::segments("/v2/search/", Ok(Suffix::Segments((*b"/v2/search").into())))]
    #[case::escaped("/%73earch", Ok(Suffix::Segments((*b"/search").into())))]
    #[case::characters(".json", Ok(Suffix::Characters((*b".json").into())))]
    #[case::empty("", Err("is empty; write \"*\" for every path"))]
    fn suffixes(#[case] text: &str, #[case] expected: Result<Suffix, &'static str>) {
        assert_eq!(Suffix::parse(text), expected);
    }

    proptest! {
        #[test]
        fn the_normal_form_is_its_own(path in "/[a-c./\\\\;%0-9ef]{0,24}") {
            let once = normal(&path).into_owned();
            let once = String::from_utf8_lossy(&once).into_owned();
            prop_assert_eq!(normal(&once), once.as_bytes());
        }

        #[test]
        fn a_fast_yes_is_what_the_slow_way_says(path in "(/[a-c.]{0,3}){1,5}") {
            let slow = normal(&format!("{path};")).into_owned();
            prop_assert_eq!(normal(&path).into_owned(), slow);
        }

        /// Spellings that origins commonly serve as one: each step of a disguise changes nothing.
        #[test]
        fn a_disguise_changes_nothing(
            segments in prop::collection::vec("[a-z]{1,4}", 1..5),
            disguises in prop::collection::vec(0..8u8, 5),
        ) {
            let plain: String = segments.iter().map(|segment| format!("/{segment}")).collect();
            let disguised: String = segments.iter().zip(disguises).map(|(s, disguise)| match disguise {
                0 => format!("//{s}"),
                1 => format!("/./{s}"),
                2 => format!("/x/../{s}"),
                3 => format!("/%2e/{s};a=b"),
                4 => s.bytes().fold("/".to_owned(), |all, byte| format!("{all}%{byte:02x}")),
                5 => format!("\\{s}"),
                6 => format!("/{s}/"),
                _ => format!("/{s}/y/%2E%2e"),
            }).collect();
            prop_assert_eq!(normal(&disguised), normal(&plain));
        }
    }
}
