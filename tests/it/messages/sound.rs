//! Sound messages: what exactly arrives of each at the upstream.

use super::{before, level};
use crate::support::{Upstream, eventually};
use rstest::rstest;

#[rstest]
#[case::empty_lines_before("\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n", "GET /x HTTP/1.1", "")]
#[case::bare_lf("GET /x HTTP/1.1\nHost: a\n\n", "GET /x HTTP/1.1", "")]
#[case::old("GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.1", "")]
#[case::own_method("M-SEARCH /x HTTP/1.1\r\nHost: a\r\n\r\n", "M-SEARCH /x HTTP/1.1", "")]
#[case::url(
    "GET http://b:81/x?y HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /x?y HTTP/1.1",
    "x-forwarded-host: b:81"
)]
#[case::url_in_capitals(
    "GET HTTP://B/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /x HTTP/1.1",
    "x-forwarded-host: B"
)]
#[case::https_url(
    "GET https://b/x HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /x HTTP/1.1",
    "x-forwarded-host: b"
)]
#[case::url_without_a_path("GET http://b?x HTTP/1.1\r\nHost: a\r\n\r\n", "GET /?x HTTP/1.1", "")]
#[case::all_of_the_server("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1", "")]
#[case::json_in_the_path(
    "GET /{\"a\":[1|2]}^ HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /{\"a\":[1|2]}^ HTTP/1.1",
    ""
)]
#[case::brackets_in_the_query(
    "GET /x?a[b]={c|d}&^` HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /x?a[b]={c|d}&^` HTTP/1.1",
    ""
)]
#[case::utf8_in_the_target("GET /é?é HTTP/1.1\r\nHost: a\r\n\r\n", "GET /é?é HTTP/1.1", "")]
#[case::fragment("GET /x?y#/../z HTTP/1.1\r\nHost: a\r\n\r\n", "GET /x?y HTTP/1.1", "")]
#[case::ipv6_host(
    "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
    "GET / HTTP/1.1",
    "x-forwarded-host: [::1]:80"
)]
#[case::host_with_an_empty_port(
    "GET / HTTP/1.1\r\nHost: a:\r\n\r\n",
    "GET / HTTP/1.1",
    "x-forwarded-host: a:"
)]
#[case::spaces_around_a_value(
    "GET / HTTP/1.1\r\nHost:a\r\nX: \t a \t b \t \r\n\r\n",
    "GET / HTTP/1.1",
    "x: a \t b"
)]
#[case::empty_value("GET / HTTP/1.1\r\nHost: a\r\nX:\r\n\r\n", "GET / HTTP/1.1", "x: ")]
#[case::utf8_in_a_value("GET / HTTP/1.1\r\nHost: a\r\nX: é\r\n\r\n", "GET / HTTP/1.1", "x: é")]
#[case::order_of_one_name(
    "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\nY: 1\r\nX: a\r\nX: b\r\n\r\n",
    "GET / HTTP/1.1",
    "x: b\nx: a\nx: b"
)]
#[case::cookies(
    "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=1\r\nCookie: b=2\r\n\r\n",
    "GET / HTTP/1.1",
    "cookie: a=1; b=2"
)]
#[case::via(
    "GET / HTTP/1.1\r\nHost: a\r\nVia: 1.0 x\r\n\r\n",
    "GET / HTTP/1.1",
    "via: 1.0 x\nvia: 1.1 paceway"
)]
#[case::old_via("GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1", "via: 1.0 paceway")]
#[case::trailers_wanted(
    "GET / HTTP/1.1\r\nHost: a\r\nTE: gzip, trailers\r\n\r\n",
    "GET / HTTP/1.1",
    "te: trailers"
)]
#[case::trailers_told(
    "GET / HTTP/1.1\r\nHost: a\r\nTrailer: X\r\n\r\n",
    "GET / HTTP/1.1",
    "trailer: X"
)]
#[case::trace(
    "GET / HTTP/1.1\r\nHost: a\r\nTraceparent: 00-x\r\nTracestate: y=z\r\n\r\n",
    "GET / HTTP/1.1",
    "traceparent: 00-x\ntracestate: y=z"
)]
#[case::post_of_nothing(
    "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST / HTTP/1.1",
    "!content-length\n!transfer-encoding"
)]
#[case::post_of_length_0(
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "POST / HTTP/1.1",
    "content-length: 0"
)]
#[case::get_of_length_0(
    "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    "GET / HTTP/1.1",
    "content-length: 0"
)]
#[case::get_with_a_body(
    "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
    "GET / HTTP/1.1",
    "content-length: 4\nbody"
)]
#[case::get_with_chunks(
    "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    "GET / HTTP/1.1",
    "transfer-encoding: chunked\nbody"
)]
#[case::head_with_chunks(
    "HEAD / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    "HEAD / HTTP/1.1",
    "transfer-encoding: chunked\nbody"
)]
#[case::delete_with_a_body(
    "DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
    "DELETE / HTTP/1.1",
    "body"
)]
#[case::one_length_twice(
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
    "POST / HTTP/1.1",
    "content-length: 4\nbody"
)]
#[case::length_with_zeros(
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0004\r\n\r\nbody",
    "POST / HTTP/1.1",
    "body"
)]
#[case::chunked_in_capitals(
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    "POST / HTTP/1.1",
    "transfer-encoding: chunked\nbody"
)]
#[case::chunks_with_extensions(
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0003;a=\"b\"\r\nbod\r\n1 ;c\r\ny\r\n0;d\r\n\r\n",
    "POST / HTTP/1.1",
    "transfer-encoding: chunked\nbody"
)]
#[tokio::test(flavor = "multi_thread")]
async fn well_formed_requests_arrive_unchanged(
    #[case] sent: &str,
    #[case] start: &str,
    #[case] has: &str,
) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream).await;
    let mut conn = gateway.connect().await;
    conn.send(sent).await.expect("send");
    let method = start.split(' ').next().expect("a method");
    let head = conn.head().await.expect("an answer").expect("an answer");
    assert!(head.start.contains(" 200 "), "{method}: {head:?}");
    eventually("the call is there", async || (upstream.calls().len() == 1).then_some(())).await;
    let call = &upstream.calls()[0];
    assert_eq!(call.head.start, start);
    let (mut wanted, mut body) = (Vec::<(&str, &str)>::new(), "");
    for line in has.lines() {
        match (line.split_once(':'), line.strip_prefix('!')) {
            (Some((name, value)), _) => {
                wanted.push((name, value.strip_prefix(' ').unwrap_or(value)))
            }
            (None, Some(name)) => assert_eq!(call.head.all(name), [""; 0]),
            (None, None) => body = line,
        }
    }
    for (name, _) in &wanted {
        let all: Vec<_> =
            wanted.iter().filter(|(other, _)| other == name).map(|(_, v)| *v).collect();
        assert_eq!(call.head.all(name), all, "{name}");
    }
    assert_eq!(String::from_utf8_lossy(&call.body), body);
    assert_eq!(
        call.head.all("content-length").len() + call.head.all("transfer-encoding").len(),
        usize::from(sent.contains("Content-Length") || sent.contains("Transfer-Encoding"))
    );
    assert_eq!(level(&gateway).await, 99);
}
