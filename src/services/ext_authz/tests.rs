use super::*;
use http::HeaderMap;
use messages::{RawHeader, RawHeaders};
use rstest::rstest;

fn described(method: &str, path: &str, headers: &[(&str, &str)]) -> HttpAttributes {
    HttpAttributes {
        method: method.into(),
        path: path.into(),
        host: "api.test".into(),
        headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        ..HttpAttributes::default()
    }
}

#[test]
fn the_attributes_are_a_request_without_the_framing_of_the_original() {
    let fields = [
        (":path", "/other"),
        ("host", "other.test"),
        ("content-length", "7"),
        ("expect", "100-continue"),
        ("x-shop", "acme"),
    ];
    let request = restore(described("POST", "/search?q=1", &fields)).expect("a request");
    assert_eq!(
        (request.method().as_str(), request.uri().to_string()),
        ("POST", "/search?q=1".into())
    );
    let headers: Vec<_> = request.headers().iter().collect();
    assert_eq!(headers.len(), 2, "{headers:?}");
    assert_eq!(
        (&request.headers()["host"], &request.headers()["x-shop"]),
        (&HeaderValue::from_static("api.test"), &HeaderValue::from_static("acme"))
    );
}

#[test]
fn raw_headers_keep_bytes_and_count() {
    let field = |value: &'static [u8]| RawHeader {
        key: "x-a".into(),
        raw_value: Bytes::from_static(value),
        ..RawHeader::default()
    };
    let header_map = Some(RawHeaders { headers: vec![field(b"\xff"), field(b"b")] });
    let http = HttpAttributes { header_map, ..described("GET", "/", &[]) };
    let request = restore(http).expect("a request");
    let values: Vec<_> =
        request.headers().get_all("x-a").iter().map(|value| value.as_bytes()).collect();
    assert_eq!(values, [b"\xff", b"b"]);
}

/// An empty path is the root (RFC 9110 section 4.2.3).
#[rstest]
#[case::a_host("http://api.test", "/")]
#[case::a_query("http://api.test?q=1", "/?q=1")]
#[case::a_fragment("http://api.test#a", "/")]
fn a_target_without_a_path_is_the_root(#[case] target: &str, #[case] expected: &str) {
    let request = restore(described("GET", target, &[])).expect("a request");
    assert_eq!((request.uri().to_string().as_str(), request.uri().path()), (expected, "/"));
}

#[rstest]
#[case::nothing("", "")]
#[case::no_method("", "/")]
#[case::no_path("GET", "")]
#[case::an_authority("CONNECT", "api.test:443")]
#[case::a_space("GET", "/a b")]
fn refuses_attributes_that_describe_no_request(#[case] method: &str, #[case] path: &str) {
    assert!(matches!(restore(described(method, path, &[])), Err(Failure::BadRequest(_))));
}

#[test]
fn refuses_a_header_that_http_forbids() {
    let refused = restore(described("GET", "/", &[("x-a", "b\r\nx-c: d")]));
    assert!(matches!(refused, Err(Failure::BadRequest(_))));
}

#[test]
fn only_a_granted_permit_is_shown_to_the_application() {
    let (mut answer, request) = (HeaderMap::new(), HeaderMap::new());
    answer.insert("server-timing", HeaderValue::from_static("paceway;dur=1"));
    let mut slot = SlotHeaders { answer, request, removed: Vec::new() };
    let ok = allow(&slot).ok.expect("it passes");
    assert_eq!((ok.headers.len(), ok.headers_to_remove), (0, vec!["paceway-lease".to_owned()]));
    slot.request.insert(&PACEWAY_LEASE, HeaderValue::from_static("few; lease=\"1-2\""));
    let ok = allow(&slot).ok.expect("it passes");
    assert_eq!((ok.headers.len(), ok.response_headers_to_add.len()), (1, 1));
    assert!(ok.headers_to_remove.is_empty());
}

#[test]
fn the_credentials_of_an_account_are_for_the_application_alone() {
    let (answer, mut request) = (HeaderMap::new(), HeaderMap::new());
    request.insert("authorization", HeaderValue::from_static("Bearer secret"));
    let removed = vec![HeaderName::from_static("x-api-key")];
    let ok = allow(&SlotHeaders { answer, request, removed }).ok.expect("it passes");
    let named = |all: &[HeaderOption]| -> Vec<_> {
        all.iter().filter_map(|own| Some(own.header.as_ref()?.key.clone())).collect()
    };
    assert_eq!(named(&ok.headers), ["authorization"]);
    assert!(named(&ok.response_headers_to_add).is_empty());
    assert_eq!(ok.headers_to_remove, ["x-api-key", "paceway-lease"]);
}
