//! A value of a JSON document that a JSON pointer (RFC 6901) names. The document is read once, and no other part of it is
//! kept.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A JSON pointer such as `/usage/total_tokens`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JsonPointer {
    text: String,
    /// The names between the slashes, with `~1` and `~0` read as `/` and `~`; at least one.
    names: Vec<String>,
}

/// The most names of a pointer.
const MAX_NAMES: usize = 32;

/// The value at a place: a text, a number or a truth value as text. `None` for `null`, an object or an array.
type Found = Option<String>;

/// Reads a document, and finds the value that `names` lead to.
struct Seek<'a> {
    names: &'a [String],
    /// Refuses names that programs read differently.
    is_strict: bool,
}

/// The mark that some programs write before a text in UTF-8, and most skip.
pub(crate) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

// === impl JsonPointer ===

impl JsonPointer {
    /// Reads a pointer such as `/usage/total_tokens`.
    ///
    /// # Errors
    ///
    /// The reason, worded so that it completes a sentence that begins with the text: "`TEXT` needs ...".
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(names) = text.strip_prefix('/') else {
            return Err(
                "needs a JSON pointer that begins with `/`, as in `/usage/total_tokens`".into()
            );
        };
        let is_escape = |after: &str| after.starts_with(['0', '1']);
        if text.split('~').skip(1).any(|after| !is_escape(after)) {
            return Err("has a `~` that is neither `~0` (a `~`) nor `~1` (a `/`)".into());
        }
        let names = names.split('/').map(|name| name.replace("~1", "/").replace("~0", "~"));
        let names: Vec<_> = names.collect();
        if names.len() > MAX_NAMES {
            return Err(format!("has a JSON pointer of more than {MAX_NAMES} names"));
        }
        Ok(Self { text: text.to_owned(), names })
    }

    /// The pointer as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names between the slashes, with `~1` and `~0` read as `/` and `~`.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The name at the end, such as `total_tokens`.
    pub fn last(&self) -> &str {
        self.names.last().map_or("", String::as_str)
    }

    /// The value in a document: a text, or a number or truth value as text. `None` if the document is not valid, or has
    /// `null`, an object, an array or nothing there. The last one of several members with one name counts.
    pub fn find(&self, document: &[u8]) -> Option<String> {
        self.seek(document, false).ok()?
    }

    /// The same value in the body of a request, of which no upstream may read another one. `None` if the body is empty.
    ///
    /// # Errors
    ///
    /// A message for the caller: the body is not valid JSON in UTF-8, or has the name of a place twice or in another spelling.
    pub fn read(&self, body: &[u8]) -> Result<Option<String>, String> {
        if body.is_empty() {
            return Ok(None);
        }
        let unclear = |error: &dyn fmt::Display| {
            format!(
                "the body has to be JSON that can be read in one way alone, because a limiter reads it: {error}"
            )
        };
        // The parser looks at no text that it skips, and some programs take no document with such a one.
        std::str::from_utf8(body).map_err(|error| unclear(&error))?;
        self.seek(body, true).map_err(|error| unclear(&error))
    }

    fn seek(&self, document: &[u8], is_strict: bool) -> Result<Found, serde_json::Error> {
        let document = document.strip_prefix(BYTE_ORDER_MARK).unwrap_or(document);
        let mut reader = serde_json::Deserializer::from_slice(document);
        let found = Seek { names: &self.names, is_strict }.deserialize(&mut reader)?;
        reader.end()?;
        Ok(found)
    }
}

/// Whether some programs take two names for one: Go and .NET fold case, and protobuf takes `maxTokens` for `max_tokens`.
fn are_alike(one: &str, other: &str) -> bool {
    let plain = |name: &'_ str| -> String {
        let kept = name.chars().filter(|c| !matches!(c, '_' | '-'));
        kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
    };
    plain(one) == plain(other)
}

// === impl Seek ===

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Found, D::Error> {
        reader.deserialize_any(self)
    }
}

