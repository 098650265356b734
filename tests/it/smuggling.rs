//! Does the gateway ever disagree with RFC 9112 about where a message ends? Ambiguous messages, from a table and from a
//! seeded generator, go through it to an upstream that takes requests strictly. A parser of its own
//! says what they are.

mod parser;

use crate::support::{Conn, Gateway, Upstream, eventually};
use parking_lot::Mutex;
use parser::{End, Seen, parse};
use std::{collections::HashMap, sync::Arc};
use tokio::sync::Semaphore;

/// The requests that a strict upstream has seen, over all of its connections.
#[derive(Default)]
struct Log {
    seen: Vec<Seen>,
    /// Messages that arrived at the upstream, but that the strict parser refuses.
    odd: Vec<String>,
}

async fn strict_upstream() -> (Upstream, Arc<Mutex<Log>>) {
    let log = Arc::<Mutex<Log>>::default();
    let written = log.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let log = written.clone();
        async move {
            let mut bytes = Vec::new();
            while let Ok(Some(more)) = conn.some().await {
                bytes.extend(more);
                let (seen, taken, end) = parse(&bytes, true);
                let (count, text) = (seen.len(), String::from_utf8_lossy(&bytes).into_owned());
                bytes.drain(..taken);
                log.lock().seen.extend(seen);
                if end == End::Malformed || count > 1 {
                    log.lock().odd.push(text);
                    return;
                }
                if count == 1
                    && conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.is_err()
                {
                    return;
                }
            }
        }
    })
    .await;
    (upstream, log)
}

/// Messages as a client sends them on one connection each; `N` in them is their number.
async fn differ(messages: &[String]) {
    let (upstream, log) = strict_upstream().await;
    let url = upstream.url();
    // An upstream that waits for the rest of a message waits in vain.
    let client = "{ header_timeout: 300ms, idle_timeout: 300ms, body_timeout: 300ms }";
    let yaml = format!(
        "access_log: off\nclient: {client}\nupstream: {url}\nroutes: [{{ suffix: \"*\" }}]\n"
    );
    let gateway = Gateway::start(&yaml).await;
    let (listen, seats) = (gateway.listen, Arc::new(Semaphore::new(64)));
    let talks = messages.iter().enumerate().map(|(n, message)| {
        let end = "GET /N/end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let bytes = format!("{message}{end}").replace("/N/", &format!("/{n}/"));
        let seats = seats.clone();
        tokio::spawn(async move {
            let _seat = seats.acquire().await.expect("open");
            let mut conn = Conn::to(listen).await.expect("connect");
            // The gateway may close the connection before the client has sent all of it.
            let _ = conn.send(&bytes).await;
            (bytes, String::from_utf8_lossy(&conn.rest().await).into_owned())
        })
    });
    let (mut sent, mut answers) = (Vec::new(), Vec::new());
    for talk in talks.collect::<Vec<_>>() {
        let (bytes, answer) = talk.await.expect("a talk");
        sent.push(bytes);
        answers.push(answer);
    }
    // After the requests that are still on their way.
    assert_eq!(gateway.get("/last/").await.status, 200);
    eventually("the last one is there", async || {
        log.lock().seen.iter().any(|seen| seen.target == "/last/").then_some(())
    })
    .await;
    let log = log.lock();
    assert!(log.odd.is_empty(), "the upstream got what is no request: {:#?}", log.odd);
    let mut arrived: HashMap<&str, Vec<Seen>> = HashMap::new();
    for seen in &log.seen {
        arrived
            .entry(seen.target.split('/').nth(1).expect("a number"))
            .or_default()
            .push(seen.clone());
    }
    let (mut refused, mut whole) = (0, 0);
    for (n, bytes) in sent.iter().enumerate() {
        let (truth, _, end) = parse(bytes.as_bytes(), false);
        let got = arrived.remove(&*n.to_string()).unwrap_or_default();
        let answer = &answers[n];
        let context =
            format!("{bytes:?}\nis {truth:?}, {end:?}\narrived as {got:?}\nand got {answer:?}");
        assert!(truth.starts_with(&got), "{context}");
        assert!(answer.matches("HTTP/1.1 200 OK").count() <= got.len(), "{context}");
        // The last may be cut off, because its answer is not awaited.
        let is_strict = parse(bytes.as_bytes(), true) == (truth.clone(), bytes.len(), End::Close);
        if is_strict {
            assert!(got.len() + 1 >= truth.len(), "{context}");
        }
        // The end of what the client sends may have come first.
        let is_ours = answer.contains("paceway-origin: gateway") || answer.is_empty();
        assert!(is_ours || !truth.is_empty(), "{context}");
        refused += usize::from(truth.is_empty() && is_ours);
        whole += usize::from(!got.is_empty());
    }
    assert!(arrived.keys().all(|key| *key == "last"), "{arrived:?}");
    eprintln!("{} messages: {refused} refused, {whole} arrived", messages.len());
}

