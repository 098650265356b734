//! Answers that the vendor does not count: their permits come back.

use super::{left, settled, store};
use crate::support::{Call, Gateway, Upstream, reply, request};
use rstest::rstest;

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
