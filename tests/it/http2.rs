//! HTTP/2 with clients: what works, and what those get who abuse it. Frames are written by hand where a library would
//! not send them.

mod abuse;

use crate::support::{
    Frames, Gateway, Reply, Upstream, eventually, frame, headers, reply, request,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep},
};

const HEADERS: u8 = 1;

const RST_STREAM: u8 = 3;

const GOAWAY: u8 = 7;

async fn with(upstream: &Upstream, lines: &str) -> Gateway {
    let routes = "routes: [{ name: all, suffix: \"*\" }]";
    let url = upstream.url();
    Gateway::start(&format!("upstream: {url}\nworkers: 1\n{routes}\n{lines}\n")).await
}

async fn client(gateway: &Gateway) -> http2::SendRequest<Full<Bytes>> {
    let tcp = TcpStream::connect(gateway.listen).await.expect("connect");
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn post(path: &str, body: impl Into<Bytes>) -> http::Request<Full<Bytes>> {
    let uri = format!("http://gateway.test{path}");
    http::Request::post(uri).body(Full::new(body.into())).expect("a request")
}

// === what works ===

/// The true cost is read from an answer that passes in frames, as from one of HTTP/1.1.
#[tokio::test(flavor = "multi_thread")]
async fn the_true_cost_of_a_request_is_settled() {
    let json = ("Content-Type", "application/json");
    let upstream =
        Upstream::start(move |_| reply("200 OK", &[json], "{\"usage\":{\"tokens\":120}}")).await;
    let cost = "{ reserve: 300, settle: '{response.body./usage/tokens}' }";
    let gateway = Gateway::start(&format!(
        "upstream: {}\nlimiters: {{ tokens: 1000/day }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [{{ limiter: tokens, cost: {cost} }}] }}]\n",
        upstream.url()
    ))
    .await;
    let mut sender = client(&gateway).await;
    let answer = sender.send_request(post("/", "{}")).await.expect("an answer");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, "{\"usage\":{\"tokens\":120}}");
    eventually("880 permits are left", async || {
        (gateway.limiter("tokens").await["level"] == 880).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_pass_at_one_time_and_each_gets_its_own_answer() {
    let upstream = Upstream::start(|call| {
        let body = format!("{} {}", call.target, call.body.len());
        reply("200 OK", &[("X-Target", &call.target)], &body)
    })
    .await;
    let gateway = with(&upstream, "").await;
    let sender = client(&gateway).await;
    let mut all = JoinSet::new();
    for i in 0..300 {
        let mut sender = sender.clone();
        all.spawn(async move {
            let body = vec![b'a'; i * 100];
            sender.ready().await.expect("room");
            let answer =
                sender.send_request(post(&format!("/{i}"), body)).await.expect("an answer");
            assert_eq!(answer.status(), 200);
            assert_eq!(answer.headers()["x-target"], format!("/{i}"));
            let body = answer.into_body().collect().await.expect("a body").to_bytes();
            assert_eq!(body, format!("/{i} {}", i * 100));
        });
    }
    while let Some(done) = all.join_next().await {
        done.expect("no failure");
    }
    assert_eq!(upstream.calls().len(), 300);
    let open = [("protocol", "http2")];
    assert_eq!(gateway.metric("paceway_connections", &open).await, 1.0);
    drop(sender);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_both_ways() {
    let upstream = Upstream::start(|call| {
        let mut reply = reply("200 OK", &[], "");
        let length = call.body.len();
        reply.bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
        reply.bytes.extend(&call.body);
        reply
    })
    .await;
    let gateway = with(&upstream, "").await;
    let body: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut sender = client(&gateway).await;
    let answer = sender.send_request(post("/", body.clone())).await.expect("an answer");
    let echoed = answer.into_body().collect().await.expect("a body").to_bytes();
    assert!(echoed == body, "{} bytes came back and differ", echoed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preface_in_pieces_is_waited_for() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = gateway.connect().await;
    for byte in crate::support::PREFACE.chunks(1) {
        conn.send(byte).await.expect("send");
        tokio::task::yield_now().await;
    }
    let mut frames = Frames(conn);
    frames.send([frame(4, 0, 0, b""), headers(1, "GET", "/", true)].concat()).await.expect("send");
    assert!(frames.until(HEADERS, 1).await.has_status(200));
}

#[rstest]
#[case::another_method("PRINT")]
#[case::most_of_the_preface("PRI")]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_resembles_the_preface_is_http_1(#[case] method: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = gateway.connect().await;
    conn.send(&method[..3]).await.expect("send");
    conn.send(&request(method, "/", &[])[3..]).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].method, method);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_preface_is_disconnected() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 200ms }").await;
    let mut conn = gateway.connect().await;
    conn.send("PRI * HTTP/2.0\r\n").await.expect("send");
    assert_eq!(conn.rest().await, b"");
    gateway.until_refused("header_timeout", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_sends_goaway_and_finishes_streams() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&held)).await;
    let mut gateway = with(&upstream, "").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    frames.send(headers(1, "GET", "/", true)).await.expect("send");
    eventually("it is there", async || (upstream.calls().len() == 1).then_some(())).await;
    gateway.signal("TERM");
    let away = frames.until(GOAWAY, 0).await;
    assert_eq!(away.code(), 0, "no error");
    gate.add_permits(1);
    assert!(frames.until(HEADERS, 1).await.has_status(200));
    assert_eq!(gateway.end().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_takes_too_long_closes_all_streams() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\ndrain_timeout: 300ms\nlimiters: {{ slow: 1/min }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [slow], max_wait: 5m }}]\n",
        upstream.url()
    );
    let mut gateway = Gateway::start(&yaml).await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    let both = [headers(1, "GET", "/1", true), headers(3, "GET", "/2", true)].concat();
    frames.send(both).await.expect("send");
    gateway.until_waiting("all", 1).await;
    gateway.signal("TERM");
    assert!(frames.until(HEADERS, 3).await.has_status(503), "its slot comes too late");
    assert_eq!(gateway.end().await.code(), Some(0));
    let access = gateway.access();
    let mut outcomes: Vec<_> = access.iter().map(|line| line["outcome"].as_str()).collect();
    outcomes.sort();
    assert_eq!(outcomes, [Some("draining"), Some("passed")]);
}

