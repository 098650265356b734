//! The values of a JSON document that JSON pointers (RFC 6901) name. The document is read once, and no other part of it is
//! kept.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;
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

/// Values by the place of their pointer.
type AllFound = SmallVec<[Found; 1]>;

/// Reads a document, and finds the values that names lead to.
struct Seek<'a, 's> {
    /// The pointers that lead into this part of the document; at least one.
    wanted: &'s [SoughtValue<'a>],
    found: &'s mut [Found],
    /// Refuses names that programs read differently.
    is_strict: bool,
}

/// The rest of the names of a pointer, and the place of its value.
#[derive(Clone, Copy)]
struct SoughtValue<'a> {
    names: &'a [String],
    place: usize,
}

/// The pointers that lead into one member or item. A single one needs no allocation.
type Within<'a> = SmallVec<[SoughtValue<'a>; 1]>;

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

    #[cfg(test)]
    fn find(&self, document: &[u8]) -> Option<String> {
        Self::find_all(&[self], document).pop()?
    }

    /// The value of each pointer in a document: a text, or a number or truth value as text. `None` if the document is not
    /// valid, or has `null`, an object, an array or nothing there. The last one of several members with one name counts.
    pub fn find_all(pointers: &[&Self], document: &[u8]) -> SmallVec<[Option<String>; 1]> {
        let found = seek(pointers, document, false);
        found.unwrap_or_else(|_| pointers.iter().map(|_| None).collect())
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
        let found = seek(&[self], body, true).map_err(|error| unclear(&error))?;
        Ok(found.into_iter().next().flatten())
    }
}

fn seek(
    pointers: &[&JsonPointer],
    document: &[u8],
    is_strict: bool,
) -> Result<AllFound, serde_json::Error> {
    let document = document.strip_prefix(BYTE_ORDER_MARK).unwrap_or(document);
    let mut reader = serde_json::Deserializer::from_slice(document);
    let wanted = pointers.iter().enumerate();
    let wanted: Within<'_> =
        wanted.map(|(place, pointer)| SoughtValue { names: &pointer.names, place }).collect();
    let mut found: AllFound = pointers.iter().map(|_| None).collect();
    Seek { wanted: &wanted, found: &mut found, is_strict }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(found)
}

/// Whether some programs take two names for one: Go and .NET fold case, and protobuf takes `maxTokens` for `max_tokens`.
fn are_alike(one: &str, other: &str) -> bool {
    let plain = |name: &'_ str| -> String {
        let kept = name.chars().filter(|c| !matches!(c, '_' | '-'));
        kept.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
    };
    plain(one) == plain(other)
}

// === impl SoughtValue ===

impl<'a> SoughtValue<'a> {
    /// The same pointer within the member or item of this name.
    fn within(self, is_name: impl Fn(&str) -> bool) -> Option<Self> {
        let (first, names) = self.names.split_first()?;
        is_name(first).then_some(Self { names, ..self })
    }

    fn first(self) -> Option<&'a String> {
        self.names.first()
    }
}

// === impl Seek ===

impl<'de> DeserializeSeed<'de> for Seek<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl Seek<'_, '_> {
    /// Keeps a value that is no object and no array, as text.
    fn scalar<E: Error>(self, value: impl Fn() -> String) -> Result<(), E> {
        for wanted in self.wanted.iter().filter(|wanted| wanted.names.is_empty()) {
            self.found[wanted.place] = Some(value());
        }
        Ok(())
    }

    /// Refuses a name that is `seen` already, or that some programs take for one that is wanted.
    fn check_name<E: Error>(&self, name: &str, seen: &mut SmallVec<[usize; 1]>) -> Result<(), E> {
        for wanted in self.wanted {
            match wanted.first() {
                Some(first) if first == name && seen.contains(&wanted.place) => {
                    return Err(E::custom(format_args!("`{first}` comes twice")));
                }
                Some(first) if first == name => seen.push(wanted.place),
                Some(first) if are_alike(first, name) => {
                    let why = format_args!("a name is taken for `{first}` by some programs");
                    return Err(E::custom(why));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Seeks `within` a member or an item. The values of an earlier one with the same name are forgotten.
    fn part<'b, 't>(&'t mut self, within: &'t [SoughtValue<'b>]) -> Seek<'b, 't> {
        for wanted in within {
            self.found[wanted.place] = None;
        }
        Seek { wanted: within, found: self.found, is_strict: self.is_strict }
    }
}

impl<'de> Visitor<'de> for Seek<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.scalar(|| value.to_string())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.scalar(|| value.to_string())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.scalar(|| value.to_string())
    }

    /// A whole number may be written `1e3` or `1000.0`; it is shown as `1000`. Zero has no sign.
    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.scalar(|| (value + 0.0).to_string())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.scalar(|| value.to_owned())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        let mut seen = SmallVec::new();
        while let Some(name) = members.next_key::<std::borrow::Cow<'de, str>>()? {
            if self.is_strict {
                self.check_name(&name, &mut seen)?;
            }
            let within = self.wanted.iter().filter_map(|own| own.within(|first| first == name));
            let within: Within<'_> = within.collect();
            if within.is_empty() {
                members.next_value::<IgnoredAny>()?;
            } else {
                members.next_value_seed(self.part(&within))?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        for i in 0.. {
            let within =
                self.wanted.iter().filter_map(|own| own.within(|name| index(name) == Some(i)));
            let within: Within<'_> = within.collect();
            let item = if within.is_empty() {
                items.next_element::<IgnoredAny>()?.map(drop)
            } else {
                items.next_element_seed(self.part(&within))?
            };
            if item.is_none() {
                break;
            }
        }
        Ok(())
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

    /// Each is found as if it were sought alone: in common objects and arrays, twice, and where a later member forgets one.
    #[rstest]
    #[case(&["/a/b", "/a/c", "/a/b"], r#"{"a":{"b":1,"x":[{"c":9}],"c":2}}"#, &["1", "2", "1"])]
    #[case(&["/1/a", "/1/b", "/0"], r#"[0,{"b":2,"a":1},3]"#, &["1", "2", "0"])]
    #[case(&["/a", "/a/b"], r#"{"a":{"b":1}}"#, &["", "1"])]
    #[case(&["/a", "/a/b"], r#"{"a":{"b":1},"a":5}"#, &["5", ""])]
    #[case(&["/a/b", "/a/c"], r#"{"a":{"b":1},"a":{"c":2}}"#, &["", "2"])]
    #[case(&["/a/b", "/c"], r#"{"a":null,"c":2}"#, &["", "2"])]
    #[case(&["/a", "/b"], r#"{"a":1,"b":2"#, &["", ""])]
    fn finds_several_values_in_one_pass(
        #[case] pointers: &[&str],
        #[case] document: &str,
        #[case] expected: &[&str],
    ) {
        let pointers: Vec<_> =
            pointers.iter().map(|text| JsonPointer::parse(text).expect("a pointer")).collect();
        let all: Vec<_> = pointers.iter().collect();
        let together = JsonPointer::find_all(&all, document.as_bytes());
        let alone: Vec<_> = all.iter().map(|pointer| pointer.find(document.as_bytes())).collect();
        assert_eq!(together.to_vec(), alone);
        let shown: Vec<_> = together.iter().map(|found| found.as_deref().unwrap_or("")).collect();
        assert_eq!(shown, expected);
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
