//! Gateways that share a Redis: the death of one, the page of tenants, and outages of the store.

use super::{Ordered, served};
use crate::support::{Gateway, Redis, Upstream, assert_lawful, eventually, faketime};
use rstest::rstest;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// The requests of two gateways are on the page of each, with the tenants of both.
#[tokio::test(flavor = "multi_thread")]
async fn each_gateway_lists_the_tenants_of_all_gateways() {
    let ordered = Ordered::of(
        2,
        "limiters: { vendor: { rate: 1/10s, burst: 1, fair: { by: '{query.team}', weights: { a: 4 } } } }
routes:
  - { name: x, suffix: /x, limiters: [vendor], max_wait: 1h }
  - { name: low, suffix: /low, limiters: [vendor], priority: low, max_wait: 1h }
",
    )
    .await;
    served(ordered.ask("/x?team=a", &[], 1)).await;
    let _waiting = [
        Ordered::ask_at(&ordered.gateway, "/x?team=a", &[], 5),
        Ordered::ask_at(&ordered.others[0], "/x?team=a", &[], 3),
        Ordered::ask_at(&ordered.others[0], "/low?team=b", &[], 2),
    ];
    ordered.until_asked(11).await;
    for gateway in ordered.gateways() {
        let page = gateway.page("/limiters/vendor/tenants").await.json();
        let row = |i: usize| {
            let row = &page["tenants"][i];
            json!([row["tenant"], row["weight"], row["priority"], row["waiting"]])
        };
        assert_eq!([row(0), row(1)], [json!(["a", 4, "normal", 8]), json!(["b", 1, "low", 2])]);
        assert_eq!((&page["total"], &page["waiting"]), (&json!(2), &json!(10)));
    }
    // The keys of the queue are no states of the limiter.
    let keys = ordered.redis.as_ref().expect("a server").keys();
    assert!(keys.iter().any(|key| key.ends_with("#queue")), "{keys:?}");
}

/// The requests that have left leave no key after them.
#[tokio::test(flavor = "multi_thread")]
async fn an_ended_queue_leaves_no_keys() {
    let ordered = Ordered::of(
        2,
        "limiters: { vendor: { rate: 1/s, burst: 1, fair: { by: '{query.team}' } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 1h }]
",
    )
    .await;
    let waiting = ordered.ask("/x?team=a", &[], 20);
    ordered.until_asked(20).await;
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    let redis = ordered.redis.as_ref().expect("a server");
    eventually("the queue is gone", async || {
        redis.keys().iter().all(|key| !key.contains('#')).then_some(())
    })
    .await;
}

/// A gateway with 400 waiting requests, 20 seconds of slots, is killed. The requests of the other gateway, which came
/// after them, get the slots of the dead within the lease of 10 s.
#[tokio::test(flavor = "multi_thread")]
async fn slots_of_a_gateway_that_is_killed_are_used() {
    const RATE: f64 = 20.0;
    let ordered = Ordered::of(
        2,
        "limiters: { vendor: { rate: 20/s, burst: 1, fair: { by: '{query.team}', weights: { dead: 1000 } } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 5min }]
",
    )
    .await;
    let start = Instant::now();
    let _dead = Ordered::ask_at(&ordered.others[0], "/x?team=dead", &[], 400);
    ordered.until_asked(400).await;
    let alive = Ordered::ask_at(&ordered.gateway, "/x?team=alive", &[], 40);
    ordered.until_asked(440).await;
    ordered.others[0].signal("KILL");
    let killed = Instant::now();
    served(alive).await;
    let last = Instant::now();
    // Without the slots of the dead: after 20 s.
    assert!(last < killed + Duration::from_secs(17), "{:?}", last - killed);
    assert_lawful(start, &ordered.upstream.arrivals(), 1.0, RATE);
}

/// Redis is silent for 3 s, longer than any call may take, while requests wait for later slots. They keep their places.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_outage_costs_no_place() {
    let ordered = Ordered::of(
        2,
        "limiters: { vendor: { rate: 1/10s, burst: 1, fair: { by: '{query.team}' } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 1h }]
",
    )
    .await;
    let _batch = ordered.ask("/x?team=batch", &[], 12);
    ordered.until_asked(12).await;
    let redis = ordered.redis.as_ref().expect("a server");
    let key = eventually("the first is sent", async || {
        let key = redis.keys().into_iter().find(|key| key.ends_with("#order"));
        key.filter(|_| ordered.upstream.calls().len() == 1)
    })
    .await;
    let places = || redis.command(&["ZRANGE", &key, "0", "-1", "WITHSCORES"]);
    let before = places();
    redis.freeze();
    // A request of each connection says that it lives after 2 s at the latest.
    sleep(Duration::from_millis(3_500)).await;
    redis.thaw();
    eventually("the store is back", async || {
        let mut up = 0.0;
        for gateway in ordered.gateways() {
            up += gateway.metric("paceway_store_up", &[]).await;
        }
        (up == 2.0).then_some(())
    })
    .await;
    sleep(Duration::from_millis(3_500)).await;
    assert_eq!(format!("{:?}", places()), format!("{before:?}"));
}

