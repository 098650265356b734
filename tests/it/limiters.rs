//! The limiters of every kind from the outside: what arrives at the upstream, and what the admin side decides.

use crate::support::{Answer, Gateway, Redis, Reply, Said, Upstream, eventually, request, rights};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

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
        let mut conn = gateway.connect().await;
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
async fn eighty_requests_share_four_permits_over_two_gateways() {
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
#[case::sliding_window("{ algorithm: sliding_window, rate: 10/s, margin: 200ms }", 10)]
#[case::leaky_bucket("{ algorithm: leaky_bucket, rate: 10/s, margin: 30ms }", 10)]
#[case::two_rates("{ algorithm: sliding_window, rate: [10/s, 25/min], margin: 200ms }", 10)]
#[tokio::test]
async fn an_upstream_never_sees_too_many_calls(#[case] limiter: &str, #[case] count: usize) {
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
async fn every_key_has_its_own_bucket_and_an_impossible_cost_is_400() {
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
    for cost in ["-1", "3", "99999999999999999999", "x"] {
        assert_eq!(ask(&[("x-shop", "c"), ("x-cost", cost)]).await, 400, "{cost}");
    }
    assert_eq!(ask(&[("x-shop", "c"), ("x-cost", "2")]).await, 200);
    // A cost of 0 takes nothing, so that it passes at an empty bucket, too.
    assert_eq!(ask(&[("x-shop", "c"), ("x-cost", "0")]).await, 200);
    assert_eq!(ask(&[("x-shop", "c")]).await, 429);
    let page = gateway.page("/limiters/shop/keys/a").await;
    let page: serde_json::Value = serde_json::from_slice(&page.body).expect("JSON");
    assert_eq!(page["level"], 0);
}

#[tokio::test]
async fn a_full_queue_without_a_free_permit_is_503() {
    let gate = Arc::new(Semaphore::new(0));
    let held = gate.clone();
    let upstream = Upstream::start(move |_| Reply::ok().behind(&held)).await;
    let gateway = Gateway::before(&upstream, "limiters: { one: { algorithm: concurrency, max: 1 } }\n\
         routes: [{ name: search, suffix: /search, limiters: [one], max_wait: 10min, max_waiting: 1 }]\n")
    .await;
    let mut first = gateway.ask("/search", &[]).await;
    eventually("the first has the place", async || (upstream.arrivals().len() == 1).then_some(()))
        .await;
    let mut second = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 1).await;
    let third = gateway.get("/search").await;
    assert_eq!((third.status, third.problem().as_str()), (503, "queue-full"));
    assert_eq!(third.field("retry-after"), Some("1"));
    gate.add_permits(2);
    for waiter in [&mut first, &mut second] {
        assert_eq!(waiter.answer().await.expect("an answer").status, 200);
    }
}

// ------------------------------------------------------------------------------------ rights on Redis

const ALL: &str = "limiters:\n\
    \x20 token: 100/s\n\
    \x20 window: { algorithm: sliding_window, rate: [100/s, 20000/min], margin: 30ms }\n\
    \x20 fixed: { algorithm: fixed_window, rate: 100/s }\n\
    \x20 leaky: { algorithm: leaky_bucket, rate: 100/s }\n\
    \x20 warm: { algorithm: warm_up, rate: 100/s, warm_up: 100ms }\n\
    \x20 places: { algorithm: concurrency, max: 2 }\n\
    routes: [{ suffix: /search, limiters: [token, window, fixed, leaky, warm, places], max_wait: 1min }]\n";

/// A gateway whose user of Redis has these rights.
async fn with_rights(redis: &Redis, upstream: &Upstream, rights: &str) -> Gateway {
    let words = ["ACL", "SETUSER", "paceway", "on", ">secret"];
    let words: Vec<_> = words.into_iter().chain(rights.split_whitespace()).collect();
    assert_eq!(redis.command(&words), Said::Line("OK".into()));
    let url = redis.url().replace("redis://", "redis://paceway:secret@");
    let store = format!("store: {{ url: \"{url}\", timeout: 2s }}\nupstream: {}\n", upstream.url());
    Gateway::start(&(store + ALL)).await
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = with_rights(&redis, &upstream, &rights().join(" ")).await;
    let answers = all(&[gateway], 30).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
}

#[tokio::test]
async fn a_right_that_is_missing_is_not_a_foreign_value() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = with_rights(&redis, &upstream, "~* &* +@all").await;
    // At the start it would be an error.
    assert_eq!(redis.command(&["ACL", "SETUSER", "paceway", "-get"]), Said::Line("OK".into()));
    assert_eq!(gateway.get("/search").await.status, 200, "by its share");
    assert!(gateway.metric("paceway_store_errors_total", &[("kind", "refused")]).await >= 1.0);
    assert_eq!(gateway.metric("paceway_store_errors_total", &[("kind", "foreign")]).await, 0.0);
    let page = gateway.limiter("token").await;
    assert!(
        page["error"].as_str().is_some_and(|error| error.contains("run this command")),
        "{page}"
    );
}

#[rstest]
#[case("~* &* +@all -subscribe")]
#[case("~* &* +@all -publish")]
#[tokio::test]
async fn forbidden_messages_are_in_the_log(#[case] rights: &str) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let gateway = with_rights(&redis, &upstream, rights).await;
    let said = "the store does not allow messages about concurrency permits that become free";
    eventually("it is in the log", async || {
        let events = gateway.events();
        events.into_iter().find(|event| event["message"] == said && event["level"] == "WARN")
    })
    .await;
    assert_eq!(gateway.get("/search").await.status, 200);
}
