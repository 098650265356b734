//! Floors: the permits of a limiter that only requests of higher priorities take.

use super::{Ordered, served};
use crate::support::{Call, Reply, Upstream};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// The status of the answers to `count` requests, one after the other.
async fn answers(ordered: &Ordered, target: &str, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        for request in ordered.ask(target, &[], 1) {
            statuses.push(request.await.expect("a task"));
        }
    }
    statuses
}

const ROUTES: &str = "routes:
  - { name: high, suffix: /high, limiters: [account], priority: high }
  - { name: x, suffix: /x, limiters: [account] }
  - { name: low, suffix: /low, limiters: [account], priority: low }
";

/// There are six permits: three for normal and high priority, and one of these for high alone.
#[rstest]
#[case::token_bucket("rate: 6/d, floors: { high: 1, normal: 3 }")]
#[case::sliding_window("algorithm: sliding_window, rate: 6/d, floors: { high: 10%, normal: 50% }")]
#[case::fixed_window("algorithm: fixed_window, rate: 6/7d, floors: { high: 1, normal: 50% }")]
#[case::months(
    "algorithm: fixed_window, rate: 6/month, resets: 'day 15 00:00 UTC', floors: { high: 1, normal: 3 }"
)]
#[case::of_keys(
    "rate: 60/d, key: '{query.shop}', rates: { acme: 6/d }, floors: { high: 10%, normal: 50% }"
)]
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_lower_priorities_leave_the_floor(
    #[values(0, 2)] gateways: usize,
    #[case] limiter: &str,
) {
    let rest = format!("limiters: {{ account: {{ {limiter} }} }}\n{ROUTES}");
    let ordered = Ordered::of(gateways, &rest).await;
    assert_eq!(answers(&ordered, "/low?shop=acme", 4).await, [200, 200, 200, 429]);
    assert_eq!(answers(&ordered, "/x?shop=acme", 3).await, [200, 200, 429]);
    assert_eq!(answers(&ordered, "/high?shop=acme", 2).await, [200, 429]);
}

/// The last places are for calls of higher priorities, also while others wait for a place.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(2)]
#[tokio::test(flavor = "multi_thread")]
async fn places_are_kept_for_higher_priorities(#[case] gateways: usize) {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    let upstream = Upstream::start(move |_: &Call| Reply::ok().behind(&behind)).await;
    let rest = "limiters:
  account: { algorithm: concurrency, max: 4, floors: { high: 25%, normal: 2 } }
routes:
  - { name: high, suffix: /high, limiters: [account], priority: high }
  - { name: x, suffix: /x, limiters: [account], max_wait: 60s }
  - { name: low, suffix: /low, limiters: [account], priority: low, max_wait: 60s }
";
    let ordered = Ordered::before(upstream, gateways, rest).await;
    let low = ordered.ask("/low", &[], 6);
    ordered.until_asked(6).await;
    let normal = ordered.ask("/x", &[], 3);
    ordered.until_asked(9).await;
    assert_eq!(ordered.upstream.calls().len(), 3, "two low and one normal call have a place");
    let high = ordered.ask("/high", &[], 1);
    ordered.until_asked(10).await;
    assert_eq!(answers(&ordered, "/high", 1).await, [429]);
    gate.add_permits(10);
    for asked in [low, normal, high] {
        served(asked).await;
    }
}

/// A batch takes all that flows in; a user who cannot wait finds a permit, and the batch gets later slots.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(2)]
#[tokio::test(flavor = "multi_thread")]
async fn users_that_cannot_wait_are_served_during_a_batch(#[case] gateways: usize) {
    const USERS: usize = 15;
    let rest = "limiters: { account: { rate: 20/s, floors: { high: 20% } } }
routes:
  - { name: high, suffix: /high, limiters: [account], priority: high }
  - { name: x, suffix: /x, limiters: [account], max_wait: 60s }
";
    let ordered = Ordered::of(gateways, rest).await;
    let batch = ordered.ask("/x", &[], 160);
    ordered.until_asked(160).await;
    let mut users = Vec::new();
    for _ in 0..USERS {
        users.extend(answers(&ordered, "/high", 1).await);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let found = users.iter().filter(|status| **status == 200).count();
    assert!(found >= USERS - 1, "{users:?}");
    served(batch).await;
}
