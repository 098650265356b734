use super::*;
use crate::{answer::Failure as F, proxy::ClientConnection};
use rstest::rstest;
use std::{
    path::Path,
    sync::Arc,
    task::{Context, Poll},
};

struct Silent;

impl ClientConnection for Silent {
    fn poll_left(&self, _cx: &mut Context<'_>) -> Poll<bool> {
        Poll::Pending
    }

    fn framed_twice(&self) -> bool {
        false
    }

    fn inform(&self, _response: &[u8]) {}
}

fn refused(request: http::request::Builder, limits: Limits) -> Option<u16> {
    let client = Client::new([127, 0, 0, 1].into(), 80, false, &[], Arc::new(Silent));
    let request = request.body(()).unwrap();
    let text = "upstream: http://a\nroutes: [{ suffix: '*' }]\n";
    let mut config = Config::parse(text, "test", Path::new("."), &|_| None).expect("a config");
    config.limits = limits;
    let failure: Option<F> = {
        let seen = HeaderFlags::of(request.headers());
        let valid = super::request(&client, &config, &request, seen);
        valid.and_then(|_| demands(&config.limits, &request, seen)).err()
    };
    failure.map(|failure| failure.response().status().as_u16())
}

#[rstest]
#[case::name("api.example", true)]
#[case::one_label("localhost", true)]
#[case::final_dot("api.example.", true)]
#[case::underscore("a_b.example:8080", true)]
#[case::port("api.example:443", true)]
#[case::empty_port("api.example:", true)]
#[case::ipv4("192.0.2.1:80", true)]
#[case::ipv6("[2001:db8::1]:80", true)]
#[case::ipv6_alone("[::1]", true)]
#[case::comma("a.example,b.example", false)]
#[case::empty("", false)]
#[case::port_alone(":80", false)]
#[case::credentials("u:p@api.example", false)]
#[case::user("u@api.example", false)]
#[case::space("a b", false)]
#[case::path("a/b", false)]
#[case::query("a?b", false)]
#[case::fragment("a#b", false)]
#[case::backslash("a\\b", false)]
#[case::quote("a\"b", false)]
#[case::escape("a%2eb", false)]
#[case::obs_text("caf\u{e9}", false)]
#[case::bare_ipv6("::1", false)]
#[case::open_bracket("[::1", false)]
#[case::text_behind_brackets("[::1]x", false)]
#[case::no_address("[api]", false)]
#[case::zone("[fe80::1%25eth0]", false)]
#[case::port_that_is_none("a:b", false)]
#[case::port_with_a_sign("a:+1", false)]
#[case::port_too_high("a:65536", false)]
#[case::two_ports("a:1:2", false)]
fn recognises_hosts(#[case] text: &str, #[case] is: bool) {
    assert_eq!(is_host(text.as_bytes()), is);
}

#[rstest]
#[case::alike("a.example", Some("A.example"), None)]
#[case::no_host("a.example", None, None)]
#[case::they_differ("a.example", Some("b.example"), Some(400))]
#[case::by_a_port("a.example", Some("a.example:80"), Some(400))]
fn the_authority_of_http2_is_the_host(
    #[case] authority: &str,
    #[case] host: Option<&str>,
    #[case] status: Option<u16>,
) {
    let request = Request::builder().version(Version::HTTP_2);
    let mut request = request.uri(format!("https://{authority}/"));
    if let Some(host) = host {
        request = request.header(HOST, host);
    }
    assert_eq!(refused(request, Limits::default()), status);
}

#[test]
fn http2_without_any_host_is_refused() {
    let request = Request::builder().version(Version::HTTP_2).uri("/");
    assert_eq!(refused(request, Limits::default()), Some(400));
}

#[rstest]
#[case::a_tunnel("CONNECT", None, Some(405))]
#[case::a_websocket("CONNECT", Some("websocket"), None)]
#[case::another_protocol("CONNECT", Some("connect-udp"), Some(405))]
#[case::an_echo("TRACE", None, Some(405))]
#[case::small_letters("get", None, Some(400))]
#[case::any_other("M-SEARCH", None, None)]
fn refuses_unsupported_methods(
    #[case] method: &str,
    #[case] protocol: Option<&'static str>,
    #[case] status: Option<u16>,
) {
    let request = Request::builder().version(Version::HTTP_2).uri("https://a/").method(method);
    let request = match protocol {
        Some(protocol) => request.extension(Protocol::from_static(protocol)),
        None => request,
    };
    assert_eq!(refused(request, Limits::default()), status);
}

#[rstest]
#[case::few(2, 10, None)]
#[case::too_many(3, 10, Some(431))]
#[case::too_large(1, 1000, Some(431))]
fn headers_of_http2_are_counted(
    #[case] number: usize,
    #[case] length: usize,
    #[case] status: Option<u16>,
) {
    let mut request = Request::builder().version(Version::HTTP_2).uri("https://a/");
    for _ in 0..number {
        request = request.header("x", "x".repeat(length));
    }
    let limits = Limits { headers: 2, header_bytes: 1000, ..Limits::default() };
    assert_eq!(refused(request, limits), status);
}

#[rstest]
#[case::other_scheme("ftp://a/", Some(400))]
#[case::credentials("https://u:p@a/", Some(400))]
#[case::many_readings(&format!("https://a{}", "/%2e;\\\\%u0061".repeat(200)), Some(400))]
#[case::long_and_plain(&format!("https://a{}", "/a%2f;b".repeat(1000)), None)]
#[case::json("https://a/{\"a\":[1|2]}", None)]
fn refuses_invalid_targets_of_http2(#[case] target: &str, #[case] status: Option<u16>) {
    let request = Request::builder().version(Version::HTTP_2).uri(target);
    assert_eq!(refused(request, Limits::default()), status);
}

#[rstest]
#[case::none(None, "999", None)]
#[case::as_much_as_may(Some(4), "4", None)]
#[case::more(Some(4), "5", Some(413))]
fn refuses_bodies_above_the_limit_by_length(
    #[case] body: Option<u64>,
    #[case] length: &str,
    #[case] status: Option<u16>,
) {
    let request = Request::builder().uri("/").header(HOST, "a").header(CONTENT_LENGTH, length);
    assert_eq!(refused(request, Limits { body, ..Limits::default() }), status);
}

#[rstest]
#[case::one(&["5"], None)]
#[case::none_in_it(&[""], Some(400))]
#[case::an_empty_one_behind(&["0", ""], Some(400))]
#[case::two_alike(&["5", "5"], Some(400))]
#[case::a_sign(&["+5"], Some(400))]
#[case::too_many_digits(&["99999999999999999999"], Some(400))]
fn refuses_lengths_that_are_not_one_number(#[case] lengths: &[&str], #[case] status: Option<u16>) {
    let mut request = Request::builder().version(Version::HTTP_2).uri("https://a/").method("POST");
    for length in lengths {
        request = request.header(CONTENT_LENGTH, *length);
    }
    assert_eq!(refused(request, Limits::default()), status);
}
