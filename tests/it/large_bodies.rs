//! Large bodies of which a key or a cost is a part: found wherever it is, forwarded byte for byte, checked to the end, and in
//! bounded memory.

use crate::support::{Answer, Conn, Gateway, Upstream, closed, eventually, reached, request};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rstest::rstest;
use std::sync::Arc;
use tokio::{net::TcpStream, task::JoinSet};

const MIB: usize = 1 << 20;
const PLAIN: &str = "'{body./n}'";

/// A gateway with 1000 permits, of which a request takes `cost`, and with more keys at the root of its configuration.
async fn gateway(upstream: &Upstream, keys: &str, cost: &str) -> Gateway {
    Gateway::before(upstream, &format!("{keys}\nlimiters: {{ points: 1000/day }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [{{ limiter: points, cost: {cost} }}] }}]\n"))
    .await
}

async fn level(gateway: &Gateway) -> i64 {
    gateway.limiter("points").await["level"].as_i64().expect("a number")
}

/// About `length` bytes of JSON members, without a comma at their end.
fn filler(length: usize) -> String {
    let text = format!("\"text\":\"{}é\\n\"", "x".repeat(999));
    let mut all = vec![text; length / 1000];
    all.push("\"list\":[1,[2.5e3,[null,{\"n\":9}]],true]".into());
    all.join(",")
}

/// An object of about `length` bytes with `member` after so many hundredths of it.
fn body_with(member: &str, length: usize, hundredths: usize) -> String {
    let before = length / 100 * hundredths;
    let body = format!("{},{member},{}", filler(before), filler(length - before));
    format!("{{ {body} }}")
}

fn chunked(body: &[u8]) -> Vec<u8> {
    let chunks = body.chunks(100_000).flat_map(|chunk| {
        [format!("{:x}\r\n", chunk.len()).into_bytes(), chunk.to_vec(), b"\r\n".to_vec()].concat()
    });
    chunks.chain(*b"0\r\n\r\n").collect()
}

async fn post(gateway: &Gateway, body: &str, is_chunked: bool) -> Answer {
    let (mut reads, mut writes) = gateway.connect().await.split();
    let length = body.len().to_string();
    let field =
        if is_chunked { ("Transfer-Encoding", "chunked") } else { ("Content-Length", &*length) };
    let head = request("POST", "/", &[field]);
    let bytes = if is_chunked { chunked(body.as_bytes()) } else { body.as_bytes().to_vec() };
    let sending = tokio::spawn(async move {
        writes.send(head).await?;
        // The gateway may answer and close before it has taken all of it.
        writes.send(bytes).await
    });
    let answer = reads.answer().await.expect("an answer");
    sending.abort();
    answer
}

#[rstest]
#[case::at_the_front(0)]
#[case::in_the_middle(50)]
#[case::at_the_end(100)]
#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_found_wherever_it_is_in_32_mib(
    #[case] hundredths: usize,
    #[values(false, true)] is_chunked: bool,
) {
    let upstream = Upstream::ok().await;
    let gateway = gateway(&upstream, "limits: { json_body: 64MiB }", PLAIN).await;
    let body = body_with("\"n\":7", 32 * MIB, hundredths);
    assert_eq!(post(&gateway, &body, is_chunked).await.status, 200);
    assert!(upstream.calls()[0].body == body.as_bytes(), "byte for byte");
    assert_eq!(level(&gateway).await, 993);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_found_in_nested_arrays_of_32_mib_over_http2() {
    let upstream = Upstream::ok().await;
    let cost = "'{body./a/0/2/1/n} + {body./a/0/1/x}'";
    let gateway = gateway(&upstream, "limits: { json_body: 64MiB }", cost).await;
    let long = "x".repeat(32 * MIB);
    let body = format!(r#"{{"n":1,"a":[[[],{{"x":3}},["{long}",{{"n":4}},5]],6],"n":2}}"#);
    let tcp = TcpStream::connect(gateway.listen).await.expect("connect");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request =
        http::Request::post("http://gateway.test/").body(Full::new(Bytes::from(body.clone())));
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(upstream.calls()[0].body == body.as_bytes(), "byte for byte");
    assert_eq!(level(&gateway).await, 993);
}

/// The bound is for the part, not for the body.
#[rstest]
#[case::within(10, PLAIN, 200, 993)]
#[case::beyond_without_default(90, PLAIN, 413, 1000)]
#[case::beyond_with_default(90, "{ reserve: '{body./n}', default: 40 }", 200, 960)]
#[case::beyond_and_settled(
    90,
    "{ reserve: '{body./n}', settle: '{response.header.x}' }",
    413,
    1000
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_part_is_sought_within_the_bound(
    #[case] hundredths: usize,
    #[case] cost: &str,
    #[case] status: u16,
    #[case] left: i64,
    #[values(false, true)] is_chunked: bool,
) {
    let upstream = Upstream::ok().await;
    let gateway = gateway(&upstream, "", cost).await;
    let body = body_with("\"n\":7", 3 * MIB, hundredths);
    let answer = post(&gateway, &body, is_chunked).await;
    assert_eq!((answer.status, level(&gateway).await), (status, left), "{answer:?}");
    let calls = upstream.calls();
    assert_eq!(calls.len(), usize::from(status == 200));
    assert!(calls.iter().all(|call| call.body == body.as_bytes()), "byte for byte");
}

/// The request is decided and begun before the end of its body. The upstream never has a complete body that can be read in
/// two ways.
#[rstest]
#[case::twice("\"n\":8", "")]
#[case::another_spelling("\"N\":8", "")]
#[case::no_json("\"x\":NaN", "")]
#[case::a_second_document("\"x\":1", "{\"n\":8}")]
#[case::text_after_the_end("\"x\":1", "x")]
#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_body_is_checked_as_it_is_sent(
    #[case] member: &str,
    #[case] after: &str,
    #[values(false, true)] is_chunked: bool,
) {
    let (ended, seen) = (closed(), Arc::new(Mutex::new(0)));
    let (ends, sees) = (ended.clone(), seen.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (ends, sees) = (ends.clone(), sees.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            let rest = conn.rest().await;
            *sees.lock() = if rest.ends_with(b"\r\n0\r\n\r\n") { usize::MAX } else { rest.len() };
            ends.add_permits(1);
        }
    })
    .await;
    let gateway = gateway(&upstream, "", PLAIN).await;
    let front = body_with("\"n\":7", 2 * MIB, 0);
    let body = format!("{},{member}}}{after}", front.trim_end_matches(" }"));
    let answer = post(&gateway, &body, is_chunked).await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"), "{answer:?}");
    reached(&ended, "the upstream sees the end of its connection").await;
    let seen = *seen.lock();
    assert!(seen > MIB && (is_chunked || seen < body.len()), "{seen} of {}", body.len());
    assert!(seen < usize::MAX, "the last chunk");
}

