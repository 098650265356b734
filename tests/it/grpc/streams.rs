//! Streams in both directions, and how they break off.

use super::{answer, call, closed, connect, piece, send};
use crate::support::{Gateway, PATIENCE, eventually, reached};
use bytes::Bytes;
use h2::{Reason, RecvStream, server};
use http::{HeaderMap, HeaderValue, Request, Response};
use rstest::rstest;
use std::net::SocketAddr;
use tokio::{net::TcpListener, time::timeout};

/// An upstream that speaks HTTP/2, and what it does with each call.
async fn h2_upstream<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(Request<RecvStream>, server::SendResponse<Bytes>) -> F + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serve = serve.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = server::handshake(stream).await else { return };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::spawn(serve(request, respond));
                }
            });
        }
    });
    address
}

async fn before_h2(upstream: SocketAddr) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{ u: {{ url: \"http://{upstream}\", http2: true }} }}
routes: [{{ name: all, suffix: \"*\" }}]
"
    ))
    .await
}

/// Sends each piece back as it comes, and at the end how many there were, as a trailer.
async fn echo(request: Request<RecvStream>, mut respond: server::SendResponse<Bytes>) {
    let mut body = request.into_body();
    let head = Response::builder().header("content-type", "application/grpc");
    let mut back = respond.send_response(head.body(()).expect("a response"), false).expect("send");
    let mut count = 0_u16;
    while let Some(piece) = body.data().await {
        let piece = piece.expect("a piece");
        body.flow_control().release_capacity(piece.len()).expect("its size");
        count += u16::from(!piece.is_empty());
        back.send_data(piece, false).expect("send");
    }
    let trailers =
        [("grpc-status", HeaderValue::from_static("0")), ("x-count", HeaderValue::from(count))];
    let trailers = trailers.map(|(name, value)| (name.parse().expect("a name"), value));
    back.send_trailers(HeaderMap::from_iter(trailers)).expect("send");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_both_ways_at_once_and_ends_with_its_trailers() {
    let gateway = before_h2(h2_upstream(echo).await).await;
    let mut client = connect(gateway.listen).await;
    let (answer, mut up) = client.send_request(call("/a.B/C"), false).expect("send");
    up.send_data(Bytes::from_static(b"first"), false).expect("send");
    let mut down =
        timeout(PATIENCE, answer).await.expect("in time").expect("an answer").into_body();
    assert_eq!(piece(&mut down).await, "first");
    for word in ["second", "third"] {
        up.send_data(Bytes::from_static(word.as_bytes()), false).expect("send");
        assert_eq!(piece(&mut down).await, word, "while more may come");
    }
    up.send_data(Bytes::new(), true).expect("the end");
    assert!(timeout(PATIENCE, down.data()).await.expect("in time").is_none());
    let trailers = down.trailers().await.expect("no error").expect("trailers");
    assert_eq!(
        (&trailers["grpc-status"], &trailers["x-count"]),
        (&HeaderValue::from_static("0"), &HeaderValue::from_static("3"))
    );
    assert_eq!(gateway.count("all", "passed").await, 1.0);
}

/// A stream that runs when a drain begins continues both ways to its trailers. Its connection takes no further one (GOAWAY).
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_outlives_the_start_of_a_drain() {
    let mut gateway = before_h2(h2_upstream(echo).await).await;
    let mut client = connect(gateway.listen).await;
    let (answer, mut up) = client.send_request(call("/a.B/C"), false).expect("send");
    up.send_data(Bytes::from_static(b"first"), false).expect("send");
    let mut down =
        timeout(PATIENCE, answer).await.expect("in time").expect("an answer").into_body();
    assert_eq!(piece(&mut down).await, "first");
    gateway.signal("TERM");
    eventually("the client receives GOAWAY", async || client.clone().ready().await.err()).await;
    for word in ["second", "third"] {
        up.send_data(Bytes::from_static(word.as_bytes()), false).expect("send");
        assert_eq!(piece(&mut down).await, word);
    }
    assert!(gateway.is_running(), "it waits for the stream");
    up.send_data(Bytes::new(), true).expect("the end");
    assert!(timeout(PATIENCE, down.data()).await.expect("in time").is_none());
    let trailers = down.trailers().await.expect("no error").expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    assert!(gateway.end().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstreams_own_trailers_alone_pass() {
    let upstream = h2_upstream(|_, mut respond| async move {
        let head = Response::builder().header("content-type", "application/grpc");
        let head = head.header("grpc-status", "5").body(()).expect("a response");
        respond.send_response(head, true).expect("send");
    })
    .await;
    let gateway = before_h2(upstream).await;
    let answer = answer(&gateway, call("/a.B/C")).await;
    assert_eq!(answer.headers()["grpc-status"], "5");
    assert!(answer.body().is_end_stream());
}

#[rstest]
#[case::with_an_error(Reason::INTERNAL_ERROR)]
#[case::without_one(Reason::NO_ERROR)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_reset_by_the_upstream_never_looks_complete(#[case] reason: Reason) {
    let seen = closed();
    let arrived = seen.clone();
    let upstream = h2_upstream(move |_, mut respond| {
        let arrived = arrived.clone();
        async move {
            let mut body = respond.send_response(Response::new(()), false).expect("send");
            send(&mut body, "first").await;
            reached(&arrived, "the client has the first piece").await;
            body.send_reset(reason);
        }
    })
    .await;
    let gateway = before_h2(upstream).await;
    let mut down = answer(&gateway, call("/a.B/C")).await.into_body();
    assert_eq!(piece(&mut down).await, "first");
    seen.add_permits(1);
    let end = timeout(PATIENCE, down.data()).await.expect("in time");
    let error = end.expect("not an end").expect_err("a reset");
    assert!(error.is_reset() && error.reason() != Some(Reason::NO_ERROR), "{error}");
}
