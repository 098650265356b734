//! WebSockets over HTTP/2 (RFC 8441).

use super::{CLOSE, FRAME, MASKED_CLOSE, before, echo, one_frame, until_open};
use crate::support::{Gateway, Reply, Upstream, reached, reply};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, StatusCode, client::conn::http2, ext::Protocol};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rstest::rstest;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

type H2 = http2::SendRequest<Empty<Bytes>>;

/// Connects a client that speaks HTTP/2 with prior knowledge.
async fn h2(gateway: &Gateway) -> H2 {
    let stream = TcpStream::connect(gateway.listen).await.expect("connect");
    let builder = http2::Builder::new(TokioExecutor::new());
    let (client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    client
}

fn extended(protocol: &'static str) -> Request<Empty<Bytes>> {
    Request::connect("http://gateway.test/chat")
        .extension(Protocol::from_static(protocol))
        .header("sec-websocket-version", "13")
        .header("sec-websocket-protocol", "chat")
        .body(Empty::new())
        .expect("a request")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_over_http2_is_forwarded_as_an_upgrade() {
    let (upstream, ended) = echo("the last word").await;
    let gateway = before(&upstream, "").await;
    let mut client = h2(&gateway).await;
    client.ready().await.expect("the settings");
    let mut answer = client.send_request(extended("websocket")).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    for gone in ["connection", "upgrade", "sec-websocket-accept"] {
        assert_eq!(answer.headers().get(gone), None, "{gone}");
    }
    let upgraded = hyper::upgrade::on(&mut answer).await.expect("a tunnel");
    let mut tunnel = TokioIo::new(upgraded);
    let mut echo = [0; 6];
    for _ in 0..3 {
        tunnel.write_all(b"hello\n").await.expect("send");
        tunnel.read_exact(&mut echo).await.expect("the echo");
        assert_eq!(&echo, b"hello\n");
    }
    until_open(&gateway, 1.0).await;
    tunnel.shutdown().await.expect("the end of it");
    let mut last = Vec::new();
    tunnel.read_to_end(&mut last).await.expect("the rest");
    assert_eq!(last, b"the last word");
    reached(&ended, "the upstream sees the end").await;
    until_open(&gateway, 0.0).await;
}

/// The end of the drain closes the WebSocket and its stream, not the connection under it.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_drain_closes_websockets_over_http2_with_a_frame() {
    let (upstream, heard, hears) = one_frame().await;
    let mut gateway = before(&upstream, "drain_timeout: 2s").await;
    let mut client = h2(&gateway).await;
    client.ready().await.expect("the settings");
    let mut answer = client.send_request(extended("websocket")).await.expect("an answer");
    let mut tunnel = TokioIo::new(hyper::upgrade::on(&mut answer).await.expect("a tunnel"));
    tunnel.write_all(FRAME.as_bytes()).await.expect("send");
    let mut echo = [0; FRAME.len()];
    tunnel.read_exact(&mut echo).await.expect("the echo");
    gateway.signal("TERM");
    let mut rest = Vec::new();
    tunnel.read_to_end(&mut rest).await.expect("a whole stream, and no reset");
    assert_eq!(rest, CLOSE);
    reached(&hears, "the upstream sees the end").await;
    assert_eq!(*heard.lock(), MASKED_CLOSE);
    drop(tunnel);
    assert!(gateway.end().await.success());
}

#[rstest]
#[case::another_key("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n")]
#[case::no_key("")]
#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_with_a_wrong_accept_key_is_refused(#[case] accept: &'static str) {
    let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n";
    let upstream = Upstream::start(move |_| Reply {
        bytes: format!("{head}{accept}\r\n").into_bytes(),
        ..Reply::default()
    })
    .await;
    let gateway = before(&upstream, "").await;
    let answer = h2(&gateway).await.send_request(extended("websocket")).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    until_open(&gateway, 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_websocket_over_http2_is_passed_on() {
    let upstream = Upstream::start(|_| reply("403 Forbidden", &[], "no")).await;
    let gateway = before(&upstream, "").await;
    let answer = h2(&gateway).await.send_request(extended("websocket")).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    let call = &upstream.calls()[0];
    assert_eq!(call.head.start, "GET /chat HTTP/1.1");
    assert_eq!(call.head.get("sec-websocket-protocol"), Some("chat"));
    assert!(call.head.get("sec-websocket-key").is_some_and(|key| key.len() == 24));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_knows_no_websockets_opens_none_over_http2() {
    let upstream = Upstream::start(|_| reply("200 OK", &[], "")).await;
    let gateway = before(&upstream, "").await;
    let answer = h2(&gateway).await.send_request(extended("websocket")).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY, "200 would open it (RFC 8441 section 5)");
    until_open(&gateway, 0.0).await;
}
