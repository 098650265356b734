//! HTTP/1.1 requests as bytes: what is refused, before anything is charged or forwarded, and what exactly arrives of the
//! rest. One case a rule.

mod sound;

use crate::support::{Gateway, Upstream};
use rstest::rstest;

async fn before(upstream: &Upstream) -> Gateway {
    let url = upstream.url();
    Gateway::start(&format!(
        "upstream: {url}\nlimiters: {{ one: 100/day }}\nroutes: [{{ suffix: \"*\", limiters: [one] }}]\n"
    ))
    .await
}

async fn level(gateway: &Gateway) -> i64 {
    gateway.limiter("one").await["level"].as_i64().expect("a level")
}

/// Writes a GET of HTTP/1.1 with these lines in its head.
fn get(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n").into_bytes()
}

/// A POST with these lines in its head, and what follows.
fn post(lines: &str, body: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n{body}").into_bytes()
}

/// Writes a GET whose first line is `line`, valid or not.
fn line(line: impl AsRef<[u8]>) -> Vec<u8> {
    [line.as_ref(), b"\r\nHost: a\r\n\r\n"].concat()
}

/// A GET that names this host, in one line or several.
fn host(lines: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\n{lines}\r\n").into_bytes()
}

fn raw(before: &str, bytes: &[u8], behind: &str) -> Vec<u8> {
    [before.as_bytes(), bytes, behind.as_bytes()].concat()
}

