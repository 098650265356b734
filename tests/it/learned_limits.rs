//! `learn: limit`: a vendor names the rate of each seller in its answers, and the gateways use all of it.

use crate::support::{Call, Conn, Gateway, Redis, Upstream, eventually, paceway, reply, request};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// The calls of a seller that the vendor would take at once.
struct Seller {
    free: f64,
    at: Instant,
}

/// The vendor's burst, of which the limiter uses half: a call may arrive late, and the next one in time.
const BURST: f64 = 40.0;

/// The rate of each seller, and the header with it.
fn quota(seller: &str) -> (f64, &'static str) {
    match seller {
        "big" => (40.0, "x-amzn-ratelimit-limit: 40.0"),
        "small" => (2.0, "ratelimit-policy: \"default\";q=120;w=60"),
        "huge" => (1e6, "x-amzn-ratelimit-limit: 1000000"),
        "tiny" => (1e6, "x-amzn-ratelimit-limit: 0.001"),
        "mute" => (1e6, "x-ratelimit-limit: 7"),
        _ => (1e6, "x-amzn-ratelimit-limit: soon"),
    }
}

/// A vendor that refuses each call above the rate of its seller.
async fn vendor() -> Upstream {
    let sellers: Mutex<HashMap<String, Seller>> = Mutex::default();
    Upstream::start(move |call: &Call| {
        let name = call.head.get("x-seller").unwrap_or("-").to_owned();
        let (rate, header) = quota(&name);
        let mut sellers = sellers.lock();
        let new = || Seller { free: BURST, at: call.at };
        let seller = sellers.entry(name).or_insert_with(new);
        let passed = call.at.duration_since(seller.at).as_secs_f64();
        (seller.free, seller.at) = ((seller.free + passed * rate).min(BURST), call.at);
        let (name, value) = header.split_once(": ").expect("a header");
        if seller.free < 1.0 {
            return reply("429 Too Many Requests", &[(name, value)], "");
        }
        seller.free -= 1.0;
        reply("200 OK", &[(name, value)], "")
    })
    .await
}

fn yaml(upstream: &Upstream, redis: &Redis, more: &str) -> String {
    format!(
        "store: {}\nupstream: {}\nlimiters: {{ seller: {{ rate: 5/s, burst: 20, key: '{{header.x-seller}}', \
         learn: limit, min: 1/s, max: 100/s{more} }} }}\n\
         routes: [{{ suffix: '*', limiters: [seller], max_wait: 60s }}]\n",
        redis.url(),
        upstream.url()
    )
}

async fn ask(gateway: &Gateway, seller: &str) -> u16 {
    gateway.ask("/", &[("x-seller", seller)]).await.answer().await.expect("an answer").status
}

async fn page(gateway: &Gateway, seller: &str) -> Value {
    gateway.page(&format!("/limiters/seller/keys/{seller}")).await.json()
}

async fn until_rate(gateway: &Gateway, seller: &str, expected: &str) {
    eventually(expected, async || (page(gateway, seller).await["rate"] == expected).then_some(()))
        .await;
}

