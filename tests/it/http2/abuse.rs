//! Clients that abuse HTTP/2: floods of frames, too many streams, and lists that are too large.

use super::{HEADERS, RST_STREAM, with};
use crate::support::{Frames, Gateway, Reply, Upstream, block, eventually, frame, headers};
use rstest::rstest;
use std::sync::Arc;
use tokio::sync::Semaphore;

const ENHANCE_YOUR_CALM: u32 = 11;

const REFUSED_STREAM: u32 = 7;

/// The memory in KiB that no attack of a client may cost the gateway.
const MOST_KIB: usize = 48 << 10;

/// Another client is served, and memory is about what it was.
async fn stands(gateway: &Gateway, before: usize) {
    assert_eq!(gateway.get("/other").await.status, 200);
    let now = gateway.memory();
    assert!(now < before + MOST_KIB, "{before} KiB became {now} KiB");
}

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
    gateway.until_refused("http2", 1).await;
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
    gateway.until_refused("http2", 1).await;
}

#[rstest]
#[case::settings(frame(4, 0, 0, b""))]
#[case::pings(frame(6, 0, 0, b"12345678"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_frames_with_unread_answers_is_disconnected(#[case] question: Vec<u8>) {
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
        let stalled = gateway.refused_connections("stalled").await;
        (gateway.refused_connections("http2").await + stalled == 1.0).then_some(())
    })
    .await;
}

#[rstest]
#[case::settings(frame(4, 0, 0, b""))]
#[case::pings(frame(6, 0, 0, b"12345678"))]
#[case::priorities(frame(2, 0, 1, b"\0\0\0\0\x01"))]
#[case::window_updates(frame(8, 0, 0, b"\0\0\0\x01"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_with_read_answers_blocks_no_other_client(#[case] question: Vec<u8>) {
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
    gateway.until_refused("http2", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_above_the_limit_are_refused_and_the_rest_served() {
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
async fn the_memory_of_all_connections_is_bounded() {
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
