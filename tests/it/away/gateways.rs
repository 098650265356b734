//! Gateways that end or die: how many share a limiter while the store is away.

use super::{FIVE, OPEN, config, durable, statuses, until_breaker, until_gateways};
use crate::support::{Gateway, Redis, Said, Upstream};
use std::time::Duration;
use tokio::time::sleep;

/// SIGTERM of a gateway: it leaves the set of gateways, so that the others do not keep its share free for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_ends_is_counted_no_longer() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let yaml = config(&redis.url(), "timeout: 2s", &upstream, FIVE);
    let mut ending = Gateway::start(&yaml).await;
    let gateway = Gateway::start(&yaml).await;
    until_gateways(&gateway, 2.0).await;
    ending.signal("TERM");
    ending.end().await;
    assert_eq!(redis.command(&["ZCARD", "paceway:{gateways}"]), Said::Number(1));
    assert_eq!(statuses(&gateway, "/search", 6).await, [200, 200, 200, 200, 200, 429]);
    until_gateways(&gateway, 1.0).await;
}

/// kill -9 of a gateway: the others count it for some seconds and no longer, and have their quota.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_gone_is_counted_no_longer() {
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
    assert_eq!(statuses(&gateway, "/search", 6).await, [200, 200, 200, 200, 200, 429]);
}

/// Without the store a gateway cannot know whether the other one is dead or only cut off: the share of the other stays
/// unused.
#[tokio::test(flavor = "multi_thread")]
async fn the_share_of_a_gateway_that_dies_without_the_store_is_nobodys() {
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
    assert_eq!(statuses(&gateway, "/search", 4).await, [200, 200, 429, 429]);
    until_gateways(&gateway, 2.0).await;
}
