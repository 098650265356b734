//! Bodies both ways: how much memory they may cost, when they are asked for, how they end, and which side learns that one
//! broke off.

mod expect;
mod unread;

use crate::support::{Answer, Conn, Gateway, Reply, Upstream, closed, reached, request};
use parking_lot::Mutex;
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// A gateway that forwards everything, with more keys at the root of its configuration.
async fn before(upstream: &Upstream, keys: &str) -> Gateway {
    let routes = "routes: [{ name: all, suffix: \"*\" }]";
    Gateway::start(&format!("upstream: {}\n{keys}\n{routes}\n", upstream.url())).await
}

/// The same, where one request a day may pass.
async fn before_one_a_day(upstream: &Upstream) -> Gateway {
    let routes = "limiters: { a: 1/day }\nroutes: [{ name: all, suffix: \"*\", limiters: [a] }]";
    Gateway::start(&format!("upstream: {}\n{routes}\n", upstream.url())).await
}

/// An upstream that takes whatever comes on each of its connections, answers nothing, and writes down what it had
/// when the connection ended. Says when it has something, and when it has seen the end.
async fn silent() -> (Upstream, Arc<Semaphore>, Arc<Semaphore>, Arc<Mutex<Vec<String>>>) {
    let (began, ended, seen) = (closed(), closed(), Arc::<Mutex<Vec<String>>>::default());
    let (begins, ends, sees) = (began.clone(), ended.clone(), seen.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (begins, ends, sees) = (begins.clone(), ends.clone(), sees.clone());
        async move {
            // A connection may be made ahead and never used.
            let Ok(Some(head)) = conn.head().await else { return };
            begins.add_permits(1);
            let rest = conn.rest().await;
            sees.lock().push(format!("{}|{}", head.start, String::from_utf8_lossy(&rest)));
            ends.add_permits(1);
        }
    })
    .await;
    (upstream, began, ended, seen)
}

