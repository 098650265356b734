//! A client's connection: its time-outs, how it ends, and which client a PROXY header names. Time-outs are set small; tests
//! look at what happens, not at how fast.

mod proxies;
mod time;

use crate::support::{Conn, Gateway, Upstream, eventually, request, service_address};
use rstest::rstest;
use std::sync::Arc;
use tokio::sync::Semaphore;

const ROUTES: &str = "routes: [{ name: all, suffix: \"*\", limiters: [few] }]\n\
                      limiters: { few: { rate: 1000/s } }\n";

/// Starts a gateway with these lines added to its configuration file.
async fn with(upstream: &Upstream, lines: &str) -> Gateway {
    Gateway::start(&format!("upstream: {}\nworkers: 2\n{ROUTES}{lines}\n", upstream.url())).await
}

/// Sends `bytes` and returns all that comes back until the connection ends.
async fn ends(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> String {
    let mut conn = gateway.connect().await;
    conn.send(bytes).await.expect("send");
    String::from_utf8(conn.rest().await).expect("text")
}

/// Waits until exactly that many open connections of clients speak `protocol`.
async fn until_open(gateway: &Gateway, protocol: &str, count: usize) {
    eventually(&format!("{count} connections of {protocol}"), async || {
        let open = gateway.metric("paceway_connections", &[("protocol", protocol)]).await;
        (open as usize == count).then_some(())
    })
    .await;
}

// === who serves ===

/// The kernel's choice alone would spread the connections evenly in one run of ten.
#[tokio::test(flavor = "multi_thread")]
async fn each_worker_serves_as_many_connections_as_another() {
    const WORKERS: usize = 4;
    let upstream = Upstream::ok().await;
    let rest = "routes: [{ suffix: \"*\" }]";
    let yaml = format!("upstream: {}\nworkers: {WORKERS}\n{rest}\n", upstream.url());
    let gateway = Gateway::start(&yaml).await;
    let mut clients = Vec::new();
    for client in 1..=3 * WORKERS {
        let mut conn = gateway.ask("/", &[]).await;
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        clients.push(conn);
        // Each worker has connections of its own, and takes one that is idle.
        assert_eq!(upstream.connections(), client.min(WORKERS));
    }
    // They continue where they are.
    for conn in &mut clients {
        conn.send(request("GET", "/", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(upstream.connections(), WORKERS);
}

// === what is no request ===

#[rstest]
#[case::no_version("GET /\r\n\r\n", 400, "HTTP/1.1")]
#[case::bad_name("GET / HTTP/1.1\r\nHost: x\r\nA B: 1\r\n\r\n", 400, "HTTP/1.1")]
#[case::bad_length("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\n", 400, "HTTP/1.1")]
#[case::lengths(
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    400,
    "HTTP/1.1"
)]
#[case::coding("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "HTTP/1.1")]
#[case::many(
    "GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\n\r\n",
    431,
    "more than 4 headers"
)]
#[case::large(&format!("GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(12_000)), 431, "more than 10000 bytes")]
#[case::long(&format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(12_000)), 414, "longer than 5000 bytes")]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_refused_by_the_parser_is_answered_counted_and_logged(
    #[case] bytes: &str,
    #[case] status: u16,
    #[case] why: &str,
    #[values("", "GET /before HTTP/1.1\r\nHost: gateway.test\r\n\r\n")] before: &str,
) {
    let upstream = Upstream::ok().await;
    let limits = "limits: { headers: 4, header_bytes: 10000, uri: 5000 }";
    let gateway = with(&upstream, limits).await;
    let mut conn = gateway.connect().await;
    // No request after it is served.
    let behind = request("GET", "/behind", &[]);
    conn.send(format!("{before}{bytes}{behind}")).await.expect("send");
    if !before.is_empty() {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let answer = conn.answer().await.expect("an answer");
    assert_eq!(answer.status, status, "{}", answer.text());
    answer.problem();
    assert!(answer.text().contains(why), "{}", answer.text());
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(answer.field("date").is_some());
    assert_eq!(conn.rest().await, b"");
    let line = gateway.line("-").await;
    assert_eq!((&line["status"], &line["outcome"]), (&status.into(), &"bad_request".into()));
    assert_eq!(gateway.count("-", "bad_request").await, 1.0);
    let targets: Vec<_> = upstream.calls().into_iter().map(|call| call.target).collect();
    assert_eq!(targets.concat(), if before.is_empty() { "" } else { "/before" });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_an_end_is_too_long() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "limits: { header_bytes: 10000, uri: 5000 }").await;
    let answer = ends(&gateway, format!("GET /{}", "a".repeat(12_000))).await;
    assert!(answer.starts_with("HTTP/1.1 414"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_looks_like_a_refusal_of_the_parser_passes() {
    const BODY: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
                        date: Sat, 21 Nov 2026 10:13:15 GMT\r\n\r\n";
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let gate = held.clone();
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", BODY.len());
            conn.send(head).await.expect("send");
            gate.acquire().await.expect("open").forget();
            conn.send(BODY).await.expect("send");
        }
    })
    .await;
    let gateway = with(&upstream, "").await;
    let mut conn = gateway.ask("/", &[("Connection", "close")]).await;
    conn.until("\r\n\r\n").await.expect("a head");
    gate.add_permits(1);
    assert_eq!(String::from_utf8_lossy(&conn.rest().await), BODY);
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";

#[rstest]
#[case::length_first(&format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n{CHUNKED}"))]
#[case::coding_first(
    "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"
)]
#[case::odd_case(&format!("POST / HTTP/1.1\r\nHost: x\r\ncOnTeNt-lEnGtH: 5\r\n{CHUNKED}"))]
#[case::tab(&format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\t5\r\n{CHUNKED}"))]
#[case::no_space(&format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length:5\r\n{CHUNKED}"))]
#[case::twice(&format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n{CHUNKED}"))]
#[case::others_between(&format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX-Y: GET / HTTP/1.1\r\n{CHUNKED}"))]
#[case::bare_line_feeds(
    "POST / HTTP/1.1\nHost: x\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\r\n\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn both_framings_are_refused_before_anything_is_charged(
    #[case] bytes: &str,
    #[values("at_once", "byte_by_byte", "pipelined", "behind_a_body")] way: &str,
) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = gateway.connect().await;
    let before = match way {
        "pipelined" => "GET /before HTTP/1.1\r\nHost: x\r\n\r\n",
        "behind_a_body" => "POST /before HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody",
        _ => "",
    };
    let bytes = format!("{before}{bytes}GET /behind HTTP/1.1\r\nHost: x\r\n\r\n");
    if way == "byte_by_byte" {
        for byte in bytes.as_bytes().chunks(1) {
            // It may be refused before all of it is there.
            if conn.send(byte).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
    } else {
        conn.send(&bytes).await.expect("send");
    }
    if !before.is_empty() {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(conn.rest().await, b"");
    let served = usize::from(!before.is_empty());
    assert_eq!(upstream.calls().len(), served);
    let passed = [("limiter", "few"), ("decision", "pass")];
    assert_eq!(gateway.metric("paceway_decisions_total", &passed).await as usize, served);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_length_of_another_request_is_no_second_framing() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = gateway.connect().await;
    let text = "Content-Length: 5\r\n";
    let with_length = format!("POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\n\r\n{text}");
    let chunked = format!("POST /2 HTTP/1.1\r\nHost: x\r\n{CHUNKED}");
    for bytes in [&with_length, &chunked, &with_length, &chunked] {
        conn.send(bytes).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    // In one piece too, where the one has no such text in its body.
    let plain = "POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nok";
    conn.send(format!("{plain}{chunked}{plain}{chunked}{chunked}")).await.expect("send");
    for _ in 0..5 {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    let bodies: Vec<_> = upstream.calls().into_iter().map(|call| call.body).collect();
    assert_eq!(bodies.iter().filter(|body| *body == b"hello").count(), 5);
}

#[rstest]
#[case::no_host("POST / HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n")]
#[case::both_framings(
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\nTransfer-Encoding: chunked\r\n\r\n2dc6c0\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_still_sends_a_body_reads_the_refusal(#[case] head: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = gateway.connect().await;
    conn.send(head).await.expect("send");
    conn.send(vec![b'a'; 3_000_000]).await.expect("all of it is taken");
    let answer = conn.answer().await.expect("an answer, in spite of what was not read");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(conn.rest().await, b"");
    assert_eq!(upstream.calls().len(), 0);
}

// === how many ===

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_take_no_connection_of_a_service() {
    let upstream = Upstream::ok().await;
    let client = "client: { max_connections: 2, max_connections_per_address: 3 }";
    let service = format!("services: {{ forward_auth: 127.0.0.1:0 }}\n{client}");
    let gateway = with(&upstream, &service).await;
    let address = service_address(&gateway, "forward_auth");
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut conn = gateway.connect().await;
        conn.send(request("GET", "/", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        idle.push(conn);
    }
    assert_eq!(gateway.get("/").await.status, 503, "the data plane has as many as it may");
    let mut programs = Vec::new();
    for _ in 0..4 {
        let mut conn = Conn::to(address).await.expect("connect");
        conn.send(request("GET", "/auth", &[("X-Original-URI", "/")])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        programs.push(conn);
    }
    drop(idle);
    gateway.until_answered("/", 200).await;
}

#[rstest]
#[case::all("max_connections", "limit")]
#[case::of_one_address("max_connections_per_address", "address")]
#[tokio::test(flavor = "multi_thread")]
async fn connections_above_max_connections_get_a_503(#[case] key: &str, #[case] reason: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, &format!("client: {{ {key}: 2 }}")).await;
    let mut first = gateway.connect().await;
    let mut second = gateway.connect().await;
    for conn in [&mut first, &mut second] {
        conn.send(request("GET", "/", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    until_open(&gateway, "http1", 2).await;
    let mut third = gateway.connect().await;
    third.send(request("GET", "/", &[])).await.expect("send");
    let answer = third.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "too-many-connections"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(third.rest().await, b"");
    gateway.until_refused(reason, 1).await;
    assert_eq!(upstream.calls().len(), 2);
    drop(first);
    gateway.until_answered("/", 200).await;
}
