//! Values that pointers find, and bodies that can be read in two ways.

mod oracle;

use super::*;
use proptest::prelude::*;
use rstest::rstest;
use std::sync::Arc;

/// The value in a body that no program may read in another way.
fn read(pointer: &str, body: &[u8]) -> Result<Option<String>, JsonFault> {
    let pointers: Arc<[_]> = [JsonPointer::parse(pointer).expect("a pointer")].into();
    JsonValues::of(&pointers, body).map(|values| values.get(&pointers[0]).map(str::to_owned))
}

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
    assert!(read("/n", body.as_bytes()).is_err());
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
    let body = r#"{"n":1000}"#;
    let words = || body.encode_utf16().map(u16::to_be_bytes);
    let wide: Vec<u8> = words().flatten().collect();
    let little: Vec<u8> = words().flat_map(|[high, low]| [low, high]).collect();
    let wider: Vec<u8> = words().flat_map(|[high, low]| [high, low, 0, 0]).collect();
    for (mark, body) in [(&[0xfe, 0xff][..], &wide), (&[0xff, 0xfe], &little), (&[], &wider)] {
        assert!(read("/n", body).is_err() && read("/n", &[mark, body].concat()).is_err());
    }
    for part in [&b"\"x\":\"\xff"[..], b"\"x\":\"\xed\xa0\x80", b"\"\xff\":\""] {
        assert!(read("/n", &[b"{\"n\":1,", part, b"\"}"].concat()).is_err());
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
    let read = read("/n", body.as_bytes());
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

#[test]
fn knows_a_part_as_soon_as_nothing_can_change_it() {
    let texts = ["/a/1", "/b", "/c/x"];
    let pointers: Arc<[_]> = texts.map(|text| JsonPointer::parse(text).expect("a pointer")).into();
    let mut scanner = JsonScanner::new(&pointers);
    for (piece, unseen) in [
        (r#"{"a":[1,"#, [true, true, true]),
        (r#"23"#, [true, true, true]),
        (r#","#, [false, true, true]),
        (r#"{}],"c":5"#, [false, true, true]),
        (r#","x":[[{"b":1}]]"#, [false, true, false]),
        (r#","b":{"#, [false, false, false]),
    ] {
        scanner.feed(piece.as_bytes()).expect("good so far");
        let values = scanner.values();
        assert_eq!([0, 1, 2].map(|place| values.is_unseen(place)), unseen, "{piece}");
    }
    assert!(scanner.is_known());
    assert!(scanner.feed(br#"}, "b": 1"#).is_err(), "the rest is checked, too");
    assert_eq!(scanner.values().get(&pointers[0]), Some("23"));
}

#[rstest]
#[case::a_name(format!(r#"{{"n":1,"{}":1}}"#, "x".repeat(65_537)), false)]
#[case::a_name_that_fits(format!(r#"{{"n":1,"{}":1}}"#, "x".repeat(65_536)), true)]
#[case::a_name_elsewhere(format!(r#"{{"n":1,"x":{{"{}":1}}}}"#, "x".repeat(65_537)), true)]
#[case::a_value(format!(r#"{{"n":"{}"}}"#, "x".repeat(65_537)), false)]
#[case::a_number(format!(r#"{{"n":{}}}"#, "1".repeat(65_537)), false)]
#[case::a_value_elsewhere(format!(r#"{{"x":"{}","n":1}}"#, "x".repeat(65_537)), true)]
#[case::deep(format!(r#"{{"n":1,"x":{}{}}}"#, "[".repeat(1024), "]".repeat(1024)), false)]
#[case::as_deep_as_may_be(format!(r#"{{"n":1,"x":{}{}}}"#, "[".repeat(1023), "]".repeat(1023)), true)]
fn keeps_no_more_than_a_bound_allows(#[case] body: String, #[case] passes: bool) {
    assert_eq!(read("/n", body.as_bytes()).is_ok(), passes);
}

/// Texts that are JSON, or nearly.
fn documents() -> impl Strategy<Value = Vec<u8>> {
    let scalars = prop::sample::select(
        &[
            "1",
            "-0",
            "0",
            "01",
            "1.50",
            "1e3",
            "-1E-2",
            "1e999",
            "2.",
            "-",
            "18446744073709551616",
            "true",
            "false",
            "null",
            "nul",
            "\"x\"",
            "\"\\u0041\"",
            "\"\\ud800\"",
            "\"\\ud83d\\ude00\"",
            "\"é\"",
            "\"\\x\"",
            "\"\"",
        ][..],
    );
    let name = || {
        prop::sample::select(&["a", "b", "A", "a_", "\\u0061", "0", "1", "", "\\ud800", "é"][..])
    };
    let space = || prop::sample::select(&["", "", "", " ", "\r\n\t"][..]);
    let tree = scalars.prop_map(str::to_owned).prop_recursive(4, 24, 4, move |inner| {
        let member = (name(), space(), inner.clone(), space());
        let member = member.prop_map(|(name, one, value, other)| {
            format!("{one}\"{name}\"{other}:{one}{value}{other}")
        });
        prop_oneof![
            prop::collection::vec(member, 0..4).prop_map(|all| format!("{{{}}}", all.join(","))),
            prop::collection::vec(inner, 0..4).prop_map(|all| format!("[{}]", all.join(", "))),
        ]
    });
    let start = prop::sample::select(&["", "", "", " ", "\u{feff}", "\u{feff}\u{feff}"][..]);
    let end = prop::sample::select(&["", "", "", "\n", ",", "}", "x", "1", "\0"][..]);
    let text = (start, tree, end)
        .prop_map(|(start, tree, end)| format!("{start}{tree}{end}").into_bytes());
    let harm = prop::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    (text, harm).prop_map(|(mut text, harm)| {
        if let Some((at, byte)) = harm {
            let at = at.index(text.len());
            text[at] = byte;
        }
        text
    })
}

fn pointers() -> impl Strategy<Value = Vec<JsonPointer>> {
    let text = prop::sample::select(
        &["/a", "/b", "/a/b", "/a/0", "/0", "/1/a", "/a/a/a", "/", "/é", "/A"][..],
    );
    let pointer = text.prop_map(|text| JsonPointer::parse(text).expect("a pointer"));
    prop::collection::vec(pointer, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// In pieces or whole, a document is read as a parser reads it that has it whole.
    #[test]
    fn a_scanner_agrees_with_a_parser(
        document in documents(),
        pointers in pointers(),
        cuts in prop::collection::vec(0..9_usize, 1..5),
    ) {
        let sought: Vec<_> = pointers.iter().collect();
        let lenient = JsonPointer::find_all(&sought, &document);
        let parsed = oracle::seek(&sought, &document, false).ok();
        prop_assert_eq!(lenient.to_vec(), parsed.unwrap_or_else(|| sought.iter().map(|_| None).collect()).to_vec());
        let pointers: Arc<[_]> = pointers.into();
        let mut scanner = JsonScanner::new(&pointers);
        let (mut rest, mut cuts, mut is_good) = (&document[..], cuts.iter().cycle(), true);
        while is_good && !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(1 + cuts.next().expect("a cut")));
            rest = after;
            is_good = scanner.feed(piece).is_ok();
        }
        is_good &= scanner.end().is_ok();
        let is_utf8 = std::str::from_utf8(&document).is_ok();
        let strict: Vec<_> = pointers.iter().collect();
        let parsed = oracle::seek(&strict, &document, true).ok().filter(|_| is_utf8);
        let found = is_good.then(|| scanner.values());
        let found = found.map(|values| pointers.iter().map(|own| values.get(own).map(str::to_owned)).collect::<Vec<_>>());
        prop_assert_eq!(found, parsed.map(|all| all.to_vec()));
    }
}
