//! HTTP/2 with clients: what works, and what those get who abuse it. Frames are written by hand where a library would
//! not send them.

use crate::support::{
    Conn, Frames, Gateway, Reply, Upstream, block, eventually, frame, headers, reply, request,
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
const ENHANCE_YOUR_CALM: u32 = 11;
const REFUSED_STREAM: u32 = 7;
/// The memory in KiB that no attack of a client may cost the gateway.
const MOST_KIB: usize = 48 << 10;

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

/// Another client is served, and memory is about what it was.
async fn stands(gateway: &Gateway, before: usize) {
    assert_eq!(gateway.get("/other").await.status, 200);
    let now = gateway.memory();
    assert!(now < before + MOST_KIB, "{before} KiB became {now} KiB");
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
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
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
async fn what_only_begins_like_the_preface_is_http_1(#[case] method: &str) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send(&method[..3]).await.expect("send");
    conn.send(&request(method, "/", &[])[3..]).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].method, method);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preface_without_an_end_is_left() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { header_timeout: 200ms }").await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send("PRI * HTTP/2.0\r\n").await.expect("send");
    assert_eq!(conn.rest().await, b"");
    until_refused(&gateway, "header_timeout", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_streams_and_says_so() {
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
async fn a_drain_that_takes_too_long_leaves_nothing() {
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
async fn who_leaves_while_it_waits_gives_its_slot_back(#[case] all: bool) {
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
    let left = if all { 2.0 } else { 1.0 };
    assert_eq!(gateway.count("all", "cancelled").await, left);
}

// === time ===

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_told_to_go() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { idle_timeout: 200ms }").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    frames.send(headers(1, "GET", "/", true)).await.expect("send");
    assert!(frames.until(HEADERS, 1).await.has_status(200));
    assert_eq!(frames.goes_away().await, Some(0));
    assert_eq!(refused(&gateway, "http2").await, 0.0);
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
async fn a_head_that_is_never_complete_is_left() {
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
async fn a_window_that_never_opens_holds_nothing_for_long() {
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
async fn a_stream_of_which_a_few_bytes_are_taken_lives_and_one_of_which_none_are_is_given_up() {
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

// === abuse ===

#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_end_the_connection_and_charge_nothing() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\nworkers: 1\nlimiters: {{ slow: 1/min }}\n\
         routes: [{{ name: slow, suffix: /slow, limiters: [slow], max_wait: 5m }}, {{ name: all, suffix: \"*\" }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.get("/slow").await.status, 200);
    let level = gateway.limiter("slow").await;
    let before = gateway.memory();
    let mut frames = Frames::to(gateway.listen, b"").await;
    let mut bytes = Vec::new();
    for i in 0..10_000 {
        bytes.extend(headers(2 * i + 1, "GET", "/slow", true));
        bytes.extend(frame(RST_STREAM, 0, 2 * i + 1, &8_u32.to_be_bytes()));
    }
    // It may end before all of it is sent.
    let _ = frames.send(&bytes).await;
    assert!(matches!(frames.goes_away().await, None | Some(ENHANCE_YOUR_CALM)));
    gateway.until_waiting("slow", 0).await;
    stands(&gateway, before).await;
    eventually("every slot is back", async || {
        (gateway.limiter("slow").await["waiting"] == level["waiting"]).then_some(())
    })
    .await;
    assert_eq!(upstream.calls().iter().filter(|call| call.target == "/slow").count(), 1);
    until_refused(&gateway, "http2", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_continuations_ends_the_connection() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let before = gateway.memory();
    let mut frames = Frames::to(gateway.listen, b"").await;
    let mut head = headers(1, "GET", "/", true);
    head[4] = 1;
    let more = frame(9, 0, 1, &block(&[("x-more", &"a".repeat(1000))]));
    let flood = [head, more.repeat(20_000)].concat();
    let _ = frames.send(&flood).await;
    assert!(matches!(frames.goes_away().await, None | Some(ENHANCE_YOUR_CALM)));
    stands(&gateway, before).await;
    assert_eq!(upstream.calls().iter().filter(|call| call.target == "/").count(), 0);
    until_refused(&gateway, "http2", 1).await;
}

#[rstest]
#[case::settings(frame(4, 0, 0, b""))]
#[case::pings(frame(6, 0, 0, b"12345678"))]
#[tokio::test(flavor = "multi_thread")]
async fn who_floods_with_questions_and_reads_no_answer_is_left(#[case] question: Vec<u8>) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "client: { body_timeout: 500ms }").await;
    let before = gateway.memory();
    let mut frames = Frames::to(gateway.listen, b"").await;
    let flood = question.repeat(10_000);
    let flooding = tokio::spawn(async move { while frames.send(&flood).await.is_ok() {} });
    stands(&gateway, before).await;
    flooding.await.expect("its end");
    stands(&gateway, before).await;
    eventually("it is counted", async || {
        let stalled = refused(&gateway, "stalled").await;
        (refused(&gateway, "http2").await + stalled == 1.0).then_some(())
    })
    .await;
}

#[rstest]
#[case::settings(frame(4, 0, 0, b""))]
#[case::pings(frame(6, 0, 0, b"12345678"))]
#[case::priorities(frame(2, 0, 1, b"\0\0\0\0\x01"))]
#[case::window_updates(frame(8, 0, 0, b"\0\0\0\x01"))]
#[tokio::test(flavor = "multi_thread")]
async fn while_one_floods_and_reads_every_answer_others_are_served(#[case] question: Vec<u8>) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let before = gateway.memory();
    let (mut reader, mut writer) = Frames::to(gateway.listen, b"").await.0.split();
    let reading = tokio::spawn(async move { reader.rest().await.len() });
    let flood = question.repeat(10_000);
    let flooding = tokio::spawn(async move {
        for _ in 0..20 {
            // Or the gateway closes the connection.
            if writer.send(&flood).await.is_err() {
                break;
            }
        }
    });
    while !flooding.is_finished() {
        stands(&gateway, before).await;
    }
    stands(&gateway, before).await;
    reading.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_empty_data_ends_the_connection() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let before = gateway.memory();
    let mut frames = Frames::to(gateway.listen, b"").await;
    frames.send(headers(1, "POST", "/", false)).await.expect("send");
    let flood = frame(0, 0, 1, b"").repeat(200_000);
    let _ = frames.send(&flood).await;
    assert!(matches!(frames.goes_away().await, None | Some(ENHANCE_YOUR_CALM)));
    stands(&gateway, before).await;
    until_refused(&gateway, "http2", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_streams_than_allowed_are_refused_and_the_rest_served() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/held" => Reply::ok().behind(&held),
        _ => Reply::ok(),
    })
    .await;
    let gateway = with(&upstream, "").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    let settings = frames.until(4, 0).await;
    // SETTINGS_MAX_CONCURRENT_STREAMS.
    let said = settings.payload.chunks(6).find(|setting| setting[..2] == [0, 3]);
    assert_eq!(said.expect("a limit")[2..], 128_u32.to_be_bytes());
    for i in 0..140 {
        frames.send(headers(2 * i + 1, "GET", "/held", true)).await.expect("send");
    }
    for i in 128..140 {
        assert_eq!(frames.until(RST_STREAM, 2 * i + 1).await.code(), REFUSED_STREAM);
    }
    gate.add_permits(128);
    let mut answered = 0;
    while answered < 128 {
        let frame = frames.next().await.expect("an answer");
        answered += usize::from(frame.kind == HEADERS);
    }
    assert_eq!(upstream.calls().len(), 128);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_list_that_is_too_large_is_refused_and_the_connection_stays() {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "gateway.test"),
        (":path", "/large"),
        ("x-1", &"a".repeat(15_000)),
        ("x-2", &"b".repeat(15_000)),
        ("x-3", &"c".repeat(15_000)),
    ];
    let block = block(&fields);
    let (first, rest) = block.split_at(16_000);
    let (second, third) = rest.split_at(16_000);
    let bytes = [frame(1, 1, 1, first), frame(9, 0, 1, second), frame(9, 4, 1, third)].concat();
    frames.send(bytes).await.expect("send");
    assert!(frames.until(HEADERS, 1).await.has_status(431));
    let problem = frames.until(0, 1).await.payload;
    assert!(String::from_utf8_lossy(&problem).contains("too-large"), "{problem:?}");
    let line = gateway.line("/large").await;
    assert_eq!((&line["status"], &line["outcome"]), (&431.into(), &"bad_request".into()));
    let counted = [("route", "-"), ("outcome", "bad_request")];
    assert_eq!(gateway.metric("paceway_requests_total", &counted).await, 1.0);
    frames.send(headers(3, "GET", "/next", true)).await.expect("send");
    assert!(frames.until(HEADERS, 3).await.has_status(200));
    assert_eq!(upstream.calls().len(), 1);
}

/// `limits.header_bytes` is 32 KiB. The HTTP/2 library drops what is above its own limit, and says nothing.
#[rstest]
#[case::in_one_field(&[60_000])]
#[case::in_many(&[1_000; 60])]
#[tokio::test(flavor = "multi_thread")]
async fn trailers_that_are_too_large_are_refused_and_not_dropped(#[case] sizes: &[usize]) {
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut frames = Frames::to(gateway.listen, b"").await;
    let (names, values): (Vec<_>, Vec<_>) =
        sizes.iter().enumerate().map(|(i, size)| (format!("x-{i}"), "a".repeat(*size))).unzip();
    let fields: Vec<_> = names.iter().zip(&values).map(|(a, b)| (&**a, &**b)).collect();
    let block = block(&fields);
    let pieces: Vec<_> = block.chunks(16_000).collect();
    let mut bytes = [headers(1, "POST", "/", false), frame(0, 0, 1, b"body")].concat();
    for (i, piece) in pieces.iter().enumerate() {
        // HEADERS with END_STREAM, then CONTINUATION; END_HEADERS with the last.
        let (kind, end) = if i == 0 { (HEADERS, 1) } else { (9, 0) };
        let last = if i + 1 == pieces.len() { 4 } else { 0 };
        bytes.extend(frame(kind, end | last, 1, piece));
    }
    frames.send(bytes).await.expect("send");
    assert!(frames.until(HEADERS, 1).await.has_status(431));
    let problem = frames.until(0, 1).await.payload;
    assert!(String::from_utf8_lossy(&problem).contains("trailers"), "{problem:?}");
    assert_eq!(upstream.calls().len(), 0, "the upstream gets no whole request");
}

/// A client may send only as much before its slot as the windows allow that the gateway opens at the start.
#[tokio::test(flavor = "multi_thread")]
async fn what_all_connections_may_make_the_gateway_hold_is_bounded() {
    const LEAST: usize = 65_535;
    let upstream = Upstream::ok().await;
    let gateway = with(&upstream, "").await;
    let mut windows = Vec::new();
    let mut all = Vec::new();
    for _ in 0..400 {
        let mut frames = Frames::to(gateway.listen, b"").await;
        let mut window = LEAST;
        // The answer to a second ping comes after what a connection begins with.
        for _ in 0..2 {
            frames.send(frame(6, 0, 0, &[0; 8])).await.expect("send");
            loop {
                let frame = frames.next().await.expect("a frame");
                match (frame.kind, frame.stream) {
                    (8, 0) => window += frame.code() as usize,
                    (6, _) => break,
                    _ => {}
                }
            }
        }
        windows.push(window);
        all.push(frames);
    }
    let sum: usize = windows.iter().sum();
    assert_eq!(windows[0], 2 << 20);
    assert!(sum <= (128 << 20) + windows.len() * LEAST, "{sum} bytes");
}
