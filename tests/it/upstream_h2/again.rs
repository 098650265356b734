//! Streams and connections that an upstream refuses or ends: which requests are sent once more.

use super::{Call, Origin, spent};
use crate::support::{Gateway, request};
use bytes::Bytes;
use h2::Reason;
use rstest::rstest;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The signal of an upstream that has done nothing with a request.
#[derive(Debug, Clone, Copy)]
enum Says {
    Refused,
    /// A GOAWAY that names no stream as the last.
    GoneAway,
    /// Each of the first four calls is refused.
    RefusedOften,
    /// A reset that does not say whether the upstream has acted on the request.
    Cancelled,
}

/// The first call that is for `/x`, or the first four, meet `says`; the others are answered.
async fn saying(says: Says) -> (Origin, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = calls.clone();
    let origin = Origin::raw(None, move |_, mut wire| {
        let called = called.clone();
        async move {
            while let Some(Ok((request, mut respond))) = wire.accept().await {
                let (head, incoming) = request.into_parts();
                let often = if let Says::RefusedOften = says { 4 } else { 1 };
                if head.uri.path() == "/v2/x" && called.fetch_add(1, Relaxed) < often {
                    match says {
                        Says::Refused | Says::RefusedOften => {
                            respond.send_reset(Reason::REFUSED_STREAM)
                        }
                        Says::Cancelled => respond.send_reset(Reason::CANCEL),
                        Says::GoneAway => wire.abrupt_shutdown(Reason::NO_ERROR),
                    }
                    continue;
                }
                let mut call = Call { head, incoming, respond };
                tokio::spawn(async move {
                    let (body, _) = call.body().await;
                    call.answer(if body.is_empty() { Bytes::from("ok") } else { body.into() });
                });
            }
        }
    })
    .await;
    (origin, calls)
}

#[rstest]
#[case::get_refused("GET", "", Says::Refused, 200, 2)]
#[case::post_refused("POST", "", Says::Refused, 200, 2)]
#[case::a_small_body_refused("POST", "data", Says::Refused, 200, 2)]
#[case::a_large_body_refused("POST", &"a".repeat(100_000), Says::Refused, 502, 1)]
#[case::cancelled("GET", "", Says::Cancelled, 502, 1)]
#[tokio::test(flavor = "multi_thread")]
async fn an_unprocessed_request_is_sent_once_more(
    #[case] method: &str,
    #[case] body: &str,
    #[case] says: Says,
    #[case] status: u16,
    #[case] expected: usize,
) {
    let (origin, calls) = saying(says).await;
    let gateway = origin.gateway("").await;
    assert_eq!(gateway.get("/first").await.status, 200);
    let mut conn = gateway.connect().await;
    let length = body.len().to_string();
    let fields = [("Content-Length", length.as_str())];
    let fields = if body.is_empty() { &[] } else { &fields[..] };
    conn.send(request(method, "/x", fields) + body).await.expect("send");
    let answer = conn.answer().await.expect("an answer");
    assert_eq!(answer.status, status);
    if status == 200 && !body.is_empty() {
        assert_eq!(answer.text(), body, "the second attempt has the whole body");
    }
    assert_eq!(calls.load(Relaxed), expected);
    assert_eq!(spent(&gateway).await, 1 + expected as i64, "each attempt takes a permit");
    assert_eq!(gateway.get("/last").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_with_its_requests_is_replaced() {
    let (origin, _calls) = saying(Says::GoneAway).await;
    let gateway = origin.gateway("").await;
    assert_eq!(gateway.get("/first").await.status, 200);
    // It was under way when the connection ended: whether something was done with it, the upstream did not say.
    let status = gateway.get("/x").await.status;
    assert!([200, 502].contains(&status), "{status}");
    assert_eq!(gateway.get("/last").await.status, 200);
    assert_eq!(origin.connections(), 2);
}

#[rstest]
#[case::within_its_budget("max_wait: 20s", "GET", "", 200, 5)]
#[case::with_a_body("max_wait: 20s", "POST", "data", 200, 5)]
#[case::without_one("max_wait: 0s", "GET", "", 502, 2)]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_sent_until_an_upstream_begins_with_it(
    #[case] budget: &str,
    #[case] method: &str,
    #[case] body: &str,
    #[case] status: u16,
    #[case] expected: usize,
) {
    let (origin, calls) = saying(Says::RefusedOften).await;
    let gateway = Gateway::start(&format!(
        "workers: 1\nupstreams: {{ vendor: {{ url: \"http://{}/v2\", http2: true }} }}\n\
         limiters: {{ day: {{ rate: 1000/day, burst: 1000 }} }}\n\
         routes: [{{ name: all, suffix: \"*\", limiters: [day], {budget} }}]\n",
        origin.address
    ))
    .await;
    let mut conn = gateway.connect().await;
    let length = body.len().to_string();
    let fields = [("Content-Length", length.as_str())];
    let fields = if body.is_empty() { &[] } else { &fields[..] };
    conn.send(request(method, "/x", fields) + body).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, status);
    assert_eq!(calls.load(Relaxed), expected);
    assert_eq!(spent(&gateway).await, expected as i64, "each attempt takes a permit");
}

/// On a new connection it is not known yet how many streams the upstream takes.
#[rstest]
#[case::one(1)]
#[case::three(3)]
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_with_few_streams_fails_no_request(#[case] streams: u32) {
    let origin = Origin::start(Some(streams), |_, call| async move {
        tokio::task::yield_now().await;
        call.answer("ok");
    })
    .await;
    let gateway = origin.gateway("").await;
    let mut conns = Vec::new();
    for _ in 0..20 {
        conns.push(gateway.ask("/", &[]).await);
    }
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(spent(&gateway).await, 20, "none was sent twice");
}
