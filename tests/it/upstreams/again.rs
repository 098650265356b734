//! Requests on connections that end: which are sent once more, and which are not.

use super::Gets::Refused;
use super::{before, gets, own};
use crate::support::{Conn, Gateway, Upstream, eventually, request};
use rstest::rstest;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// How a connection that has answered before meets its next request.
#[derive(Debug, Clone, Copy)]
enum Meets {
    TheEnd,
    /// The connection ends after the upstream has sent these bytes.
    Bytes(&'static str),
}

/// Answers the first request of each connection. The second meets `meets`, and is counted.
async fn ends_when_used(meets: Meets) -> (Upstream, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (calls, met) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (called, counted) = (calls.clone(), met.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (called, counted) = (called.clone(), counted.clone());
        async move {
            let Ok(Some((head, ..))) = conn.request().await else { return };
            called.fetch_add(1, Relaxed);
            let answer = match head.start.starts_with("HEAD") {
                // One that announces a body is not used again.
                true => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                false => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            };
            conn.send(answer).await.expect("send");
            let Ok(Some(_)) = conn.request().await else { return };
            called.fetch_add(1, Relaxed);
            counted.fetch_add(1, Relaxed);
            if let Meets::Bytes(bytes) = meets {
                conn.send(bytes).await.expect("send");
            }
        }
    })
    .await;
    (upstream, calls, met)
}

/// Asks until a request was sent on a connection that had answered before; the status of that one.
async fn until_met(gateway: &Gateway, met: &AtomicUsize, method: &str, body: &str) -> (u16, usize) {
    let mut asked = 0;
    let status = eventually("a connection is used again", async || {
        asked += 1;
        let mut conn = gateway.connect().await;
        let length = body.len().to_string();
        let fields = [("Content-Length", length.as_str())];
        let fields = if body.is_empty() { &[] } else { &fields[..] };
        let request = request(method, "/", fields) + body;
        conn.send(request).await.expect("send");
        let answer = conn.answer_to(method).await.expect("an answer");
        if met.load(Relaxed) == 0 {
            assert_eq!(answer.status, 200);
            return None;
        }
        Some(answer.status)
    })
    .await;
    (status, asked)
}

async fn spent(gateway: &Gateway) -> i64 {
    1000 - gateway.limiter("day").await["level"].as_i64().expect("a level")
}

#[rstest]
#[case::get("GET")]
#[case::head("HEAD")]
#[case::options("OPTIONS")]
#[case::put("PUT")]
#[case::delete("DELETE")]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_on_a_closed_connection_is_sent_once_more(#[case] method: &str) {
    let (upstream, calls, met) = ends_when_used(Meets::TheEnd).await;
    let gateway = before(&upstream).await;
    let (status, asked) = until_met(&gateway, &met, method, "").await;
    assert_eq!(status, 200);
    assert_eq!(calls.load(Relaxed), asked + 1, "one of them was sent twice");
    assert_eq!(spent(&gateway).await, asked as i64 + 1, "and paid for both");
}

#[rstest]
#[case::post("POST", "", Meets::TheEnd)]
#[case::patch("PATCH", "", Meets::TheEnd)]
#[case::unknown("BREW", "", Meets::TheEnd)]
#[case::put_with_a_body("PUT", "data", Meets::TheEnd)]
#[case::get_with_a_body("GET", "data", Meets::TheEnd)]
#[case::one_byte_came("GET", "", Meets::Bytes("H"))]
#[case::an_interim_response_came("GET", "", Meets::Bytes("HTTP/1.1 103 Early Hints\r\n\r\n"))]
#[case::half_a_head_came("GET", "", Meets::Bytes("HTTP/1.1 200 OK\r\n"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_possibly_processed_request_is_not_sent_again(
    #[case] method: &str,
    #[case] body: &str,
    #[case] meets: Meets,
) {
    let (upstream, calls, met) = ends_when_used(meets).await;
    let gateway = before(&upstream).await;
    let (status, asked) = until_met(&gateway, &met, method, body).await;
    assert_eq!(status, 502);
    assert_eq!(calls.load(Relaxed), asked);
    assert_eq!(spent(&gateway).await, asked as i64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_connection_that_ends_is_not_tried_again() {
    let upstream = Upstream::raw(|mut conn| async move {
        let _ = conn.head().await;
    })
    .await;
    let gateway = before(&upstream).await;
    assert_eq!(gets(&gateway, "/").await, Refused);
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_sent_once_more_and_not_twice() {
    let (calls, met) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (called, counted) = (calls.clone(), met.clone());
    // Once a connection was used again, no request is answered any more.
    let upstream = Upstream::raw(move |mut conn| {
        let (called, counted) = (called.clone(), counted.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            called.fetch_add(1, Relaxed);
            if counted.load(Relaxed) > 0 {
                return;
            }
            conn.send(own("ok")).await.expect("send");
            let Ok(Some(_)) = conn.head().await else { return };
            called.fetch_add(1, Relaxed);
            counted.fetch_add(1, Relaxed);
        }
    })
    .await;
    let gateway = before(&upstream).await;
    let (status, asked) = until_met(&gateway, &met, "GET", "").await;
    assert_eq!(status, 502);
    assert_eq!(calls.load(Relaxed), asked + 1);
    assert_eq!(spent(&gateway).await, asked as i64 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sent_request_spends_its_permit_even_without_a_retry() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let met = Arc::new(AtomicUsize::new(0));
    let counted = met.clone();
    // With the first connection that is used again the upstream is gone.
    let task = tokio::spawn(async move {
        let (gone, mut is_gone) = tokio::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>(1);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                closed = is_gone.recv() => {
                    drop(listener);
                    let _ = closed.expect("somebody waits").send(());
                    return;
                }
            };
            let (gone, counted) = (gone.clone(), counted.clone());
            let mut conn = Conn::over(accepted.expect("a connection").0);
            tokio::spawn(async move {
                let Ok(Some(_)) = conn.head().await else { return };
                conn.send(own("ok")).await.expect("send");
                let Ok(Some(_)) = conn.head().await else { return };
                counted.fetch_add(1, Relaxed);
                let (closed, is_closed) = tokio::sync::oneshot::channel();
                gone.send(closed).await.expect("the listener");
                is_closed.await.expect("its end");
            });
        }
    });
    let gateway = Gateway::start(&format!(
        "workers: 1
upstream: http://{address}
limiters: {{ day: 1000/day }}
routes: [{{ name: all, suffix: \"*\", limiters: [day] }}]
"
    ))
    .await;
    let (status, asked) = until_met(&gateway, &met, "GET", "").await;
    assert_eq!(status, 502);
    assert_eq!(spent(&gateway).await, asked as i64);
    task.await.expect("the upstream");
}
