//! Concurrency permits whose waiting requests take turns.

use super::{Ordered, count, served};
use crate::support::{Call, Reply, Upstream, eventually};
use rstest::rstest;
use serde_json::json;
use std::sync::Arc;
use tokio::{sync::Semaphore, task::JoinHandle};

/// Gateways before an upstream that answers each call with one permit of the gate.
async fn gated(gateways: usize, rest: &str) -> (Ordered, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |_: &Call| Reply::ok().behind(&behind)).await;
    (Ordered::before(upstream, gateways, rest).await, gate)
}

#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn permits_are_shared_by_weight(#[case] gateways: usize) {
    const EACH: usize = 40;
    let (ordered, gate) = gated(
        gateways,
        "limiters:
  places: { algorithm: concurrency, max: 2, fair: { by: '{query.team}', weights: { a: 4 } } }
routes: [{ name: x, suffix: /x, limiters: [places], max_wait: 60s }]
",
    )
    .await;
    let asked: Vec<_> = ["b", "c", "a"]
        .iter()
        .flat_map(|team| ordered.ask(&format!("/x?team={team}"), &[], EACH))
        .collect();
    ordered.until_asked(3 * EACH).await;
    gate.add_permits(3 * EACH);
    let teams = ordered.next_teams(2, 48).await;
    for (team, share) in [("a", 32), ("b", 8), ("c", 8)] {
        let own = count(&teams, team);
        assert!(own.abs_diff(share) <= 2, "{own} of {team}, whose share is {share}: {teams:?}");
    }
    served(asked).await;
}

/// The limiter needs no `fair`: the route with a priority gives its requests an order.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn a_lower_priority_keeps_a_part_of_the_permits(#[case] gateways: usize) {
    let (ordered, gate) = gated(
        gateways,
        "limiters: { places: { algorithm: concurrency, max: 1 } }
routes:
  - { name: low, suffix: /low, limiters: [places], priority: low, max_wait: 60s }
  - { name: x, suffix: /x, limiters: [places], max_wait: 60s }
",
    )
    .await;
    let low = ordered.ask("/low?team=low", &[], 10);
    ordered.until_asked(10).await;
    let normal = ordered.ask("/x?team=normal", &[], 80);
    ordered.until_asked(90).await;
    gate.add_permits(90);
    let teams = ordered.next_teams(1, 60).await;
    let own = count(&teams, "low");
    assert!((2..=4).contains(&own), "{own} of 60: {teams:?}");
    served(normal).await;
    served(low).await;
}

/// A gateway dies with two permits and 200 waiting requests of the heavier tenant. Its permits come back after their lease, and
/// the requests of the other gateway get them: those of the dead gateway wait no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_killed_keeps_no_permit_and_no_turn() {
    let (ordered, gate) = gated(
        2,
        "limiters:
  places: { algorithm: concurrency, max: 2, lease: 2s, fair: { by: '{query.team}', weights: { dead: 1000 } } }
routes: [{ name: x, suffix: /x, limiters: [places], max_wait: 60s }]
",
    )
    .await;
    let _dead = Ordered::ask_at(&ordered.others[0], "/x?team=dead", &[], 202);
    ordered.until_asked(202).await;
    let alive = Ordered::ask_at(&ordered.gateway, "/x?team=alive", &[], 20);
    ordered.until_asked(222).await;
    ordered.others[0].signal("KILL");
    gate.add_permits(222);
    served(alive).await;
    assert_eq!(count(&ordered.teams(), "dead"), 2);
}

/// Each gateway lists the tenants of both, and nothing stays of those that have left.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(2)]
#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_the_tenants_that_wait_for_permits(#[case] gateways: usize) {
    let (ordered, _gate) = gated(
        gateways,
        "limiters:
  places: { algorithm: concurrency, max: 1, fair: { by: '{query.team}', weights: { a: 4 } } }
routes:
  - { name: x, suffix: /x, limiters: [places], max_wait: 1h }
  - { name: low, suffix: /low, limiters: [places], priority: low, max_wait: 1h }
",
    )
    .await;
    let first = ordered.ask("/x?team=a", &[], 1);
    ordered.until_asked(1).await;
    let waiting = [ordered.ask("/x?team=a", &[], 5), ordered.ask("/low?team=b", &[], 2)];
    ordered.until_asked(8).await;
    for gateway in ordered.gateways() {
        let page = gateway.page("/limiters/places/tenants").await.json();
        let row = |i: usize| {
            let row = &page["tenants"][i];
            json!([row["tenant"], row["weight"], row["priority"], row["waiting"]])
        };
        assert_eq!([row(0), row(1)], [json!(["a", 4, "normal", 5]), json!(["b", 1, "low", 2])]);
        assert_eq!((&page["total"], &page["waiting"]), (&json!(2), &json!(7)));
    }
    first.iter().chain(waiting.iter().flatten()).for_each(JoinHandle::abort);
    eventually("nothing stays of the turns", async || {
        let page = ordered.gateway.page("/limiters/places/tenants").await.json();
        let keys = ordered.redis.as_ref().map(|redis| redis.keys()).unwrap_or_default();
        (page["total"] == 0 && keys.iter().all(|key| !key.contains('#'))).then_some(())
    })
    .await;
}
