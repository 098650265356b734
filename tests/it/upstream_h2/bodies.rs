//! Bodies, lengths and trailers of an HTTP/2 upstream.

use super::Origin;
use crate::support::PATIENCE;
use bytes::Bytes;
use h2::Reason;
use http::Response;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_both_ways() {
    let origin = Origin::start(None, |_, mut call| async move {
        let response = Response::new(());
        let mut stream = call.respond.send_response(response, false).expect("sent");
        // An echo, piece by piece.
        while let Some(Ok(data)) = call.incoming.data().await {
            let _ = call.incoming.flow_control().release_capacity(data.len());
            stream.send_data(data, false).expect("sent");
        }
        stream.send_data(Bytes::new(), true).expect("sent");
    })
    .await;
    let gateway = origin.gateway("").await;
    let body: Vec<u8> = (0..8_000_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
    let answer = client.post(format!("http://{}/", gateway.listen)).body(body.clone());
    let answer = answer.send().await.expect("an answer").bytes().await.expect("a whole body");
    assert!(answer == body, "{} bytes came back", answer.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_response_never_looks_complete() {
    let origin = Origin::start(None, |_, mut call| async move {
        let mut stream = call.respond.send_response(Response::new(()), false).expect("sent");
        stream.send_data("some".into(), false).expect("sent");
        // The bytes that were sent arrive first.
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.send_reset(Reason::INTERNAL_ERROR);
    })
    .await;
    let gateway = origin.gateway("").await;
    let answer = gateway.ask("/", &[]).await.answer().await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_shorter_than_its_length_never_looks_complete() {
    let origin = Origin::start(None, |_, mut call| async move {
        let response = Response::builder().header("content-length", "9").body(());
        let response = response.expect("a response");
        let mut stream = call.respond.send_response(response, false).expect("sent");
        let _ = stream.send_data("some".into(), true);
    })
    .await;
    let gateway = origin.gateway("").await;
    let mut conn = gateway.ask("/", &[]).await;
    let answer = conn.answer().await;
    assert!(
        answer.as_ref().is_err() || answer.as_ref().is_ok_and(|a| a.status == 502),
        "{answer:?}"
    );
}

/// Above 64 KiB, which the head of a response may have; the HTTP/2 library would drop what is too large.
#[tokio::test(flavor = "multi_thread")]
async fn too_large_trailers_abort_the_response() {
    let origin = Origin::start(None, |_, mut call| async move {
        let response = Response::new(());
        let Ok(mut stream) = call.respond.send_response(response, false) else { return };
        let _ = stream.send_data("body".into(), false);
        let trailers = (0..100).map(|i| {
            let name = http::HeaderName::try_from(format!("x-{i}")).expect("a name");
            (name, http::HeaderValue::try_from("a".repeat(1_000)).expect("a value"))
        });
        let _ = stream.send_trailers(trailers.collect());
    })
    .await;
    let gateway = origin.gateway("").await;
    let mut conn = gateway.ask("/", &[]).await;
    assert!(conn.answer().await.is_err(), "it never looks whole");
}
