//! Answers that begin before the body was read: the gateway reads the rest, or says that the connection closes.

use super::{OK, before_one_a_day};
use crate::support::{Gateway, Upstream, request};
use rstest::rstest;

/// An upstream that answers as soon as it has the head of a request, and then reads on.
async fn hasty() -> Upstream {
    Upstream::raw(|mut conn| async move {
        while let Ok(Some(_)) = conn.head().await {
            conn.send(OK).await.expect("send");
            conn.rest().await;
        }
    })
    .await
}

/// A gateway whose limiter has no permit left.
async fn refusing() -> (Upstream, Gateway) {
    let upstream = Upstream::ok().await;
    let gateway = before_one_a_day(&upstream).await;
    assert_eq!(gateway.get("/").await.status, 200);
    (upstream, gateway)
}

fn post(length: usize) -> String {
    request("POST", "/", &[("Content-Length", &length.to_string())])
}

/// The rest looks like a request, and is none.
#[rstest]
#[case::at_once(0)]
#[case::in_pieces(9_000)]
#[tokio::test(flavor = "multi_thread")]
async fn a_short_unread_body_is_skipped_and_the_connection_kept(#[case] piece: usize) {
    let (upstream, gateway) = refusing().await;
    let mut conn = gateway.connect().await;
    let body = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3_000);
    for _ in 0..5 {
        if piece == 0 {
            conn.send(post(body.len()) + &body).await.expect("send");
        } else {
            conn.send(post(body.len())).await.expect("send");
        }
        let answer = conn.answer().await.expect("an answer that waits for no body");
        assert_eq!((answer.status, answer.field("connection")), (429, None));
        if piece > 0 {
            for part in body.as_bytes().chunks(piece) {
                conn.send(part).await.expect("send");
            }
        }
    }
    conn.send(request("GET", "/after", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 429);
    assert_eq!(gateway.count("all", "refused").await, 6.0, "no part of a body was a request");
    assert_eq!(upstream.calls().len(), 1);
}

#[rstest]
#[case::long(&post(20_000_000), "a", 20_000_000)]
#[case::chunked(&request("POST", "/", &[("Transfer-Encoding", "chunked")]), "3\r\nabc\r\n", 200_000)]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_a_body_that_is_not_read_closes_the_connection(
    #[case] head: &str,
    #[case] piece: &str,
    #[case] count: usize,
) {
    let (_upstream, gateway) = refusing().await;
    let mut conn = gateway.connect().await;
    conn.send(head).await.expect("send");
    conn.send(piece.repeat(count)).await.expect("all of it is taken");
    let answer = conn.answer().await.expect("an answer, in spite of what was not wanted");
    assert_eq!((answer.status, answer.field("connection")), (429, Some("close")));
    assert_eq!(conn.rest().await, b"");
}

/// The client may send no body now, and its next bytes would be taken for one.
#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_client_without_100_continue_announces_the_close() {
    let (upstream, gateway) = refusing().await;
    let mut conn = gateway.connect().await;
    let fields = [("Content-Length", "40"), ("Expect", "100-continue")];
    conn.send(request("POST", "/", &fields)).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.field("connection")), (429, Some("close")));
    let _ = conn.send(request("GET", "/next", &[])).await;
    assert_eq!(conn.rest().await, b"");
    assert_eq!(gateway.count("all", "refused").await, 1.0);
    assert_eq!(upstream.calls().len(), 1);
}

#[rstest]
#[case::short(&post(100_000), "a", 100_000, None)]
#[case::long(&post(20_000_000), "a", 20_000_000, Some("close"))]
#[case::chunked(&request("POST", "/", &[("Transfer-Encoding", "chunked")]), "3\r\nabc\r\n", 3, Some("close"))]
#[tokio::test(flavor = "multi_thread")]
async fn an_early_answer_of_the_upstream_closes_the_connection_before_a_long_body(
    #[case] head: &str,
    #[case] piece: &str,
    #[case] count: usize,
    #[case] connection: Option<&str>,
) {
    let upstream = hasty().await;
    let gateway = Gateway::before(&upstream, "routes: [{ name: all, suffix: \"*\" }]\n").await;
    let mut conn = gateway.connect().await;
    conn.send(head).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!((answer.status, answer.field("connection")), (200, connection));
    conn.send(piece.repeat(count)).await.expect("all of it is taken");
    if connection.is_some() {
        assert_eq!(conn.rest().await, b"");
        return;
    }
    conn.send(request("GET", "/", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_sends_the_rest_is_disconnected() {
    let upstream = Upstream::ok().await;
    let gateway =
        Gateway::before(&upstream, "client: { body_timeout: 200ms }\nroutes: [{ suffix: /x }]\n")
            .await;
    let mut conn = gateway.connect().await;
    conn.send(post(1_000) + "beginning").await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 404);
    assert_eq!(conn.rest().await, b"", "the connection ends");
}