/// A body whose end is missing has its end in the last bytes, which the upstream does not get.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_without_an_end_is_never_complete_upstream() {
    let upstream = Upstream::ok().await;
    let gateway = gateway(&upstream, "", PLAIN).await;
    let front = body_with("\"n\":7", 2 * MIB, 0);
    for is_chunked in [false, true] {
        let answer = post(&gateway, front.trim_end_matches(" }"), is_chunked).await;
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    assert_eq!(upstream.calls().len(), 0);
}

#[rstest]
#[case::without_room_of_its_own(100_000)]
#[case::with_room(400_000)]
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_stalls_is_given_up(#[case] sent: usize) {
    let upstream = Upstream::ok().await;
    let gateway = gateway(&upstream, "client: { body_timeout: 1s }", PLAIN).await;
    let mut conn = gateway.connect().await;
    conn.send(request("POST", "/", &[("Content-Length", "900000")])).await.expect("send");
    conn.send(" ".repeat(sent)).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (408, "body-timeout"));
    assert_eq!((upstream.calls().len(), level(&gateway).await), (0, 1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_large_body_gets_100_continue() {
    let upstream = Upstream::ok().await;
    let gateway = gateway(&upstream, "", PLAIN).await;
    let body = body_with("\"n\":7", 2 * MIB, 20);
    let mut conn = gateway.connect().await;
    let length = body.len().to_string();
    let fields = [("Content-Length", &*length), ("Expect", "100-continue")];
    conn.send(request("POST", "/", &fields)).await.expect("send");
    assert_eq!(conn.head().await.expect("a head").expect("one").start, "HTTP/1.1 100 Continue");
    conn.send(&body).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert!(upstream.calls()[0].body == body.as_bytes(), "byte for byte");
}

/// Begins a body of `length` bytes, and sends so many of them.
async fn hold(gateway: &Gateway, length: usize, sent: usize) -> Conn {
    let mut conn = gateway.connect().await;
    let head = request("POST", "/", &[("Content-Length", &length.to_string())]);
    conn.send(head + &" ".repeat(sent)).await.expect("send");
    conn
}

/// One body has claimed 40 MiB of the room, and the next of 40 MiB waits for it. The third finds no room in time; small ones
/// pass all of them.
#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_wait_in_line_for_room() {
    let upstream = Upstream::ok().await;
    let keys = "limits: { json_body: 64MiB }\nclient: { body_timeout: 3s }\nworkers: 1";
    let gateway = gateway(&upstream, keys, PLAIN).await;
    let mut first = hold(&gateway, 40 * MIB, 39 * MIB).await;
    eventually("the room is claimed", async || (gateway.memory() > 50 << 10).then_some(())).await;
    let mut second = hold(&gateway, 40 * MIB, 300_000).await;
    let body = body_with("\"n\":1", 40 * MIB, 100);
    let third = post(&gateway, &body, false);
    let small = async { post(&gateway, &body_with("\"n\":1", MIB / 5, 100), false).await.status };
    let (third, small) = tokio::join!(third, small);
    assert_eq!((third.status, third.problem().as_str(), small), (503, "too-many-bodies", 200));
    assert_eq!(third.field("retry-after"), Some("1"));
    assert_eq!(first.answer().await.expect("an answer").status, 408);
    assert_eq!(second.answer().await.expect("an answer").status, 408);
    assert_eq!(post(&gateway, &body, false).await.status, 200, "there is room again");
}

/// All of them are read, two or three at a time.
#[tokio::test(flavor = "multi_thread")]
async fn many_uploads_at_once_are_read_in_bounded_memory() {
    let upstream = Upstream::raw(async |mut conn| {
        while let Ok(Some(head)) = conn.head().await {
            let length = head.get("content-length").and_then(|length| length.parse().ok());
            if conn.skip(length.expect("a length")).await.is_err()
                || conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.is_err()
            {
                return;
            }
        }
    })
    .await;
    let keys = "limits: { json_body: 64MiB }";
    let gateway = Arc::new(gateway(&upstream, keys, PLAIN).await);
    let body: Arc<str> = body_with("\"n\":1", 24 * MIB, 100).into();
    let mut uploads = JoinSet::new();
    for _ in 0..16 {
        let (gateway, body) = (gateway.clone(), body.clone());
        uploads.spawn(async move { post(&gateway, &body, false).await.status });
    }
    let mut most = 0;
    while let Some(status) = uploads.join_next().await {
        assert_eq!(status.expect("it ends"), 200);
        most = most.max(gateway.memory());
    }
    assert!(most < 160 << 10, "{most} KiB");
}
