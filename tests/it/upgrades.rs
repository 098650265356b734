//! Connections that change their protocol: HTTP/1.1 upgrades, WebSockets over HTTP/2, and the tunnels that follow.

mod over_h2;

use crate::support::{Conn, Gateway, Reply, Upstream, closed, eventually, reached, reply, request};
use parking_lot::Mutex;
use rstest::rstest;
use std::sync::Arc;
use tokio::sync::Semaphore;

const WEBSOCKET: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
];

const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

async fn before(upstream: &Upstream, keys: &str) -> Gateway {
    let routes = "routes: [{ name: all, suffix: \"*\" }]";
    Gateway::start(&format!("upstream: {}\n{keys}\n{routes}\n", upstream.url())).await
}

/// An upstream that agrees to every upgrade, sends back what comes until it ends, says when that is, and then `last`.
pub(crate) async fn echo(last: &'static str) -> (Upstream, Arc<Semaphore>) {
    let ended = closed();
    let ends = ended.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let ends = ends.clone();
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            if head.get("upgrade").is_none() {
                let _ = conn.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                return;
            }
            conn.send(switched(head.get("sec-websocket-key").expect("a key"))).await.expect("send");
            while let Ok(line) = conn.until("\n").await {
                conn.send(line).await.expect("send");
            }
            // The side that has cut it takes nothing more.
            let _ = conn.send(last).await;
            ends.add_permits(1);
        }
    })
    .await;
    (upstream, ended)
}

/// The head of the answer 101 to a WebSocket request with `key`.
fn switched(key: &str) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use sha1::{Digest, Sha1};
    let key = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let accept = STANDARD.encode(Sha1::digest(key));
    SWITCHED.replace("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", &accept)
}

/// Opens a WebSocket, and returns the client's connection, which is a tunnel from then on.
pub(crate) async fn tunnel(gateway: &Gateway, target: &str) -> Conn {
    let mut conn = gateway.ask(target, &WEBSOCKET).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert_eq!(head.start, "HTTP/1.1 101 Switching Protocols");
    conn
}

pub(crate) async fn says(conn: &mut Conn, line: &str) {
    conn.send(line).await.expect("send");
    assert_eq!(conn.until("\n").await.expect("the echo"), line);
}

