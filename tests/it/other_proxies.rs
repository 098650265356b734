//! Proxies that others wrote, with the configurations of their pages: each holds its requests until the gateway has answered
//! it, and an upstream that never refuses counts what they let through.

use crate::support::{
    Answer, Conn, Gateway, OTHER_PROXIES, OtherProxy, Redis, Upstream, assert_lawful, blocks,
    eventually, request, service_address, service_of,
};
use rstest::rstest;
use std::{net::SocketAddr, time::Duration};
use tokio::time::{Instant, sleep};

const LIMITED: &str = "upstream: http://127.0.0.1:9\nlimiters: { search: 5/s }\nroutes:\n\
    - { name: search, suffix: /search, limiters: [search], max_wait: 2s }\n- { name: rest, suffix: '*' }\n";
/// A slot each minute, for which a request may wait for 5 min. `descriptors` of the page of Envoy get the same time.
const SLOW: &str = "upstream: http://127.0.0.1:9\nlimiters: { search: { rate: 1/min, burst: 1 } }\nroutes:\n\
    - { name: search, suffix: /search, limiters: [search], max_wait: 5min }\n";

/// The settings that the page of a proxy shows, with another port.
fn shown(proxy: &str, port: u16) -> String {
    let (_, page, block) = service_of(proxy);
    let shown = &blocks(page, "yaml")[block];
    ["8081", "8082", "8083"]
        .iter()
        .fold(shown.clone(), |text, old| text.replace(old, &port.to_string()))
}

/// A gateway with the settings that the page of a proxy shows, and the address of the service that the proxy asks.
async fn gateway_of(proxy: &str, rest: &str) -> (Gateway, SocketAddr) {
    let mut shown = shown(proxy, 0);
    if rest == SLOW {
        shown = shown.replace("max_wait: 2s", "max_wait: 5min");
    }
    let gateway = Gateway::start(&(shown + rest)).await;
    let address = service_address(&gateway, service_of(proxy).0);
    (gateway, address)
}

/// The labels of the requests of a proxy with this outcome.
fn counted(proxy: &str, outcome: &'static str) -> [(&'static str, &'static str); 3] {
    let service = service_of(proxy).0;
    let route = if service == "envoy_rate_limit" { "path=/search" } else { "search" };
    [("route", route), ("service", service), ("outcome", outcome)]
}

async fn call(address: SocketAddr, target: &str) -> Answer {
    let mut conn = Conn::to(address).await.expect("connect");
    conn.send(request("GET", target, &[])).await.expect("send");
    conn.answer().await.expect("a whole answer")
}

/// The answers to this many GET at one time, each on a connection of its own.
async fn at_once(address: SocketAddr, target: &'static str, count: usize) -> Vec<Answer> {
    let ask = || tokio::spawn(async move { call(address, target).await });
    let asked: Vec<_> = (0..count).map(|_| ask()).collect();
    let mut answers = Vec::new();
    for answer in asked {
        answers.push(answer.await.expect("a task"));
    }
    answers
}