impl Seek<'_> {
    /// A value that is no object and no array, as text.
    fn scalar<E: Error>(&self, value: impl FnOnce() -> String) -> Result<Found, E> {
        Ok(self.names.is_empty().then(value))
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Found, E> {
        self.scalar(|| value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Found, E> {
        self.scalar(|| value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Found, E> {
        self.scalar(|| value.to_string())
    }

    /// A whole number may be written `1e3` or `1000.0`; it is shown as `1000`. Zero has no sign.
    fn visit_f64<E: Error>(self, value: f64) -> Result<Found, E> {
        self.scalar(|| (value + 0.0).to_string())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Found, E> {
        self.scalar(|| value.to_owned())
    }

    fn visit_unit<E: Error>(self) -> Result<Found, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Found, A::Error> {
        let (mut found, mut is_there) = (None, false);
        while let Some(name) = members.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.names.split_first() {
                Some((first, _)) if self.is_strict && is_there && *first == *name => {
                    return Err(A::Error::custom(format_args!("`{first}` comes twice")));
                }
                Some((first, rest)) if *first == *name => {
                    is_there = true;
                    found = members.next_value_seed(Seek { names: rest, ..self })?;
                }
                Some((first, _)) if self.is_strict && are_alike(first, &name) => {
                    let why = format_args!("a name is taken for `{first}` by some programs");
                    return Err(A::Error::custom(why));
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Found, A::Error> {
        let (wanted, names) = match self.names.split_first() {
            Some((name, rest)) => (index(name), rest),
            None => (None, self.names),
        };
        let (mut found, mut i) = (None, 0);
        loop {
            if wanted == Some(i) {
                match items.next_element_seed(Seek { names, ..self })? {
                    Some(value) => found = value,
                    None => return Ok(None),
                }
            } else if items.next_element::<IgnoredAny>()?.is_none() {
                return Ok(found);
            }
            i += 1;
        }
    }
}

/// The index of an array that a name stands for: digits without leading zeros (RFC 6901 section 4).
pub(crate) fn index(name: &str) -> Option<usize> {
    let is_index =
        name == "0" || (!name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit()));
    name.parse().ok().filter(|_| is_index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("/a", r#"{"a":5}"#, Some("5"))]
    #[case("/a", r#"{"a":"five"}"#, Some("five"))]
    #[case("/a", r#"{"a":1e3}"#, Some("1000"))]
    #[case("/a", r#"{"a":1000.0}"#, Some("1000"))]
    #[case("/a", r#"{"a":0.5}"#, Some("0.5"))]
    #[case("/a", r#"{"a":-1}"#, Some("-1"))]
    #[case("/a", r#"{"a":-0}"#, Some("0"))]
    #[case("/a", r#"{"a":-0.0}"#, Some("0"))]
    #[case("/a", r#"{"a":true}"#, Some("true"))]
    #[case("/a", r#"{"a":null}"#, None)]
    #[case("/a", r#"{"a":{"b":1}}"#, None)]
    #[case("/a", r#"{"a":[1]}"#, None)]
    #[case("/a/b", r#"{"a":{"x":[{"b":2}],"b":1}}"#, Some("1"))]
    #[case("/a/1", r#"{"a":[1,2,3]}"#, Some("2"))]
    #[case("/a/3", r#"{"a":[1,2,3]}"#, None)]
    #[case("/a/01", r#"{"a":[1,2,3]}"#, None)]
    #[case("/a/-", r#"{"a":[1,2,3]}"#, None)]
    #[case("/a/1", r#"{"a":{"1":"name"}}"#, Some("name"))]
    #[case("/a~1b/c~0d", r#"{"a/b":{"c~d":1}}"#, Some("1"))]
    #[case("/", r#"{"":1}"#, Some("1"))]
    #[case::the_last_counts("/a", r#"{"a":1,"a":2}"#, Some("2"))]
    #[case::escaped("/a", r#"{"\u0061":"\u00e9"}"#, Some("é"))]
    #[case::cut("/a", r#"{"a":1"#, None)]
    #[case::two_documents("/a", r#"{"a":1}{"a":2}"#, None)]
    #[case::no_object("/a", "5", None)]
    #[case::a_byte_order_mark("/a", "\u{feff}{\"a\":5}", Some("5"))]
    #[case::empty("/a", "", None)]
    fn finds_values_by_pointer(
        #[case] pointer: &str,
        #[case] document: &str,
        #[case] expected: Option<&str>,
    ) {
        let pointer = JsonPointer::parse(pointer).expect("a pointer");
        assert_eq!(pointer.find(document.as_bytes()).as_deref(), expected);
    }

    /// Bodies that programs read differently: some as 1000, others as something else or not at all.
    #[rstest]
    #[case::twice(r#"{"n":1000,"n":1}"#)]
    #[case::twice_and_null(r#"{"n":1000,"n":null}"#)]
    #[case::twice_and_escaped(r#"{"n":1000,"\u006e":1}"#)]
    #[case::in_capitals(r#"{"N":1000}"#)]
    #[case::beside_capitals(r#"{"N":1000,"n":1}"#)]
    #[case::beside_an_underscore(r#"{"n_":1000,"n":1}"#)]
    #[case::trailing_text(r#"{"n":1000} x"#)]
    #[case::trailing_document(r#"{"n":1000}{"n":1}"#)]
    #[case::trailing_zero("{\"n\":1000}\0")]
    #[case::not_a_number(r#"{"n":1000,"x":NaN}"#)]
    #[case::infinity(r#"{"x":-Infinity,"n":1000}"#)]
    #[case::a_lone_surrogate_in_a_name(r#"{"\ud800":1,"n":1000}"#)]
    #[case::a_comment(r#"{/**/"n":1000}"#)]
    #[case::a_comma(r#"{"n":1000,}"#)]
    #[case::single_quotes("{'n':1000}")]
    #[case::without_quotes("{n:1000}")]
    #[case::a_control_character("{\"n\":1000,\"x\":\"\n\"}")]
    #[case::another_space("{\"n\":1000}\u{b}")]
    #[case::too_large_a_number(r#"{"n":1e999}"#)]
    #[case::a_form("n=1000")]
    #[case::lines("{\"n\":1000}\n{}")]
    #[case::two_marks("\u{feff}\u{feff}{\"n\":1000}")]
    fn refuses_a_body_that_can_be_read_in_two_ways(#[case] body: &str) {
        let pointer = JsonPointer::parse("/n").expect("a pointer");
        assert!(pointer.read(body.as_bytes()).is_err());
    }

    #[test]
    fn refuses_a_body_in_another_encoding_than_utf_8() {
        let (pointer, body) = (JsonPointer::parse("/n").expect("a pointer"), r#"{"n":1000}"#);
        let words = || body.encode_utf16().map(u16::to_be_bytes);
        let wide: Vec<u8> = words().flatten().collect();
        let little: Vec<u8> = words().flat_map(|[high, low]| [low, high]).collect();
        let wider: Vec<u8> = words().flat_map(|[high, low]| [high, low, 0, 0]).collect();
        for (mark, body) in [(&[0xfe, 0xff][..], &wide), (&[0xff, 0xfe], &little), (&[], &wider)] {
            assert!(pointer.read(body).is_err() && pointer.read(&[mark, body].concat()).is_err());
        }
        for part in [&b"\"x\":\"\xff"[..], b"\"x\":\"\xed\xa0\x80", b"\"\xff\":\""] {
            assert!(pointer.read(&[b"{\"n\":1,", part, b"\"}"].concat()).is_err());
        }
    }

    #[rstest]
    #[case::plain("{\"n\":1000}", Some("1000"))]
    #[case::a_byte_order_mark("\u{feff}{\"n\":1000}", Some("1000"))]
    #[case::space(" \r\n\t{ \"n\" : 1e3 }\n", Some("1000"))]
    #[case::elsewhere_twice(r#"{"n":1000,"x":1,"x":{"n":1,"N":2}}"#, Some("1000"))]
    #[case::a_lone_surrogate_elsewhere(r#"{"n":1000,"x":"\ud800"}"#, Some("1000"))]
    #[case::no_member("{}", None)]
    #[case::no_object("[1,2]", None)]
    #[case::empty("", None)]
    fn reads_a_body_that_every_program_reads_alike(
        #[case] body: &str,
        #[case] expected: Option<&str>,
    ) {
        let pointer = JsonPointer::parse("/n").expect("a pointer");
        let read = pointer.read(body.as_bytes());
        assert_eq!(read.as_ref().map(Option::as_deref), Ok(expected));
    }

    #[rstest]
    #[case("MaxTokens", true)]
    #[case("max-tokens", true)]
    #[case("max_to\u{212a}en\u{17f}", true)]
    #[case("max_token", false)]
    fn recognises_names_that_some_programs_read_alike(#[case] other: &str, #[case] expected: bool) {
        assert_eq!(are_alike("max_tokens", other), expected);
    }

    #[rstest]
    #[case("usage")]
    #[case("")]
    #[case("/a~2")]
    #[case("/a~")]
    fn refuses_texts_that_are_no_pointer(#[case] text: &str) {
        assert!(JsonPointer::parse(text).is_err());
    }

    /// A document can be nested deeper than a stack is.
    #[test]
    fn reads_deep_documents_without_overflow() {
        let pointer = JsonPointer::parse("/a").expect("a pointer");
        let deep = format!("{{\"b\":{}1{},\"a\":1}}", "[".repeat(60_000), "]".repeat(60_000));
        assert!(pointer.find(deep.as_bytes()).is_none_or(|found| found == "1"));
    }
}
