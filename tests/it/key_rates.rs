//! Keys that have another rate than their limiter, in real processes.

use crate::support::{Answer, Gateway, Redis, Upstream, eventually, faketime, paceway};
use jiff::Timestamp;
use serde_json::{Value, json};

const LIMITER: &str = "algorithm: sliding_window, rate: 2/h, key: '{header.x-shop}'";

fn yaml(upstream: &Upstream, store: &str, limiter: &str) -> String {
    format!(
        "store: {store}\nupstream: {}\nlimiters: {{ shop: {{ {limiter} }} }}\n\
         routes: [{{ name: all, suffix: '*', limiters: [shop], max_wait: 0s }}]\n",
        upstream.url()
    )
}

async fn ask(gateway: &Gateway, shop: &str) -> u16 {
    answer(gateway, shop).await.status
}

async fn answer(gateway: &Gateway, shop: &str) -> Answer {
    gateway.ask("/", &[("x-shop", shop)]).await.answer().await.expect("an answer")
}

/// How many of ten requests pass, each through the next gateway.
async fn count_passes(gateways: &[Gateway], shop: &str) -> usize {
    let mut count = 0;
    for i in 0..10 {
        count += usize::from(ask(&gateways[i % gateways.len()], shop).await == 200);
    }
    count
}

async fn page(gateway: &Gateway, path: &str) -> Value {
    gateway.page(path).await.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_pass_at_their_own_rates_over_all_gateways() {
    let (upstream, redis) = (Upstream::ok().await, Redis::start());
    let limiter = format!("{LIMITER}, rates: {{ acme: 5/h, 'plus-*': 3/h }}");
    let text = yaml(&upstream, &redis.url(), &limiter);
    let gateways = [Gateway::start(&text).await, Gateway::start(&text).await];
    for (shop, count) in [("acme", 5), ("plus-1", 3), ("plus-2", 3), ("other", 2)] {
        assert_eq!(count_passes(&gateways, shop).await, count, "{shop}");
    }
    // A caller reads the quota of its key.
    let refused = answer(&gateways[0], "acme").await;
    assert_eq!(refused.status, 429);
    assert!(
        refused.field("ratelimit-policy").is_some_and(|policy| policy.contains("q=5;w=3600")),
        "{refused:?}"
    );
    // Operators see it.
    let rates = |page: Value| -> Vec<(Value, Value)> {
        let keys = page["keys"].as_array().expect("keys");
        keys.iter().map(|key| (key["key"].clone(), key["rate"].clone())).collect()
    };
    let keys = rates(page(&gateways[0], "/limiters/shop/keys").await);
    for own in [("acme", "5/h"), ("plus-2", "3/h"), ("other", "2/h")] {
        assert!(keys.contains(&(own.0.into(), own.1.into())), "{own:?} in {keys:?}");
    }
    let one = page(&gateways[1], "/limiters/shop/keys/acme").await;
    assert_eq!((&one["rate"], &one["limit"], &one["level"]), (&json!("5/h"), &json!(5), &json!(0)));
    let all = page(&gateways[1], "/limiters/shop").await;
    assert_eq!((&all["rate"], &all["rates"]), (&json!("2/h"), &json!(2)));
}

/// A reload gives a key another rate, and what it has used counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_rate_of_a_key_counts_its_used_permits() {
    let upstream = Upstream::ok().await;
    let gateway = Gateway::start(&yaml(&upstream, "memory", LIMITER)).await;
    let gateways = [gateway];
    assert_eq!(count_passes(&gateways, "acme").await, 2);
    let limiter = format!("{LIMITER}, rates: {{ acme: 5/h }}");
    gateways[0].rewrite(&yaml(&upstream, "memory", &limiter));
    assert_eq!(gateways[0].reload().await.status, 200);
    assert_eq!(count_passes(&gateways, "acme").await, 3);
    assert_eq!(count_passes(&gateways, "other").await, 2);
}