/// Redis dies while requests wait. They ask again when their slots come: each limiter decides as its `on_failure` says.
#[rstest]
#[case::share("share", 200)]
#[case::allow("allow", 200)]
#[case::reject("reject", 503)]
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_without_its_store_follows_the_policy(
    #[case] policy: &str,
    #[case] status: u16,
) {
    let mut ordered = Ordered::of(
        2,
        &format!(
            "limiters: {{ vendor: {{ rate: 4/s, burst: 1, on_failure: {policy}, fair: {{ by: '{{query.team}}' }} }} }}
routes: [{{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }}]
"
        ),
    )
    .await;
    let start = Instant::now();
    let waiting = ordered.ask("/x?team=a", &[], 16);
    ordered.until_asked(16).await;
    let before = ordered.upstream.calls().len();
    ordered.redis.as_mut().expect("a server").kill();
    let mut said = Vec::new();
    for request in waiting {
        said.push(request.await.expect("a task"));
    }
    let count = said.iter().filter(|own| **own == status).count();
    assert!(count + before >= 16 - 2, "{said:?}");
    assert!(said.iter().all(|own| [200, status].contains(own)), "{said:?}");
    if policy == "share" {
        assert_lawful(start, &ordered.upstream.arrivals(), 1.0, 4.0);
    }
}

/// The clocks of three gateways are minutes apart. They still share the slots by weight, at the rate of one limiter.
#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_differ_change_no_turn() {
    const EACH: usize = 40;
    let (upstream, redis) = (Upstream::ok().await, Redis::start());
    let yaml = format!(
        "store: {{ url: \"{}\", timeout: 2s }}\nupstream: {}
limiters: {{ vendor: {{ rate: 6/s, burst: 1, fair: {{ by: '{{query.team}}', weights: {{ a: 3 }} }} }} }}
routes: [{{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }}]
",
        redis.url(),
        upstream.url()
    );
    let mut gateways = Vec::new();
    for shift in ["-5m", "+0", "+5m"] {
        gateways.push(Arc::new(Gateway::start_with(&yaml, &faketime(shift)).await));
    }
    let (gateway, others) = (gateways.remove(0), gateways);
    let ordered = Ordered { gateway, others, redis: Some(redis), upstream };
    let start = Instant::now();
    let mut asked = ordered.ask("/x?team=b", &[], EACH);
    asked.extend(ordered.ask("/x?team=a", &[], EACH));
    ordered.until_asked(2 * EACH).await;
    let first = ordered.upstream.calls().len() + 3;
    let teams = eventually("they are sent", async || {
        let teams = ordered.teams();
        (teams.len() >= first + 32).then(|| teams[first..first + 32].to_vec())
    })
    .await;
    let own = teams.iter().filter(|team| *team == "a").count();
    assert!(own.abs_diff(24) <= 3, "{own} of a, whose share is 24: {teams:?}");
    served(asked).await;
    assert_lawful(start, &ordered.upstream.arrivals(), 1.0, 6.0);
}

/// Redis loses all data while requests wait. Nothing is sent above the rate, all of them have an answer, and turns continue.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_loses_its_data_exceeds_no_limit() {
    let ordered = Ordered::of(
        2,
        "limiters: { vendor: { rate: 10/s, burst: 1, fair: { by: '{query.team}' } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 4s }]
",
    )
    .await;
    let start = Instant::now();
    let mut waiting = ordered.ask("/x?team=a", &[], 20);
    waiting.extend(ordered.ask("/x?team=b", &[], 10));
    ordered.until_asked(30).await;
    let redis = ordered.redis.as_ref().expect("a server");
    redis.command(&["FLUSHALL"]);
    for request in waiting {
        let status = request.await.expect("a task");
        assert!([200, 429].contains(&status), "{status}");
    }
    // Until the lost slots have passed the limiter counts as used up.
    eventually("requests are served again", async || {
        let asked = ordered.ask("/x?team=a", &[], 1).pop().expect("one");
        (asked.await.expect("a task") == 200).then_some(())
    })
    .await;
    served(ordered.ask("/x?team=b", &[], 4)).await;
    assert_lawful(start, &ordered.upstream.arrivals(), 1.0, 10.0);
}
