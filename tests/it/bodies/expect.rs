//! `Expect: 100-continue`, and interim responses of an upstream.

use super::{OK, before, before_one_a_day, closed, open};
use crate::support::{Gateway, Reply, Upstream, reached, reply, request};
use rstest::rstest;

// === Expect: 100-continue ===

const EXPECTS: [(&str, &str); 2] = [("Expect", "100-continue"), ("Content-Length", "4")];

#[tokio::test(flavor = "multi_thread")]
async fn a_100_continue_of_the_upstream_is_passed_to_the_client() {
    let (asked, go_on) = (closed(), closed());
    let (asks, gate) = (asked.clone(), go_on.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asks, gate) = (asks.clone(), gate.clone());
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            assert_eq!(head.get("expect"), Some("100-continue"));
            asks.add_permits(1);
            reached(&gate, "the test lets it continue").await;
            conn.send("HTTP/1.1 100 Continue\r\n\r\n").await.expect("send");
            assert_eq!(conn.until("data").await.expect("the body"), "data", "asked for once");
            conn.send(OK).await.expect("send");
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("PUT", "/", &EXPECTS)).await;
    reached(&asked, "the upstream has the head").await;
    go_on.add_permits(1);
    assert_eq!(
        conn.until("\r\n\r\n").await.expect("the go-ahead"),
        "HTTP/1.1 100 Continue\r\n\r\n"
    );
    conn.send("data").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").text(), "ok");
}

#[rstest]
#[case::unauthorized("401 Unauthorized")]
#[case::too_large("413 Content Too Large")]
#[case::expectation_failed("417 Expectation Failed")]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_body_ends_the_expectation(#[case] status: &'static str) {
    let ended = closed();
    let ends = ended.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let ends = ends.clone();
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
            conn.send(answer).await.expect("send");
            assert_eq!(conn.rest().await, b"", "neither a body nor another request");
            ends.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("PUT", "/", &EXPECTS)).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert_eq!(head.start, format!("HTTP/1.1 {status}"), "and no 100 before it");
    assert_eq!(head.get("connection"), Some("close"));
    assert_eq!(conn.rest().await, b"no", "nothing follows");
    reached(&ended, "the upstream sees the end of its connection").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_without_100_continue_gets_the_body_nevertheless() {
    let upstream = Upstream::raw(|mut conn| async move {
        let Ok(Some(_)) = conn.head().await else { return };
        conn.until("data").await.expect("the body");
        conn.send(OK).await.expect("send");
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("PUT", "/", &EXPECTS)).await;
    conn.until("HTTP/1.1 100 Continue\r\n\r\n").await.expect("the go-ahead");
    conn.send("data").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").text(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_wait_for_100_continue_is_served() {
    let upstream =
        Upstream::start(|call| reply("200 OK", &[], &String::from_utf8_lossy(&call.body))).await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("PUT", "/", &EXPECTS) + "data").await;
    assert_eq!(conn.answer().await.expect("an answer").text(), "data");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upload_gets_no_100_continue() {
    let upstream = Upstream::ok().await;
    let gateway = before_one_a_day(&upstream).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut conn = open(&gateway, request("PUT", "/", &EXPECTS)).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert_eq!(head.start, "HTTP/1.1 429 Too Many Requests", "and no 100 before it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_upload_gets_100_continue_at_its_slot() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::before(
        &upstream,
        "limiters: { a: { rate: 1/500ms, burst: 1 } }
routes: [{ name: all, suffix: \"*\", limiters: [a], max_wait: 20s }]
",
    )
    .await;
    let mut ahead = [gateway.ask("/", &[]).await, gateway.ask("/", &[]).await];
    gateway.until_waiting("all", 1).await;
    let mut conn = open(&gateway, request("PUT", "/", &EXPECTS)).await;
    conn.until("HTTP/1.1 100 Continue\r\n\r\n").await.expect("the go-ahead");
    assert_eq!(upstream.arrivals().len(), 2, "those before it have been let through");
    conn.send("data").await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert!(answer.status == 200 && answer.held_ms() > 0.0, "{answer:?}");
    for conn in &mut ahead {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
}

#[rstest]
#[case::an_old_client(
    "PUT / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\ndata",
    "data"
)]
#[case::nothing_to_send("GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n", "")]
#[case::an_empty_body(
    "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 0\r\n\r\n",
    ""
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_meaningless_expectation_is_ignored(#[case] bytes: &str, #[case] body: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, bytes).await;
    let head = conn.head().await.expect("an answer").expect("a head");
    assert!(head.start.ends_with(" 200 OK"), "{head:?}");
    let call = &upstream.calls()[0];
    assert_eq!((call.head.get("expect"), call.body.as_slice()), (None, body.as_bytes()));
}

// === interim responses ===

#[tokio::test(flavor = "multi_thread")]
async fn early_hints_pass_without_hop_by_hop_headers() {
    let upstream = Upstream::start(|_| {
        let hints =
            "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nConnection: X-Mine\r\nX-Mine: 1\r\n\r\n";
        Reply { bytes: [hints, OK].concat().into_bytes(), ..Reply::default() }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("GET", "/", &[])).await;
    let hints = conn.head().await.expect("hints").expect("a head");
    assert_eq!(hints.start, "HTTP/1.1 103 Early Hints");
    assert_eq!(hints.fields, [("link".to_owned(), "</a.css>".to_owned())]);
    assert_eq!(conn.answer().await.expect("an answer").text(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_interim_responses_is_bounded() {
    let upstream = Upstream::start(|_| {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n".repeat(100);
        Reply { bytes: [&hints, OK].concat().into_bytes(), ..Reply::default() }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, request("GET", "/", &[])).await;
    let mut hints = 0;
    while conn.head().await.expect("a head").expect("a head").start.contains("103") {
        hints += 1;
    }
    assert_eq!(hints, 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_1_0_client_gets_no_interim_responses() {
    let upstream = Upstream::start(|_| {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
        Reply { bytes: [hints, OK].concat().into_bytes(), ..Reply::default() }
    })
    .await;
    let gateway = before(&upstream, "").await;
    let mut conn = open(&gateway, "GET / HTTP/1.0\r\n\r\n").await;
    let text = String::from_utf8(conn.rest().await).expect("text");
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
}