#[rstest]
// The request line (RFC 9112 section 3).
#[case::method_in_small_letters(line("get / HTTP/1.1"), 400, "bad-request")]
#[case::method_of_delimiters(line("G(T / HTTP/1.1"), 400, "bad-request")]
#[case::no_method(line(" / HTTP/1.1"), 400, "bad-request")]
#[case::tab_behind_the_method(line("GET\t/ HTTP/1.1"), 400, "bad-request")]
#[case::two_spaces(line("GET  / HTTP/1.1"), 400, "bad-request")]
#[case::space_at_the_end(line("GET / HTTP/1.1 "), 400, "bad-request")]
#[case::space_in_the_target(line("GET /a b HTTP/1.1"), 400, "bad-request")]
#[case::no_version(line("GET /"), 400, "bad-request")]
#[case::version_1_2(line("GET / HTTP/1.2"), 400, "bad-request")]
#[case::version_1_10(line("GET / HTTP/1.10"), 400, "bad-request")]
#[case::version_2(line("GET / HTTP/2.0"), 400, "bad-request")]
#[case::version_0_9(line("GET / HTTP/0.9"), 400, "bad-request")]
#[case::version_in_small_letters(line("GET / http/1.1"), 400, "bad-request")]
#[case::bare_cr_in_the_line(line("GET /\r HTTP/1.1"), 400, "bad-request")]
// Targets (RFC 9112 section 3.2).
#[case::nul_in_the_target(line("GET /\0 HTTP/1.1"), 400, "bad-request")]
#[case::control_in_the_target(line("GET /\x01 HTTP/1.1"), 400, "bad-request")]
#[case::del_in_the_target(line("GET /\x7f HTTP/1.1"), 400, "bad-request")]
#[case::latin1_in_the_target(line(raw("GET /", b"\xe9", " HTTP/1.1")), 400, "bad-request")]
#[case::angle_brackets(line("GET /<x> HTTP/1.1"), 400, "bad-request")]
#[case::backtick(line("GET /`x` HTTP/1.1"), 400, "bad-request")]
#[case::relative(line("GET search HTTP/1.1"), 400, "bad-request")]
#[case::authority_form(line("GET a.example:80 HTTP/1.1"), 400, "bad-request")]
#[case::star_for_get(line("GET * HTTP/1.1"), 400, "bad-request")]
#[case::star_and_more(line("OPTIONS *x HTTP/1.1"), 400, "bad-request")]
#[case::star_with_a_query(line("OPTIONS *?x HTTP/1.1"), 400, "bad-request")]
#[case::other_scheme(line("GET ftp://a/ HTTP/1.1"), 400, "bad-request")]
#[case::no_authority(line("GET http:///x HTTP/1.1"), 400, "bad-request")]
#[case::credentials(line("GET http://u:p@a/ HTTP/1.1"), 400, "bad-request")]
#[case::odd_authority(line("GET http://a:x/ HTTP/1.1"), 400, "bad-request")]
#[case::connect(line("CONNECT a.example:443 HTTP/1.1"), 405, "method-not-allowed")]
#[case::connect_to_a_path(line("CONNECT / HTTP/1.1"), 405, "method-not-allowed")]
#[case::trace(line("TRACE / HTTP/1.1"), 405, "method-not-allowed")]
#[case::long_target(line(format!("GET /{} HTTP/1.1", "x".repeat(8 << 10))), 414, "too-large")]
#[case::long_url(line(format!("GET http://a/{} HTTP/1.1", "x".repeat(8 << 10))), 414, "too-large")]
#[case::illegible_path(line(format!("GET /{} HTTP/1.1", "..;\\%2f%2e/".repeat(300))), 400, "bad-request")]
// Header lines (RFC 9112 section 5).
#[case::space_in_a_name(get("Bad Name: x"), 400, "bad-request")]
#[case::space_before_the_colon(get("Name : x"), 400, "bad-request")]
#[case::tab_before_the_colon(get("Name\t: x"), 400, "bad-request")]
#[case::empty_name(get(": x"), 400, "bad-request")]
#[case::no_colon(get("Name"), 400, "bad-request")]
#[case::nul_in_a_name(get("Na\0me: x"), 400, "bad-request")]
#[case::control_in_a_name(get("Na\x0bme: x"), 400, "bad-request")]
#[case::utf8_in_a_name(get("Näme: x"), 400, "bad-request")]
#[case::quote_in_a_name(get("\"Name\": x"), 400, "bad-request")]
#[case::cr_in_a_name(get("Na\rme: x"), 400, "bad-request")]
#[case::nul_in_a_value(get("Name: a\0b"), 400, "bad-request")]
#[case::control_in_a_value(get("Name: a\x08b"), 400, "bad-request")]
#[case::del_in_a_value(get("Name: a\x7fb"), 400, "bad-request")]
#[case::bare_cr_in_a_value(get("Name: a\rb"), 400, "bad-request")]
#[case::bare_cr_as_a_line_end(get("Name: a\rOther: b"), 400, "bad-request")]
#[case::folded_with_a_space(get("Name: a\r\n b"), 400, "bad-request")]
#[case::folded_with_a_tab(get("Name: a\r\n\tb"), 400, "bad-request")]
#[case::space_before_the_first(host(" Host: a\r\n"), 400, "bad-request")]
#[case::too_many(get(&vec!["X: x"; 101].join("\r\n")), 431, "too-large")]
#[case::too_large(get(&format!("X: {}", "x".repeat(32 << 10))), 431, "too-large")]
// Hosts (RFC 9112 section 3.2).
#[case::no_host(host(""), 400, "bad-request")]
#[case::no_host_of_a_url(b"GET http://a/ HTTP/1.1\r\n\r\n".to_vec(), 400, "bad-request")]
#[case::two_hosts(host("Host: a\r\nHost: b\r\n"), 400, "bad-request")]
#[case::one_host_twice(host("Host: a\r\nHost: a\r\n"), 400, "bad-request")]
#[case::two_old_hosts(b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n".to_vec(), 400, "bad-request")]
#[case::a_list_of_hosts(host("Host: a, b\r\n"), 400, "bad-request")]
#[case::empty_host(host("Host:\r\n"), 400, "bad-request")]
#[case::host_with_credentials(host("Host: u@a\r\n"), 400, "bad-request")]
#[case::host_with_a_path(host("Host: a/b\r\n"), 400, "bad-request")]
#[case::host_with_a_space(host("Host: a b\r\n"), 400, "bad-request")]
#[case::host_with_a_bad_port(host("Host: a:99999\r\n"), 400, "bad-request")]
#[case::host_with_a_tab(host("Host: a\tb\r\n"), 400, "bad-request")]
// Where a body ends (RFC 9112 section 6).
#[case::lengths_that_differ(
    post("Content-Length: 1\r\nContent-Length: 2", "xx"),
    400,
    "bad-request"
)]
#[case::a_list_of_lengths(post("Content-Length: 1, 1", "x"), 400, "bad-request")]
#[case::signed_length(post("Content-Length: +1", "x"), 400, "bad-request")]
#[case::negative_length(post("Content-Length: -1", "x"), 400, "bad-request")]
#[case::hexadecimal_length(post("Content-Length: 0x1", "x"), 400, "bad-request")]
#[case::empty_length(post("Content-Length:", ""), 400, "bad-request")]
#[case::length_with_a_space(post("Content-Length: 1 1", "x"), 400, "bad-request")]
#[case::length_with_a_fraction(post("Content-Length: 1.0", "x"), 400, "bad-request")]
#[case::length_beyond_64_bits(
    post("Content-Length: 18446744073709551617", "x"),
    400,
    "bad-request"
)]
#[case::length_in_other_digits(post("Content-Length: \u{661}", "x"), 400, "bad-request")]
#[case::chunked_twice(post("Transfer-Encoding: chunked, chunked", "0\r\n\r\n"), 400, "bad-request")]
#[case::chunked_in_two_lines(
    post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
    400,
    "bad-request"
)]
#[case::nameless_coding(post("Transfer-Encoding: , chunked", "0\r\n\r\n"), 400, "bad-request")]
#[case::empty_coding(post("Transfer-Encoding:", "0\r\n\r\n"), 400, "bad-request")]
#[case::no_coding(post("Transfer-Encoding: identity", "0\r\n\r\n"), 400, "bad-request")]
#[case::chunked_and_then_another(
    post("Transfer-Encoding: chunked, gzip", "0\r\n\r\n"),
    400,
    "bad-request"
)]
#[case::chunked_with_a_parameter(
    post("Transfer-Encoding: chunked;q=1", "0\r\n\r\n"),
    400,
    "bad-request"
)]
#[case::chunked_in_quotes(post("Transfer-Encoding: \"chunked\"", "0\r\n\r\n"), 400, "bad-request")]
#[case::chunked_behind_a_control(
    post("Transfer-Encoding: \x0bchunked", "0\r\n\r\n"),
    400,
    "bad-request"
)]
#[case::almost_chunked(post("Transfer-Encoding: xchunked", "0\r\n\r\n"), 400, "bad-request")]
#[case::packed_and_chunked(
    post("Transfer-Encoding: gzip, chunked", "0\r\n\r\n"),
    501,
    "not-implemented"
)]
#[case::packed_and_chunked_in_two_lines(
    post("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
    501,
    "not-implemented"
)]
#[case::unknown_and_chunked(
    post("Transfer-Encoding: cow, chunked", "0\r\n\r\n"),
    501,
    "not-implemented"
)]
#[case::old_and_chunked(
    b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(), 400, "bad-request"
)]
#[tokio::test(flavor = "multi_thread")]
async fn refuses_malformed_requests(
    #[case] bytes: Vec<u8>,
    #[case] status: u16,
    #[case] code: &str,
) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    // A client that continues to send is not served.
    conn.send([&bytes, &b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n"[..]].concat())
        .await
        .expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (status, code), "{answer:?}");
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(answer.field("allow").is_some(), status == 405);
    assert_eq!(conn.rest().await, b"", "the connection ends after it");
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(level(&gateway).await, 100);
}

#[rstest]
#[case::another("fancy")]
#[case::another_beside("100-continue, fancy")]
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_expectation_is_refused_with_417(#[case] expected: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    conn.send(get(&format!("Expect: {expected}"))).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (417, "expectation-failed"));
    conn.send(get("X: x")).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200, "it was a sound message");
    assert_eq!(upstream.calls().len(), 1);
    assert_eq!(level(&gateway).await, 99);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_with_a_too_large_length_is_refused_without_charge() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "limits: {{ body: 4 }}\nupstream: {}\nlimiters: {{ one: 100/day }}
routes: [{{ suffix: \"*\", limiters: [one] }}]\n",
        upstream.url()
    ))
    .await;
    let mut conn = gateway.connect().await;
    conn.send(post("Content-Length: 4", "body")).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    conn.send(post("Content-Length: 5", "")).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (413, "too-large"));
    assert_eq!(conn.rest().await, b"");
    assert_eq!(upstream.calls().len(), 1);
    assert_eq!(level(&gateway).await, 99);
}
