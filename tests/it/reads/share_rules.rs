//! Which reads are identical, and which answers are for others.

use super::{Scene, ask, gated, one_at_a_time};
use crate::support::{Call, Gateway, Reply, closed, eventually, reply};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rstest::rstest;
use tokio::net::TcpStream;

type Fields = &'static [(&'static str, &'static str)];

/// How many calls two reads with these headers are.
async fn calls_of(share: &str, method: &'static str, one: Fields, other: Fields) -> usize {
    calls_of_answered(share, [(method, one), (method, other)], "200 OK", &[]).await
}

async fn calls_of_answered(
    share: &str,
    reads: [(&'static str, Fields); 2],
    status: &'static str,
    fields: Fields,
) -> usize {
    let answer = move |call: &Call| {
        let body = if call.method == "HEAD" || status.starts_with("304") { "" } else { "same" };
        reply(status, fields, body)
    };
    let scene = Scene::start(&one_at_a_time("", share), answer).await;
    let mut conns = Vec::new();
    for (i, (method, fields)) in reads.into_iter().enumerate() {
        conns.push((method, ask(&scene.gateway, method, "/same", fields).await));
        scene.gateway.until_waiting("all", i + 1).await;
    }
    scene.open();
    for (method, conn) in &mut conns {
        let answer = conn.answer_to(method).await.expect("an answer");
        assert!(status.starts_with(&answer.status.to_string()), "{answer:?}");
        for (name, value) in fields {
            assert!(answer.head.all(&name.to_lowercase()).contains(value), "{answer:?}");
        }
    }
    scene.calls()
}

#[rstest]
#[case::authorization(&[("Authorization", "Bearer a")], &[("Authorization", "Bearer b")])]
#[case::anonymous(&[("Authorization", "Bearer a")], &[])]
#[case::cookie(&[("Cookie", "id=a")], &[("Cookie", "id=b")])]
#[case::api_key(&[("X-Api-Key", "a")], &[("X-Api-Key", "b")])]
#[case::accept(&[("Accept", "text/html")], &[("Accept", "application/json")])]
#[case::own_condition(&[("If-None-Match", "\"a\"")], &[])]
#[case::range(&[("Range", "bytes=0-1")], &[("Range", "bytes=0-1")])]
#[case::reload(&[("Cache-Control", "max-age=0, no-cache")], &[("Cache-Control", "no-cache")])]
#[case::no_store(&[("Cache-Control", "no-store")], &[("Cache-Control", "no-store")])]
#[case::pragma(&[("Pragma", "no-cache")], &[("Pragma", "no-cache")])]
#[tokio::test(flavor = "multi_thread")]
async fn reads_that_differ_are_two_calls(#[case] one: Fields, #[case] other: Fields) {
    assert_eq!(calls_of("on", "GET", one, other).await, 2);
}

#[rstest]
#[case::agent("on", "GET", &[("User-Agent", "a")], &[("User-Agent", "b")])]
#[case::token("on", "GET", &[("Authorization", "Bearer a")], &[("Authorization", "Bearer a")])]
#[case::tag("on", "GET", &[("If-None-Match", "\"a\"")], &[("If-None-Match", "\"a\"")])]
#[case::unnamed("{ by: [accept] }", "GET", &[("Accept-Language", "de")], &[("Accept-Language", "fr")])]
#[case::head("on", "HEAD", &[], &[])]
#[tokio::test(flavor = "multi_thread")]
async fn reads_that_differ_in_no_compared_header_are_one_call(
    #[case] share: &str,
    #[case] method: &'static str,
    #[case] one: Fields,
    #[case] other: Fields,
) {
    assert_eq!(calls_of(share, method, one, other).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_differ_in_a_header_of_by_are_two_calls() {
    let [one, other]: [Fields; 2] = [&[("X-Shop", "a")], &[("X-Shop", "b")]];
    assert_eq!(calls_of("{ by: [x-shop] }", "GET", one, other).await, 2);
}

#[rstest]
#[case::post("on", "POST", &[("Content-Length", "0")])]
#[case::off("off", "GET", &[])]
#[tokio::test(flavor = "multi_thread")]
async fn only_reads_of_a_route_with_share_are_one_call(
    #[case] share: &str,
    #[case] method: &'static str,
    #[case] fields: Fields,
) {
    assert_eq!(calls_of(share, method, fields, fields).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_and_a_head_are_two_calls() {
    let reads: [(_, Fields); 2] = [("GET", &[]), ("HEAD", &[])];
    assert_eq!(calls_of_answered("on", reads, "200 OK", &[]).await, 2);
}

const TOKEN: Fields = &[("Authorization", "Bearer a")];

#[rstest]
#[case::set_cookie("200 OK", &[("Set-Cookie", "a=1")], &[], 2)]
#[case::no_store("200 OK", &[("Cache-Control", "max-age=1, No-Store")], &[], 2)]
#[case::private("200 OK", &[("Cache-Control", "private, max-age=60")], &[], 2)]
#[case::private_of_a_token("200 OK", &[("Cache-Control", "private, max-age=60")], TOKEN, 1)]
#[case::no_cache("200 OK", &[("Cache-Control", "no-cache")], &[], 1)]
#[case::vary_by_all("200 OK", &[("Vary", "*")], &[], 2)]
#[case::vary_by_the_same("200 OK", &[("Vary", "Accept, X-Kind")], &[], 1)]
#[case::part("206 Partial Content", &[("Content-Range", "bytes 0-3/9")], &[], 2)]
#[case::events("200 OK", &[("Content-Type", "text/event-stream; charset=utf-8")], &[], 2)]
#[case::missing("404 Not Found", &[], &[], 1)]
#[case::moved("302 Found", &[("Location", "/new")], &[], 1)]
#[case::forbidden("403 Forbidden", &[], &[], 2)]
#[tokio::test(flavor = "multi_thread")]
async fn some_answers_are_for_their_caller_alone(
    #[case] status: &'static str,
    #[case] answer: Fields,
    #[case] request: Fields,
    #[case] calls: usize,
) {
    let reads = [("GET", request), ("GET", request)];
    assert_eq!(calls_of_answered("on", reads, status, answer).await, calls);
}

/// The answer of the first read told that others cannot have it: the next ones would only wait for it in vain.
#[tokio::test(flavor = "multi_thread")]
async fn reads_whose_answers_do_not_share_ask_alone_the_next_time() {
    let gate = closed();
    let behind = gate.clone();
    let answer = move |_: &Call| reply("200 OK", &[("Set-Cookie", "a=1")], "own").behind(&behind);
    let lines = "limiters: { two: { algorithm: concurrency, max: 2 } }\n\
                 routes: [{ name: all, suffix: '*', max_wait: 120s, share: on, limiters: [two] }]";
    let mut scene = Scene::start(lines, answer).await;
    for (begun, made) in [(2, 1), (6, 4)] {
        let mut second = ask(&scene.gateway, "GET", "/first", &[]).await;
        let calls = || scene.upstream.calls().len();
        eventually("both calls", async || (calls() == begun).then_some(())).await;
        let mut conns = scene.wait_together(2).await;
        scene.gate.add_permits(2);
        for conn in [&mut scene.first, &mut second] {
            assert_eq!(conn.answer().await.expect("an answer").status, 200);
        }
        eventually("the calls", async || (scene.calls() == made).then_some(())).await;
        gate.add_permits(2);
        for conn in &mut conns {
            assert_eq!(conn.answer().await.expect("an answer").text(), "own");
        }
        let Scene { gate, upstream, gateway, .. } = scene;
        scene = Scene::occupied(gate, upstream, gateway).await;
    }
}

/// The answer says that it depends on a header in which the two differ; or its coding does, whatever it says.
#[rstest]
#[case::named("on", &[("Vary", "X-Kind")], &[("X-Kind", "a")], &[("X-Kind", "b")])]
#[case::coded(
    "{ by: [accept] }",
    &[("Content-Encoding", "gzip")],
    &[("Accept-Encoding", "gzip")],
    &[("Accept-Encoding", "identity")]
)]
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_varies_is_for_reads_that_agree(
    #[case] share: &str,
    #[case] answer: Fields,
    #[case] one: Fields,
    #[case] other: Fields,
) {
    let reads = [("GET", one), ("GET", other)];
    assert_eq!(calls_of_answered(share, reads, "200 OK", answer).await, 2);
}

/// Requests over HTTP/2 are left alone.
#[tokio::test(flavor = "multi_thread")]
async fn reads_over_http2_are_calls_of_their_own() {
    let scene = Scene::start(&one_at_a_time("", "on"), |_| Reply::ok()).await;
    let tcp = TcpStream::connect(scene.gateway.listen).await.expect("connect");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for waiting in 1..=2 {
        let request = http::Request::get("http://gateway.test/same").body(Empty::<Bytes>::new());
        answers.push(sender.send_request(request.expect("a request")));
        scene.gateway.until_waiting("all", waiting).await;
    }
    scene.open();
    for answer in answers {
        assert_eq!(answer.await.expect("an answer").status(), 200);
    }
    assert_eq!(scene.calls(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_with_other_keys_are_two_calls() {
    let lines = "limiters: { one: { algorithm: concurrency, max: 1 }, shop: { rate: 100/s, key: '{header.x-shop}' } }\n\
                 routes: [{ name: all, suffix: '*', max_wait: 60s, share: on, limiters: [one, shop] }]";
    let mut scene = Scene::start(lines, |_| Reply::ok()).await;
    let mut conns = Vec::new();
    for (i, shop) in ["a", "b", "a"].into_iter().enumerate() {
        conns.push(ask(&scene.gateway, "GET", "/same", &[("X-Shop", shop)]).await);
        scene.gateway.until_waiting("all", i + 1).await;
    }
    scene.open();
    assert_eq!(scene.first.answer().await.expect("an answer").status, 200);
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(scene.calls(), 2);
}

/// Reads that wait together ask once whether what is kept still holds.
#[tokio::test(flavor = "multi_thread")]
async fn reads_that_wait_together_confirm_a_kept_answer_once() {
    let gate = closed();
    let upstream = gated(&gate, |call| match call.head.get("if-none-match") {
        Some(_) => reply("304 Not Modified", &[("ETag", "\"1\"")], ""),
        None => reply("200 OK", &[("ETag", "\"1\"")], "kept"),
    })
    .await;
    let lines = "limiters: { one: { algorithm: concurrency, max: 1 } }\n\
                 routes: [{ name: all, suffix: '*', max_wait: 60s, share: on, revalidate: on, limiters: [one] }]";
    let gateway = Gateway::before(&upstream, lines).await;
    assert_eq!(gateway.get("/same").await.text(), "kept");
    let scene = Scene::occupied(gate, upstream, gateway).await;
    let mut conns = scene.wait_together(3).await;
    scene.open();
    for conn in &mut conns {
        let answer = conn.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "kept"));
    }
    assert_eq!(scene.calls(), 2);
}
