//! Decisions: the admin side makes them for programs that want nothing else, and every switch of a limiter changes those
//! for callers.

mod by_hand;

use crate::support::{Answer, Conn, Gateway, Redis, Reply, Upstream, eventually, request};
use rstest::rstest;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;

fn config(redis: &Redis, upstream: &Upstream, rest: &str) -> String {
    let url = redis.url();
    format!("store: {{ url: \"{url}\", timeout: 2s }}\nupstream: {}\n{rest}", upstream.url())
}

async fn two_gateways(yaml: &str) -> [Gateway; 2] {
    [Gateway::start(yaml).await, Gateway::start(yaml).await]
}

async fn answers(conns: Vec<Conn>) -> Vec<Answer> {
    let ask = |mut conn: Conn| tokio::spawn(async move { conn.answer().await });
    let tasks: Vec<_> = conns.into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.expect("task").expect("a whole answer"));
    }
    answers
}

/// One call of the admin side: its status and what it says.
async fn call(gateway: &Gateway, method: &str, path: &str, body: &str) -> (u16, Value) {
    let length = body.len().to_string();
    let fields = [("Content-Type", "application/json"), ("Content-Length", &*length)];
    let mut conn = Conn::to(gateway.admin).await.expect("connect");
    conn.send(request(method, path, &fields) + body).await.expect("send");
    let answer = conn.answer_to(method).await.expect("a whole answer");
    (answer.status, answer.json())
}

async fn post(gateway: &Gateway, path: &str, body: Value) -> Value {
    let (status, said) = call(gateway, "POST", path, &body.to_string()).await;
    assert_eq!(status, 200, "{said}");
    said
}

// ------------------------------------------------------------------------------- decisions and nothing else

/// A limiter with several rates reports the one with the fewest permits left, and a refusal says how many are left.
#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_remaining_permits_of_the_tightest_rate() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { list: { algorithm: sliding_window, rate: [100/s, 12/min] } }
routes: [{ suffix: /search, limiters: [{ limiter: list, cost: 5 }] }]
";
    let gateway = Gateway::start(&config(&redis, &upstream, rest)).await;
    let said = post(&gateway, "/limiters/list/acquire", json!({ "cost": 9 })).await;
    assert_eq!((&said["limit"], &said["remaining"]), (&json!(12), &json!(3)), "{said}");
    let refused = gateway.get("/search").await;
    assert_eq!(refused.status, 429);
    let told = refused.field("ratelimit").expect("a field");
    assert!(told.starts_with("\"list\";r=3;t="), "{told}");
}

