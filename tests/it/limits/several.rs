//! Limiters that only observe, limiters that are off, and several limiters of one request.

use super::{config, stored_at};
use crate::support::{Gateway, Redis, Upstream, free_port};
use rstest::rstest;
use serde_json::json;

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn observing_counts_and_never_holds_or_refuses(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: { rate: 1/hour, burst: 3, mode: observe } }
routes: [{ name: search, suffix: /search, limiters: [search] }]
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    for _ in 0..10 {
        let answer = gateway.get("/search").await;
        assert_eq!((answer.status, answer.field("server-timing")), (200, None));
    }
    assert_eq!(upstream.calls().len(), 10);
    let decisions = async |decision: &str| {
        let labels = [("limiter", "search"), ("decision", decision)];
        gateway.metric("paceway_decisions_total", &labels).await
    };
    assert_eq!(decisions("would_pass").await, 3.0);
    assert_eq!(decisions("would_refuse").await, 7.0);
    assert_eq!(decisions("refuse").await, 0.0);
    assert_eq!(gateway.count("search", "passed").await, 3.0);
    assert_eq!(gateway.count("search", "observed").await, 7.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observing_limiter_does_not_loosen_an_enforced_one() {
    let upstream = Upstream::ok().await;
    let rest =
        "limiters: { seen: { rate: 1/hour, mode: observe }, kept: { rate: 1/hour, burst: 2 } }
routes: [{ suffix: /search, limiters: [seen, kept] }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(gateway.get("/search").await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

#[rstest]
#[case::one_limiter("limiters: { search: { rate: 1/hour, mode: off } }")]
#[case::all("limiting: off\nlimiters: { search: 1/hour }")]
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_that_is_off_limits_nothing_and_calls_no_store(#[case] limiters: &str) {
    let upstream = Upstream::ok().await;
    // Nothing listens on that port: a request that asked the store would fail.
    let gateway = Gateway::start(&format!(
        "store: {}
upstream: {}
{limiters}
routes: [{{ suffix: /search, limiters: [search] }}]
",
        stored_at(&format!("redis://127.0.0.1:{}", free_port())),
        upstream.url()
    ))
    .await;
    for _ in 0..5 {
        assert_eq!(gateway.get("/search").await.status, 200);
    }
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn two_limiters_admit_a_request_together_or_not_at_all(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { wide: { rate: 10/day }, narrow: { rate: 2/day } }
routes: [{ suffix: /narrow, limiters: [wide, narrow] }, { suffix: /wide, limiters: [wide] }]
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    let levels = async || {
        let level = async |name| gateway.limiter(name).await["level"].as_i64().expect("a level");
        (level("wide").await, level("narrow").await)
    };
    assert_eq!(levels().await, (10, 2));
    for _ in 0..2 {
        assert_eq!(gateway.get("/narrow").await.status, 200);
    }
    assert_eq!(levels().await, (8, 0));
    for _ in 0..3 {
        let refused = gateway.get("/narrow").await;
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["violated-policies"], json!(["narrow"]));
    }
    assert_eq!(levels().await, (8, 0), "a refusal by one takes nothing from the other");
    assert_eq!(gateway.get("/wide").await.status, 200);
    assert_eq!(levels().await, (7, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstreams_limiter_counts_the_calls_of_every_route() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&format!(
        "upstreams: {{ vendor: {{ url: \"{}\", limiters: [account] }} }}
limiters: {{ account: 3/day }}
routes: [{{ suffix: /a }}, {{ suffix: /b, limiters: [account] }}]
",
        upstream.url()
    ))
    .await;
    let mut statuses = Vec::new();
    for target in ["/a", "/b", "/a", "/a", "/b"] {
        statuses.push(gateway.get(target).await.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
}
