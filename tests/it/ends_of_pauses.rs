//! The ends of pauses on several gateways, and their databases, with a real Redis.

use crate::support::{
    Cluster, Conn, Gateway, Redis, Reply, Said, Upstream, eventually, reply, request,
};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Whether a gateway knows of a pause.
fn hears(gateway: &Gateway) -> bool {
    let begins = |line: &serde_json::Value| {
        line["message"].as_str().is_some_and(|said| said.starts_with("a pause begins"))
    };
    gateway.events().iter().any(begins)
}

/// Waits until two gateways receive what a server publishes on a channel: messages from before are lost.
async fn until_two_subscribe(redis: &Redis, channel: &str) {
    eventually("two gateways subscribe", async || {
        let said = redis.command(&["PUBSUB", "NUMSUB", channel]);
        matches!(said, Said::List(said) if matches!(said[1], Said::Number(2))).then_some(())
    })
    .await;
}

async fn until_heard(gateway: &Gateway) {
    eventually("a gateway learns of a pause", async || hears(gateway).then_some(())).await;
}

/// Publish and subscribe know no database: a 429 of a limiter in database 0 paused that of the same name in database 1.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_one_database_leaves_the_same_limiter_in_another_alone() {
    let redis = Redis::start();
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/refused" => reply("429 Too Many Requests", &[("Retry-After", "600")], ""),
        _ => Reply::ok(),
    })
    .await;
    let start = async |database: u8| {
        Gateway::start(&format!(
            "store: {{ url: \"redis://127.0.0.1:{}/{database}\", timeout: 2s }}
upstream: {}
limiters: {{ quota: {{ rate: 100/s }} }}
routes: [{{ suffix: \"*\", limiters: [quota] }}]
",
            redis.port(),
            upstream.url()
        ))
        .await
    };
    let (other, first, second) = (start(0).await, start(1).await, start(1).await);
    for gateway in [&other, &second] {
        gateway.until_answered("/x", 200).await;
    }
    until_two_subscribe(&redis, "paceway:call:pauses:1").await;
    assert_eq!(first.get("/refused").await.status, 429);
    until_heard(&second).await;
    assert_eq!(second.get("/x").await.problem(), "upstream-throttled");
    assert!(!hears(&other));
    assert_eq!(other.get("/x").await.status, 200);
}

/// A vendor asks for 60 s while 21 requests wait, on two gateways. An operator resets the limiter: the requests were held for
/// as long as before, and newcomers passed.
#[rstest]
#[case::on_one_server(None, "rate: 20/s")]
#[case::on_a_cluster(Some(()), "rate: 20/s")]
#[case::with_a_key(None, "rate: 20/s, key: \"{header.x-tenant}\"")]
#[case::of_two_rates(None, "rate: [20/s, 1000/min]")]
#[case::with_tenants(None, "rate: 20/s, fair: { by: \"{header.x-tenant}\" }")]
#[case::of_calls_at_a_time(None, "algorithm: concurrency, max: 30")]
#[tokio::test(flavor = "multi_thread")]
async fn the_reset_of_a_paused_limiter_wakes_the_requests_of_all_gateways(
    #[case] on_cluster: Option<()>,
    #[case] limiter: &str,
) {
    let cluster = match on_cluster {
        Some(()) => Some(Cluster::start(3, 0).await),
        None => None,
    };
    let redis = cluster.is_none().then(Redis::start);
    let url = cluster.as_ref().map(Cluster::url).or(redis.as_ref().map(Redis::url));
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/refused" => reply("429 Too Many Requests", &[("Retry-After", "60")], ""),
        _ => Reply::ok(),
    })
    .await;
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters: {{ quota: {{ {limiter} }} }}
routes:
- {{ suffix: /refused, limiters: [quota] }}
- {{ name: waits, suffix: \"*\", limiters: [quota], max_wait: 180s }}
",
        url.expect("a store"),
        upstream.url()
    );
    let gateways = [Arc::new(Gateway::start(&yaml).await), Arc::new(Gateway::start(&yaml).await)];
    for redis in redis.iter().chain(cluster.iter().flat_map(|cluster| &cluster.nodes)) {
        until_two_subscribe(redis, "paceway:call:pauses").await;
    }
    let mut refused = gateways[0].ask("/refused", &[("X-Tenant", "t")]).await;
    assert_eq!(refused.answer().await.expect("an answer").status, 429);
    until_heard(&gateways[1]).await;
    let mut waits = Vec::new();
    for i in 0..21 {
        let gateway = gateways[i % 2].clone();
        waits.push(tokio::spawn(async move {
            let mut conn = gateway.ask("/x", &[("X-Tenant", "t")]).await;
            conn.answer().await.expect("an answer").status
        }));
    }
    gateways[0].until_waiting("waits", 11).await;
    gateways[1].until_waiting("waits", 10).await;
    let start = Instant::now();
    let path = if limiter.contains("key") { "/limiters/quota/keys/t" } else { "/limiters/quota" };
    let mut conn = Conn::to(gateways[0].admin).await.expect("connect");
    conn.send(request("DELETE", path, &[])).await.expect("send");
    assert_eq!(conn.answer().await.expect("an answer").status, 200);
    for wait in waits {
        assert_eq!(wait.await.expect("no panic"), 200);
    }
    // A second of slots, and the time of a machine that is busy; without the message it is a minute.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
