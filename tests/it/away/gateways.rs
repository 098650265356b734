//! Gateways that end or die: how many share a limiter while the store is away.

use super::{FIVE, OPEN, config, durable, events, until_breaker, until_gateways};
use crate::support::{Gateway, Redis, Said, Upstream, eventually, free_port};
use std::time::Duration;
use tokio::time::sleep;

/// SIGTERM of a gateway: it leaves the set of gateways, so that the others do not keep its share free for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_gateway_is_no_longer_counted() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let mut ending = Gateway::start(&yaml).await;
    let gateway = Gateway::start(&yaml).await;
    until_gateways(&gateway, 2.0).await;
    ending.signal("TERM");
    ending.end().await;
    assert_eq!(redis.command(&["ZCARD", "paceway:{gateways}"]), Said::Number(1));
    assert_eq!(gateway.statuses("/search", 6).await, [200, 200, 200, 200, 200, 429]);
    until_gateways(&gateway, 1.0).await;
}

/// kill -9 of a gateway: the others count it for some seconds and no longer, and have their quota.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_is_no_longer_counted() {
    let (mut redis, upstream) = (durable(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let mut doomed = Gateway::start(&yaml).await;
    let gateway = Gateway::start(&yaml).await;
    until_gateways(&gateway, 2.0).await;
    until_gateways(&doomed, 2.0).await;
    doomed.signal("KILL");
    doomed.end().await;
    until_gateways(&gateway, 1.0).await;
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    assert_eq!(gateway.statuses("/search", 6).await, [200, 200, 200, 200, 200, 429]);
}

/// Without the store a gateway cannot know whether the other one is dead or only cut off: the share of the other stays
/// unused.
#[tokio::test(flavor = "multi_thread")]
async fn the_share_of_a_gateway_that_dies_during_an_outage_is_unused() {
    let (mut redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { rate: 1/hour, burst: 4 } }
routes: [{ name: search, suffix: /search, limiters: [search] }]
";
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, rest);
    let [gateway, mut doomed] = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    until_gateways(&gateway, 2.0).await;
    until_gateways(&doomed, 2.0).await;
    redis.kill();
    until_breaker(&gateway, OPEN).await;
    doomed.signal("KILL");
    doomed.end().await;
    // With the store it would count no longer by then.
    sleep(Duration::from_millis(3500)).await;
    assert_eq!(gateway.statuses("/search", 4).await, [200, 200, 429, 429]);
    until_gateways(&gateway, 2.0).await;
}

/// The message of the others when they begin to leave a share to a gateway that is absent.
const LEAVES: &str = "other gateways are cut off";

/// Three gateways serve requests. A fourth one that has granted nothing ends and starts again and again: however many lives
/// it has, the others leave it nothing, and do not count the dead ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_without_grants_keeps_no_share() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let gateway = Gateway::start(&yaml).await;
    assert_eq!(gateway.statuses("/search", 1).await, [200]);
    for _ in 0..3 {
        let mut doomed = Gateway::start(&yaml).await;
        until_gateways(&doomed, 2.0).await;
        doomed.signal("KILL");
        doomed.end().await;
        eventually("it is gone", async || {
            (redis.command(&["ZCARD", "paceway:{gateways}"]) == Said::Number(1)).then_some(())
        })
        .await;
    }
    assert_eq!(events(&gateway, LEAVES), 0);
}

/// A gateway whose process stalls may continue, as one that is cut off may grant its share.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_gateway_without_grants_keeps_its_share() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let [gateway, frozen] = [Gateway::start(&yaml).await, Gateway::start(&yaml).await];
    until_gateways(&gateway, 2.0).await;
    frozen.signal("STOP");
    eventually("it is missed", async || (events(&gateway, LEAVES) > 0).then_some(())).await;
    frozen.signal("CONT");
}

/// Each life of a gateway grants something before it dies. The next one, on the same host and address, replaces it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_gateway_replaces_its_former_process() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let yaml = format!("listen: 127.0.0.1:{}\n{yaml}", free_port());
    for _ in 0..4 {
        let mut gateway = Gateway::start(&yaml).await;
        assert_eq!(redis.command(&["ZCARD", "paceway:{gateways}"]), Said::Number(1));
        assert_eq!(gateway.statuses("/search", 1).await, [200]);
        // The store knows that this one has granted something.
        eventually("it is busy", async || {
            let Said::List(ids) = redis.command(&["ZRANGE", "paceway:{gateways}", "0", "-1"])
            else {
                return None;
            };
            let is_idle = |id: &Said| matches!(id, Said::Bytes(Some(id)) if id.starts_with(b"-"));
            (!ids.iter().any(is_idle)).then_some(())
        })
        .await;
        gateway.signal("KILL");
        gateway.end().await;
    }
}
