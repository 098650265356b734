//! A client's connection: its time-outs, how it ends, and which client a PROXY header names. Time-outs are set small; tests
//! look at what happens, not at how fast.

use crate::support::{Conn, Gateway, Reply, Upstream, eventually, reply, request};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

const ROUTES: &str = "routes: [{ name: all, suffix: \"*\", limiters: [few] }]\n\
                      limiters: { few: { rate: 1000/s } }\n";

/// Starts a gateway with these lines added to its configuration file.
async fn with(upstream: &Upstream, lines: &str) -> Gateway {
    Gateway::start(&format!("upstream: {}\nworkers: 2\n{ROUTES}{lines}\n", upstream.url())).await
}

async fn connect(gateway: &Gateway) -> Conn {
    Conn::to(gateway.listen).await.expect("connect")
}

/// Sends `bytes` and returns all that comes back until the connection ends.
async fn ends(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> String {
    let mut conn = connect(gateway).await;
    conn.send(bytes).await.expect("send");
    String::from_utf8(conn.rest().await).expect("text")
}

async fn refused(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric("paceway_connections_refused_total", &[("reason", reason)]).await
}

/// A connection may end a moment before it is counted.
async fn until_refused(gateway: &Gateway, reason: &str, count: usize) {
    eventually(&format!("{count} refused: {reason}"), async || {
        (refused(gateway, reason).await as usize == count).then_some(())
    })
    .await;
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

// === time ===

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_stops_in_the_middle_is_answered_408() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 200ms }").await;
    let mut conn = connect(&gateway).await;
    conn.send("GET / HTTP/1.1\r\nHost: gateway").await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (408, "request-timeout"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(conn.rest().await.is_empty());
    until_refused(&gateway, "header_timeout", 1).await;
    assert_eq!(gateway.count("-", "bad_request").await, 1.0);
    let line = gateway.line("-").await;
    assert_eq!((&line["status"], &line["client"]), (&408.into(), &"127.0.0.1".into()));
}

#[rstest]
#[case::in_the_first_request("")]
#[case::in_a_later_one("GET /first HTTP/1.1\r\nHost: gateway.test\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn who_sends_a_head_byte_by_byte_gains_no_time(#[case] before: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 300ms, idle_timeout: 60s }").await;
    let mut conn = connect(&gateway).await;
    if !before.is_empty() {
        conn.send(before).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    conn.send("GET / HTTP/1.1\r\nX-Slow: ").await.expect("send");
    let (mut reader, mut writer) = conn.split();
    let writing = tokio::spawn(async move {
        while writer.send("a").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    assert_eq!(reader.answer().await.expect("an answer").status, 408);
    drop(reader);
    writing.await.expect("its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_left_without_a_word() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 200ms }").await;
    assert_eq!(ends(&gateway, "").await, "");
    until_refused(&gateway, "header_timeout", 1).await;
    assert_eq!(gateway.count("-", "bad_request").await, 0.0);
}

#[rstest]
#[case::nothing("")]
#[case::empty_lines("\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn between_requests_idle_timeout_counts(#[case] then: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 200ms }").await;
    let mut conn = connect(&gateway).await;
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    conn.send(then).await.expect("send");
    assert_eq!(conn.rest().await, b"");
    assert_eq!(refused(&gateway, "header_timeout").await, 0.0);
    until_open(&gateway, "http1", 0).await;
}

/// A connection without requests gives its buffers back after half a second.
#[rstest]
#[case::still(Duration::ZERO)]
#[case::at_rest(Duration::from_millis(1200))]
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_at_rest_is_served_again(#[case] pause: Duration) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 60s }").await;
    let mut conn = connect(&gateway).await;
    for _ in 0..2 {
        conn.send(request("GET", "/", &[]).repeat(2)).await.expect("send");
        for _ in 0..2 {
            assert_eq!(conn.answer().await.expect("an answer").status, 200);
        }
        tokio::time::sleep(pause).await;
        // The head comes in pieces, the first of them nothing.
        for piece in ["\r\n", "GET / HTTP/1.1\r\nHo", "st: a\r\n\r\n"] {
            conn.send(piece).await.expect("send");
            tokio::time::sleep(pause).await;
        }
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    drop(conn);
    until_open(&gateway, "http1", 0).await;
}

/// Its parser holds the beginning of the next head, which must not be lost with it.
#[rstest]
#[case::between_fields("GET /next HTTP/1.1\r\nHost: a\r\n", "X: y\r\n\r\n")]
#[case::before_the_end(
    "POST /next HTTP/1.1\r\nHost: a\r\nContent-Length: 44\r\n",
    "\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\nA: 345678\r\n\r\n"
)]
#[case::within_a_name("GET /next HTTP/1.1\r\nHos", "t: a\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_rests_only_when_nothing_has_begun(#[case] start: &str, #[case] rest: &str) {
    let seen: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let log = seen.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let log = log.clone();
        async move {
            while let Ok(Some(head)) = conn.head().await {
                let size = head.get("content-length").and_then(|size| size.parse().ok());
                conn.skip(size.unwrap_or(0)).await.expect("the body");
                log.lock().push(head.start.clone());
                conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.expect("send");
            }
        }
    })
    .await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 60s }").await;
    for first in [
        request("GET", "/one", &[]),
        "POST /one HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc".into(),
    ] {
        seen.lock().clear();
        let mut conn = connect(&gateway).await;
        conn.send(format!("{first}{start}")).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        conn.send(rest).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
        let targets: Vec<_> =
            seen.lock().iter().map(|line| line.split(' ').nth(1).map(str::to_owned)).collect();
        assert_eq!(targets, [Some("/one".to_owned()), Some("/next".to_owned())]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_pauses_never_rests() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstream: {}\nworkers: 1\nroutes: [{{ suffix: /only }}]\n",
        upstream.url()
    ))
    .await;
    let mut conn = connect(&gateway).await;
    let until = tokio::time::Instant::now() + Duration::from_millis(1500);
    while tokio::time::Instant::now() < until {
        conn.send(request("GET", "/nowhere", &[]).repeat(50)).await.expect("send");
        for _ in 0..50 {
            assert_eq!(conn.answer().await.expect("an answer").status, 404);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_lines_make_no_connection_less_idle() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 1s }").await;
    let mut conn = connect(&gateway).await;
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    // It ends the sooner or the later, but it ends: the last of these cannot be sent.
    let mut sent = 0;
    while conn.send("\r\n").await.is_ok() {
        sent += 1;
        assert!(sent < 200, "still open");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_under_way_is_not_idle() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let gate = held.clone();
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
            conn.send(start).await.expect("send");
            if head.start.contains("/long") {
                gate.acquire().await.expect("open").forget();
            }
            conn.send("4\r\nlast\r\n0\r\n\r\n").await.expect("send");
        }
    })
    .await;
    let gateway = with(&upstream, "client: { idle_timeout: 200ms }").await;
    let mut long = connect(&gateway).await;
    long.send(request("GET", "/long", &[])).await.expect("send");
    long.until("first").await.expect("the first piece");
    // Another connection is idle for as long as that takes.
    let mut other = connect(&gateway).await;
    other.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(other.answer().await.expect("an answer").text(), "firstlast");
    assert_eq!(other.rest().await, b"");
    gate.add_permits(1);
    long.until("last").await.expect("the rest");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_nothing_of_a_response_is_left_and_holds_nothing() {
    let upstream = Upstream::raw(|mut conn| async move {
        let Ok(Some(_)) = conn.head().await else { return };
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n";
        conn.send(head).await.expect("send");
        let piece = vec![b'a'; 1 << 20];
        while conn.send(&piece).await.is_ok() {}
    })
    .await;
    let yaml = format!(
        "upstream: {}\nclient: {{ body_timeout: 300ms }}\n\
         limiters: {{ one: {{ algorithm: concurrency, max: 1, lease: 60s }} }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [one] }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let _stalled = gateway.ask("/", &[]).await;
    until_refused(&gateway, "stalled", 1).await;
    // Its place is free for another connection.
    let mut next = gateway.ask("/", &[]).await;
    assert!(next.until("\r\n\r\n").await.expect("a head").starts_with("HTTP/1.1 200"));
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
async fn what_the_parser_refuses_is_said_counted_and_logged(
    #[case] bytes: &str,
    #[case] status: u16,
    #[case] why: &str,
    #[values("", "GET /before HTTP/1.1\r\nHost: gateway.test\r\n\r\n")] before: &str,
) {
    let upstream = Upstream::ok().await;
    let limits = "limits: { headers: 4, header_bytes: 10000, uri: 5000 }";
    let gateway = with(&upstream, limits).await;
    let mut conn = connect(&gateway).await;
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
    let mut conn = connect(&gateway).await;
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
async fn a_length_that_is_somebody_elses_refuses_nobody() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = connect(&gateway).await;
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
async fn who_still_sends_a_body_hears_why_it_was_refused(#[case] head: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = connect(&gateway).await;
    conn.send(head).await.expect("send");
    conn.send(vec![b'a'; 3_000_000]).await.expect("all of it is taken");
    let answer = conn.answer().await.expect("an answer, in spite of what was not read");
    assert_eq!(answer.status, 400);
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(conn.rest().await, b"");
    assert_eq!(upstream.calls().len(), 0);
}

// === how many ===

#[rstest]
#[case::all("max_connections", "limit")]
#[case::of_one_address("max_connections_per_address", "address")]
#[tokio::test(flavor = "multi_thread")]
async fn above_max_connections_clients_are_turned_away(#[case] key: &str, #[case] reason: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, &format!("client: {{ {key}: 2 }}")).await;
    let mut first = connect(&gateway).await;
    let mut second = connect(&gateway).await;
    for conn in [&mut first, &mut second] {
        conn.send(request("GET", "/", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    until_open(&gateway, "http1", 2).await;
    let mut third = connect(&gateway).await;
    third.send(request("GET", "/", &[])).await.expect("send");
    let answer = third.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "too-many-connections"));
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert_eq!(third.rest().await, b"");
    until_refused(&gateway, reason, 1).await;
    assert_eq!(upstream.calls().len(), 2);
    drop(first);
    gateway.until_answered("/", 200).await;
}

// === who ===

const PROXIES: &str = "proxy_protocol: on\nclient: { header_timeout: 300ms }\n\
                       trusted_proxies: [127.0.0.1/32, 192.0.2.9/32]";

/// The connections of a proxy count for the clients that it names, and not for the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn each_client_of_a_proxy_has_its_own_connections() {
    let upstream = Upstream::ok().await;
    let keys = "client: { max_connections_per_address: 1 }\nproxy_protocol: on\ntrusted_proxies: [127.0.0.1]";
    let gateway = with(&upstream, keys).await;
    let knock = async |client: &str| {
        let mut conn = connect(&gateway).await;
        let head = format!("PROXY TCP4 {client} 198.51.100.1 5000 443\r\n");
        conn.send(head + &request("GET", "/", &[])).await.expect("send");
        let status = conn.answer().await.map(|answer| answer.status).ok();
        (conn, status)
    };
    let (first, status) = knock("192.0.2.1").await;
    assert_eq!(status, Some(200));
    assert_eq!(knock("192.0.2.1").await.1, None, "closed");
    until_refused(&gateway, "address", 1).await;
    assert_eq!(knock("192.0.2.2").await.1, Some(200));
    drop(first);
    eventually("it may come again", async || {
        (knock("192.0.2.1").await.1 == Some(200)).then_some(())
    })
    .await;
}

/// Version 2 of `PROXY TCP4 192.0.2.1 198.51.100.1 5000 443`, with `more` behind the addresses.
fn version_2(more: &[u8]) -> Vec<u8> {
    let length = u16::try_from(12 + more.len()).expect("short").to_be_bytes();
    let addresses = b"\xc0\0\x02\x01\xc6\x33\x64\x01\x13\x88\x01\xbb";
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11", &length[..], addresses, more].concat()
}

#[rstest]
#[case::version_1(b"PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n", "192.0.2.1")]
#[case::ipv6(b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 443\r\n", "2001:db8::7")]
#[case::mapped(b"PROXY TCP6 ::ffff:192.0.2.1 ::1 5000 443\r\n", "192.0.2.1")]
#[case::unknown(b"PROXY UNKNOWN\r\n", "127.0.0.1")]
#[case::version_2(&version_2(b""), "192.0.2.1")]
#[case::version_2_with_more(&version_2(&[4; 4000]), "192.0.2.1")]
#[case::local(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "127.0.0.1")]
#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_says_who_is_behind_it(
    #[case] header: &[u8],
    #[case] client: &str,
    #[values(false, true)] byte_by_byte: bool,
) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, PROXIES).await;
    let mut conn = connect(&gateway).await;
    if byte_by_byte {
        for byte in header.chunks(1) {
            conn.send(byte).await.expect("send");
            tokio::task::yield_now().await;
        }
    }
    let header = if byte_by_byte { &[] } else { header };
    let request = request("GET", "/", &[("X-Forwarded-For", "6.6.6.6")]);
    conn.send([header, request.as_bytes()].concat()).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    let seen = upstream.calls()[0].head.all("x-forwarded-for").join(", ");
    // The client that it names is believed no more than any other client, and neither is the data after a header that
    // names no client.
    assert_eq!(seen, client);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_behind_a_trusted_proxy_is_believed() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, PROXIES).await;
    let mut conn = connect(&gateway).await;
    conn.send("PROXY TCP4 192.0.2.9 198.51.100.1 5000 443\r\n").await.expect("send");
    conn.send(request("GET", "/", &[("X-Forwarded-For", "6.6.6.6")])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for").join(", "), "6.6.6.6, 192.0.2.9");
}

