//! A Redis whose clock is set back, as an administrator or a promoted replica does it: no limiter stays closed for that long,
//! and none grants too much.

use crate::support::{Gateway, Redis, Reply, Said, Upstream, eventually, reply, request};
use rstest::rstest;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const LIMITERS: [&str; 6] = ["bucket", "sliding", "fixed", "leaky", "warm", "list"];

async fn acquire(gateway: &Gateway, limiter: &str) -> serde_json::Value {
    let path = format!("/limiters/{limiter}/acquire");
    gateway.admin_request(request("POST", &path, &[("Content-Length", "0")])).await.json()
}

/// How many of six calls at each limiter are granted.
async fn granted(gateway: &Gateway) -> [usize; 6] {
    let mut granted = [0; 6];
    for (limiter, granted) in LIMITERS.iter().zip(&mut granted) {
        for _ in 0..6 {
            let answer = gateway.get(&format!("/{limiter}")).await;
            assert!([200, 429].contains(&answer.status), "{answer:?}");
            *granted += usize::from(answer.status == 200);
        }
    }
    granted
}

/// Every limiter refused for an hour, without a line.
#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn limiters_continue_when_the_store_clock_is_set_back(#[values("-60", "-3600")] shift: &str) {
    let redis = Redis::with_a_clock();
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/paused" => reply("429 Too Many Requests", &[("Retry-After", "10")], ""),
        _ => Reply::ok(),
    })
    .await;
    let routes = LIMITERS.map(|name| format!("- {{ suffix: /{name}, limiters: [{name}] }}\n"));
    let gateway = Gateway::start(&format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters:
  bucket: {{ rate: 2/3s }}
  sliding: {{ algorithm: sliding_window, rate: 2/3s }}
  fixed: {{ algorithm: fixed_window, rate: 2/3s }}
  leaky: {{ algorithm: leaky_bucket, rate: 2/3s }}
  warm: {{ algorithm: warm_up, rate: 2/3s, warm_up: 1s }}
  list: [2/3s, 100/min]
  paused: {{ rate: 100/s }}
  held: {{ algorithm: concurrency, max: 1, lease: 10s }}
routes:
- {{ suffix: /paused, limiters: [paused] }}
- {{ suffix: /held, limiters: [held] }}
{}",
        redis.url(),
        upstream.url(),
        routes.concat()
    ))
    .await;
    let before = granted(&gateway).await;
    assert!(before.iter().all(|granted| *granted > 0), "{before:?}");
    assert_eq!(gateway.get("/paused").await.status, 429);
    assert!(acquire(&gateway, "held").await["lease"].is_string());
    let start = Instant::now();
    redis.set_clock(shift);
    // Time that is set back grants nothing.
    let after = granted(&gateway).await;
    if start.elapsed() < Duration::from_millis(1_000) {
        assert!(after.iter().sum::<usize>() <= 6, "{after:?}");
    }
    if start.elapsed() < Duration::from_secs(5) {
        assert!(acquire(&gateway, "held").await["lease"].is_null());
        assert_eq!(gateway.get("/paused").await.problem(), "upstream-throttled");
    }
    sleep((start + Duration::from_millis(4_500)).saturating_duration_since(Instant::now())).await;
    let later = granted(&gateway).await;
    assert!(later.iter().all(|granted| *granted > 0), "{later:?}");
    eventually("the lease ends", async || {
        acquire(&gateway, "held").await["lease"].is_string().then_some(())
    })
    .await;
    eventually("the pause ends", async || {
        (gateway.get("/paused").await.field("retry-after") == Some("10")).then_some(())
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(40), "the clock would have passed");

    let by: f64 = shift.trim_start_matches('-').parse().expect("a number");
    let is_it = |seconds: f64| (by - 15.0..=by + 1.0).contains(&seconds);
    let ready: serde_json::Value = gateway.page("/readyz").await.json();
    assert_eq!(ready["ready"], true, "{ready}");
    assert!(ready["store"]["clock_set_back_s"].as_f64().is_some_and(is_it), "{ready}");
    assert!(is_it(gateway.metric("paceway_store_clock_set_back_seconds", &[]).await));
    let said = |line: &serde_json::Value| {
        line["message"]
            .as_str()
            .is_some_and(|said| said.starts_with("the clock of the store was set back"))
    };
    let lines = gateway.events();
    assert_eq!(lines.iter().filter(|line| said(line)).count(), 1, "{lines:?}");
}

/// An override of 8 s lasted an hour longer, and one that had ended began again. The heartbeats of a dead gateway counted as long.
#[tokio::test(flavor = "multi_thread")]
async fn overrides_end_when_the_clock_of_the_store_is_set_back() {
    let redis = Redis::with_a_clock();
    let limiters = ["a", "b", "c"].map(|name| format!("  {name}: {{ rate: 2/min }}\n")).concat();
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 2s }}\nupstream: http://127.0.0.1:9\n\
         routes: [{{ suffix: \"*\" }}]\nlimiters:\n{limiters}",
        redis.url()
    );
    let (first, dead) = (Gateway::start(&yaml).await, Gateway::start(&yaml).await);
    let put = async |path: &str, body: &str| {
        let length = body.len().to_string();
        let head = request("PUT", path, &[("Content-Length", &length)]);
        let answer = first.admin_request(head + body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    let is_over = async |gateway: &Gateway, limiter: &str| {
        gateway.limiter(limiter).await["override"].is_null().then_some(())
    };
    put("/limiters/b/override", r#"{"mode":"off","for":"8s","reason":"t"}"#).await;
    put("/limiters/c/override", r#"{"pause":true,"for":"8s","reason":"t"}"#).await;
    put("/limiting", r#"{"limiting":"off","for":"8s","reason":"t"}"#).await;
    put("/limiters/a/override", r#"{"rate":"9/s","for":"1s","reason":"t"}"#).await;
    eventually("it ends", async || is_over(&first, "a").await).await;
    let beats = ["ZRANGE", "paceway:{gateways}", "0", "-1"];
    eventually("both gateways are known", async || match redis.command(&beats) {
        Said::List(all) => (all.len() == 2).then_some(()),
        said => panic!("{said:?}"),
    })
    .await;
    drop(dead);
    let start = Instant::now();
    redis.set_clock("-3600");
    for limiter in ["a", "b", "c"] {
        eventually("it ends", async || is_over(&first, limiter).await).await;
    }
    let fresh = Gateway::start(&yaml).await;
    for gateway in [&first, &fresh] {
        for limiter in ["a", "b", "c"] {
            assert!(is_over(gateway, limiter).await.is_some(), "{limiter}");
        }
        eventually("limiting is on again", async || {
            let page: serde_json::Value = gateway.page("/limiters").await.json();
            (page["limiting"] == true).then_some(())
        })
        .await;
    }
    eventually("only the living gateways count", async || {
        (first.metric("paceway_store_gateways", &[]).await == 2.0).then_some(())
    })
    .await;
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
}
