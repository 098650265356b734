//! Failures around a gateway: of upstreams, clients and stores. Each one gets a clear answer, permits that were not used
//! are refunded, and the process lives.

mod dead;
mod requests;
mod store;

use crate::support::{
    Conn, Gateway, Head, PATIENCE, Reply, Upstream, assert_lawful, eventually, free_port, reply,
    request,
};
use rstest::rstest;
use socket2::{Domain, Socket, Type};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::timeout};

/// One limiter, of which nothing comes back while a test runs, on the memory store.
fn config(upstream: &str) -> String {
    format!(
        "upstreams: {{ vendor: {{ url: \"{upstream}\", connect_timeout: 300ms, response_timeout: 300ms }} }}
limiters: {{ search: 100/day }}
routes: [{{ name: search, suffix: \"*\", limiters: [search] }}]
"
    )
}

async fn level(gateway: &Gateway) -> i64 {
    gateway.limiter("search").await["level"].as_i64().expect("a level")
}

// ---------------------------------------------------------------------------------------- upstreams

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_refuses_connections_is_a_502_and_costs_nothing() {
    let port = free_port();
    let gateway = Gateway::start(&config(&format!("http://127.0.0.1:{port}"))).await;
    let is_refused = async || {
        let answer = gateway.get("/").await;
        answer.status == 502 && answer.problem() == "upstream-unreachable"
    };
    for _ in 0..3 {
        assert!(is_refused().await);
    }
    assert_eq!(level(&gateway).await, 100, "nothing was sent, so nothing is spent");

    let upstream = Upstream::on(port, |_| Reply::ok()).await;
    assert_eq!(gateway.get("/").await.status, 200);
    assert_eq!(level(&gateway).await, 99);

    // The same when it dies while connections to it are open.
    drop(upstream);
    eventually("it is seen to be away", async || is_refused().await.then_some(())).await;
    let before = level(&gateway).await;
    for _ in 0..3 {
        assert!(is_refused().await);
    }
    assert_eq!(level(&gateway).await, before);
    assert_eq!(gateway.count("search", "passed").await, 1.0);
    assert!(gateway.count("search", "upstream_failed").await >= 7.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_a_failed_request_is_refunded() {
    let port = free_port();
    let upstream = Upstream::on(port, |_| Reply::ok()).await;
    let gateway = Gateway::start(&format!(
        "upstream: http://127.0.0.1:{port}
limiters: {{ search: {{ rate: 1/s, burst: 1 }}, day: 100/day }}
routes: [{{ name: search, suffix: \"*\", limiters: [search, day], max_wait: 30s }}]
"
    ))
    .await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut waiting = gateway.ask("/", &[]).await;
    gateway.until_waiting("search", 1).await;
    drop(upstream);
    let answer = waiting.answer().await.expect("an answer");
    assert_eq!(answer.status, 502, "{answer:?}");
    // The upstream may have seen a request that was on an open connection when that broke.
    let spent = if answer.problem() == "upstream-unreachable" { 1 } else { 2 };
    eventually("the permits are back", async || {
        (gateway.limiter("day").await["level"] == 100 - spent).then_some(())
    })
    .await;
}

/// One that listens and never accepts: when its queue is full, the system answers no further client.
async fn full_listener() -> (SocketAddr, (Socket, Vec<Conn>)) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    socket.listen(1).expect("listening");
    let address = socket.local_addr().expect("its address").as_socket().expect("of TCP");
    let mut queue = Vec::new();
    while let Ok(Ok(conn)) = timeout(Duration::from_millis(300), Conn::to(address)).await {
        queue.push(conn);
        assert!(queue.len() < 1000, "the queue never gets full");
    }
    (address, (socket, queue))
}

/// Accepts the clients of a listener from now on, and answers them.
fn serve(listener: Socket) {
    listener.set_nonblocking(true).expect("nonblocking");
    let listener = tokio::net::TcpListener::from_std(listener.into()).expect("a listener");
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let mut conn = Conn::over(stream);
                while let Ok(Some(_)) = conn.request().await {
                    let sent = conn.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
                    if sent.is_err() {
                        return;
                    }
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_accepts_no_connection_in_time_is_a_504_and_costs_nothing() {
    let (address, _queue) = full_listener().await;
    let gateway = Gateway::start(&config(&format!("http://{address}"))).await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem().as_str()), (504, "upstream-timeout"));
    assert_eq!(level(&gateway).await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_connection_needs_a_new_slot() {
    // The kernel repeats a connect to a full queue after a second.
    let (address, queue) = full_listener().await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"http://{address}\", connect_timeout: 20s }} }}
limiters: {{ search: {{ algorithm: sliding_window, rate: 100/s, margin: 30ms }} }}
routes: [{{ suffix: /search, limiters: [search], max_wait: 10s }}]
"
    ))
    .await;
    let mut asked = gateway.ask("/search", &[]).await;
    eventually("the slot is taken", async || {
        (gateway.metric("paceway_decisions_total", &[("decision", "pass")]).await >= 1.0)
            .then_some(())
    })
    .await;
    let (listener, conns) = queue;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(conns);
    serve(listener);
    assert_eq!(asked.answer().await.expect("an answer").status, 200);
    assert!(gateway.metric("paceway_late_wakeups_total", &[("limiter", "search")]).await >= 1.0);
    // The kernel repeats its connect after a second, and that is no wait for the limiter.
    let line = gateway.line("/search").await;
    let (waited, connected) = (line["wait_ms"].as_f64(), line["connect_ms"].as_f64());
    assert!(connected >= Some(500.0) && waited < connected, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_upstream_is_a_504_and_its_call_is_closed() {
    let ended = Arc::new(Semaphore::new(0));
    let sees_end = ended.clone();
    let upstream = Upstream::raw(move |mut conn| {
        let ended = sees_end.clone();
        async move {
            let Ok(Some(_)) = conn.head().await else { return };
            conn.rest().await;
            ended.add_permits(1);
        }
    })
    .await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let answer = gateway.get("/slow").await;
    assert_eq!((answer.status, answer.problem().as_str()), (504, "upstream-timeout"));
    let end = timeout(PATIENCE, ended.acquire()).await.expect("the upstream sees the end");
    end.expect("open").forget();
    assert_eq!(level(&gateway).await, 99, "what was sent is spent");
    let line = gateway.line("/slow").await;
    assert_eq!(
        (line["outcome"].as_str(), line["status"].as_u64()),
        (Some("upstream_failed"), Some(504))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wait_for_a_slot_does_not_count_in_the_response_timeout() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"{}\", response_timeout: 500ms }} }}
limiters: {{ search: {{ rate: 1/s, burst: 1 }} }}
routes: [{{ suffix: \"*\", limiters: [search], max_wait: 10s }}]
",
        upstream.url()
    ))
    .await;
    // The second of two at once waits longer than the upstream may take.
    let mut two = [gateway.ask("/", &[]).await, gateway.ask("/", &[]).await];
    for conn in &mut two {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_lawful(upstream.arrivals()[0] - PATIENCE, &upstream.arrivals(), 1.0, 1.0);
}

#[rstest]
#[case::no_http("220 smtp.example ready\r\n")]
#[case::half_a_head("HTTP/1.1 200 OK\r\nContent-Le")]
#[case::no_status("HTTP/1.1 abc\r\n\r\n")]
#[case::odd_version("HTTP/9.9 200 OK\r\n\r\n")]
#[case::no_length("HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nok")]
#[case::two_lengths("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok")]
#[case::a_name_with_spaces("HTTP/1.1 200 OK\r\nBad Name: 1\r\nContent-Length: 2\r\n\r\nok")]
#[case::binary("\u{0}\u{1}\u{2}\u{ff}\u{fe}\r\n\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_speaks_garbage_is_a_502(#[case] garbage: &'static str) {
    let upstream = Upstream::start(move |call| match call.target.as_str() {
        "/good" => Reply::ok(),
        _ => Reply::raw(garbage),
    })
    .await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    for _ in 0..2 {
        let answer = gateway.get("/bad").await;
        assert_eq!((answer.status, answer.problem().as_str()), (502, "upstream-broken"));
        assert_eq!(gateway.get("/good").await.status, 200);
    }
    assert_eq!(upstream.calls().len(), 4, "nothing is asked twice");
    assert_eq!(level(&gateway).await, 96, "what was sent is spent");
}

#[rstest]
#[case::of_a_length("Content-Length: 100\r\n\r\nonly this")]
#[case::of_chunks("Transfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\n")]
#[case::within_a_chunk("Transfer-Encoding: chunked\r\n\r\n64\r\nonly this")]
#[case::of_broken_chunks("Transfer-Encoding: chunked\r\n\r\n9\r\nonly this\r\nzz\r\n")]
#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_body_is_not_passed_as_complete(#[case] rest: &'static str) {
    let broken = move |_: &_| Reply::raw(format!("HTTP/1.1 200 OK\r\n{rest}"));
    let upstream = Upstream::start(broken).await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut conn = gateway.ask("/", &[]).await;
    let answer = conn.answer().await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(gateway.page("/healthz").await.status, 200);
}

// ------------------------------------------------------------------------------------------ clients

/// Whether the client got a 4xx or no answer at all.
fn refused(head: Option<&Head>) -> bool {
    head.is_none_or(|head| head.start.starts_with("HTTP/1.1 4"))
}

// ------------------------------------------------------------------------------------------- stores

#[tokio::test(flavor = "multi_thread")]
async fn many_silent_clients_block_no_other_client() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut silent = Vec::new();
    for i in 0..200 {
        let mut conn = gateway.connect().await;
        // Some nothing at all, some half a head.
        if i % 2 == 0 {
            conn.send(&request("GET", "/", &[])[..20]).await.expect("send");
        }
        silent.push(conn);
    }
    for _ in 0..5 {
        assert_eq!(gateway.get("/").await.status, 200);
    }
}

// ------------------------------------------------------------------------------- what an attack found

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_needs_no_upstream() {
    let port = free_port();
    let yaml = format!(
        "upstream: http://127.0.0.1:{port}
limiters: {{ search: 1/day }}
routes: [{{ name: search, suffix: \"*\", limiters: [search] }}]
"
    );
    let gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.get("/").await.status, 502);
    assert_eq!(level(&gateway).await, 1, "nothing was sent");
    let upstream = Upstream::on(port, |_| reply("200 OK", &[("Connection", "close")], "ok")).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let before = upstream.connections();
    for _ in 0..100 {
        assert_eq!(gateway.get("/").await.status, 429);
    }
    let made = upstream.connections() - before;
    assert!(made <= 10, "{made} connections for refusals");
    drop(upstream);
    assert_eq!(gateway.get("/").await.status, 429, "and none when no caller is known");
}

#[rstest]
#[case::length("HTTP/1.1 431 Mine\r\nContent-Length: 0\r\n\r\n")]
#[case::date(
    "HTTP/1.1 400 Mine\r\nContent-Length: 0\r\nDate: Sat, 21 Nov 2026 10:13:15 GMT\r\n\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_the_upstream_is_passed_unchanged(#[case] bytes: &'static str) {
    let upstream = Upstream::start(move |_| Reply::raw(bytes)).await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    for fields in [&[("Connection", "close")][..], &[]] {
        let answer = gateway.ask("/", fields).await.answer().await.expect("an answer");
        assert_eq!(answer.field("paceway-origin"), None, "{answer:?}");
        assert_eq!(answer.body, b"");
    }
}

#[rstest]
#[case::an_upgrade(
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    502
)]
#[case::no_length("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", 502)]
#[case::endless("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n", 502)]
#[case::two_lengths("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 502)]
#[case::the_same_twice("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 200)]
#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_answer_to_head_is_a_502(#[case] bytes: &'static str, #[case] status: u16) {
    let upstream = Upstream::start(move |_| Reply::raw(bytes)).await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut conn = gateway.connect().await;
    conn.send(request("HEAD", "/", &[])).await.expect("send");
    let head = conn.head().await.expect("an answer").expect("a head");
    assert!(head.start.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_http_1_0_is_passed_on_in_1_1() {
    let upstream = Upstream::start(|_| {
        let mut reply = Reply::raw("HTTP/1.0 200 OK\r\n\r\nto the end");
        reply.close = true;
        reply
    })
    .await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let answer = gateway.get("/").await;
    assert_eq!(answer.head.start, "HTTP/1.1 200 OK");
    assert_eq!(answer.field("transfer-encoding"), Some("chunked"), "its end is marked");
    assert_eq!(answer.body, b"to the end");
}
