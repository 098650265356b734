//! gRPC, and bodies over HTTP/2: our own answers as its clients read them, streams both ways, and how they break off.

mod streams;

use crate::support::{Gateway, PATIENCE, Reply, Upstream, closed, eventually, free_port, reached};
use bytes::Bytes;
use h2::{
    Reason, RecvStream, SendStream,
    client::{self, SendRequest},
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use rstest::rstest;
use std::{net::SocketAddr, sync::Arc};
use tokio::{net::TcpStream, sync::Semaphore, time::timeout};

/// The scheme and the authority of all requests of these tests.
const ORIGIN: &str = "http://gateway.test";

/// A gateway before an upstream that speaks HTTP/1.1, with one more line for the route.
async fn before(upstream: &Upstream, keys: &str, route: &str) -> Gateway {
    Gateway::start(&format!(
        "upstream: {}
{keys}
routes: [{{ name: all, suffix: \"*\"{route} }}]
",
        upstream.url()
    ))
    .await
}

/// Connects a client that speaks HTTP/2 with prior knowledge, as gRPC clients do.
pub(crate) async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.expect("connect");
    let (client, connection) = client::handshake(stream).await.expect("a handshake");
    tokio::spawn(connection);
    client.ready().await.expect("the settings")
}

pub(crate) fn call(path: &str) -> Request<()> {
    let request = Request::post(format!("{ORIGIN}{path}"));
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    request.body(()).expect("a request")
}

/// Sends a request without a body, and returns the head of its answer.
pub(crate) async fn answer(gateway: &Gateway, request: Request<()>) -> Response<RecvStream> {
    let mut client = connect(gateway.listen).await;
    let (answer, _) = client.send_request(request, true).expect("send");
    timeout(PATIENCE, answer).await.expect("in time").expect("an answer")
}

/// A response of ours to a call: its status, and the rest of what it says.
fn status(answer: &Response<RecvStream>) -> (&str, &HeaderMap) {
    let headers = answer.headers();
    assert_eq!(answer.status(), 200);
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["paceway-origin"], "gateway");
    assert!(headers.contains_key("grpc-message"));
    assert!(answer.body().is_end_stream(), "one frame of headers, and nothing after it");
    (headers["grpc-status"].to_str().expect("a number"), headers)
}

// === our own answers ===

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_resource_exhausted_in_trailers_alone() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "limiters: { a: 1/hour }", ", limiters: [a]").await;
    assert_eq!(answer(&gateway, call("/a.B/C")).await.status(), 200);
    let refused = answer(&gateway, call("/a.B/C")).await;
    let (code, headers) = status(&refused);
    assert_eq!(code, "8");
    let pushback: u64 =
        headers["grpc-retry-pushback-ms"].to_str().expect("text").parse().expect("a number");
    assert!((1..=3_600_000).contains(&pushback), "{pushback}");
    for kept in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert!(headers.contains_key(kept), "{kept}");
    }
    assert_eq!(gateway.count("all", "refused").await, 1.0);
    let line = eventually("the access line", async || {
        gateway.access().into_iter().find(|line| line["outcome"] == "refused")
    })
    .await;
    assert_eq!(line["status"], 429, "the gateway's own status");
    assert_eq!(upstream.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_route_is_unimplemented() {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\nroutes: [{{ suffix: /known }}]\n", upstream.url());
    let gateway = Gateway::start(&yaml).await;
    let unknown = answer(&gateway, call("/a.B/C")).await;
    assert_eq!(status(&unknown).0, "12");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_upstream_is_unavailable() {
    let yaml =
        format!("upstream: http://127.0.0.1:{}\nroutes: [{{ suffix: \"*\" }}]\n", free_port());
    let gateway = Gateway::start(&yaml).await;
    let failed = answer(&gateway, call("/a.B/C")).await;
    assert_eq!(status(&failed).0, "14");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_too_slow_is_a_deadline_exceeded() {
    let gate = closed();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&gate)).await;
    let yaml = format!(
        "upstreams: {{ u: {{ url: \"{}\", response_timeout: 100ms }} }}
routes: [{{ suffix: \"*\" }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let failed = answer(&gateway, call("/a.B/C")).await;
    assert_eq!(status(&failed).0, "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_unavailable() {
    let upstream = Upstream::ok().await;
    let route = ", limiters: [a], max_wait: 1h, max_waiting: 1";
    let gateway = before(&upstream, "limiters: { a: 1/minute }", route).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let _held = gateway.ask("/", &[]).await;
    gateway.until_waiting("all", 1).await;
    let full = answer(&gateway, call("/a.B/C")).await;
    let (code, headers) = status(&full);
    assert_eq!(code, "14");
    assert!(headers.contains_key("grpc-retry-pushback-ms"));
}

#[rstest]
#[case::json("application/json")]
#[case::grpc_for_browsers("application/grpc-web+proto")]
#[tokio::test(flavor = "multi_thread")]
async fn other_requests_over_http2_get_problems(#[case] kind: &'static str) {
    let upstream = Upstream::ok().await;
    let yaml = format!("upstream: {}\nroutes: [{{ suffix: /known }}]\n", upstream.url());
    let gateway = Gateway::start(&yaml).await;
    let mut request = call("/a.B/C");
    request.headers_mut().insert("content-type", HeaderValue::from_static(kind));
    let unknown = answer(&gateway, request).await;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert_eq!(unknown.headers()["content-type"], "application/problem+json");
}

#[rstest]
#[case::shorter("50m", Some("8"))]
#[case::longer("100S", None)]
#[case::none_at_all("soon", None)]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_no_longer_than_until_its_deadline(
    #[case] deadline: &'static str,
    #[case] refused: Option<&str>,
) {
    let upstream = Upstream::ok().await;
    let limiters = "limiters: { a: { rate: 1/2s, burst: 1 } }";
    let gateway = before(&upstream, limiters, ", limiters: [a], max_wait: 1m").await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut request = call("/a.B/C");
    request.headers_mut().insert("grpc-timeout", HeaderValue::from_static(deadline));
    let answer = answer(&gateway, request).await;
    let own = answer.headers().get("grpc-status").map(|code| code.to_str().expect("a number"));
    assert_eq!(own, refused);
    assert_eq!(upstream.calls().len(), if refused.is_some() { 1 } else { 2 });
}

async fn piece(body: &mut RecvStream) -> Bytes {
    let piece = timeout(PATIENCE, body.data()).await.expect("in time");
    let piece = piece.expect("not the end").expect("a piece");
    body.flow_control().release_capacity(piece.len()).expect("its size");
    piece
}

/// Sends a piece, when the other side lets it go.
async fn send(body: &mut SendStream<Bytes>, piece: &'static str) {
    body.reserve_capacity(piece.len());
    while body.capacity() < piece.len() {
        let more = timeout(PATIENCE, std::future::poll_fn(|cx| body.poll_capacity(cx))).await;
        more.expect("in time").expect("open").expect("capacity");
    }
    body.send_data(Bytes::from_static(piece.as_bytes()), false).expect("send");
}

// === HTTP/2 before HTTP/1.1 ===

/// An upstream that takes a request up to `piece`, says `answer` to it, and says when it has done so and when the
/// connection has ended.
async fn raw(
    piece: &'static str,
    answer: &'static str,
) -> (Upstream, Arc<Semaphore>, Arc<Semaphore>) {
    let (asked, ended) = (closed(), closed());
    let (asks, ends) = (asked.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asks, ends) = (asks.clone(), ends.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            if !piece.is_empty() {
                conn.until(piece).await.expect("the piece");
            }
            conn.send(answer).await.expect("send");
            asks.add_permits(1);
            let rest = String::from_utf8(conn.rest().await).expect("text");
            assert!(!rest.ends_with("0\r\n\r\n"), "it looks whole: {rest}");
            ends.add_permits(1);
        }
    })
    .await;
    (upstream, asked, ended)
}

#[rstest]
#[case::cancel(Reason::CANCEL)]
#[case::without_an_error(Reason::NO_ERROR)]
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_upload_never_looks_complete(#[case] reason: Reason) {
    let (upstream, asked, ended) = raw("first", "").await;
    let gateway = before(&upstream, "", "").await;
    let mut client = connect(gateway.listen).await;
    let (_answer, mut body) = client.send_request(call("/x"), false).expect("send");
    send(&mut body, "first").await;
    reached(&asked, "the upstream has the call").await;
    body.send_reset(reason);
    reached(&ended, "the upstream sees its connection end").await;
    assert_eq!(gateway.line("/x").await["outcome"], "cancelled");
}

#[rstest]
#[case::before_the_response("")]
#[case::in_the_middle_of_it("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_reset_ends_at_the_upstream(#[case] sent: &'static str) {
    let (upstream, asked, ended) = raw("", sent).await;
    let gateway = before(&upstream, "", "").await;
    let mut client = connect(gateway.listen).await;
    let (answer, mut stream) = client.send_request(call("/x"), true).expect("send");
    reached(&asked, "the upstream has the call").await;
    if sent.is_empty() {
        stream.send_reset(Reason::CANCEL);
    } else {
        let mut down = timeout(PATIENCE, answer).await.expect("in time").expect("an answer");
        assert_eq!(piece(down.body_mut()).await, "first");
        stream.send_reset(Reason::CANCEL);
    }
    reached(&ended, "the upstream sees its connection end").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_reset_while_held_stops_waiting() {
    let upstream = Upstream::ok().await;
    let limiters = "limiters: { a: 1/hour }";
    let gateway = before(&upstream, limiters, ", limiters: [a], max_wait: 1h").await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut client = connect(gateway.listen).await;
    let (_answer, mut stream) = client.send_request(call("/x"), false).expect("send");
    gateway.until_waiting("all", 1).await;
    stream.send_reset(Reason::CANCEL);
    gateway.until_waiting("all", 0).await;
    gateway.until_counted("all", "cancelled", 1).await;
}

#[rstest]
#[case::short_of_its_length("Content-Length: 100\r\n\r\nfirst")]
#[case::without_the_last_chunk("Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_breaks_off_is_reset(#[case] rest: &'static str) {
    let upstream = Upstream::start(move |_| Reply::raw(format!("HTTP/1.1 200 OK\r\n{rest}"))).await;
    let gateway = before(&upstream, "", "").await;
    let mut down = answer(&gateway, call("/x")).await.into_body();
    let error = loop {
        match timeout(PATIENCE, down.data()).await.expect("in time") {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("it looks whole"),
        }
    };
    assert!(error.is_reset(), "{error}");
}

#[rstest]
#[case::too_large("limits: { body: 10 }", "413")]
#[case::too_slow("client: { body_timeout: 300ms }", "408")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_over_http2_obeys_the_same_rules(#[case] keys: &str, #[case] status: &str) {
    let (upstream, asked, ended) = raw("first", "").await;
    let gateway = before(&upstream, keys, "").await;
    let mut client = connect(gateway.listen).await;
    let mut request = call("/x");
    request.headers_mut().remove("content-type");
    let (answer, mut body) = client.send_request(request, false).expect("send");
    send(&mut body, "first").await;
    reached(&asked, "the upstream has the call").await;
    if status == "413" {
        send(&mut body, "second").await;
    }
    let answer = timeout(PATIENCE, answer).await.expect("in time").expect("an answer");
    assert_eq!(answer.status().as_str(), status);
    reached(&ended, "the upstream sees its connection end").await;
}
