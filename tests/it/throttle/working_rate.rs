//! The rate at which a limiter works after a refusal, in pages, metrics, the log and the command line.

use super::*;
use crate::support::paceway;
use paceway::throttle::Timestamp;
use serde_json::{Value, json};

const LIMITERS: &str = "quota: 30/s, shop: { rate: [20/s, 50000/d], key: '{header.x-shop}' }";
const ROUTE: &str = ", limiters: [quota, shop], max_wait: 0";

/// A gateway with an upstream that has refused one call of the shop `acme`, for ten minutes.
async fn after_a_refusal(redis: Option<&Redis>, throttle: &str) -> Gateway {
    let upstream = scripted([too_many("600")]).await;
    let gateway = gateway_on(redis, &upstream, (throttle, LIMITERS, ROUTE)).await;
    let answer = gateway.ask("/", &[("X-Shop", "acme")]).await.answer().await;
    assert_eq!(answer.expect("an answer").status, 429);
    eventually("the pause is known", async || {
        gateway.limiter("quota").await["paused_ms"].is_number().then_some(())
    })
    .await;
    gateway
}

async fn page(gateway: &Gateway, path: &str) -> Value {
    gateway.page(path).await.json()
}

/// The working rate of a page, permits a second: a little below the written one after a first refusal.
fn read_lowered_rate(page: &Value, written: f64) -> f64 {
    let rate = page["working_rate_per_second"].as_f64().expect("a number");
    assert!((0.9 * written..written).contains(&rate), "{page}");
    let text = format!("{}/s", (rate * 1e3).round() / 1e3);
    assert_eq!(page["working_rate"], text, "{page}");
    rate
}

async fn begin_of_pause(gateway: &Gateway) -> Value {
    let begins = |line: &&Value| {
        line["message"].as_str().is_some_and(|said| said.starts_with("a pause begins"))
    };
    eventually("the line", async || gateway.events().iter().find(begins).cloned()).await
}

#[rstest]
#[case::memory(Place::Memory)]
#[case::redis(Place::Redis)]
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_refusals_have_lowered_is_shown(#[case] place: Place) {
    let redis = redis_of(place);
    let gateway = after_a_refusal(redis.as_ref(), "").await;
    let quota = gateway.limiter("quota").await;
    let rate = read_lowered_rate(&quota, 30.0);
    assert_eq!(quota["rate"], "30/s");
    assert_eq!(quota["working_reason"], "the upstream answered 429");
    // It begins when the pause ends.
    let instant = |field: &str| -> Timestamp {
        quota[field].as_str().expect("an instant").parse().expect("one")
    };
    let apart = instant("working_since").duration_since(instant("paused_until"));
    assert!(apart.abs().as_millis() < 1000, "{quota}");
    // A list says which of its rates is lowered, and a limiter with a key shows that of each key.
    let acme = page(&gateway, "/limiters/shop/keys/acme").await;
    read_lowered_rate(&acme, 20.0);
    assert_eq!(acme["levels"][0]["working_rate"], acme["working_rate"], "{acme}");
    assert!(acme["levels"][1]["working_rate"].is_null(), "{acme}");
    let keys = page(&gateway, "/limiters/shop/keys?sort=used").await;
    assert_eq!(keys["keys"][0]["working_rate"], acme["working_rate"], "{keys}");
    for field in ["working_rate", "working_since", "working_reason"] {
        assert!(gateway.limiter("shop").await[field].is_null(), "{field}");
        let other = page(&gateway, "/limiters/shop/keys/other").await;
        assert!(other[field].is_null(), "{other}");
    }
    let metric =
        async |limiter| gateway.metric("paceway_limiter_rate", &[("limiter", limiter)]).await;
    assert!((metric("quota").await - rate).abs() < 1e-3);
    assert!((metric("shop").await - 50_000.0 / 86_400.0).abs() < 1e-6);
    let line = begin_of_pause(&gateway).await;
    let working = [&acme, &quota].map(|page| page["working_rate"].as_str().expect("a rate"));
    for (field, list) in [("rate", working), ("written", ["20/s", "30/s"])] {
        let mut shown: Vec<_> = line[field].as_str().expect("rates").split(", ").collect();
        shown.sort_unstable();
        assert_eq!(shown, list, "{line}");
    }
    assert_eq!((&line["status"], &line["key"]), (&json!(429), &json!("acme")), "{line}");
    let admin = gateway.admin.to_string();
    for (command, page) in [("status", &quota), ("top", &acme)] {
        let said = format!("works at {}", page["working_rate"].as_str().expect("a rate"));
        let out = paceway(&[command, "--admin", &admin]).stdout;
        let out = String::from_utf8_lossy(&out);
        assert!(out.contains(&said), "{out}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_keeps_the_rate_where_nothing_is_learned() {
    for (learn, falls) in [("on", true), ("remaining", true), ("off", false)] {
        let gateway = after_a_refusal(None, &format!(", throttle: {{ learn: {learn} }}")).await;
        let quota = gateway.limiter("quota").await;
        assert_eq!(quota["working_rate"].is_string(), falls, "{quota}");
        assert_eq!(quota["pause_reason"], "the upstream answered 429", "{quota}");
        let shown = gateway.metric("paceway_limiter_rate", &[("limiter", "quota")]).await;
        assert_eq!(shown < 30.0, falls, "{learn}: {shown}");
        let line = begin_of_pause(&gateway).await;
        assert_eq!(line["rate"].is_null(), !falls, "{line}");
    }
}
