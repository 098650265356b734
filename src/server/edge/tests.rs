//! Tests that interim responses are written between the parser's responses, never within one.

use super::{state::RequestStage, *};
use crate::{
    config::Limits,
    metrics::Protocol,
    proxy::ClientConnection as _,
    server::{
        balancer::ConnectionBalancer, connection_limit::ConnectionLimit, transport::Transport,
        windows::WindowBudget,
    },
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{server::conn::http1, service::service_fn};
use parking_lot::Mutex;
use std::{
    convert::Infallible, future::poll_fn, num::NonZeroUsize, pin::pin, sync::Arc, time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{sleep, timeout},
};

const HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";

/// Serves a connection whose requests `answer` answers, and returns the client's end of it.
async fn serve<F>(answer: impl Fn(Arc<ClientStream>) -> F + Send + 'static) -> TcpStream
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (tcp, _) = listener.accept().await.unwrap();
    let limit = Arc::new(ConnectionLimit::new(NonZeroUsize::MIN, WindowBudget::default()));
    let permit = limit.acquire(ConnectionBalancer::new(1).0.keep(0)).unwrap();
    let transport = Transport::Plain(tcp);
    let stream =
        ClientStream::new(transport, Vec::new(), Protocol::Http1, permit, Limits::default());
    let stream = Arc::new(stream);
    tokio::spawn(async move {
        let shared = stream.clone();
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            shared.begin(&request);
            let (stream, answered) = (shared.clone(), answer(shared.clone()));
            async move {
                answered.await;
                stream.answered(false);
                let body: BoxBody<Bytes, Infallible> = Full::new(Bytes::from_static(b"ok")).boxed();
                Ok::<_, Infallible>(Response::new(body))
            }
        });
        let mut connection = pin!(
            http1::Builder::new().half_close(true).serve_connection(Edge(stream.clone()), service)
        );
        poll_fn(|cx| {
            stream.waits(cx);
            connection.as_mut().poll(cx)
        })
        .await
    });
    client
}

/// Reads until `mark` has arrived, and returns all that was read.
async fn until(client: &mut TcpStream, mark: &str) -> String {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(mark) {
        let count = timeout(Duration::from_secs(20), client.read_buf(&mut read)).await;
        assert_ne!(count.unwrap().unwrap(), 0, "{}", String::from_utf8_lossy(&read));
    }
    String::from_utf8(read).unwrap()
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

#[tokio::test]
async fn hints_come_at_once_and_before_the_answer() {
    let go_on = Arc::new(Notify::new());
    let waits = go_on.clone();
    let mut client = serve(move |stream| {
        let waits = waits.clone();
        async move {
            // Another task sends the hints, as the connection to an upstream does.
            tokio::spawn(async move {
                sleep(Duration::from_millis(20)).await;
                stream.inform(HINTS);
            });
            waits.notified().await;
        }
    })
    .await;
    for _ in 0..2 {
        client.write_all(REQUEST).await.unwrap();
        assert_eq!(until(&mut client, "\r\n\r\n").await.as_bytes(), HINTS);
        go_on.notify_one();
        let answer = until(&mut client, "ok").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn hints_sent_with_the_answer_precede_it() {
    let mut client = serve(|stream| async move { stream.inform(HINTS) }).await;
    client.write_all(&REQUEST.repeat(2)).await.unwrap();
    let all = until(&mut client, "ok").await;
    let all = match all.matches("ok").count() {
        2 => all,
        _ => all + &until(&mut client, "ok").await,
    };
    let starts: Vec<_> = all.split("HTTP/1.1 ").map(|part| part.get(..3).unwrap_or("")).collect();
    assert_eq!(starts, ["", "103", "200", "103", "200"], "{all}");
}

#[tokio::test]
async fn an_http_1_0_client_gets_no_hints() {
    let mut client = serve(|stream| async move { stream.inform(HINTS) }).await;
    client.write_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(until(&mut client, "ok").await.starts_with("HTTP/1.0 200 OK\r\n"));
}

#[tokio::test]
async fn late_or_excessive_hints_are_dropped() {
    let mut client = serve(|stream| async move {
        stream.inform(&b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000));
        let late = stream.clone();
        tokio::spawn(async move {
            while late.lock().stage == RequestStage::Open {
                sleep(Duration::from_millis(1)).await;
            }
            late.inform(HINTS);
        });
    })
    .await;
    for _ in 0..2 {
        client.write_all(REQUEST).await.unwrap();
        let answer = until(&mut client, "ok").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.contains("103"), "{answer}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn only_the_last_read_bytes_are_kept() {
    let kept = Arc::new(Mutex::new(0));
    let most = kept.clone();
    let mut client = serve(move |stream| {
        let read = stream.lock().input.bytes.len();
        let mut most = most.lock();
        *most = read.max(*most);
        async {}
    })
    .await;
    for _ in 0..50 {
        client.write_all(REQUEST).await.unwrap();
        until(&mut client, "ok").await;
    }
    assert!(*kept.lock() <= REQUEST.len(), "{kept:?} bytes");
}
