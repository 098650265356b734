//! Reads and answers that may be shared and kept, by their heads alone.

use super::*;
use rstest::rstest;

type Fields<'f> = &'f [(&'static str, &'static str)];

fn headers(fields: Fields<'_>) -> HeaderMap {
    let fields = fields.iter();
    let fields = fields
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    fields.fold(HeaderMap::new(), |mut all, (name, value)| {
        all.append(name, value);
        all
    })
}

fn answer(status: u16, fields: Fields<'_>) -> Response<()> {
    let mut answer = Response::new(());
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
    *answer.headers_mut() = headers(fields);
    answer
}

#[rstest]
#[case::plain(Method::GET, &[], true)]
#[case::head(Method::HEAD, &[], true)]
#[case::post(Method::POST, &[], false)]
#[case::patience(Method::GET, &[("cache-control", "max-age=0")], true)]
#[case::quoted_comma(Method::GET, &[("cache-control", "x=\"a, no-store\"")], true)]
#[case::second_field(Method::GET, &[("cache-control", "max-age=0"), ("cache-control", "No-Cache")], false)]
#[case::range(Method::GET, &[("range", "bytes=0-")], false)]
#[case::upgrade(Method::GET, &[("upgrade", "websocket")], false)]
fn a_plain_read_asks_for_a_whole_representation(
    #[case] method: Method,
    #[case] fields: Fields<'_>,
    #[case] is_plain: bool,
) {
    assert_eq!(is_plain_read(&method, &headers(fields)), is_plain);
}

/// Bytes that are no text may be any directive, and any name.
#[test]
fn a_field_that_is_no_text_lets_nothing_be_shared() {
    let mut answer = answer(200, &[]);
    let binary = HeaderValue::from_bytes(b"caf\xe9").expect("a value");
    answer.headers_mut().insert(VARY, binary);
    assert_eq!(Variant::of(answer.headers(), &HeaderMap::new()), None);
}

#[rstest]
#[case::private_fields("private=\"x-a, x-b\"")]
#[case::private("max-age=1,PRIVATE")]
fn a_private_answer_needs_an_owner(#[case] control: &'static str) {
    let answer =
        answer(200, &[("cache-control", control), ("etag", "\"1\""), ("content-length", "0")]);
    assert!(may_be_shared(&answer, true) && may_be_kept(&answer, true));
    assert!(!may_be_shared(&answer, false) && !may_be_kept(&answer, false));
}

#[rstest]
#[case::created(201, true, false)]
#[case::part(206, false, false)]
#[case::unchanged(304, true, false)]
#[case::refused(403, false, false)]
#[case::gone(410, true, false)]
#[case::failed(500, false, false)]
#[case::whole(200, true, true)]
fn a_status_says_whether_it_is_a_result(
    #[case] status: u16,
    #[case] is_shared: bool,
    #[case] is_kept: bool,
) {
    let answer = answer(status, &[("etag", "\"1\""), ("content-length", "0")]);
    assert_eq!((may_be_shared(&answer, false), may_be_kept(&answer, false)), (is_shared, is_kept));
}

/// `If-None-Match: *` would be true of any answer.
#[rstest]
#[case::strong("\"1\"", true)]
#[case::weak("W/\"1\"", true)]
#[case::any("*", false)]
#[case::bare("abc", false)]
#[case::two("\"a\"b\"", false)]
fn an_answer_is_kept_by_an_entity_tag(#[case] tag: &'static str, #[case] is_kept: bool) {
    let answer = answer(200, &[("etag", tag), ("content-length", "0")]);
    assert_eq!(may_be_kept(&answer, true), is_kept);
}

#[test]
fn a_variant_has_the_values_of_all_named_fields() {
    let vary = headers(&[("vary", "x-a, X-B"), ("vary", "x-c")]);
    let of = |fields: Fields<'_>| Variant::of(&vary, &headers(fields)).expect("a variant");
    let one = of(&[("x-a", "1"), ("x-c", "2")]);
    assert!(one.matches(&headers(&[("x-c", "2"), ("x-a", "1"), ("x-d", "3")])));
    for other in [&[("x-a", "1")][..], &[("x-a", "1"), ("x-a", "1"), ("x-c", "2")]] {
        assert!(!one.matches(&headers(other)));
    }
    assert_eq!(Variant::of(&headers(&[("vary", "x-a, *")]), &vary), None);
}
