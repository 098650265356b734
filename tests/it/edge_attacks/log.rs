//! Attacks on the log: a reader that stalls, and clients and upstreams that make a line of each mistake.

use super::{Unread, acks, before};
use crate::support::{
    Authority, Conn, Frames, Gateway, Reply, Upstream, block, eventually, frame, free_port, get,
    headers, paceway_in, request,
};
use parking_lot::Mutex;
use rstest::rstest;
use serde_json::{Value, json};
use std::{fs, io::BufRead, sync::Arc, thread};

const RST_STREAM: u8 = 3;

#[rstest]
#[case::as_usual("", false)]
#[case::with_the_lines_of_h2("info,h2=warn", true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_log_stops_neither_requests_nor_signals(
    #[case] level: &str,
    #[case] drops: bool,
) {
    let upstream = Upstream::ok().await;
    let mut gateway = Unread::start(&before(&upstream), "", level);
    gateway.attack().await;
    // Their access lines fill the pipe of stdout, too.
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    for _ in 0..400 {
        conn.send(request("GET", "/other", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(get(gateway.admin, "/healthz").await.status, 200);
    assert_eq!(gateway.dropped().await > 0.0, drops);
    assert_eq!(gateway.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_read_again_counts_the_missing_lines() {
    let upstream = Upstream::ok().await;
    let mut gateway = Unread::start(&before(&upstream), "", "info,h2=warn");
    gateway.attack().await;
    assert!(gateway.dropped().await > 0.0);
    let stderr = gateway.stderr.take().expect("a pipe");
    let read = Arc::new(Mutex::new(String::new()));
    let reader = thread::spawn({
        let read = read.clone();
        move || {
            for line in stderr.lines() {
                *read.lock() += &(line.expect("a line") + "\n");
            }
        }
    });
    // Clients that close may cause another line while the pipe is full. None is dropped once the report has been read.
    let is_reported = || read.lock().contains("log lines were dropped");
    eventually("the report", async || is_reported().then_some(())).await;
    let dropped = gateway.dropped().await;
    assert_eq!(gateway.ends().await, Some(0));
    reader.join().expect("its lines");
    let text = read.lock().clone();
    let events: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect();
    let told = events.iter().filter(|event| {
        event["message"] == "log lines were dropped: their reader is too slow"
            && event["stream"] == "stderr"
    });
    let told: f64 = told.map(|event| event["lines"].as_f64().expect("a number")).sum();
    assert_eq!(told, dropped);
    let last = events.last().expect("a line");
    assert_eq!(last["message"], "the gateway has stopped", "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_clients_write_few_log_lines() {
    let (upstream, authority) = (Upstream::ok().await, Authority::new());
    let (cert, key) = authority.files("gateway.test");
    let tls = format!("tls: {{ cert: \"{cert}\", key: \"{key}\" }}\n");
    let plain = Gateway::start(&before(&upstream)).await;
    let secure = Gateway::start(&(before(&upstream) + &tls)).await;
    let long = "a".repeat(40_000);
    for _ in 0..5 {
        let mut frames = Frames::to(plain.listen, b"").await;
        let _ = frames.send(acks(1000)).await;
        let resets = (0..500).map(|i| {
            let stream = 2 * i + 1;
            let reset = frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
            [headers(stream, "GET", "/", true), reset].concat()
        });
        let _ = frames.send(resets.collect::<Vec<_>>().concat()).await;
        frames.goes_away().await;
        // Too large a head, on many streams.
        let mut frames = Frames::to(plain.listen, b"").await;
        let fields = [(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x", &long)];
        let head = block(&fields);
        for stream in 0..50 {
            let mut rest = head.chunks(16_000).peekable();
            let mut kind = 1;
            while let Some(piece) = rest.next() {
                let flags = u8::from(kind == 1) | if rest.peek().is_none() { 4 } else { 0 };
                let _ = frames.send(frame(kind, flags, 2 * stream + 1, piece)).await;
                kind = 9;
            }
        }
        // No HTTP/2, and no TLS.
        for (address, bytes) in [
            (plain.listen, &b"\x16\x03\x01\x02\x00\x01garbage"[..]),
            (plain.listen, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\xff\xff\xff\xff\xff\xff"),
            (secure.listen, b"GET / HTTP/1.1\r\n\r\n"),
            (secure.listen, b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"),
            (secure.listen, b"\x15\x03\x03\x00\x02\x02\x28"),
        ] {
            for _ in 0..20 {
                let mut conn = Conn::to(address).await.expect("connect");
                conn.send(bytes).await.expect("send");
                let _ = conn.close_write().await;
                conn.rest().await;
            }
        }
    }
    for gateway in [&plain, &secure] {
        let events = gateway.events();
        assert!(events.len() < 20, "{} lines: {:?}", events.len(), &events[10..15]);
    }
    assert_eq!(plain.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_of_an_upstream_write_few_log_lines() {
    let chatty = Upstream::raw(|mut conn| async move {
        let settings = [frame(4, 0, 0, b""), acks(2000)].concat();
        // It may be left before it has said all.
        let _ = conn.send(settings).await;
        let _ = conn.head().await;
    })
    .await;
    let rude = Upstream::start(|_| Reply::raw("HTTP/9 what\r\n\r\n")).await;
    let gateway = Gateway::start(&format!(
        "upstreams:\n  chatty: {{ url: \"{}\", http2: true }}\n  rude: \"{}\"\n  gone: \"http://127.0.0.1:{}\"
routes:\n  - {{ suffix: /chatty, upstream: chatty }}\n  - {{ suffix: /rude, upstream: rude }}
  - {{ suffix: /gone, upstream: gone }}\n",
        chatty.url(),
        rude.url(),
        free_port()
    ))
    .await;
    for _ in 0..20 {
        for target in ["/chatty", "/rude", "/gone"] {
            assert_eq!(gateway.get(target).await.status, 502);
        }
    }
    let events = gateway.events();
    assert!(events.len() < 30, "{} lines: {:?}", events.len(), &events[10..15]);
}

#[rstest]
#[case::cut("inf", "did you mean `info`?")]
#[case::no_level("verbose", "levels are off, error, warn, info, debug and trace")]
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_log_level_is_reported(#[case] level: &str, #[case] hint: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let yaml = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstream: http://127.0.0.1:9\nroutes: [{ suffix: \"*\" }]\n";
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    let run = paceway_in(dir.path(), &["run"], &[("PACEWAY_LOG", level)]);
    let err = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{err}");
    assert!(err.starts_with(&format!("error: PACEWAY_LOG: `{level}`")), "{err}");
    assert!(err.contains(hint), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_shows_each_decision() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\nlimiters: {{ each: {{ rate: 1/min, key: \"{{header.x-shop}}\" }}, token: {{ rate: 9/s, key: \"{{header.authorization}}\" }} }}
routes: [{{ name: all, suffix: /x, limiters: [each] }}, {{ name: own, suffix: /own, limiters: [token] }}]\n",
        upstream.url()
    );
    let level = ("PACEWAY_LOG".to_owned(), "debug".to_owned());
    let gateway = Gateway::start_with(&yaml, &[level]).await;
    for (target, field, status) in [
        ("/x", ("X-Shop", "one"), 200),
        ("/x", ("X-Shop", "one"), 429),
        ("/own", ("Authorization", "hunter2"), 200),
    ] {
        let answer = gateway.ask(target, &[field]).await.answer().await;
        assert_eq!(answer.expect("an answer").status, status);
    }
    let decisions = eventually("three decisions", async || {
        let events = gateway.events().into_iter().filter(|event| event["message"] == "decision");
        let events: Vec<_> = events.collect();
        (events.len() == 3).then_some(events)
    })
    .await;
    for (event, (limiter, outcome)) in
        decisions.iter().zip([("each", "pass"), ("each", "refuse"), ("token", "pass")])
    {
        assert_eq!((&event["limiter"], &event["outcome"]), (&json!(limiter), &json!(outcome)));
        assert_eq!(event["source"], "shared", "{event}");
        let key = event["key"].as_str().expect("a key");
        assert!(!key.contains("hunter2") && key.contains(limiter), "{event}");
    }
    assert!(decisions[0]["key"].as_str().is_some_and(|key| key.ends_with("one")), "{decisions:?}");
    assert!(decisions[1]["retry_after_ms"].as_f64() > Some(1000.0), "{decisions:?}");
}
