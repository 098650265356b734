//! Failures around a gateway: of upstreams, clients and stores. Each one gets a clear answer, permits that were not used
//! are refunded, and the process lives.

use crate::support::{
    Conn, Gateway, Head, PATIENCE, Redis, Reply, Upstream, assert_lawful, eventually, free_port,
    paceway_in, reply, request,
};
use rstest::rstest;
use socket2::{Domain, Socket, Type};
use std::{
    fs,
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    process::Output,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

/// One limiter, of which nothing comes back while a test runs, on the memory store.
fn config(upstream: &str) -> String {
    format!(
        "upstreams: {{ vendor: {{ url: \"{upstream}\", connect_timeout: 300ms, response_timeout: 300ms }} }}
limiters: {{ search: 100/day }}
routes: [{{ name: search, suffix: \"*\", limiters: [search] }}]
"
    )
}

/// Starts a gateway whose limiter has granted its only permit of the day.
async fn used_up(upstream: &Upstream) -> Gateway {
    let gateway = Gateway::start(&format!(
        "upstream: {}
limiters: {{ search: 1/day }}
routes: [{{ suffix: \"*\", limiters: [search] }}]
",
        upstream.url()
    ))
    .await;
    assert_eq!(gateway.get("/").await.status, 200);
    gateway
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
async fn a_slot_that_was_waited_for_in_vain_is_given_back() {
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

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_accepts_no_connection_in_time_is_a_504_and_costs_nothing() {
    let (address, _queue) = full_listener().await;
    let gateway = Gateway::start(&config(&format!("http://{address}"))).await;
    let answer = gateway.get("/").await;
    assert_eq!((answer.status, answer.problem().as_str()), (504, "upstream-timeout"));
    assert_eq!(level(&gateway).await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_connection_came_late_is_asked_for_again() {
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
    assert_eq!(asked.answer().await.expect("an answer").status, 200);
    assert!(gateway.metric("paceway_late_wakeups_total", &[("limiter", "search")]).await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_does_not_answer_in_time_is_a_504_and_sees_its_call_end() {
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
async fn the_wait_for_a_slot_is_no_part_of_the_upstreams_time() {
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
async fn a_body_that_breaks_off_is_not_passed_as_a_whole_one(#[case] rest: &'static str) {
    let broken = move |_: &_| Reply::raw(format!("HTTP/1.1 200 OK\r\n{rest}"));
    let upstream = Upstream::start(broken).await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut conn = gateway.ask("/", &[]).await;
    let answer = conn.answer().await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(gateway.page("/healthz").await.status, 200);
}

// ------------------------------------------------------------------------------------------ clients

/// Sends what no client should, and gives the head of the answer; `None` when there is only an end.
async fn absurd(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> Option<Head> {
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    // The gateway may close the connection before the client has sent all of it.
    let _ = conn.send(bytes).await;
    match conn.head().await {
        Err(error) if error.kind() == ErrorKind::TimedOut => panic!("neither an answer nor an end"),
        head => head.ok().flatten(),
    }
}

/// Whether the client got a 4xx or no answer at all.
fn refused(head: Option<&Head>) -> bool {
    head.is_none_or(|head| head.start.starts_with("HTTP/1.1 4"))
}

fn many_headers() -> String {
    let fields: String = (0..200).map(|i| format!("X-{i}: {i}\r\n")).collect();
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

fn long_header(length: usize) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nX-Long: {}\r\n\r\n", "x".repeat(length))
}

fn posted(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n{body}")
}

#[rstest]
#[case::many_headers(many_headers())]
#[case::a_long_header(long_header(100 << 10))]
#[case::a_header_without_end(long_header(2 << 20))]
#[case::a_long_path(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(100 << 10)))]
#[case::no_http("hello, is that a server?\r\n\r\n".into())]
#[case::tls("\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}\r\n\r\n".into())]
#[case::odd_version("GET / HTTP/9.9\r\nHost: a\r\n\r\n".into())]
#[case::a_path_without_a_slash("GET search HTTP/1.1\r\nHost: a\r\n\r\n".into())]
#[case::all_of_the_server("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into())]
#[case::a_tunnel("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n".into())]
#[case::a_name_with_a_space("GET / HTTP/1.1\r\nHost: a\r\nBad Name: 1\r\n\r\n".into())]
#[case::a_space_before_the_colon("GET / HTTP/1.1\r\nHost: a\r\nName : 1\r\n\r\n".into())]
#[case::a_folded_line("GET / HTTP/1.1\r\nHost: a\r\nName: 1\r\n 2\r\n\r\n".into())]
#[case::nul_in_a_value("GET / HTTP/1.1\r\nHost: a\r\nName: \u{0}\r\n\r\n".into())]
#[case::no_host("GET / HTTP/1.1\r\n\r\n".into())]
#[case::two_hosts("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".into())]
#[case::no_length(posted("Content-Length: -1", "x"))]
#[case::two_lengths(posted("Content-Length: 1\r\nContent-Length: 2", "xx"))]
#[case::a_list_of_lengths(posted("Content-Length: 1, 2", "xx"))]
#[case::an_endless_length(posted("Content-Length: 99999999999999999999999", "x"))]
#[case::an_odd_coding(posted("Transfer-Encoding: xchunked", "0\r\n\r\n"))]
#[case::chunked_and_more(posted("Transfer-Encoding: chunked, gzip", "0\r\n\r\n"))]
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_refused_and_reaches_nobody(#[case] bytes: String) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let head = absurd(&gateway, &bytes).await;
    assert!(refused(head.as_ref()), "{head:?}");
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(level(&gateway).await, 100);
    assert_eq!(gateway.get("/").await.status, 200, "and others are served");
}

#[rstest]
#[case::too_many_headers(many_headers(), 431)]
#[case::too_long_a_header(long_header(2 << 20), 431)]
#[case::no_http("hello, is that a server?\r\n\r\n".into(), 400)]
#[case::all_of_the_server("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), 400)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_what_is_no_request_says_whose_it_is(
    #[case] bytes: String,
    #[case] status: u16,
) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let head = absurd(&gateway, &bytes).await.expect("an answer");
    assert!(head.start.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}");
    assert_eq!(head.get("paceway-origin"), Some("gateway"), "{head:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_two_framings_reaches_the_upstream_with_one_or_not_at_all() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    // A parser that believes the length sees one request; a parser that believes the chunks sees two.
    let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let fields = format!("Content-Length: {}\r\nTransfer-Encoding: chunked", hidden.len());
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send(posted(&fields, hidden)).await.expect("send");
    // Answers to as many requests as the gateway sees, or a refusal.
    while conn.answer().await.is_ok_and(|answer| answer.status == 200) {}
    for call in upstream.calls() {
        let framings =
            call.head.all("content-length").len() + call.head.all("transfer-encoding").len();
        assert!(framings <= 1, "{:?}", call.head);
        assert_eq!(call.body, b"");
    }
    let forwarded = gateway.count("search", "passed").await as usize;
    assert_eq!(upstream.calls().len(), forwarded, "each was limited and counted");
    assert_eq!(level(&gateway).await, 100 - forwarded as i64);
}

#[rstest]
#[case::chunks_of_no_size("Transfer-Encoding: chunked", "zz\r\nxx\r\n0\r\n\r\n")]
#[case::chunks_of_endless_size(
    "Transfer-Encoding: chunked",
    "fffffffffffffffff\r\nxx\r\n0\r\n\r\n"
)]
#[case::chunks_without_end("Transfer-Encoding: chunked", "2\r\nxx\r\n")]
#[case::less_than_said("Content-Length: 100", "xx")]
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_is_not_passed_as_a_whole_one(
    #[case] fields: &str,
    #[case] body: &str,
) {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send(posted(fields, body)).await.expect("send");
    conn.close_write().await.expect("the end");
    let said = String::from_utf8_lossy(&conn.rest().await).into_owned();
    assert!(!said.starts_with("HTTP/1.1 2"), "{said}");
    // The origin writes a call down when it has it all.
    assert_eq!(upstream.calls().len(), 0);
    assert_eq!(gateway.get("/").await.status, 200);
}

#[rstest]
#[case::a_little(1 << 10)]
#[case::more_than_a_socket_takes(16 << 20)]
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_a_client_that_is_still_sending(#[case] length: usize) {
    let upstream = Upstream::ok().await;
    let gateway = used_up(&upstream).await;
    for _ in 0..5 {
        let mut conn = Conn::to(gateway.listen).await.expect("connect");
        let head = request("POST", "/", &[("Content-Length", &length.to_string())]);
        conn.send(head).await.expect("send");
        // A server that refuses may stop reading; the answer that it has sent must still arrive.
        let _ = conn.send(vec![b'x'; length]).await;
        let answer = conn.answer().await.expect("a whole answer");
        assert_eq!(answer.status, 429);
    }
    assert_eq!(upstream.calls().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upload_is_never_asked_for() {
    let upstream = Upstream::ok().await;
    let gateway = used_up(&upstream).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    let fields = [("Expect", "100-continue"), ("Content-Length", "4")];
    conn.send(request("PUT", "/", &fields)).await.expect("send");
    let first = conn.head().await.expect("an answer").expect("an answer");
    assert!(first.start.starts_with("HTTP/1.1 429 "), "and no `100 Continue`: {first:?}");
}

// ------------------------------------------------------------------------------------------- stores

fn stored(redis: &Redis, timeout: &str, upstream: &Upstream) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: {timeout}, on_failure: reject }}
upstream: {}
limiters: {{ search: {{ rate: 20/s, burst: 5 }} }}
routes:
  - {{ name: search, suffix: /search, limiters: [search], max_wait: 200ms }}
  - {{ name: free, suffix: /free }}
",
        redis.url(),
        upstream.url()
    )
}

/// A request that needs the store gets 503, one that does not is served.
async fn assert_store_away(gateway: &Gateway) {
    let answer = gateway.get("/search").await;
    assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
    let seconds: u64 = answer.field("retry-after").expect("it").parse().expect("seconds");
    assert!(seconds >= 1);
    assert_eq!(gateway.get("/free").await.status, 200);
}

#[rstest]
#[case::nobody_there(false)]
#[case::there_and_hanging(true)]
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_at_the_start_is_a_warning_and_used_when_it_comes(
    #[case] hangs: bool,
) {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    if hangs {
        redis.freeze()
    } else {
        redis.kill()
    }
    let gateway = Gateway::start(&stored(&redis, "2s", &upstream)).await;
    let warned = |event: &serde_json::Value| {
        event["level"] == "WARN" && event.to_string().contains("the store is away")
    };
    assert!(gateway.events().iter().any(warned), "{:?}", gateway.events());
    assert_store_away(&gateway).await;
    assert_eq!(gateway.page("/healthz").await.status, 200);
    let ready = gateway.page("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &false.into()));

    if hangs {
        redis.thaw()
    } else {
        redis.start_again()
    }
    gateway.until_answered("/search", 200).await;
    eventually("it is ready", async || (gateway.page("/readyz").await.status == 200).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_dies_is_used_again_when_it_is_back() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&stored(&redis, "2s", &upstream)).await;
    for _ in 0..2 {
        // Each worker has a connection of its own, and may be back a moment after another.
        gateway.until_answered("/search", 200).await;
        redis.kill();
        for _ in 0..3 {
            assert_store_away(&gateway).await;
        }
        assert_eq!(gateway.page("/readyz").await.status, 503);
        assert_eq!(gateway.metric("paceway_store_up", &[]).await, 0.0);
        eventually("errors are counted", async || {
            let errors = gateway.metric("paceway_store_errors_total", &[]).await;
            (errors >= 3.0).then_some(())
        })
        .await;
        redis.start_again();
        gateway.until_answered("/search", 200).await;
        eventually("the store is up", async || {
            (gateway.metric("paceway_store_up", &[]).await == 1.0).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_costs_nobody_more_than_its_timeout() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = Gateway::start(&stored(&redis, "300ms", &upstream)).await;
    let started = Instant::now();
    gateway.until_answered("/search", 200).await;

    redis.freeze();
    // Longer than the driver keeps a connection that hangs, so that both its ways out are taken.
    let frozen = Instant::now();
    let mut fastest = PATIENCE;
    while frozen.elapsed() < Duration::from_secs(3) {
        let mut all = Vec::new();
        for _ in 0..10 {
            all.push((Instant::now(), gateway.ask("/search", &[]).await));
        }
        for (asked, mut conn) in all {
            let answer = conn.answer().await.expect("an answer while the store still hangs");
            assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
            fastest = fastest.min(answer.at - asked);
        }
        assert_eq!(gateway.get("/free").await.status, 200);
    }
    // Not each of them waits to learn what is known.
    assert!(fastest < Duration::from_millis(300), "the fastest answer took {fastest:?}");
    redis.thaw();

    gateway.until_answered("/search", 200).await;
    let mut all = Vec::new();
    for _ in 0..40 {
        all.push(gateway.ask("/search", &[]).await);
    }
    for mut conn in all {
        let status = conn.answer().await.expect("an answer").status;
        assert!([200, 429, 503].contains(&status), "{status}");
    }
    let searches = upstream.calls().into_iter().filter(|call| call.target == "/search");
    let arrivals: Vec<_> = searches.map(|call| call.at).collect();
    assert_lawful(started, &arrivals, 5.0, 20.0);
    // A request that was refused while the store hung is not forwarded later.
    let later = arrivals.iter().filter(|at| **at > frozen).count();
    assert!(later <= 41, "{later} forwarded of 41 that were not refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_may_forget_limits_is_warned_of() {
    let upstream = Upstream::ok().await;
    for (policy, warned) in [("allkeys-lru", true), ("noeviction", false)] {
        let redis = Redis::with(&["--maxmemory-policy", policy]);
        let gateway = Gateway::start(&stored(&redis, "2s", &upstream)).await;
        let warns = |event: &serde_json::Value| event["level"] == "WARN";
        let warning = gateway.events().into_iter().find(warns).map(|event| event.to_string());
        assert_eq!(warning.is_some(), warned, "{warning:?}");
        assert!(warning.is_none_or(|text| text.contains("allkeys-lru")));
    }
}

/// Runs a gateway that does not start; what it says.
fn run_in_vain(yaml: &str) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("paceway.yaml"), yaml).expect("a file");
    paceway_in(dir.path(), &["run"], &[])
}

#[rstest]
#[case::wrong_password("redis://:open-sesame@127.0.0.1:PORT/0")]
#[case::wrong_user("redis://ali:open-sesame@127.0.0.1:PORT/0")]
#[case::no_password("redis://127.0.0.1:PORT/0")]
#[case::no_such_database("redis://:right@127.0.0.1:PORT/99")]
fn a_store_that_will_never_serve_us_is_a_failure_at_the_start(#[case] url: &str) {
    let redis = Redis::with(&["--requirepass", "right"]);
    let url = url.replace("PORT", &redis.port().to_string());
    let yaml = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nstore: {{ url: \"{url}\", timeout: 2s }}\n\
         upstream: http://127.0.0.1:1\nlimiters: {{ a: 5/s }}\nroutes: [{{ suffix: \"*\", limiters: [a] }}]\n"
    );
    let output = run_in_vain(&yaml);
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{err}");
    let last = err.lines().last().expect("a message");
    assert!(last.starts_with("error: the store"), "{last}");
    for secret in ["open-sesame", "right"] {
        assert!(!err.contains(secret) && !out.contains(secret), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_password_is_accepted_and_never_written() {
    let redis = Redis::with(&["--requirepass", "open-sesame"]);
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "store: {{ url: \"redis://:${{REDIS_PASSWORD}}@127.0.0.1:{}/0\", timeout: 2s }}
upstream: {}
limiters: {{ search: 5/s }}
routes: [{{ suffix: /search, limiters: [search] }}]
",
        redis.port(),
        upstream.url()
    );
    let env = [
        ("REDIS_PASSWORD".to_owned(), "open-sesame".to_owned()),
        ("PACEWAY_LOG".to_owned(), "debug".to_owned()),
    ];
    let gateway = Gateway::start_with(&yaml, &env).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let mut texts = Vec::new();
    for page in ["/limiters", "/metrics", "/readyz"] {
        texts.push(gateway.page(page).await.text());
    }
    let (out, err) = gateway.output();
    texts.extend(out.into_iter().chain(err));
    assert!(texts.len() > 5);
    for text in texts {
        assert!(!text.contains("open-sesame"), "{text}");
    }
}

#[rstest]
#[case::of_the_data_plane("listen")]
#[case::of_the_admin_side("admin")]
fn an_address_that_is_taken_is_a_failure_that_names_its_key(#[case] key: &str) {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let other = if key == "listen" { "admin" } else { "listen" };
    let output = run_in_vain(&format!(
        "{key}: {address}\n{other}: 127.0.0.1:0\nupstream: http://127.0.0.1:1\nroutes: [{{ suffix: \"*\" }}]\n"
    ));
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let last = err.lines().last().expect("a message");
    assert!(last.contains(&format!("`{key}`")) && last.contains(&address.to_string()), "{last}");
}

/// One limiter on a store, for which requests wait as long as a test does.
fn shared(redis: &Redis, upstream: &Upstream, search: &str) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters: {{ search: {search} }}
routes: [{{ name: search, suffix: \"*\", limiters: [search], max_wait: 1h }}]
",
        redis.url(),
        upstream.url()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_disturbs_no_other_on_its_store() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = shared(&redis, &upstream, "{ rate: 20/s, burst: 5 }");
    let mut doomed = Gateway::start(&yaml).await;
    let other = Gateway::start(&yaml).await;
    let started = Instant::now();
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        lost.push(doomed.ask("/", &[]).await);
        kept.push(other.ask("/", &[]).await);
    }
    eventually("some have passed", async || (upstream.calls().len() >= 10).then_some(())).await;
    doomed.signal("KILL");
    doomed.end().await;
    for mut conn in kept {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(other.get("/").await.status, 200);
    assert_lawful(started, &upstream.arrivals(), 5.0, 20.0);
    let ready = other.page("/readyz").await;
    assert_eq!(ready.status, 200, "{}", ready.text());
}

/// The slots that its requests waited for are lost, and nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_costs_what_it_held() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = shared(&redis, &upstream, "{ rate: 2/hour, burst: 3 }");
    let mut doomed = Gateway::start(&yaml).await;
    let other = Gateway::start(&yaml).await;
    for _ in 0..3 {
        assert_eq!(doomed.get("/").await.status, 200);
    }
    let _lost = doomed.ask("/", &[]).await;
    doomed.until_waiting("search", 1).await;
    doomed.signal("KILL");
    doomed.end().await;
    let mut refused = other.ask("/", &[("Prefer", "wait=0")]).await;
    let refused = refused.answer().await.expect("an answer");
    assert_eq!(refused.status, 429);
    let seconds: u64 = refused.field("retry-after").expect("it").parse().expect("seconds");
    // The first slot, half an hour ahead, is the one that was held.
    assert!((1801..=3600).contains(&seconds), "{seconds} s until there is a permit");
    assert_eq!(upstream.calls().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_that_say_nothing_keep_nobody_from_being_served() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut silent = Vec::new();
    for i in 0..200 {
        let mut conn = Conn::to(gateway.listen).await.expect("connect");
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
async fn a_refusal_of_the_upstream_stays_the_upstreams(#[case] bytes: &'static str) {
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
async fn what_no_head_request_is_answered_with_is_a_502(
    #[case] bytes: &'static str,
    #[case] status: u16,
) {
    let upstream = Upstream::start(move |_| Reply::raw(bytes)).await;
    let gateway = Gateway::start(&config(&upstream.url())).await;
    let mut conn = Conn::to(gateway.listen).await.expect("connect");
    conn.send(request("HEAD", "/", &[])).await.expect("send");
    let head = conn.head().await.expect("an answer").expect("a head");
    assert!(head.start.starts_with(&format!("HTTP/1.1 {status} ")), "{head:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_of_http_1_0_is_answered_for_in_1_1() {
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
