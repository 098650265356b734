//! Refusals of gRPC upstreams, and our own answers to calls during a pause.

use crate::{
    grpc::{answer, call, connect},
    support::{Gateway, PATIENCE, eventually},
};
use bytes::Bytes;
use h2::server;
use http::Response;
use rstest::rstest;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::{net::TcpListener, time::timeout};

/// A `google.rpc.Status` of code 14 with a `RetryInfo` of 300 ms.
const RETRY_INFO: &str =
    "CA4aNAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIICgYQgMaGjwE";

/// A gRPC server that answers its first call with these fields in trailers alone, and sends the message of each later call
/// back. It counts its calls.
async fn refuses_once(fields: &'static [(&str, &str)]) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let counted = counted.clone();
            tokio::spawn(async move {
                let Ok(mut wire) = server::handshake(stream).await else { return };
                while let Some(Ok((request, mut respond))) = wire.accept().await {
                    let number = counted.fetch_add(1, Relaxed);
                    tokio::spawn(async move {
                        let mut message = Vec::new();
                        let mut body = request.into_body();
                        while let Some(Ok(data)) = body.data().await {
                            message.extend_from_slice(&data);
                        }
                        let mut head =
                            Response::builder().header("content-type", "application/grpc");
                        if number == 0 {
                            for (name, value) in fields {
                                head = head.header(*name, *value);
                            }
                            let head = head.body(()).expect("a head");
                            respond.send_response(head, true).expect("send");
                            return;
                        }
                        let head = head.body(()).expect("a head");
                        let mut stream = respond.send_response(head, false).expect("send");
                        stream.send_data(message.into(), false).expect("send");
                        let trailers = [("grpc-status", "0")].map(|(name, value)| {
                            (name.parse().expect("a name"), value.parse().expect("a value"))
                        });
                        stream.send_trailers(trailers.into_iter().collect()).expect("send");
                    });
                }
            });
        }
    });
    (address, calls)
}

async fn gateway(upstream: SocketAddr, wait: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"http://{upstream}\", http2: true }} }}
limiters: {{ quota: {{ rate: 1000/s }} }}
routes: [{{ name: all, suffix: \"*\", limiters: [quota]{wait} }}]
"
    ))
    .await
}

#[rstest]
#[case::pushback(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", "300")], 2)]
#[case::unavailable_for_a_time(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "300")], 2)]
#[case::unavailable_with_retry_info(&[("grpc-status", "14"), ("grpc-status-details-bin", RETRY_INFO)], 2)]
#[case::exhausted_with_retry_info(&[("grpc-status", "8"), ("grpc-status-details-bin", RETRY_INFO)], 2)]
#[case::exhausted_without_a_time(&[("grpc-status", "8")], 2)]
#[case::never_again(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")], 1)]
#[case::unavailable(&[("grpc-status", "14")], 1)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_is_made_again_with_its_message(
    #[case] refusal: &'static [(&str, &str)],
    #[case] attempts: usize,
) {
    let (upstream, calls) = refuses_once(refusal).await;
    let gateway = gateway(upstream, ", max_wait: 20s").await;
    let mut client = connect(gateway.listen).await;
    let (answer, mut sending) = client.send_request(call("/a.B/C"), false).expect("send");
    sending.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), true).expect("send");
    let answer = timeout(PATIENCE, answer).await.expect("in time").expect("an answer");
    assert_eq!(calls.load(Relaxed), attempts);
    if attempts == 1 {
        assert_eq!(answer.headers()["grpc-status"], refusal[0].1);
        return;
    }
    assert_eq!(answer.headers()["paceway-attempts"], "2");
    let mut body = answer.into_body();
    let message = body.data().await.expect("a message").expect("all of it");
    assert_eq!(&message[..], b"\0\0\0\0\x02hi");
    let trailers = body.trailers().await.expect("no error").expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_during_a_pause_is_resource_exhausted() {
    let fields = &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "600000")];
    let (upstream, calls) = refuses_once(fields).await;
    let gateway = gateway(upstream, "").await;
    assert_eq!(answer(&gateway, call("/a.B/C")).await.headers()["grpc-status"], "8");
    let refused = eventually("the pause is known", async || {
        let refused = answer(&gateway, call("/a.B/C")).await;
        refused.headers().contains_key("paceway-origin").then_some(refused)
    })
    .await;
    let headers = refused.headers();
    assert_eq!(headers["grpc-status"], "8");
    let pushback: u64 =
        headers["grpc-retry-pushback-ms"].to_str().expect("text").parse().expect("ms");
    assert!((500_000..=600_000).contains(&pushback), "{pushback}");
    assert!(headers["grpc-message"].to_str().expect("text").contains("the upstream has refused"));
    assert_eq!(calls.load(Relaxed), 1);
}
