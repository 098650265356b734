//! The time-outs of a connection: for a head, between requests, and while a response is taken.

use super::{ends, until_open, with};
use crate::support::{Gateway, Upstream, request};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_stops_in_the_middle_is_answered_408() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 200ms }").await;
    let mut conn = gateway.connect().await;
    conn.send("GET / HTTP/1.1\r\nHost: gateway").await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (408, "request-timeout"));
    assert_eq!(answer.field("connection"), Some("close"));
    assert!(conn.rest().await.is_empty());
    gateway.until_refused("header_timeout", 1).await;
    assert_eq!(gateway.count("-", "bad_request").await, 1.0);
    let line = gateway.line("-").await;
    assert_eq!((&line["status"], &line["client"]), (&408.into(), &"127.0.0.1".into()));
}

#[rstest]
#[case::in_the_first_request("")]
#[case::in_a_later_one("GET /first HTTP/1.1\r\nHost: gateway.test\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_head_sent_byte_by_byte_gains_no_time(#[case] before: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 300ms, idle_timeout: 60s }").await;
    let mut conn = gateway.connect().await;
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
async fn a_silent_client_is_disconnected_without_an_answer() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 200ms }").await;
    assert_eq!(ends(&gateway, "").await, "");
    gateway.until_refused("header_timeout", 1).await;
    assert_eq!(gateway.count("-", "bad_request").await, 0.0);
}

#[rstest]
#[case::nothing("")]
#[case::empty_lines("\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn idle_timeout_applies_between_requests(#[case] then: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 200ms }").await;
    let mut conn = gateway.connect().await;
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    conn.send(then).await.expect("send");
    assert_eq!(conn.rest().await, b"");
    assert_eq!(gateway.refused_connections("header_timeout").await, 0.0);
    until_open(&gateway, "http1", 0).await;
}

/// A connection without requests gives its buffers back after half a second.
#[rstest]
#[case::still(Duration::ZERO)]
#[case::at_rest(Duration::from_millis(1200))]
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_connection_is_served_again(#[case] pause: Duration) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 60s }").await;
    let mut conn = gateway.connect().await;
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
async fn a_connection_is_parked_only_between_requests(#[case] start: &str, #[case] rest: &str) {
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
        let mut conn = gateway.connect().await;
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
async fn a_busy_connection_is_never_parked() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(&upstream, "workers: 1\nroutes: [{ suffix: /only }]\n").await;
    let mut conn = gateway.connect().await;
    let until = tokio::time::Instant::now() + Duration::from_millis(1500);
    while tokio::time::Instant::now() < until {
        conn.send(request("GET", "/nowhere", &[]).repeat(50)).await.expect("send");
        for _ in 0..50 {
            assert_eq!(conn.answer().await.expect("an answer").status, 404);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_lines_do_not_extend_the_idle_timeout() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 60s, idle_timeout: 1s }").await;
    let mut conn = gateway.connect().await;
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
    let mut long = gateway.connect().await;
    long.send(request("GET", "/long", &[])).await.expect("send");
    long.until("first").await.expect("the first piece");
    // Another connection is idle for as long as that takes.
    let mut other = gateway.connect().await;
    other.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(other.answer().await.expect("an answer").text(), "firstlast");
    assert_eq!(other.rest().await, b"");
    gate.add_permits(1);
    long.until("last").await.expect("the rest");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_no_response_is_disconnected() {
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
    gateway.until_refused("stalled", 1).await;
    // Its place is free for another connection.
    let mut next = gateway.ask("/", &[]).await;
    assert!(next.until("\r\n\r\n").await.expect("a head").starts_with("HTTP/1.1 200"));
}
