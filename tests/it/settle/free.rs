//! Answers that the vendor does not count: their permits come back.

use super::{left, settled};
use crate::support::{Call, Gateway, Upstream, closed, eventually, reply, request, store};
use rstest::rstest;
use std::time::Duration;
use tokio::time::Instant;

/// An upstream that has not changed since the request's `If-None-Match`.
async fn unchanged() -> Upstream {
    Upstream::start(|call: &Call| match call.head.get("if-none-match") {
        Some(_) => reply("304 Not Modified", &[("ETag", "\"1\"")], ""),
        None => reply("200 OK", &[("ETag", "\"1\"")], "whole"),
    })
    .await
}

async fn start(upstream: &Upstream, store: &str, throttle: &str, limiters: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{ a: {{ url: '{}', throttle: {throttle} }} }}\n{store}\n\
         limiters: {{ tokens: {{ algorithm: sliding_window, rate: 3/day }}, burst: 900/day, one: {{ algorithm: concurrency, max: 2 }} }}\n\
         routes: [{{ name: all, suffix: '*', upstream: a, max_wait: 0s, limiters: {limiters} }}]\n",
        upstream.url()
    ))
    .await
}

async fn ask(gateway: &Gateway, is_conditional: bool) -> u16 {
    let fields: &[_] = if is_conditional { &[("If-None-Match", "\"1\"")] } else { &[] };
    let mut conn = gateway.connect().await;
    conn.send(request("GET", "/", fields)).await.expect("send");
    conn.answer().await.expect("an answer").status
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_304_costs_nothing_at_github(#[values(false, true)] is_redis: bool) {
    let (upstream, (_redis, store)) = (unchanged().await, store(is_redis));
    let limiters = "[tokens, { limiter: burst, cost: 5 }, one]";
    let gateway = start(&upstream, &store, "{ style: github }", limiters).await;
    for _ in 0..6 {
        assert_eq!(ask(&gateway, true).await, 304);
        left(&gateway, 3).await;
    }
    assert_eq!(settled(&gateway, "refund").await, 6.0);
    let level = gateway.limiter("burst").await;
    assert_eq!(level["level"], 900);
    for status in [200, 200, 200, 429] {
        assert_eq!(ask(&gateway, false).await, status);
    }
}

/// Other vendors count it, unless the file says so, and `free: []` makes GitHub count it.
#[rstest]
#[case::counted("{ style: auto }", 0)]
#[case::named("{ free: [304, 404] }", 3)]
#[case::none("{ style: github, free: [] }", 0)]
#[tokio::test(flavor = "multi_thread")]
async fn the_file_says_which_answers_are_free(#[case] throttle: &str, #[case] remain: i64) {
    let upstream = unchanged().await;
    let gateway = start(&upstream, "", throttle, "[tokens]").await;
    for _ in 0..3 {
        assert_eq!(ask(&gateway, true).await, 304);
    }
    left(&gateway, remain).await;
}

/// Each key and each rate of a list has its permits back, and a request that waits has the slot at once.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_gets_the_slot_of_a_free_answer(
    #[values(false, true)] is_redis: bool,
) {
    let (gate, (_redis, store)) = (closed(), store(is_redis));
    let behind = gate.clone();
    let upstream =
        Upstream::start(move |_| reply("304 Not Modified", &[], "").behind(&behind)).await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ a: {{ url: '{}', throttle: {{ style: github }} }} }}\n{store}\n\
         limiters: {{ shop: {{ algorithm: sliding_window, rate: [1/min, 2/day], key: '{{header.x-shop}}' }} }}\n\
         routes: [{{ name: all, suffix: '*', max_wait: 110s, limiters: [shop] }}]\n",
        upstream.url()
    ))
    .await;
    let started = Instant::now();
    let mut conns = Vec::new();
    for _ in 0..2 {
        let mut conn = gateway.connect().await;
        conn.send(request("GET", "/", &[("X-Shop", "a")])).await.expect("send");
        conns.push(conn);
        eventually("the first call", async || (upstream.calls().len() == 1).then_some(())).await;
    }
    gateway.until_waiting("all", 1).await;
    gate.add_permits(10);
    for conn in &mut conns {
        assert_eq!(conn.answer().await.expect("an answer").status, 304);
    }
    // More than the day has, and more than a minute has.
    for _ in 0..4 {
        let mut conn = gateway.connect().await;
        conn.send(request("GET", "/", &[("X-Shop", "a")])).await.expect("send");
        assert_eq!(conn.answer().await.expect("an answer").status, 304);
    }
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
}
