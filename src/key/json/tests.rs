//! Values that pointers find, and bodies that can be read in two ways.

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
fn reads_a_body_that_every_program_reads_alike(#[case] body: &str, #[case] expected: Option<&str>) {
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