/// An operator gives one key another rate on all gateways for a time, and takes it back.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_the_rate_of_one_key() {
    let (upstream, redis) = (Upstream::ok().await, Redis::start());
    let text = yaml(&upstream, &redis.url(), LIMITER);
    let gateways = [Gateway::start(&text).await, Gateway::start(&text).await];
    assert_eq!(count_passes(&gateways, "acme").await, 2);
    let url = format!("http://{}", gateways[0].admin);
    let set = |args: &[&str]| {
        let all = [args, &["--admin", &*url]].concat();
        paceway(&all)
    };
    let done =
        set(&["set", "shop", "rate=6/h", "--key", "acme", "--for", "1h", "--reason", "sale"]);
    assert!(done.status.success(), "{done:?}");
    eventually("the other gateway follows", async || {
        let one = page(&gateways[1], "/limiters/shop/keys/acme").await;
        (one["rate"] == "6/h").then_some(())
    })
    .await;
    assert_eq!(count_passes(&gateways, "acme").await, 4);
    assert_eq!(count_passes(&gateways, "other").await, 2);
    let shown = page(&gateways[1], "/limiters/shop/keys/acme").await;
    assert_eq!(shown["override"]["reason"], "sale");
    let all = page(&gateways[1], "/limiters/shop").await;
    assert_eq!(all["override"], Value::Null);
    assert_eq!(
        (&all["key_overrides"][0]["key"], &all["key_overrides"][0]["rate"]),
        (&json!("acme"), &json!("6/h"))
    );
    let status = String::from_utf8_lossy(&set(&["status"]).stdout).into_owned();
    assert!(status.contains("key acme: override: rate 6/h, until"), "{status}");
    let wrong =
        set(&["set", "shop", "rate=6/x", "--key", "acme", "--for", "1h", "--reason", "sale"]);
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("limiters.shop.rates.acme"),
        "{wrong:?}"
    );
    for wrong in [
        &["set", "limiting=off", "--key", "acme", "--for", "1h", "--reason", "x"][..],
        &["resume", "limiting", "--key", "acme"],
        &["set", "shop", "mode=off", "--key", "acme", "--for", "1h", "--reason", "x"],
    ] {
        let done = set(wrong);
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("leave `--key` out"), "{done:?}");
    }
    let ended = set(&["resume", "shop", "--key", "acme"]);
    assert!(ended.status.success(), "{ended:?}");
    let now = page(&gateways[0], "/limiters/shop/keys/acme").await;
    assert_eq!((&now["rate"], &now["override"]), (&json!("2/h"), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_the_rate_of_the_key() {
    let upstream = Upstream::ok().await;
    let limiter = format!("{LIMITER}, rates: {{ acme: 5/h }}");
    let gateway = Gateway::start(&yaml(&upstream, "memory", &limiter)).await;
    let config = gateway.file().display().to_string();
    let said = |shop: &str| {
        let header = format!("x-shop: {shop}");
        let done = paceway(&["explain", &config, "GET", "/", "-H", &header]);
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    assert!(said("acme").contains("sliding_window 5/h"), "{}", said("acme"));
    assert!(said("other").contains("sliding_window 2/h"), "{}", said("other"));
}

/// A reserve is cut to what its key can give, and a cost above that is refused with the number of the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_reserve_is_cut_to_the_capacity_of_its_key() {
    let upstream = Upstream::ok().await;
    let limiter = format!("{LIMITER}, rates: {{ acme: 5/h }}");
    for (cost, acme, other) in
        [("{ reserve: '{header.x-cost}' }", 200, 200), ("'{header.x-cost}'", 200, 400)]
    {
        let text = yaml(&upstream, "memory", &limiter);
        let charge = format!("limiters: [{{ limiter: shop, cost: {cost} }}]");
        let gateway = Gateway::start(&text.replace("limiters: [shop]", &charge)).await;
        for (shop, status) in [("acme", acme), ("other", other)] {
            let fields = [("x-shop", shop), ("x-cost", "4")];
            let answer = gateway.ask("/", &fields).await.answer().await.expect("an answer");
            assert_eq!(answer.status, status, "{cost} {shop}: {}", answer.text());
            assert!(
                status == 200 || answer.text().contains("between 0 and 2"),
                "{}",
                answer.text()
            );
        }
    }
}

/// The day of each key ends at midnight of the zone, and begins again with the rate of the key.
#[tokio::test(flavor = "multi_thread")]
async fn keys_have_their_own_rates_after_a_reset() {
    let upstream = Upstream::ok().await;
    let midnight: Timestamp = "2026-03-09T07:00:00Z".parse().expect("an instant");
    let shift = midnight.as_second() - 15 - Timestamp::now().as_second();
    let limiter = "algorithm: fixed_window, rate: 2/day, key: '{header.x-shop}', \
                   resets: '00:00 America/Los_Angeles', rates: { acme: 5/day, 'plus-*': 3/day }";
    let text = yaml(&upstream, "memory", limiter);
    let gateways = [Gateway::start_with(&text, &faketime(&format!("{shift:+}s"))).await];
    let all = [("acme", 5), ("plus-1", 3), ("other", 2)];
    for (shop, count) in all {
        assert_eq!(count_passes(&gateways, shop).await, count, "{shop}");
    }
    let wait = answer(&gateways[0], "acme").await.field("retry-after").map(str::to_owned);
    let wait: i64 = wait.and_then(|text| text.parse().ok()).expect("a time");
    assert!((1..=15).contains(&wait), "{wait}");
    eventually("the next day", async || (ask(&gateways[0], "acme").await == 200).then_some(()))
        .await;
    for (shop, count) in [("acme", 4), ("plus-1", 3), ("other", 2)] {
        assert_eq!(count_passes(&gateways, shop).await, count, "{shop}");
    }
    let one = page(&gateways[0], "/limiters/shop/keys/acme").await;
    assert_eq!((&one["rate"], &one["limit"], &one["level"]), (&json!("5/d"), &json!(5), &json!(0)));
    assert_eq!(one["next_reset"], "2026-03-10 00:00 America/Los_Angeles");
}