/// How often a limiter decided pass, wait, refuse, would_pass, would_wait and would_refuse, in this order.
async fn decisions(gateway: &Gateway, limiter: &str) -> [f64; 6] {
    let mut counts = [0.0; 6];
    let kinds = ["pass", "wait", "refuse", "would_pass", "would_wait", "would_refuse"];
    for (count, kind) in counts.iter_mut().zip(kinds) {
        let labels = [("limiter", limiter), ("decision", kind)];
        *count = gateway.metric("paceway_decisions_total", &labels).await;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observing_limiter_neither_delays_nor_refuses_nor_charges() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    // Within 50 min: one now, then after 20 and 40 min, and no fourth.
    let rest = "limiters:
  seen: { rate: 3/hour, burst: 1, mode: observe }
  kept: { rate: 1/hour, burst: 5 }
routes: [{ name: search, suffix: /search, limiters: [seen, kept], max_wait: 50min }]
";
    let gateway = Gateway::start(&config(&redis, &upstream, rest)).await;
    for left in [4, 3, 2, 1, 0] {
        let answer = gateway.get("/search").await;
        assert_eq!((answer.status, answer.field("server-timing")), (200, None));
        assert_eq!(gateway.limiter("kept").await["level"], left);
    }
    assert_eq!(gateway.statuses("/search", 2).await, [429, 429]);
    assert_eq!(decisions(&gateway, "seen").await, [0.0, 0.0, 0.0, 1.0, 2.0, 2.0]);
    assert_eq!(decisions(&gateway, "kept").await, [5.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
    assert_eq!(gateway.count("search", "observed").await, 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_limiting_off_all_requests_pass_uncounted() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiting: off
limiters: { search: 1/hour, places: { algorithm: concurrency, max: 1 } }
routes: [{ name: search, suffix: /search, limiters: [search, places] }]
";
    let gateway = Gateway::start(&config(&redis, &upstream, rest)).await;
    assert_eq!(gateway.statuses("/search", 5).await, [200; 5]);
    for limiter in ["search", "places"] {
        assert_eq!(decisions(&gateway, limiter).await, [0.0; 6], "{limiter}");
        for _ in 0..2 {
            let path = format!("/limiters/{limiter}/acquire");
            assert_eq!(post(&gateway, &path, json!({})).await["limited"], false, "{limiter}");
        }
    }
    assert_eq!(gateway.count("search", "passed").await, 5.0);
    assert_eq!(redis.keys(), [""; 0]);
}

#[rstest]
// A slot each 9 min: two come within half of 45 min.
#[case::half("50%", "[search]", 2)]
// The seventh would come after 63 min.
#[case::at_most_an_hour("150%", "[search]", 6)]
// Within 43 min.
#[case::of_the_tightest("3%", "[search, day]", 4)]
#[tokio::test(flavor = "multi_thread")]
async fn a_percentage_is_a_part_of_the_tightest_period(
    #[case] max_wait: &str,
    #[case] limiters: &str,
    #[case] wait: usize,
) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = format!(
        "limiters: {{ search: {{ rate: 5/45min, burst: 2 }}, day: 50/day }}
routes: [{{ name: search, suffix: /search, limiters: {limiters}, max_wait: {max_wait} }}]
"
    );
    let gateway = Gateway::start(&config(&redis, &upstream, &rest)).await;
    assert_eq!(gateway.statuses("/search", 2).await, [200, 200]);
    let mut held = Vec::new();
    for waiting in 1..=wait {
        held.push(gateway.ask("/search", &[]).await);
        gateway.until_waiting("search", waiting).await;
    }
    assert_eq!(gateway.statuses("/search", 2).await, [429, 429]);
}

#[rstest]
#[case::trusted("trusted_proxies: [127.0.0.0/8]\n", [200, 429, 200, 429, 200])]
#[case::unknown("trusted_proxies: [10.0.0.0/8]\n", [200, 429, 429, 429, 429])]
#[case::nobody_is_trusted("", [200, 429, 429, 429, 429])]
#[tokio::test(flavor = "multi_thread")]
async fn only_trusted_proxies_name_the_calling_client(
    #[case] trusted: &str,
    #[case] expected: [u16; 5],
) {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = format!(
        "{trusted}limiters: {{ caller: {{ rate: 1/hour, key: \"{{client_ip}}\" }} }}
routes: [{{ suffix: /search, limiters: [caller] }}]
"
    );
    let gateway = Gateway::start(&config(&redis, &upstream, &rest)).await;
    // The fourth claims another address, in front of the one that the proxy has added.
    let callers = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.9, 192.0.2.2", "192.0.2.9"];
    let mut statuses = Vec::new();
    for caller in callers {
        let mut conn = gateway.ask("/search", &[("X-Forwarded-For", caller)]).await;
        statuses.push(conn.answer().await.expect("a whole answer").status);
    }
    assert_eq!(statuses, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_gets_the_whole_chain_of_a_trusted_proxy() {
    let upstream = Upstream::ok().await;
    let yaml = format!(
        "upstream: {}\ntrusted_proxies: [127.0.0.0/8]\nlimiting: off\nroutes: [{{ suffix: \"*\" }}]\n",
        upstream.url()
    );
    let gateway = Gateway::start(&yaml).await;
    let fields = [("X-Forwarded-For", "6.6.6.6, 192.0.2.2"), ("X-Forwarded-Proto", "https")];
    let mut conn = gateway.ask("/search", &fields).await;
    assert_eq!(conn.answer().await.expect("a whole answer").status, 200);
    let head = &upstream.calls()[0].head;
    assert_eq!(head.all("x-forwarded-for"), ["6.6.6.6, 192.0.2.2, 127.0.0.1"]);
    assert_eq!(head.all("x-forwarded-proto"), ["https"]);
    assert_eq!(gateway.line("/search").await["client"], "192.0.2.2");
}

// ------------------------------------------------------------------------------- late, and crosswise

#[tokio::test(flavor = "multi_thread")]
async fn requests_queued_during_a_freeze_are_not_sent_as_a_burst() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    // The margin is for what delays this test's own upstream, too.
    let rest = "limiters: { search: { algorithm: sliding_window, rate: 10/s, margin: 250ms } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 60s }]
";
    let gateway = Gateway::start(&config(&redis, &upstream, rest)).await;
    // Three windows for another caller: ours begin when this test has long been ready.
    for _ in 0..3 {
        let body = json!({ "cost": 10, "max_wait_ms": 10_000 });
        let said = post(&gateway, "/limiters/search/acquire", body).await;
        assert_eq!(said["limited"], false, "{said}");
    }
    let mut conns = Vec::new();
    for _ in 0..30 {
        conns.push(gateway.ask("/search", &[]).await);
    }
    gateway.until_waiting("search", 30).await;
    gateway.signal("STOP");
    // Beyond the first instants: 3 × 1.25 s after the first window.
    sleep(Duration::from_secs(4)).await;
    gateway.signal("CONT");
    assert!(answers(conns).await.iter().all(|answer| answer.status == 200));
    let mut arrivals = upstream.arrivals();
    arrivals.sort();
    assert_eq!(arrivals.len(), 30);
    let spans: Vec<_> = (10..30).map(|k| arrivals[k] - arrivals[k - 10]).collect();
    assert!(spans.iter().all(|span| *span >= Duration::from_secs(1)), "{spans:?}");
    assert!(gateway.metric("paceway_late_wakeups_total", &[("limiter", "search")]).await >= 1.0);
}

#[rstest]
#[case::permits_and_places("{ rate: 50/s, burst: 1 }")]
#[case::places_and_places("{ algorithm: concurrency, max: 2 }")]
#[tokio::test(flavor = "multi_thread")]
async fn routes_with_opposite_limiter_orders_do_not_deadlock(#[case] a: &str) {
    const WORK: Duration = Duration::from_millis(20);
    const COUNT: usize = 40;
    let (redis, upstream) = (Redis::start(), Upstream::start(|_| Reply::ok().after(WORK)).await);
    let rest = format!(
        "limiters: {{ a: {a}, b: {{ algorithm: concurrency, max: 2 }} }}
routes:
  - {{ suffix: /ab, limiters: [a, b], max_wait: 60s }}
  - {{ suffix: /ba, limiters: [b, a], max_wait: 60s }}
"
    );
    let gateways = two_gateways(&config(&redis, &upstream, &rest)).await;
    let mut conns = Vec::new();
    for i in 0..COUNT {
        let target = ["/ab", "/ba"][i / 2 % 2];
        conns.push(gateways[i % 2].ask(target, &[]).await);
    }
    assert!(answers(conns).await.iter().all(|answer| answer.status == 200));
    let mut arrivals = upstream.arrivals();
    arrivals.sort();
    assert_eq!(arrivals.len(), COUNT);
    assert!((2..COUNT).all(|k| arrivals[k] - arrivals[k - 2] >= WORK), "three at once");
    eventually("all permits are free", async || {
        redis.keys().iter().all(|key| !key.contains(":C:")).then_some(())
    })
    .await;
}