async fn until_open(gateway: &Gateway, count: f64) {
    eventually("so many tunnels are open", async || {
        let open = gateway.metric("paceway_tunnels", &[("route", "all")]).await;
        (open == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes_with_its_handshake() {
    let (seen, sees) = (closed(), closed());
    let tell = sees.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let (seen, tell) = (seen.clone(), tell.clone());
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            assert_eq!(head.start, "GET /chat HTTP/1.1");
            assert_eq!(head.get("connection"), Some("upgrade"));
            assert_eq!(head.get("upgrade"), Some("websocket"));
            assert_eq!(head.get("sec-websocket-key"), Some("dGhlIHNhbXBsZSBub25jZQ=="));
            assert_eq!(head.get("sec-websocket-version"), Some("13"));
            seen.add_permits(1);
            // The first octets of the other protocol come with the head.
            conn.send(format!("{SWITCHED}welcome\n")).await.expect("send");
            while let Ok(line) = conn.until("\n").await {
                conn.send(line).await.expect("send");
            }
            tell.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = gateway.ask("/chat", &WEBSOCKET).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert_eq!(head.start, "HTTP/1.1 101 Switching Protocols");
    assert_eq!(head.get("connection"), Some("upgrade"));
    assert_eq!(head.get("upgrade"), Some("websocket"));
    assert_eq!(head.get("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(conn.until("\n").await.expect("a line"), "welcome\n");
    says(&mut conn, "hello\n").await;
    says(&mut conn, "\u{0}HTTP/1.1 200 OK\r\n").await;
    let line = gateway.line("/chat").await;
    assert_eq!((line["outcome"].as_str(), line["status"].as_u64()), (Some("passed"), Some(101)));
    assert_eq!(gateway.count("all", "passed").await, 1.0);
    until_open(&gateway, 1.0).await;
    drop(conn);
    reached(&sees, "the upstream sees the end of the tunnel").await;
    until_open(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_sent_before_the_upgrade_answer_are_not_lost() {
    let (upstream, _) = echo("").await;
    let gateway = before(&upstream, "").await;
    let mut conn = gateway.connect().await;
    conn.send(request("GET", "/", &WEBSOCKET) + "early\n").await.expect("send");
    conn.head().await.expect("an answer").expect("a head");
    assert_eq!(conn.until("\n").await.expect("the echo"), "early\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_direction_may_end_before_the_other() {
    let (upstream, _) = echo("the last word").await;
    let gateway = before(&upstream, "").await;
    let mut conn = tunnel(&gateway, "/").await;
    says(&mut conn, "hello\n").await;
    conn.close_write().await.expect("the end of it");
    assert_eq!(conn.rest().await, b"the last word");
    until_open(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstreams_direction_may_end_first() {
    let heard = closed();
    let hears = heard.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let hears = hears.clone();
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            conn.send(format!("{SWITCHED}bye\n")).await.expect("send");
            conn.close_write().await.expect("the end of it");
            assert_eq!(conn.rest().await, b"the last word");
            hears.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = tunnel(&gateway, "/").await;
    assert_eq!(conn.rest().await, b"bye\n");
    conn.send("the last word").await.expect("send");
    conn.close_write().await.expect("the end of it");
    reached(&heard, "the upstream has received it").await;
    until_open(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_held_as_long_as_the_tunnel() {
    let (upstream, _) = echo("").await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { a: { algorithm: concurrency, max: 1 } }
routes: [{ name: all, suffix: \"*\", limiters: [a] }]
",
    )
    .await;
    let mut conn = tunnel(&gateway, "/").await;
    for _ in 0..3 {
        says(&mut conn, "still here\n").await;
        assert_eq!(gateway.get("/").await.status, 429);
    }
    drop(conn);
    gateway.until_answered("/", 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_is_charged_once_at_its_handshake() {
    let (upstream, _) = echo("").await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { a: { rate: 2/day, burst: 2 } }
routes: [{ name: all, suffix: \"*\", limiters: [a] }]
",
    )
    .await;
    let mut conn = tunnel(&gateway, "/").await;
    for _ in 0..5 {
        says(&mut conn, "no request\n").await;
    }
    drop(tunnel(&gateway, "/").await);
    let mut refused = gateway.ask("/", &WEBSOCKET).await;
    let answer = refused.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (429, "quota-exceeded"));
    says(&mut conn, "and this one stays\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_an_upgrade_is_an_ordinary_answer() {
    let upstream = Upstream::start(|call| match call.head.get("upgrade") {
        Some(_) => reply("403 Forbidden", &[], "no"),
        None => Reply::ok(),
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = gateway.ask("/", &WEBSOCKET).await;
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.text().as_str()), (403, "no"));
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("the next answer").text(), "ok");
    assert_eq!(gateway.metric("paceway_tunnels", &[]).await, 0.0);
}

#[rstest]
#[case::nobody_asked("GET / HTTP/1.1\r\nHost: a\r\n\r\n", SWITCHED)]
#[case::for_something_else(
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
)]
#[case::for_nothing(
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\n\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_unrequested_upgrade_is_refused(#[case] bytes: &str, #[case] answer: &'static str) {
    let upstream =
        Upstream::start(move |_| Reply { bytes: answer.into(), ..Reply::default() }).await;
    let gateway = before(&upstream, "").await;
    let mut conn = gateway.connect().await;
    conn.send(bytes).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-broken"));
}

#[rstest]
#[case::http2_in_clear_text(
    "Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n"
)]
#[case::another_http("Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n")]
#[case::tls("Connection: upgrade\r\nUpgrade: TLS/1.0\r\n")]
#[case::not_nominated("Upgrade: websocket\r\n")]
#[case::with_a_body("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 4\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_upgraded_is_an_ordinary_one(#[case] fields: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "").await;
    let body = if fields.contains("Content-Length") { "data" } else { "" };
    let mut conn = gateway.connect().await;
    let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}");
    conn.send(bytes).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    let call = &upstream.calls()[0];
    for gone in ["upgrade", "connection", "http2-settings"] {
        assert_eq!(call.head.get(gone), None, "{gone}");
    }
    assert_eq!(call.body, body.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_1_0_client_upgrades_nothing() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "").await;
    let mut conn = gateway.connect().await;
    let bytes = "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    conn.send(bytes).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].head.get("upgrade"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_of_the_clients_connection_are_not_forwarded() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "").await;
    let fields = [("Connection", "upgrade"), ("Upgrade", "h2c, websocket, irc/6.9")];
    let mut conn = gateway.ask("/", &fields).await;
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].head.get("upgrade"), Some("websocket, irc/6.9"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_handshake_leaves_no_tunnel() {
    let (asked, ended) = (closed(), closed());
    let (asks, ends) = (asked.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asks, ends) = (asks.clone(), ends.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            asks.add_permits(1);
            conn.rest().await;
            ends.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let conn = gateway.ask("/", &WEBSOCKET).await;
    reached(&asked, "the upstream has the handshake").await;
    drop(conn);
    reached(&ended, "the upstream sees the end of its connection").await;
    until_open(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_tunnels_and_then_cuts_them() {
    let (upstream, ended) = echo("").await;
    let mut gateway = before(&upstream, "drain_timeout: 3s").await;
    let (mut leaves, mut stays) = (tunnel(&gateway, "/").await, tunnel(&gateway, "/").await);
    gateway.signal("TERM");
    eventually("it drains", async || {
        gateway.events().iter().any(|event| event["message"] == "the gateway drains").then_some(())
    })
    .await;
    says(&mut leaves, "still here\n").await;
    says(&mut stays, "still here\n").await;
    drop(leaves);
    reached(&ended, "one tunnel has ended by itself").await;
    says(&mut stays, "and here\n").await;
    assert_eq!(stays.rest().await, b"", "cut");
    assert!(gateway.end().await.success());
    reached(&ended, "so has the upstream's side").await;
}

const FRAME: &str = "\x01\x02h\n";

/// A close frame with 1001, as the gateway sends it to the client, and masked to the upstream.
const CLOSE: [u8; 4] = [0x88, 2, 0x03, 0xE9];

const MASKED_CLOSE: [u8; 8] = [0x88, 0x82, 0, 0, 0, 0, 0x03, 0xE9];

/// An upstream of WebSockets that sends one frame back, with the bytes that it receives after that, and a permit at the end.
async fn one_frame() -> (Upstream, Arc<Mutex<Vec<u8>>>, Arc<Semaphore>) {
    let (heard, hears) = (Arc::<Mutex<Vec<u8>>>::default(), closed());
    let (written, ended) = (heard.clone(), hears.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (heard, hears) = (written.clone(), ended.clone());
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            conn.send(switched(head.get("sec-websocket-key").expect("a key"))).await.expect("send");
            let frame = conn.until("\n").await.expect("a frame");
            conn.send(frame).await.expect("send");
            let rest = conn.rest().await;
            heard.lock().extend(rest);
            hears.add_permits(1);
        }
    })
    .await;
    (upstream, heard, hears)
}

/// Both sides of a WebSocket learn that the gateway leaves (1001), where no frame is cut by that.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_drain_closes_websockets_with_a_frame() {
    let (upstream, heard, hears) = one_frame().await;
    let mut gateway = before(&upstream, "drain_timeout: 2s").await;
    let mut conn = tunnel(&gateway, "/").await;
    says(&mut conn, FRAME).await;
    gateway.signal("TERM");
    assert_eq!(conn.rest().await, CLOSE);
    reached(&hears, "the upstream sees the end").await;
    assert_eq!(*heard.lock(), MASKED_CLOSE);
    drop(conn);
    assert!(gateway.end().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_over_when_the_last_tunnel_has_ended() {
    let (upstream, _) = echo("").await;
    let mut gateway = before(&upstream, "drain_timeout: 10m").await;
    let mut conn = tunnel(&gateway, "/").await;
    gateway.signal("TERM");
    eventually("it drains", async || {
        gateway.events().iter().any(|event| event["message"] == "the gateway drains").then_some(())
    })
    .await;
    says(&mut conn, "still here\n").await;
    drop(conn);
    assert!(gateway.end().await.success());
}
