//! Envoy's rate limit service, asked by the official gRPC library. tests/it/other_proxies.rs has Envoy itself.

use crate::support::{Gateway, eventually, service_address};
use serde_json::{Value, json};
use std::{env, net::SocketAddr, process::Stdio};
use tokio::process::Command;

const CONFIG: &str = "services: { envoy_rate_limit: 127.0.0.1:0 }\nupstream: http://127.0.0.1:9\n\
    limiters:\n  search: 5/s\n  shop: { rate: 2/min, burst: 2 }\n  slow: { rate: 1/min, burst: 1 }\n\
    descriptors:\n\
    - { match: { path: /search }, limiters: [search], max_wait: 2s }\n\
    - { name: shops, match: { shop: '*' }, limiters: [shop], key: '{descriptor.shop}' }\n\
    - { name: slow, match: { path: /slow }, limiters: [slow], max_wait: 5min }\n\
    routes: [{ suffix: '*' }]\n";

/// The command that sends `count` calls at once.
fn client(address: SocketAddr, timeout: &str, count: &str, hits: &str) -> Command {
    let python = env::current_dir().expect("a directory").join("target/clients/python/bin/python");
    let mut command = Command::new(python);
    command.args(["tests/clients/envoy_rate_limit.py", &address.to_string(), timeout, count, hits]);
    command.stderr(Stdio::inherit());
    command
}

/// The answers to `count` calls at once with one descriptor of these pairs.
async fn ask(
    address: SocketAddr,
    timeout: &str,
    count: &str,
    hits: &str,
    pairs: &[&str],
) -> Vec<Value> {
    let mut command = client(address, timeout, count, hits);
    let output = command.args(pairs).output().await.expect("Python");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_client_gets_the_slots_of_its_descriptors() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "envoy_rate_limit");
    let all = ask(address, "20", "20", "1", &["path=/search", "method=GET"]).await;
    let of = |code: u64| all.iter().filter(move |answer| answer["code"] == code);
    assert!((15..=16).contains(&of(1).count()), "{all:?}");
    assert_eq!(of(1).count() + of(2).count(), 20, "{all:?}");
    let last = of(1).filter_map(|answer| answer["after"].as_f64()).fold(0.0, f64::max);
    assert!(last > 1.5, "{last}");
    for refused in of(2) {
        assert!(refused["after"].as_f64().is_some_and(|after| after < last), "{refused}");
        assert_eq!(refused["limit"], json!([5, 1, "search"]));
        assert!(refused["reset"].as_f64().is_some_and(|reset| reset > 0.0), "{refused}");
        for name in ["retry-after", "ratelimit", "ratelimit-policy"] {
            assert!(refused["headers"].get(name).is_some(), "{name}: {refused}");
        }
    }
    let waited =
        [("route", "path=/search"), ("service", "envoy_rate_limit"), ("outcome", "waited")];
    assert!(gateway.metric("paceway_requests_total", &waited).await >= 10.0);
    // Each shop has a bucket, and `hits_addend` takes several permits.
    let codes = async |hits: &'static str, shop: &'static str| {
        ask(address, "20", "1", hits, &[shop]).await[0]["code"].as_u64()
    };
    assert_eq!(codes("2", "shop=acme").await, Some(1));
    assert_eq!(codes("1", "shop=acme").await, Some(2));
    assert_eq!(codes("1", "shop=bolt").await, Some(1));
    // A descriptor that nothing matches is allowed.
    assert_eq!(codes("1", "other=x").await, Some(1));
    // Envoy would let a request pass for which it gets an error.
    for hits in ["3", "4294967295"] {
        let over = &ask(address, "20", "1", hits, &["shop=new"]).await[0];
        assert_eq!((&over["code"], &over["limit"]), (&2.into(), &json!([2, 2, "shop"])), "{over}");
    }
    assert_eq!(codes("2", "shop=new").await, Some(1), "nothing was taken");
}

/// An override replaces the rate, and has a state of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_a_descriptor_replaces_the_rate() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "envoy_rate_limit");
    let ask = async |limit: &'static str| {
        let mut command = client(address, "20", "4", "1");
        let output = command.arg("shop=acme").env("LIMIT", limit).output().await.expect("Python");
        let text = String::from_utf8(output.stdout).expect("text");
        let all = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        all.collect::<Vec<Value>>()
    };
    for (limit, count) in [("6", 6), ("3", 3)] {
        let all = ask(limit).await;
        let refused: Vec<_> = all.iter().filter(|answer| answer["code"] == 2).collect();
        // The burst of the limiter stays.
        assert_eq!(refused.len(), 2, "{all:?}");
        assert_eq!(refused[0]["limit"], json!([count, 2, "shop"]));
        let reset = refused[0]["reset"].as_f64().expect("a number");
        assert!(reset <= 60.0 / f64::from(count), "{all:?}");
    }
    let none = ask("0").await;
    assert_eq!(none[0]["code"], 2, "{none:?}");
    // Such a rate is beyond the arithmetic of the rule, which then stays as it is.
    let all = ask("4294967295").await;
    assert!(all.iter().all(|answer| answer["error"].is_null()), "{all:?}");
    assert_eq!(all.iter().filter(|answer| answer["code"] == 1).count(), 2, "{all:?}");
}