#[rstest]
#[case::a_request(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")]
#[case::too_long(&[b"PROXY UNKNOWN ", &[b'a'; 200][..]].concat())]
#[case::without_an_end(b"PROXY TCP4 192.0.2.1")]
#[case::bad_address(b"PROXY TCP4 192.0.2.256 198.51.100.1 5000 443\r\n")]
#[case::version_3(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0")]
#[case::rest_too_long(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff")]
#[case::rest_too_short(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x04abcd")]
#[case::nothing(b"")]
#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_without_its_header_is_left(#[case] bytes: &[u8]) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, PROXIES).await;
    assert_eq!(ends(&gateway, bytes).await, "");
    eventually("it is counted", async || {
        let late = refused(&gateway, "header_timeout").await;
        (refused(&gateway, "proxy_protocol").await + late == 1.0).then_some(())
    })
    .await;
    assert_eq!(upstream.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_trusted_proxy_speaks_for_itself() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "proxy_protocol: on\ntrusted_proxies: [10.0.0.0/8]").await;
    assert_eq!(gateway.get("/").await.status, 200);
    let lie = "PROXY TCP4 192.0.2.1 198.51.100.1 5000 443\r\n";
    let answer = ends(&gateway, format!("{lie}{}", request("GET", "/", &[]))).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["127.0.0.1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_clients_are_served() {
    let upstream = Upstream::start(|_| Reply::ok()).await;
    let gateway = with(&upstream, "listen: \"[::1]:0\"\nadmin: \"[::1]:0\"").await;
    assert!(gateway.listen.is_ipv6());
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["::1"]);
    let line = gateway.line("/").await;
    assert_eq!(line["client"], "::1");
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv4_clients_of_a_socket_for_both_have_their_own_address() {
    let upstream = Upstream::start(|_| reply("200 OK", &[], "ok")).await;
    let gateway = with(&upstream, "listen: \"[::]:0\"").await;
    let address = (
        "127.0.0.1".parse().map(|ip: std::net::IpAddr| ip).expect("an address"),
        gateway.listen.port(),
    );
    let answer = crate::support::get(address.into(), "/").await;
    assert_eq!(answer.status, 200);
    assert_eq!(upstream.calls()[0].head.all("x-forwarded-for"), ["127.0.0.1"]);
}
