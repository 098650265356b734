//! The limiters of every kind from the outside: what arrives at the upstream, and what the admin side decides.

use crate::support::{Answer, Conn, Gateway, Redis, Reply, Upstream, request};
use rstest::rstest;
use std::time::Duration;

fn config(redis: &Redis, upstream: &Upstream, rest: &str) -> String {
    let url = redis.url();
    format!("store: {{ url: \"{url}\", timeout: 2s }}\nupstream: {}\n{rest}", upstream.url())
}

async fn gateways(count: usize, yaml: &str) -> Vec<Gateway> {
    let mut gateways = Vec::new();
    for _ in 0..count {
        gateways.push(Gateway::start(yaml).await);
    }
    gateways
}

async fn all(gateways: &[Gateway], count: usize) -> Vec<Answer> {
    let mut tasks = Vec::new();
    for gateway in gateways.iter().cycle().take(count) {
        let mut conn = Conn::to(gateway.listen).await.expect("connect");
        conn.send(request("GET", "/search", &[])).await.expect("send");
        tasks.push(tokio::spawn(async move { conn.answer().await }));
    }
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("task").expect("a whole answer"));
    }
    answers
}

#[tokio::test]
async fn eighty_through_four_places_over_two_gateways() {
    const WORK: Duration = Duration::from_millis(100);
    let (redis, upstream) = (Redis::start(), Upstream::start(|_| Reply::ok().after(WORK)).await);
    let rest = "limiters: { four: { algorithm: concurrency, max: 4 } }\n\
                routes: [{ suffix: /search, limiters: [four], max_wait: 30s }]\n";
    let gateways = gateways(2, &config(&redis, &upstream, rest)).await;
    let answers = all(&gateways, 80).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), 80);
    // The fifth comes only when one of the four before it has been answered.
    assert!((4..80).all(|k| arrivals[k] - arrivals[k - 4] >= WORK));
}

#[rstest]
#[case::sliding_window("{ algorithm: sliding_window, rate: 10/s, margin: 30ms }", 10)]
#[case::leaky_bucket("{ algorithm: leaky_bucket, rate: 10/s, margin: 30ms }", 10)]
#[case::two_rates("{ algorithm: sliding_window, rate: [10/s, 25/min], margin: 30ms }", 10)]
#[tokio::test]
async fn an_upstream_never_sees_too_many(#[case] limiter: &str, #[case] count: usize) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = format!(
        "limiters: {{ search: {limiter} }}\n\
         routes: [{{ suffix: /search, limiters: [search], max_wait: 2s }}]\n"
    );
    let gateways = gateways(3, &config(&redis, &upstream, &rest)).await;
    let answers = all(&gateways, 30).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    let refused = answers.iter().filter(|answer| answer.status == 429).count();
    assert_eq!(passed + refused, 30);
    assert!(passed >= count);
    let arrivals = upstream.arrivals();
    assert_eq!(arrivals.len(), passed);
    assert!((count..passed).all(|k| arrivals[k] - arrivals[k - count] >= Duration::from_secs(1)));
}

#[tokio::test]
async fn every_key_has_its_bucket_and_a_cost_that_cannot_be_paid_is_400() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { shop: { rate: 2/hour, key: \"{header.x-shop}\" } }\n\
                routes: [{ suffix: /search, limiters: [{ limiter: shop, cost: \"{header.x-cost}\" }] }]\n";
    let gateway = Gateway::start(&config(&redis, &upstream, rest)).await;
    let ask = async |fields: &[(&str, &str)]| {
        gateway.ask("/search", fields).await.answer().await.expect("an answer").status
    };
    assert_eq!(ask(&[("x-shop", "a"), ("x-cost", "2")]).await, 200);
    assert_eq!(ask(&[("x-shop", "a")]).await, 429);
    assert_eq!(ask(&[("x-shop", "b")]).await, 200);
    assert_eq!(ask(&[]).await, 200);
    for cost in ["0", "-1", "3", "99999999999999999999", "x"] {
        assert_eq!(ask(&[("x-shop", "c"), ("x-cost", cost)]).await, 400, "{cost}");
    }
    assert_eq!(ask(&[("x-shop", "c"), ("x-cost", "2")]).await, 200);
    let page = gateway.page("/limiters/shop/keys/a").await;
    let page: serde_json::Value = serde_json::from_slice(&page.body).expect("JSON");
    assert_eq!(page["level"], 0);
}