async fn open(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> Conn {
    let mut conn = gateway.connect().await;
    conn.send(bytes).await.expect("send");
    conn
}

fn chunked(method: &str, target: &str, body: &str) -> String {
    request(method, target, &[("Transfer-Encoding", "chunked")]) + body
}

/// Reads the answer, after which the gateway has to end the connection.
async fn last_answer(conn: &mut Conn) -> Answer {
    let answer = conn.answer().await.expect("an answer");
    assert_eq!(answer.field("connection"), Some("close"), "{answer:?}");
    assert_eq!(conn.rest().await, b"", "nothing follows");
    answer
}

// === what a body may cost ===

#[tokio::test(flavor = "multi_thread")]
async fn a_body_above_the_limit_is_refused_and_never_complete_upstream() {
    let (upstream, _, ended, seen) = silent().await;
    let gateway = before(&upstream, "limits: { body: 10 }").await;
    let mut conn = open(&gateway, chunked("POST", "/", "5\r\nhello\r\n")).await;
    conn.send("6\r\n world\r\n0\r\n\r\n").await.expect("send");
    let answer = last_answer(&mut conn).await;
    assert_eq!((answer.status, answer.problem().as_str()), (413, "too-large"));
    assert_eq!(gateway.count("all", "bad_request").await, 1.0);
    if upstream.connections() > 0 {
        reached(&ended, "the upstream sees the end of its connection").await;
        assert!(!seen.lock().iter().any(|seen| seen.contains("0\r\n\r\n")), "{seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_grows_above_the_limit_is_cut_off() {
    let (upstream, began, ended, seen) = silent().await;
    let gateway = before(&upstream, "limits: { body: 10 }").await;
    let mut conn = open(&gateway, chunked("POST", "/", "5\r\nhello\r\n")).await;
    reached(&began, "the upstream has the head").await;
    conn.send("6\r\n world\r\n0\r\n\r\n").await.expect("send");
    let answer = last_answer(&mut conn).await;
    assert_eq!((answer.status, answer.problem().as_str()), (413, "too-large"));
    reached(&ended, "the upstream sees the end of its connection").await;
    assert_eq!(seen.lock().as_slice(), ["POST / HTTP/1.1|5\r\nhello\r\n"]);
}

#[rstest]
#[case::chunked("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\n\r\n")]
#[case::with_a_length("Content-Length: 10\r\n\r\nhelloworld")]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_exactly_the_limit_passes(#[case] rest: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "limits: { body: 10 }").await;
    let mut conn = open(&gateway, format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}")).await;
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    assert_eq!(upstream.calls()[0].body, b"helloworld");
}

#[rstest]
#[case::chunked("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "5\r\nhello\r\n")]
#[case::with_a_length("Content-Length: 10\r\n\r\nhello", "hello")]
#[case::before_its_first_byte("Content-Length: 10\r\n\r\n", "")]
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_upload_is_given_up(#[case] sent: &str, #[case] arrives: &str) {
    let (upstream, _, ended, seen) = silent().await;
    let gateway = before(&upstream, "client: { body_timeout: 300ms }").await;
    let mut conn = open(&gateway, format!("POST / HTTP/1.1\r\nHost: a\r\n{sent}")).await;
    let answer = last_answer(&mut conn).await;
    assert_eq!((answer.status, answer.problem().as_str()), (408, "body-timeout"));
    reached(&ended, "the upstream sees the end of its connection").await;
    assert_eq!(seen.lock().as_slice(), [format!("POST / HTTP/1.1|{arrives}")]);
    assert_eq!(gateway.count("all", "bad_request").await, 1.0);
}

/// Together, its pieces take longer than each of them may, and than the upstream may take for its answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_steady_upload_is_accepted() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "client: {{ body_timeout: 2s }}
upstreams: {{ u: {{ url: \"{}\", response_timeout: 2s }} }}
routes: [{{ suffix: \"*\" }}]
",
        upstream.url()
    ))
    .await;
    let mut conn = open(&gateway, chunked("POST", "/", "")).await;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        conn.send("1\r\nx\r\n").await.expect("send");
    }
    conn.send("0\r\n\r\n").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}

// === how a body may not be framed ===

#[rstest]
#[case::no_size("zz\r\nhello\r\n0\r\n\r\n")]
#[case::no_size_at_all("\r\nhello\r\n0\r\n\r\n")]
#[case::negative("-5\r\nhello\r\n0\r\n\r\n")]
#[case::a_prefix("0x5\r\nhello\r\n0\r\n\r\n")]
#[case::too_large_a_size("fffffffffffffffff\r\nhello\r\n0\r\n\r\n")]
#[case::more_than_its_size("5\r\nhello world\r\n0\r\n\r\n")]
#[case::less_than_its_size("6\r\nhello\r\n0\r\n\r\n")]
#[case::the_second_one("5\r\nhello\r\nzz\r\nworld\r\n0\r\n\r\n")]
#[case::the_third_one("5\r\nhello\r\n5\r\nworld\r\n5 5\r\nagain\r\n0\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_chunk_sent_with_the_head_is_refused_without_charge(#[case] body: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before_one_a_day(&upstream).await;
    let mut conn = open(&gateway, chunked("POST", "/", body)).await;
    let answer = last_answer(&mut conn).await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"));
    assert_eq!(upstream.connections(), 0, "the upstream receives nothing");
    assert_eq!(gateway.get("/").await.status, 200, "the permit is still there");
    assert_eq!(gateway.count("all", "bad_request").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_bad_chunk_aborts_the_call_and_spends_its_permit() {
    let (upstream, began, ended, seen) = silent().await;
    let gateway = before_one_a_day(&upstream).await;
    let mut conn = open(&gateway, chunked("POST", "/", "5\r\nhello\r\n")).await;
    reached(&began, "the upstream has the head").await;
    conn.send("zz\r\nworld\r\n0\r\n\r\n").await.expect("send");
    let answer = last_answer(&mut conn).await;
    assert_eq!((answer.status, answer.problem().as_str()), (400, "bad-request"));
    reached(&ended, "the upstream sees the end of its connection").await;
    assert_eq!(seen.lock().as_slice(), ["POST / HTTP/1.1|5\r\nhello\r\n"]);
    assert_eq!(gateway.get("/").await.status, 429);
}

#[rstest]
#[case::chunked("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "5\r\nhello\r\n")]
#[case::within_a_chunk("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n9\r\nwo", "5\r\nhello\r\n")]
#[case::with_a_length("Content-Length: 10\r\n\r\nhello", "hello")]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_aborts_its_upload_aborts_the_call(
    #[case] sent: &str,
    #[case] arrives: &str,
) {
    let (upstream, began, ended, seen) = silent().await;
    let gateway = before(&upstream, "").await;
    let conn = open(&gateway, format!("POST /x HTTP/1.1\r\nHost: a\r\n{sent}")).await;
    reached(&began, "the upstream has the head").await;
    drop(conn);
    reached(&ended, "the upstream sees the end of its connection").await;
    let seen = seen.lock()[0].clone();
    assert!(seen.starts_with(&format!("POST /x HTTP/1.1|{arrives}")), "{seen}");
    assert!(!seen.contains("0\r\n\r\n"), "not whole: {seen}");
    assert_eq!(gateway.line("/x").await["outcome"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_aborts_an_upload_is_a_502() {
    let upstream = Upstream::raw(|mut conn| async move {
        let _ = conn.head().await;
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, chunked("POST", "/", "5\r\nhello\r\n")).await;
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-broken"));
    assert_eq!(gateway.count("all", "upstream_failed").await, 1.0);
}

// === trailers ===

#[tokio::test(flavor = "multi_thread")]
async fn announced_trailers_pass_both_ways() {
    let (ended, seen) = (closed(), Arc::<Mutex<String>>::default());
    let (ends, sees) = (ended.clone(), seen.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (ends, sees) = (ends.clone(), sees.clone());
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            *sees.lock() = conn.until("\r\n\r\n").await.expect("a body with trailers");
            assert_eq!(head.get("trailer"), Some("x-sum, x-forwarded-for"));
            let head = "HTTP/1.1 200 OK\r\nTrailer: X-Check\r\nTransfer-Encoding: chunked\r\n\r\n";
            conn.send(head).await.expect("send");
            conn.send("2\r\nok\r\n0\r\nX-Check: 1\r\nX-Other: 2\r\n\r\n").await.expect("send");
            ends.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let announced = "x-sum, x-forwarded-for";
    let fields = [("Transfer-Encoding", "chunked"), ("Trailer", announced), ("TE", "trailers")];
    let body =
        "5\r\nhello\r\n0\r\nX-Sum: 9\r\nX-Forwarded-For: 6.6.6.6\r\nX-Unannounced: 1\r\n\r\n";
    let mut conn = open(&gateway, request("POST", "/", &fields) + body).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert_eq!(head.get("trailer"), Some("X-Check"));
    let rest = conn.until("\r\n\r\n").await.expect("a body with trailers");
    assert_eq!(rest, "2\r\nok\r\n0\r\nx-check: 1\r\n\r\n");
    reached(&ended, "the upstream is done").await;
    assert_eq!(*seen.lock(), "5\r\nhello\r\n0\r\nx-sum: 9\r\n\r\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_te_trailers_gets_no_trailers() {
    let bytes = "HTTP/1.1 200 OK\r\nTrailer: X-Check\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nok\r\n0\r\nX-Check: 1\r\n\r\n";
    let upstream = Upstream::start(move |_| Reply::raw(bytes)).await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("GET", "/", &[])).await;
    conn.head().await.expect("an answer").expect("a head");
    assert_eq!(conn.until("\r\n\r\n").await.expect("a body"), "2\r\nok\r\n0\r\n\r\n");
}

/// hyper takes a bare LF in trailers for the end of a line, and one line more than it should for the end of the trailers.
/// A client that sees the end of its request there must not get the answer to the bytes that follow as the answer to its
/// next request.
#[rstest]
#[case::trailers("X: a\r\n\r\n")]
#[case::an_end_by_bare_line_feeds("X: a\n\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::nothing_before_it("\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn trailers_of_a_request_close_the_connection(#[case] trailers: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, chunked("POST", "/", &format!("0\r\n{trailers}"))).await;
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    assert_eq!(conn.rest().await, b"");
    assert_eq!(upstream.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_after_the_answer_close_the_connection() {
    let upstream = Upstream::raw(|mut conn| async move {
        while let Ok(Some(_)) = conn.head().await {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            conn.send(head).await.expect("send");
            let _ = conn.until("\r\n\r\n").await;
            conn.send("0\r\n\r\n").await.expect("send");
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, chunked("POST", "/", "2\r\nok\r\n")).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert_eq!(head.get("connection"), Some("close"));
    conn.send("0\r\nX: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").await.expect("send");
    assert_eq!(conn.until("0\r\n\r\n").await.expect("the end"), "0\r\n\r\n");
    assert_eq!(conn.rest().await, b"");
}

// === responses that break off ===

#[rstest]
#[case::short_of_its_length("Content-Length: 100\r\n\r\nfirst")]
#[case::without_the_last_chunk("Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")]
#[case::within_a_chunk("Transfer-Encoding: chunked\r\n\r\n20\r\nfirst")]
#[case::with_a_bad_chunk("Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\nzz\r\n0\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_response_never_looks_complete(#[case] rest: &'static str) {
    let upstream = Upstream::start(move |_| Reply::raw(format!("HTTP/1.1 200 OK\r\n{rest}"))).await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("GET", "/", &[])).await;
    let broken = conn.answer().await.expect_err("it breaks off");
    assert_ne!(broken.kind(), std::io::ErrorKind::TimedOut, "at once");
}

#[rstest]
#[case::head("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Some("5"))]
#[case::head_chunked("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None)]
#[case::no_content("GET", "HTTP/1.1 204 No Content\r\n\r\n", None)]
#[case::no_content_with_a_length(
    "GET",
    "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
    None
)]
#[case::not_modified("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", None)]
#[case::not_modified_chunked(
    "GET",
    "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
    None
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_response_without_a_body_stays_without_one(
    #[case] method: &str,
    #[case] bytes: &'static str,
    #[case] length: Option<&str>,
) {
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/none" => Reply { bytes: bytes.into(), ..Reply::default() },
        _ => Reply::ok(),
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request(method, "/none", &[])).await;
    let none = conn.answer_to(method).await.expect("an answer");
    assert_eq!(none.field("content-length"), length, "{none:?}");
    conn.send(request("GET", "/next", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("the next answer").text(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_1_0_client_can_keep_its_connection() {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, "").await;
    for _ in 0..2 {
        conn.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await.expect("send");
        let answer = conn.answer().await.expect("an answer");
        assert_eq!(answer.text(), "ok");
        assert_eq!(answer.field("connection"), Some("keep-alive"));
    }
    conn.send("GET / HTTP/1.0\r\n\r\n").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").text(), "ok");
    assert_eq!(conn.rest().await, b"", "it ends");
}