/// A window let its own count pass at once, and a bucket its burst.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_a_descriptor_bounds_its_burst() {
    let rules = [
        ("bucket", "100/min", 3),
        ("sliding", "{ algorithm: sliding_window, rate: 100/min }", 3),
        ("fixed", "{ algorithm: fixed_window, rate: 100/min }", 3),
        ("leaky", "{ algorithm: leaky_bucket, rate: 100/min }", 1),
        ("warm", "{ algorithm: warm_up, rate: 100/min, warm_up: 10s }", 1),
        ("list", "{ algorithm: sliding_window, rate: [50/s, 100/min] }", 3),
        ("keyed", "{ algorithm: sliding_window, rate: 100/min, key: '{descriptor.rule}' }", 3),
    ];
    let limiters = rules.map(|(name, rule, _)| format!("  {name}: {rule}\n")).concat();
    let of = |(name, ..): (&str, &str, usize)| {
        format!("- {{ match: {{ rule: {name} }}, limiters: [{name}] }}\n")
    };
    let gateway = Gateway::start(&format!(
        "services: {{ envoy_rate_limit: 127.0.0.1:0 }}\nupstream: http://127.0.0.1:9\nlimiters:\n{limiters}\
         descriptors:\n{}routes: [{{ suffix: '*' }}]\n",
        rules.map(of).concat()
    ))
    .await;
    let address = service_address(&gateway, "envoy_rate_limit");
    for (name, _, most) in rules {
        let mut command = client(address, "20", "12", "1");
        let asked = command.arg(format!("rule={name}")).env("LIMIT", "3");
        let text = String::from_utf8(asked.output().await.expect("Python").stdout).expect("text");
        let all: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let passed = all.iter().filter(|answer| answer["code"] == 1).count();
        assert_eq!(passed, most, "{name}: {all:?}");
        assert!(all.iter().all(|answer| answer["error"].is_null()), "{name}: {all:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_hits_refund_at_most_the_taken_permits() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "envoy_rate_limit");
    let take = async |hits: &'static str| {
        ask(address, "20", "1", hits, &["shop=acme"]).await[0]["code"].clone()
    };
    let give_back = async |hits: &str, shop: &str| {
        let mut command = client(address, "20", "1", hits);
        let output = command.arg(shop).env("NEGATIVE", "1").output().await.expect("Python");
        let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(said["code"], 1, "{said}");
    };
    assert_eq!((take("2").await, take("1").await), (1.into(), 2.into()));
    give_back("1", "shop=acme").await;
    assert_eq!((take("1").await, take("1").await), (1.into(), 2.into()));
    // Neither what others took, nor more than the bucket's own.
    give_back("2", "shop=bolt").await;
    assert_eq!(take("1").await, 2);
    give_back("4294967295", "shop=acme").await;
    assert_eq!((take("2").await, take("1").await), (1.into(), 2.into()));
    // Each hit comes back once.
    give_back("1", "shop=acme").await;
    give_back("1", "shop=acme").await;
    give_back("1", "shop=acme").await;
    assert_eq!((take("2").await, take("1").await), (1.into(), 2.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_returns_its_slot_and_a_deadline_bounds_the_wait() {
    let gateway = Gateway::start(CONFIG).await;
    let address = service_address(&gateway, "envoy_rate_limit");
    assert_eq!(ask(address, "20", "1", "1", &["path=/slow"]).await[0]["code"], 1);
    // The deadline of the call is shorter than the wait for the slot: refused at once.
    let refused = &ask(address, "10", "1", "1", &["path=/slow"]).await[0];
    assert_eq!(refused["code"], 2, "{refused}");
    let python = env::current_dir().expect("a directory").join("target/clients/python/bin/python");
    let address = address.to_string();
    let mut waiting = Command::new(python)
        .args(["tests/clients/envoy_rate_limit.py", &address, "600", "3", "1", "path=/slow"])
        .stdout(Stdio::null())
        .spawn()
        .expect("Python");
    gateway.until_waiting("slow", 3).await;
    waiting.kill().await.expect("its end");
    gateway.until_waiting("slow", 0).await;
    eventually("the slots return", async || {
        let state = gateway.limiter("slow").await;
        state["next_slot_ms"].as_f64().filter(|next| *next <= 60_000.0)
    })
    .await;
}