async fn forget(gateway: &Gateway, path: &str) {
    let mut admin = Conn::to(gateway.admin).await.expect("connect");
    admin.send(request("DELETE", path, &[])).await.expect("send");
    assert_eq!(admin.answer().await.expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_use_the_whole_rate_that_the_vendor_names_and_nothing_is_refused() {
    let (upstream, redis) = (vendor().await, Redis::start());
    let text = yaml(&upstream, &redis, "");
    let gateways = [Gateway::start(&text).await, Gateway::start(&text).await];
    assert_eq!(page(&gateways[0], "big").await["rate"], "5/s");
    assert_eq!(ask(&gateways[0], "big").await, 200);
    // At once in the gateway that saw the answer, and soon in the other one.
    assert_eq!(page(&gateways[0], "big").await["rate"], "40/s");
    until_rate(&gateways[1], "big", "40/s").await;
    assert_eq!(ask(&gateways[1], "small").await, 200);
    until_rate(&gateways[0], "small", "2/s").await;

    let begun = Instant::now();
    let calls = (0..140).map(|i| {
        let address = gateways[i % 2].listen;
        tokio::spawn(async move {
            let fields = [("x-seller", "big")];
            let mut call = Conn::to(address).await.expect("connect");
            call.send(request("GET", "/", &fields)).await.expect("send");
            call.answer().await.expect("an answer").status
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.expect("a call"), 200, "nothing is refused");
    }
    let took = begun.elapsed();
    // 20 at once, and then 40 a second.
    assert!(took >= Duration::from_millis(2_900), "{took:?}");
    let refused =
        gateways[0].metric("paceway_upstream_throttled_total", &[("upstream", "default")]);
    assert_eq!(refused.await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn learned_rates_survive_a_restart_until_an_operator_forgets_them() {
    let (upstream, redis) = (vendor().await, Redis::start());
    let text = yaml(&upstream, &redis, "");
    let mut gateway = Gateway::start(&text).await;
    for seller in ["big", "huge", "tiny", "mute", "other"] {
        assert_eq!(ask(&gateway, seller).await, 200);
    }
    let mut shown = Vec::new();
    for seller in ["big", "huge", "tiny", "mute", "other"] {
        let page = page(&gateway, seller).await;
        shown.push((page["rate"].clone(), page["learned"].clone()));
    }
    let learned = |rate: &str| (json!(rate), json!(true));
    let start = (json!("5/s"), Value::Null);
    // `max` and `min` hold, and what names no rate changes nothing.
    let expected = [learned("40/s"), learned("100/s"), learned("1/s"), start.clone(), start];
    assert_eq!(shown, expected);
    let keys = gateway.page("/limiters/seller/keys").await.json();
    let tiny = keys["keys"].as_array().expect("keys").iter().find(|key| key["key"] == "tiny");
    assert_eq!(tiny.map(|tiny| &tiny["rate"]), Some(&json!("1/s")), "{keys}");

    let other = Gateway::start(&text).await;
    until_rate(&other, "big", "40/s").await;
    until_rate(&other, "tiny", "1/s").await;
    gateway.signal("TERM");
    gateway.end().await;
    let again = Gateway::start(&text).await;
    assert_eq!(page(&again, "big").await["rate"], "40/s", "before any call");
    // The burst is that of the limiter.
    assert_eq!(page(&again, "huge").await["limit"], 20);

    // The other gateway reads the rates each 3 s or less often, and the overrides twice a second.
    let begun = Instant::now();
    forget(&again, "/limiters/seller/keys/big").await;
    assert_eq!(page(&again, "big").await["rate"], "5/s");
    until_rate(&other, "big", "5/s").await;
    assert_eq!(page(&other, "tiny").await["rate"], "1/s");
    forget(&again, "/limiters/seller/keys").await;
    until_rate(&other, "tiny", "5/s").await;
    assert!(begun.elapsed() < Duration::from_millis(2_500), "{:?}", begun.elapsed());
}

/// The gateway reads and writes the shared rates each second.
#[tokio::test(flavor = "multi_thread")]
async fn a_rate_that_was_named_just_before_the_end_is_kept() {
    let (upstream, redis) = (vendor().await, Redis::start());
    let text = yaml(&upstream, &redis, "");
    let mut gateway = Gateway::start(&text).await;
    assert_eq!(ask(&gateway, "big").await, 200);
    gateway.signal("TERM");
    assert!(gateway.end().await.success());
    let again = Gateway::start(&text).await;
    assert_eq!(page(&again, "big").await["rate"], "40/s");
}

/// A store that is away does not hold the end up.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_ends_in_time_without_its_store() {
    let (upstream, mut redis) = (vendor().await, Redis::start());
    let mut gateway = Gateway::start(&yaml(&upstream, &redis, "")).await;
    assert_eq!(ask(&gateway, "big").await, 200);
    redis.kill();
    let begun = Instant::now();
    gateway.signal("TERM");
    assert!(gateway.end().await.success());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// A written rate of a key and the rate of an operator count before one that an answer names.
#[tokio::test(flavor = "multi_thread")]
async fn a_written_rate_counts_before_a_learned_one() {
    let (upstream, redis) = (vendor().await, Redis::start());
    let gateway = Gateway::start(&yaml(&upstream, &redis, ", rates: { big: 7/s }")).await;
    assert_eq!((ask(&gateway, "big").await, ask(&gateway, "small").await), (200, 200));
    assert_eq!(page(&gateway, "big").await["rate"], "7/s");
    assert_eq!(page(&gateway, "small").await["rate"], "2/s");
    let url = format!("http://{}", gateway.admin);
    let set = ["set", "seller", "rate=3/s", "--for", "1h", "--reason", "sale", "--admin", &*url];
    assert!(paceway(&set).status.success());
    until_rate(&gateway, "small", "3/s").await;
    assert!(paceway(&["resume", "seller", "--admin", &*url]).status.success());
    until_rate(&gateway, "small", "2/s").await;
}

/// A limiter without a key, a store in memory, and a limiter beside it that the header is not about.
#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_without_a_key_learns_the_quota_of_its_period() {
    let policy = "\"second\";q=9;w=1, \"minute\";q=300;w=60";
    let upstream =
        Upstream::start(move |_| reply("200 OK", &[("ratelimit-policy", policy)], "")).await;
    let learning = |rate: &str| format!("{{ rate: {rate}, burst: 2, learn: limit }}");
    let text = format!(
        "upstream: {}\nlimiters: {{ a: {}, minute: {}, c: {} }}\n\
         routes: [{{ suffix: '*', limiters: [a, minute, c], max_wait: 5s }}]\n",
        upstream.url(),
        learning("5/s"),
        learning("10/s"),
        learning("7/h")
    );
    let gateway = Gateway::start(&text).await;
    assert_eq!(gateway.get("/").await.status, 200);
    let mut rates = Vec::new();
    for name in ["a", "minute", "c"] {
        rates.push(gateway.limiter(name).await["rate"].clone());
    }
    assert_eq!(rates, ["9/s", "5/s", "7/h"], "by its period, by its name, and none");
}
