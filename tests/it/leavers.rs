//! Clients that leave, in every phase of a request: the work that was begun for them ends, also when unread input lies
//! before their end, where the parser does not see that they have left.

use crate::support::{Conn, Gateway, Upstream, closed, eventually, reached, request};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

/// The bytes that a client has sent when it leaves: a whole request, and nothing more in its socket.
const NOTHING_MORE: &str = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
const THE_NEXT_REQUEST: &str =
    "GET /x HTTP/1.1\r\nHost: a\r\n\r\nGET /y HTTP/1.1\r\nHost: a\r\n\r\n";
const A_BODY: &str = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhello";
const A_BODY_NOT_ASKED_FOR: &str =
    "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello";

/// Nothing is given up for its age in these tests.
async fn before(url: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{ u: {{ url: \"{url}\", connect_timeout: 10m, response_timeout: 10m }} }}
limiters: {{ a: {{ rate: 1/hour, burst: 1 }} }}
routes:
  - {{ name: free, suffix: \"*\" }}
  - {{ name: held, suffix: /held, limiters: [a], max_wait: 1h }}
"
    ))
    .await
}

/// An upstream that says `answer` to each request, takes what comes, and says when it has a request and when its
/// connection has ended.
async fn upstream(answer: &'static str) -> (Upstream, Arc<Semaphore>, Arc<Semaphore>) {
    let (asked, ended) = (closed(), closed());
    let (asks, ends) = (asked.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asks, ends) = (asks.clone(), ends.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            conn.send(answer).await.expect("send");
            asks.add_permits(1);
            conn.rest().await;
            ends.add_permits(1);
        }
    })
    .await;
    (upstream, asked, ended)
}

async fn open(gateway: &Gateway, bytes: &str) -> Conn {
    let mut conn = gateway.connect().await;
    conn.send(bytes).await.expect("send");
    conn
}

#[rstest]
#[case::nothing_more("GET /held HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::the_next_request("GET /held HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")]
#[case::a_body("POST /held HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhello")]
#[case::chunks(
    "POST /held HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n1\r\ny\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_held_is_noticed(#[case] sent: &str) {
    let upstream = Upstream::ok().await;
    let gateway = before(&upstream.url()).await;
    assert_eq!(gateway.get("/held").await.status, 200);
    let conn = open(&gateway, sent).await;
    gateway.until_waiting("held", 1).await;
    drop(conn);
    gateway.until_waiting("held", 0).await;
    gateway.until_counted("held", "cancelled", 1).await;
    assert_eq!(upstream.calls().len(), 1);
}

#[rstest]
#[case::nothing_more(NOTHING_MORE)]
#[case::the_next_request(THE_NEXT_REQUEST)]
#[case::a_body(A_BODY)]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_connect_is_noticed(#[case] sent: &str) {
    // It accepts a connection and never begins with TLS.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gateway = before(&format!("https://{}", silent.local_addr().expect("its address"))).await;
    let conn = open(&gateway, sent).await;
    let (_upstream, _) = silent.accept().await.expect("a connection");
    drop(conn);
    assert_eq!(gateway.line("/x").await["outcome"], "cancelled");
}

#[rstest]
#[case::nothing_more(NOTHING_MORE)]
#[case::the_next_request(THE_NEXT_REQUEST)]
#[case::a_body(A_BODY)]
#[case::a_body_not_asked_for(A_BODY_NOT_ASKED_FOR)]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_before_the_answer_is_noticed(#[case] sent: &str) {
    let (upstream, asked, ended) = upstream("").await;
    let gateway = before(&upstream.url()).await;
    let conn = open(&gateway, sent).await;
    reached(&asked, "the upstream has the call").await;
    drop(conn);
    reached(&ended, "the upstream sees the end of its connection").await;
    assert_eq!(gateway.line("/x").await["outcome"], "cancelled");
}

#[rstest]
#[case::nothing_more(NOTHING_MORE)]
#[case::the_next_request(THE_NEXT_REQUEST)]
#[case::a_body(A_BODY)]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_the_response_is_noticed(#[case] sent: &str) {
    let (upstream, asked, ended) =
        upstream("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").await;
    let gateway = before(&upstream.url()).await;
    let mut conn = open(&gateway, sent).await;
    conn.until("first").await.expect("the first piece");
    reached(&asked, "the upstream waits").await;
    drop(conn);
    reached(&ended, "the upstream sees the end of its connection").await;
}

/// The upstream takes nothing of it, and neither does the gateway any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_during_a_stuck_upload_is_noticed() {
    let (asked, left, ended) = (closed(), closed(), closed());
    let (asks, leaves, ends) = (asked.clone(), left.clone(), ended.clone());
    let upstream = Upstream::raw(move |mut conn| {
        let (asks, leaves, ends) = (asks.clone(), leaves.clone(), ends.clone());
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            asks.add_permits(1);
            reached(&leaves, "the gateway has seen the client leave").await;
            conn.rest().await;
            ends.add_permits(1);
        }
    })
    .await;
    let gateway = before(&upstream.url()).await;
    let mut client = TcpStream::connect(gateway.listen).await.expect("connect");
    let head = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("send");
    reached(&asked, "the upstream has the head").await;
    // Until nothing has come through for longer than either side would need.
    let piece = vec![b'x'; 1 << 16];
    while let Ok(sent) = timeout(Duration::from_millis(500), client.write(&piece)).await {
        sent.expect("send");
    }
    // The socket drops its unsent bytes: the peer would see its end only after reading them.
    client.set_zero_linger().expect("a socket option");
    drop(client);
    let line = gateway.line("/x").await;
    assert_eq!(line["outcome"], "cancelled");
    left.add_permits(1);
    reached(&ended, "the upstream sees the end of its connection").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_pipelined_after_a_slow_one_is_answered() {
    let gate = closed();
    let go_on = gate.clone();
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/x" => crate::support::Reply::ok().behind(&go_on),
        _ => crate::support::Reply::ok(),
    })
    .await;
    let gateway = before(&upstream.url()).await;
    let mut conn = open(&gateway, THE_NEXT_REQUEST).await;
    eventually("the upstream has the call", async || (upstream.calls().len() == 1).then_some(()))
        .await;
    // Some looks after the client go by.
    for _ in 0..3 {
        assert_eq!(gateway.get("/z").await.status, 200);
    }
    gate.add_permits(1);
    for _ in 0..2 {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    conn.send(request("GET", "/z", &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
}
