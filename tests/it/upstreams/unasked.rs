//! Octets that an upstream sends when no answer is due, or after one.

use super::Gets::Whole;
use super::{before, gets, own, saying};
use crate::support::{PATIENCE, Upstream, request};
use rstest::rstest;
use std::sync::Arc;
use tokio::{sync::Semaphore, time::timeout};

#[tokio::test(flavor = "multi_thread")]
async fn octets_on_an_idle_connection_end_it() {
    let (go_on, ended) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (gate, end) = (go_on.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (gate, end) = (gate.clone(), end.clone());
        async move {
            let Ok(Some(head)) = conn.head().await else { return };
            let target = head.start.split(' ').nth(1).unwrap_or_default().to_owned();
            conn.send(own(&target)).await.expect("send");
            gate.acquire().await.expect("open").forget();
            conn.send(own("/bad")).await.expect("send");
            assert!(conn.rest().await.is_empty(), "no second request");
            end.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream).await;
    for target in ["/1", "/2", "/3"] {
        assert_eq!(gateway.get(target).await.text(), target);
        go_on.add_permits(1);
        let permit = timeout(PATIENCE, ended.acquire()).await;
        permit.expect("the gateway closes it").expect("open").forget();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_before_the_request_are_no_answer() {
    let upstream = Upstream::raw(|mut conn| async move {
        let early = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 3\r\n\r\nbad";
        if conn.send(early).await.is_err() {
            return;
        }
        while let Ok(Some(head)) = conn.head().await {
            let target = head.start.split(' ').nth(1).unwrap_or_default();
            if conn.send(own(target)).await.is_err() {
                return;
            }
        }
    })
    .await;
    let gateway = before(&upstream).await;
    for i in 0..10 {
        let target = format!("/{i}");
        let answer = gateway.get(&target).await;
        // Whether it came before the request is certain only when it came some time before.
        assert!([408, 502].contains(&answer.status) || answer.text() == target, "{answer:?}");
    }
    let made = upstream.connections();
    assert!((10..=30).contains(&made), "{made} connections for 10 requests: none twice, no loop");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_answer_to_head_reaches_no_client() {
    let bytes =
        "HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let (upstream, _log) = saying(bytes.into(), false).await;
    let gateway = before(&upstream).await;
    for _ in 0..5 {
        let mut conn = gateway.connect().await;
        conn.send(request("HEAD", "/bad", &[])).await.expect("send");
        let answer = conn.answer_to("HEAD").await.expect("an answer");
        assert_eq!((answer.status, answer.field("content-length")), (200, Some("36")));
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
}

/// Sends bytes that must not precede the next answer: on a connection of its own no client receives them.
#[rstest]
#[case::head("HEAD", "200 OK")]
#[case::not_modified("GET", "304 Not Modified")]
#[tokio::test(flavor = "multi_thread")]
async fn a_late_body_reaches_no_client(#[case] method: &str, #[case] status: &str) {
    let late = format!("HTTP/1.1 {status}\r\nContent-Length: 40\r\n\r\n");
    let upstream = Upstream::raw(move |mut conn| {
        let late = late.clone();
        async move {
            while let Ok(Some(head)) = conn.head().await {
                let target = head.start.split(' ').nth(1).unwrap_or_default().to_owned();
                if target != "/late" {
                    let _ = conn.send(own(&target)).await;
                    continue;
                }
                conn.send(&late).await.expect("send");
                // Only a gateway that uses the connection again gets this.
                if conn.head().await.is_ok_and(|head| head.is_some()) {
                    let _ = conn.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad").await;
                }
                return;
            }
        }
    })
    .await;
    let gateway = before(&upstream).await;
    for _ in 0..3 {
        let mut conn = gateway.connect().await;
        conn.send(request(method, "/late", &[])).await.expect("send");
        conn.answer_to("HEAD").await.expect("an answer");
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
}

/// The rest of an upload that its upstream has answered without reading may be the next request to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_answered_early_is_not_used_again() {
    let upstream = Upstream::raw(|mut conn| async move {
        while let Ok(Some(head)) = conn.head().await {
            let target = head.start.split(' ').nth(1).unwrap_or_default().to_owned();
            let answer = match target.as_str() {
                "/early" => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n".to_owned(),
                target => own(target),
            };
            if conn.send(answer).await.is_err() {
                return;
            }
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut conn = gateway.connect().await;
    let length = smuggled.len().to_string();
    conn.send(request("POST", "/early", &[("Content-Length", &length)])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 401);
    let _ = conn.send(smuggled).await;
    for _ in 0..3 {
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
}

/// Bytes after a response end its connection, however fast they came.
#[rstest]
#[case::small(100)]
#[case::large(300_000)]
#[tokio::test(flavor = "multi_thread")]
async fn bytes_after_a_body_are_no_answer(#[case] size: usize) {
    let body = "x".repeat(size);
    let bytes =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n{body}{}", own("for nobody"));
    let (upstream, _log) = saying(bytes.into(), false).await;
    let gateway = before(&upstream).await;
    for _ in 0..5 {
        let mut conn = gateway.connect().await;
        conn.send(request("GET", "/bad", &[])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").body.len(), size);
        assert_eq!(gets(&gateway, "/next").await, Whole("/next"));
    }
}
