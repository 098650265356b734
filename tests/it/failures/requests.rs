//! Messages that are no requests, and uploads that break off: none reaches the upstream as a whole request.

use super::{config, level, refused};
use crate::support::{Gateway, Head, Upstream, request};
use rstest::rstest;
use std::io::ErrorKind;

/// Starts a gateway whose limiter has granted its only permit of the day.
async fn used_up(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::before(
        upstream,
        "limiters: { search: 1/day }
routes: [{ suffix: \"*\", limiters: [search] }]
",
    )
    .await;
    assert_eq!(gateway.get("/").await.status, 200);
    gateway
}

/// Sends what no client should, and gives the head of the answer; `None` when there is only an end.
async fn absurd(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> Option<Head> {
    let mut conn = gateway.connect().await;
    // The gateway may close the connection before the client has sent all of it.
    let _ = conn.send(bytes).await;
    match conn.head().await {
        Err(error) if error.kind() == ErrorKind::TimedOut => panic!("neither an answer nor an end"),
        head => head.ok().flatten(),
    }
}

fn many_headers() -> String {
    let fields: String = (0..200).map(|i| format!("X-{i}: {i}\r\n")).collect();
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

fn long_header(length: usize) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(length))
}

fn posted(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}")
}

#[rstest]
#[case::many_headers(many_headers())]
#[case::a_long_header(long_header(100 << 10))]
#[case::a_header_without_end(long_header(2 << 20))]
#[case::a_long_path(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100 << 10)))]
#[case::no_http("hello, is that a server?\r\n\r\n".into())]
#[case::tls("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}\r\n\r\n".into())]
#[case::odd_version("GET / HTTP/9.9\r\nHost: a\r\n\r\n".into())]
#[case::a_path_without_a_slash("GET search HTTP/1.1\r\nHost: a\r\n\r\n".into())]
#[case::all_of_the_server("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into())]
#[case::a_tunnel("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n".into())]
#[case::a_name_with_a_space("GET / HTTP/1.1\r\nHost: a\r\nBad Name: 1\r\n\r\n".into())]
#[case::a_space_before_the_colon("GET / HTTP/1.1\r\nHost: a\r\nName : 1\r\n\r\n".into())]
#[case::a_folded_line("GET / HTTP/1.1\r\nHost: a\r\nName: 1\r\n 2\r\n\r\n".into())]
#[case::nul_in_a_value("GET / HTTP/1.1\r\nHost: a\r\nName: \u{0}\r\n\r\n".into())]
#[case::no_host("GET / HTTP/1.1\r\n\r\n".into())]
#[case::two_hosts("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into())]
#[case::no_length(posted("Content-Length: -1", "x"))]
#[case::two_lengths(posted("Content-Length: 1\r\nContent-Length: 2", "xx"))]
#[case::a_list_of_lengths(posted("Content-Length: 1, 2", "xx"))]
#[case::an_endless_length(posted("Content-Length: 99999999999999999999999", "x"))]
#[case::an_odd_coding(posted("Transfer-Encoding: xchunked", "0\r\n\r\n"))]
#[case::chunked_and_more(posted("Transfer-Encoding: chunked, gzip", "0\r\n\r\n"))]
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_request_never_reach_the_upstream(#[case] bytes: String) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let head = absurd(&gateway, &bytes).await;
    assert!(refused(head.as_ref()), "{head:?}");
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(level(&gateway).await, 100);
    assert_eq!(gateway.get("/").await.status, 200, "and others are served");
}

#[rstest]
#[case::too_many_headers(many_headers(), 431)]
#[case::too_long_a_header(long_header(2 << 20), 431)]
#[case::no_http("hello, is that a server?\r\n\r\n".into(), 400)]
#[case::all_of_the_server("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_malformed_bytes_names_the_gateway(
    #[case] bytes: String,
    #[case] status: u16,
) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let head = absurd(&gateway, &bytes).await.expect("an answer");
    assert!(head.start.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}");
    assert_eq!(head.get("paceway-origin"), Some("gateway"), "{head:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_framings_reaches_the_upstream_with_one_or_not_at_all() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    // A parser that believes the length sees one request; a parser that believes the chunks sees two.
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let fields = format!("Content-Length: {}\r\nTransfer-Encoding: chunked", hidden.len());
    let mut conn = gateway.connect().await;
    conn.send(posted(&fields, hidden)).await.expect("send");
    // Answers to as many requests as the gateway sees, or a refusal.
    while conn.answer().await.is_ok_and(|answer| answer.status == 200) {}
    for call in upstream.calls() {
        let framings =
            call.head.all("content-length").len() + call.head.all("transfer-encoding").len();
        assert!(framings <= 1, "{:?}", call.head);
        assert_eq!(call.body, b"");
    }
    let forwarded = gateway.count("search", "passed").await as usize;
    assert_eq!(upstream.calls().len(), forwarded, "each was limited and counted");
    assert_eq!(level(&gateway).await, 100 - forwarded as i64);
}

#[rstest]
#[case::chunks_of_no_size("Transfer-Encoding: chunked", "zz\r\nxx\r\n0\r\n\r\n")]
#[case::chunks_of_endless_size(
    "Transfer-Encoding: chunked",
    "fffffffffffffffff\r\nxx\r\n0\r\n\r\n"
)]
#[case::chunks_without_end("Transfer-Encoding: chunked", "2\r\nxx\r\n")]
#[case::less_than_said("Content-Length: 100", "xx")]
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_upload_is_not_passed_as_complete(#[case] fields: &str, #[case] body: &str) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut conn = gateway.connect().await;
    conn.send(posted(fields, body)).await.expect("send");
    conn.close_write().await.expect("the end");
    let said = String::from_utf8_lossy(&conn.rest().await).into_owned();
    assert!(!said.starts_with("HTTP/1.1 2"), "{said}");
    // The origin writes a call down when it has it all.
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(gateway.get("/").await.status, 200);
}

#[rstest]
#[case::a_little(1 << 10)]
#[case::more_than_a_socket_takes(16 << 20)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_a_client_that_is_still_sending(#[case] length: usize) {
    let upstream = Upstream::ok().await;
    let gateway = used_up(&upstream).await;
    for _ in 0..5 {
        let mut conn = gateway.connect().await;
        let head = request("POST", "/", &[("Content-Length", &length.to_string())]);
        conn.send(head).await.expect("send");
        // A server that refuses may stop reading; the answer that it has sent must still arrive.
        let _ = conn.send(vec![b'x'; length]).await;
        let answer = conn.answer().await.expect("a whole answer");
        assert_eq!(answer.status, 429);
    }
    assert_eq!(upstream.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_refused_by_a_limiter_gets_no_100_continue() {
    let upstream = Upstream::ok().await;
    let gateway = used_up(&upstream).await;
    let mut conn = gateway.connect().await;
    let fields = [("Expect", "100-continue"), ("Content-Length", "4")];
    conn.send(request("PUT", "/", &fields)).await.expect("send");
    let first = conn.head().await.expect("an answer").expect("an answer");
    assert!(first.start.starts_with("HTTP/1.1 429 "), "and no `100 Continue`: {first:?}");
}