#[rstest]
#[case::one_stream(false)]
#[case::the_whole_connection(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cancelled_while_waiting_refunds_its_slot(#[case] all: bool) {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\nlimiters: {{ slow: 1/min }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [slow], max_wait: 5m }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.get("/first").await.status, 200);
    let mut frames = Frames::to(gateway.listen, b"").await;
    frames.send(headers(1, "GET", "/1", true)).await.expect("send");
    frames.send(headers(3, "GET", "/2", true)).await.expect("send");
    gateway.until_waiting("all", 2).await;
    if all {
        drop(frames);
        gateway.until_waiting("all", 0).await;
    } else {
        frames.send(frame(RST_STREAM, 0, 3, &8_u32.to_be_bytes())).await.expect("send");
        gateway.until_waiting("all", 1).await;
    }
    gateway.until_counted("all", "cancelled", if all { 2 } else { 1 }).await;
}

// === time ===

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_gets_goaway() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { idle_timeout: 200ms }").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    frames.send(headers(1, "GET", "/", true)).await.expect("send");
    assert!(frames.until(HEADERS, 1).await.has_status(200));
    assert_eq!(frames.goes_away().await, Some(0));
    assert_eq!(gateway.refused_connections("http2").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_under_way_is_not_idle() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/long" => Reply::ok().behind(&held),
        _ => Reply::ok(),
    })
    .await;
    let gateway = with(&upstream, "client: { idle_timeout: 200ms }").await;
    let mut long = Frames::to(gateway.listen, b"").await;
    long.send(headers(1, "GET", "/long", true)).await.expect("send");
    let mut other = Frames::to(gateway.listen, b"").await;
    other.send(headers(1, "GET", "/", true)).await.expect("send");
    assert_eq!(other.goes_away().await, Some(0));
    gate.add_permits(1);
    assert!(long.until(HEADERS, 1).await.has_status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_head_is_disconnected() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { idle_timeout: 300ms }").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    let mut head = headers(1, "GET", "/", true);
    // Without END_HEADERS.
    head[4] = 1;
    frames.send(head).await.expect("send");
    frames.goes_away().await;
    assert_eq!(upstream.calls().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_never_opens_ends_its_stream() {
    let upstream = Upstream::start(|_| reply("200 OK", &[], &"a".repeat(1 << 20))).await;
    let yaml = format!(
        "upstream: {}\nclient: {{ body_timeout: 300ms }}\n\
         limiters: {{ one: {{ algorithm: concurrency, max: 1, lease: 60s }} }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [one] }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    // SETTINGS_INITIAL_WINDOW_SIZE: 0.
    let mut frames = Frames::to(gateway.listen, b"\0\x04\0\0\0\0").await;
    frames.send(headers(1, "GET", "/", true)).await.expect("send");
    assert!(frames.until(HEADERS, 1).await.has_status(200));
    frames.until(RST_STREAM, 1).await;
    // Its place is free.
    gateway.until_answered("/", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_opens_a_little_at_a_time_is_served() {
    let length = 100_000;
    let upstream = Upstream::start(move |_| reply("200 OK", &[], &"a".repeat(length))).await;
    let gateway = with(&upstream, "client: { body_timeout: 2s }").await;
    let mut frames = Frames::to(gateway.listen, b"\0\x04\0\0\0\0").await;
    frames.send(headers(1, "GET", "/", true)).await.expect("send");
    let mut taken = 0;
    while taken < length {
        frames.send(frame(8, 0, 1, &1000_u32.to_be_bytes())).await.expect("send");
        let piece = frames.until(0, 1).await;
        taken += piece.payload.len();
        // The window of the whole connection, too.
        let opened = u32::try_from(piece.payload.len().max(1)).expect("small").to_be_bytes();
        frames.send(frame(8, 0, 0, &opened)).await.expect("send");
    }
    assert_eq!(taken, length);
}

/// A gRPC consumer with back-pressure, say: it takes less within a time-out than a frame holds.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_stream_that_is_read_slowly_survives_the_timeout() {
    let (patience, pause) = (Duration::from_secs(3), Duration::from_millis(400));
    let upstream = Upstream::start(|_| reply("200 OK", &[], &"a".repeat(1 << 20))).await;
    let gateway = with(&upstream, "client: { body_timeout: 3s }").await;
    let mut frames = Frames::to(gateway.listen, b"\0\x04\0\0\0\0").await;
    frames.send(headers(1, "GET", "/", true)).await.expect("send");
    let started = Instant::now();
    // It waits with its first piece for three time-outs, and is looked at all the while.
    while started.elapsed() < 3 * patience {
        frames.send(frame(8, 0, 1, &100_u32.to_be_bytes())).await.expect("send");
        assert_eq!(frames.until(0, 1).await.payload.len(), 100);
        sleep(pause).await;
    }
    frames.until(RST_STREAM, 1).await;
}