/// 20 requests at once at 5/s with a budget of 2 s: 5 pass, 10 wait, 5 are refused at once.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_requests_at_once_through_real_proxies() {
    for name in OTHER_PROXIES {
        let app = Upstream::ok().await;
        let (gateway, address) = gateway_of(name, LIMITED).await;
        let proxy = OtherProxy::start(name, address, app.address()).await;
        let start = Instant::now();
        let answers = at_once(proxy.address, "/search", 20).await;
        let of = |status: u16| answers.iter().filter(move |answer| answer.status == status);
        let told: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert!((15..=16).contains(&of(200).count()), "{name}: {told:?}");
        assert_eq!(of(200).count() + of(429).count(), 20, "{name}: {told:?}");
        for refused in of(429) {
            assert!(refused.field("retry-after").is_some(), "{name}: {refused:?}");
        }
        // A refusal never comes after waiting in vain: it is there before the last slots of those that wait.
        let last = of(200).map(|answer| answer.at).max().expect("answers");
        assert!(of(429).all(|answer| answer.at < last), "{name}");
        assert_eq!(app.calls().len(), of(200).count(), "{name}");
        assert_lawful(start, &app.arrivals(), 5.0, 5.0);
        let waited = gateway.metric("paceway_requests_total", &counted(name, "waited")).await;
        assert!(waited >= 10.0, "{name}: {waited}");
        assert_eq!(call(proxy.address, "/other").await.status, 200, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_callers_of_real_proxies_return_their_slots() {
    for name in OTHER_PROXIES.into_iter().filter(|name| *name != "haproxy") {
        let app = Upstream::ok().await;
        let (gateway, address) = gateway_of(name, SLOW).await;
        let proxy = OtherProxy::start(name, address, app.address()).await;
        assert_eq!(call(proxy.address, "/search").await.status, 200, "{name}");
        let mut waiting = Vec::new();
        for count in 1..=4 {
            let mut conn = Conn::to(proxy.address).await.expect("connect");
            conn.send(request("GET", "/search", &[])).await.expect("send");
            waiting.push(conn);
            gateway.until_waiting(counted(name, "")[0].1, count).await;
        }
        drop(waiting);
        gateway.until_waiting(counted(name, "")[0].1, 0).await;
        gateway.until_metric("paceway_requests_total", &counted(name, "cancelled"), 4).await;
        // The slots are free again: a caller that asks now would get the next one.
        let slot = eventually("the slots return", async || {
            let state = gateway.limiter("search").await;
            state["next_slot_ms"].as_f64().filter(|next| *next <= 60_000.0)
        });
        assert!(slot.await > 0.0, "{name}");
        assert_eq!(app.calls().len(), 1, "{name}");
    }
}

/// A proxy whose service is away refuses, and serves again when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn real_proxies_survive_a_gateway_that_is_killed() {
    for name in OTHER_PROXIES {
        let app = Upstream::ok().await;
        let (mut gateway, address) = gateway_of(name, LIMITED).await;
        let proxy = OtherProxy::start(name, address, app.address()).await;
        assert_eq!(call(proxy.address, "/search").await.status, 200, "{name}");
        gateway.signal("KILL");
        gateway.end().await;
        let expected = match name {
            "nginx" | "envoy rate limit" => 500,
            "caddy" => 502,
            _ => 503,
        };
        assert_eq!(call(proxy.address, "/search").await.status, expected, "{name}");
        let _gateway = Gateway::start(&(shown(name, address.port()) + LIMITED)).await;
        eventually(&format!("{name} asks again"), async || {
            (call(proxy.address, "/search").await.status == 200).then_some(())
        })
        .await;
    }
}

/// Two proxies with a gateway each share one quota through Redis, and the upstream counts.
#[rstest]
#[case::nginx_and_caddy(["nginx", "caddy"])]
#[case::haproxy_and_envoy(["haproxy", "envoy"])]
#[case::envoy_grpc_and_rate_limit(["envoy grpc", "envoy rate limit"])]
#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_share_one_quota(#[case] names: [&'static str; 2]) {
    let redis = Redis::start();
    let app = Upstream::ok().await;
    let rest = format!("store: {{ url: \"{}\", timeout: 2s }}\n{LIMITED}", redis.url());
    let (mut gateways, mut proxies) = (Vec::new(), Vec::new());
    for name in names {
        let (gateway, address) = gateway_of(name, &rest).await;
        proxies.push(OtherProxy::start(name, address, app.address()).await);
        gateways.push(gateway);
    }
    let start = Instant::now();
    let rounds = 4;
    let mut passed = 0;
    for _ in 0..rounds {
        let [one, other] = &proxies[..] else { panic!("two proxies") };
        let (a, b) =
            tokio::join!(at_once(one.address, "/search", 6), at_once(other.address, "/search", 6));
        passed += a.iter().chain(&b).filter(|answer| answer.status == 200).count();
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(app.calls().len(), passed);
    assert_lawful(start, &app.arrivals(), 5.0, 5.0);
    let most = 5.0 + 5.0 * start.elapsed().as_secs_f64();
    // At saturation nearly all of the quota is used; the last slots are those of requests that were refused.
    assert!(passed as f64 >= most * 0.7, "{passed} of {most:.1}");
}