const SMUGGLED: &str = "GET /N/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// Writes a POST with these lines in its head and these bytes after it.
fn post(lines: &str, body: &str) -> String {
    format!("POST /N/ HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n{body}")
}

#[tokio::test(flavor = "multi_thread")]
async fn known_ambiguities_arrive_as_one_request_or_not_at_all() {
    let chunked = format!("0\r\n\r\n{SMUGGLED}");
    let length = SMUGGLED.len();
    let in_chunk = format!("{length:x}\r\n{SMUGGLED}\r\n0\r\n\r\n");
    let mut messages = vec![
        // CL.TE and TE.CL.
        post(&format!("Content-Length: {}\r\nTransfer-Encoding: chunked", chunked.len()), &chunked),
        post(&format!("Transfer-Encoding: chunked\r\nContent-Length: {}", chunked.len()), &chunked),
        post("Content-Length: 4\r\nTransfer-Encoding: chunked", &in_chunk),
        post("Transfer-Encoding: chunked\r\nContent-Length: 4", &in_chunk),
        post("Content-Length: 0\r\nTransfer-Encoding: chunked", &in_chunk),
        post("Transfer-Encoding: chunked\r\nContent-Length: x", &in_chunk),
        // Two lengths.
        post(&format!("Content-Length: 0\r\nContent-Length: {length}"), SMUGGLED),
        post(&format!("Content-Length: {length}\r\nContent-Length: 0"), SMUGGLED),
        post(&format!("Content-Length: {length}\r\nContent-Length: {length}"), SMUGGLED),
        post(&format!("Content-Length: 0, {length}"), SMUGGLED),
        // Without either, what follows is another request.
        post("X: y", SMUGGLED),
        post("Content-Length: 0", SMUGGLED),
        format!("GET /N/ HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}"),
        format!("GET /N/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{in_chunk}"),
        format!("HEAD /N/ HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}"),
        format!("POST /N/ HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{in_chunk}"),
        format!(
            "POST /N/ HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody{SMUGGLED}"
        ),
        format!("CONNECT /N/ HTTP/1.1\r\nHost: a\r\n\r\n{SMUGGLED}"),
        format!("TRACE /N/ HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}"),
        format!(
            "GET /N/ HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n{SMUGGLED}"
        ),
        format!(
            "POST /N/ HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}"
        ),
        // Nominated.
        post(&format!("Connection: content-length\r\nContent-Length: {length}"), SMUGGLED),
        post("Connection: transfer-encoding\r\nTransfer-Encoding: chunked", &in_chunk),
        post(&format!("Connection: host\r\nContent-Length: {length}"), SMUGGLED),
        // Values that break out of a line.
        post(&format!("X: y\rContent-Length: {length}"), SMUGGLED),
        post(&format!("X: y\nContent-Length: {length}"), SMUGGLED),
        post(&format!("X: y\r\n Content-Length: {length}"), SMUGGLED),
        post("X: y\n\nGET /N/split HTTP/1.1\r\nHost: a", ""),
        post("X: y\r\r\nTransfer-Encoding: chunked", &in_chunk),
        format!(
            "POST /N/?x=%0d%0aContent-Length:%200 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{SMUGGLED}"
        ),
    ];
    for name in ["Transfer-Encoding", "Content-Length"] {
        for odd in [" ", "\t", "\0", "\u{b}", "\r", "_", "\u{a0}"] {
            messages.push(post(&format!("{name}{odd}: chunked"), &in_chunk));
            messages.push(post(&format!("{odd}{name}: {length}"), SMUGGLED));
        }
    }
    for coding in [
        "chunked ",
        "\tchunked",
        "CHUNKED",
        "xchunked",
        "chunkedx",
        "chunked, chunked",
        "chunked, identity",
        "identity, chunked",
        "identity",
        "gzip, chunked",
        "chunked;x=y",
        "\"chunked\"",
        ",chunked",
        "chunked,",
        "\u{b}chunked",
        "chunked\0",
        "chunked\u{a0}",
        "chu\r\n nked",
        "\r\n chunked",
        "chunked\r",
        "",
    ] {
        messages.push(post(&format!("Transfer-Encoding: {coding}"), &in_chunk));
        messages
            .push(post(&format!("Content-Length: 4\r\nTransfer-Encoding: {coding}"), &in_chunk));
        messages.push(post(
            &format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: {coding}"),
            &in_chunk,
        ));
        messages.push(post(
            &format!("Transfer-Encoding: {coding}\r\nTransfer-Encoding: chunked"),
            &in_chunk,
        ));
    }
    for body in [
        "4\r\nbody\r\n0\r\n\r\n",
        "04\r\nbody\r\n00\r\n\r\n",
        "4;x\r\nbody\r\n0;y\r\n\r\n",
        "4 \r\nbody\r\n0\r\n\r\n",
        " 4\r\nbody\r\n0\r\n\r\n",
        "+4\r\nbody\r\n0\r\n\r\n",
        "-4\r\nbody\r\n0\r\n\r\n",
        "0x4\r\nbody\r\n0\r\n\r\n",
        "4\nbody\r\n0\r\n\r\n",
        "4\rbody\r\n0\r\n\r\n",
        "4\r\nbody\n0\r\n\r\n",
        "4\r\nbody0\r\n\r\n",
        "4\r\nbodyX\r\n0\r\n\r\n",
        "3\r\nbody\r\n0\r\n\r\n",
        "5\r\nbody\r\n0\r\n\r\n",
        "4\r\nbody\r\n0\n\n",
        "4\r\nbody\r\n0\r\n\n",
        "4\r\nbody\r\n0\r\nX: y\r\n\r\n",
        "4\r\nbody\r\n0\r\nX y\r\n\r\n",
        "4;\nx\r\nbody\r\n0\r\n\r\n",
        "4;x\n0\r\n\r\n\r\nbody\r\n0\r\n\r\n",
        "4\r\nbody\r\n0\r\nContent-Length: 5\r\n\r\n",
        "\r\n\r\n0\r\n\r\n",
        "g\r\n\r\n",
        "4_\r\nbody\r\n0\r\n\r\n",
        "10000000000000004\r\nbody\r\n0\r\n\r\n",
        "ffffffffffffffff\r\nbody\r\n0\r\n\r\n",
        "4\r\nbody\r\n\r\n0\r\n\r\n",
        "4,4\r\nbody\r\n0\r\n\r\n",
        "",
        "0\r\n",
        "0\r\n\r\n\r\n\r\n",
        "00000000000000000000000\r\n\r\n",
        "4\r\nbody\r\n0\r\nTransfer-Encoding: gzip\r\nHost: b\r\n\r\n",
    ] {
        messages.push(post("Transfer-Encoding: chunked", &format!("{body}{SMUGGLED}")));
    }
    differ(&messages).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_ambiguities_arrive_as_one_request_or_not_at_all() {
    let mut state = 0x5eed_u64;
    let mut below = |n: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % n as u64).expect("small")
    };
    // The sounder the earlier.
    let lines = [
        "Content-Length: 4",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: Chunked ",
        "Transfer-Encoding:	chunked",
        "Content-Length: 0",
        "Content-Length: 38",
        "content-length: 04",
        "Content-Length:4 ",
        "X: y",
        "X:",
        "Connection: transfer-encoding",
        "Connection: content-length",
        "Connection: close",
        "TE: trailers",
        "Trailer: X",
        "Transfer_Encoding: chunked",
        "Expect: 100-continue",
        "Content-Length: 4,4",
        "Content-Length: +4",
        "Content-Length : 4",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding : chunked",
        " folded",
        "X\r: y",
    ];
    let ends = ["\n", "\r", "\r\r\n", " \r\n", "\0\r\n"];
    let pieces = [
        "4\r\nbody\r\n",
        "4\r\nbody\r\n",
        "4;x\r\nbody\r\n",
        "004\r\nbody\r\n",
        "0\r\n\r\n",
        "0\r\n\r\n",
        "0\r\nX: y\r\n\r\n",
        "4\nbody\n",
        "0\n\n",
        "body",
        "body",
        "\r\n",
        "\n",
        SMUGGLED,
        SMUGGLED,
        "26\r\n",
        "X",
        "0",
        ";",
        " ",
    ];
    let starts = [
        "POST /N/ HTTP/1.1",
        "POST /N/ HTTP/1.1",
        "POST /N/ HTTP/1.1",
        "POST /N/ HTTP/1.1",
        "GET /N/ HTTP/1.1",
        "POST /N/ HTTP/1.0",
        "PUT  /N/ HTTP/1.1",
        "\r\nPOST /N/ HTTP/1.1",
    ];
    let mut messages = Vec::new();
    for _ in 0..1500 {
        let mut message = format!("{}\r\nHost: a\r\n", starts[below(starts.len())]);
        for _ in 0..=below(3) {
            let odd = if below(8) == 0 { ends[below(ends.len())] } else { "\r\n" };
            message += &format!("{}{odd}", lines[below(lines.len()).min(below(lines.len()))]);
        }
        message += if below(20) == 0 { "\n" } else { "\r\n" };
        for _ in 0..below(5) {
            message += pieces[below(pieces.len())];
        }
        messages.push(message);
    }
    differ(&messages).await;
}
