//! The order of the requests that wait: shares, newcomers, priorities, and slots of requests that leave.

use super::{Ordered, count, served};
use crate::support::{Conn, assert_lawful, eventually, request, service_address};
use rstest::rstest;
use std::time::Duration;
use tokio::{task::JoinHandle, time::Instant};

/// 4 s of a batch wait at 20/s. Users who wait for a second at most are served before it has ended, and the batch is, too.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn users_are_all_served_while_a_batch_waits(#[case] gateways: usize) {
    let ordered = Ordered::of(
        gateways,
        "limiters: { vendor: { rate: 20/s, burst: 1, fair: { by: '{query.team}' } } }
routes:
  - { name: batch, suffix: /batch, limiters: [vendor], max_wait: 60s }
  - { name: x, suffix: /x, limiters: [vendor], max_wait: 1s }
",
    )
    .await;
    let start = Instant::now();
    let batch = ordered.ask("/batch?team=batch", &[], 80);
    ordered.until_asked(80).await;
    for _ in 0..6 {
        served(ordered.ask("/x?team=users", &[], 1)).await;
    }
    assert!(count(&ordered.teams(), "batch") < 80, "the batch ended before its users");
    served(batch).await;
    assert_eq!(ordered.upstream.calls().len(), 86);
    assert_lawful(start, &ordered.upstream.arrivals(), 1.0, 20.0);
}

/// While all of them wait, each tenant gets the share of its weight.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn slots_are_shared_by_weight(#[case] gateways: usize) {
    const EACH: usize = 60;
    let ordered = Ordered::of(
        gateways,
        "limiters: { vendor: { rate: 12/s, burst: 1, fair: { by: '{query.team}', weights: { a: 4 } } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }]
",
    )
    .await;
    let asked: Vec<_> = ["b", "c", "a"]
        .iter()
        .flat_map(|team| ordered.ask(&format!("/x?team={team}"), &[], EACH))
        .collect();
    ordered.until_asked(3 * EACH).await;
    // The calls that were about to be sent, and those that have passed before all waited, do not count.
    let first = ordered.upstream.calls().len() + 3;
    let teams = ordered.next_teams(first, 48).await;
    for (team, share) in [("a", 32), ("b", 8), ("c", 8)] {
        let own = count(&teams, team);
        assert!(own.abs_diff(share) <= 3, "{own} of {team}, whose share is {share}: {teams:?}");
    }
    asked.iter().for_each(JoinHandle::abort);
}

/// 50 requests wait, ten seconds of slots. A tenant that comes then waits for its turn, and not for theirs.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_is_served_in_its_turn(#[case] gateways: usize) {
    let ordered = Ordered::of(
        gateways,
        "limiters: { vendor: { rate: 5/s, burst: 1, fair: { by: '{query.team}' } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }]
",
    )
    .await;
    let batch = ordered.ask("/x?team=batch", &[], 50);
    ordered.until_asked(50).await;
    let before = ordered.upstream.calls().len();
    served(ordered.ask("/x?team=new", &[], 1)).await;
    let place = ordered.teams().iter().position(|team| team == "new").expect("its call");
    assert!(place - before <= 8, "{} calls came before it", place - before);
    batch.iter().for_each(JoinHandle::abort);
}

/// The caller says the priority. High comes first, and the lower two keep a twentieth each.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn a_lower_priority_keeps_a_part_of_the_slots(#[case] gateways: usize) {
    let ordered = Ordered::of(
        gateways,
        "trusted_proxies: [127.0.0.0/8]
limiters: { vendor: { rate: 15/s, burst: 1 } }
routes: [{ name: x, suffix: /x, limiters: [vendor], priority: '{header.x-priority}', max_wait: 60s }]
",
    )
    .await;
    let low = ordered.ask("/x?team=low", &[("X-Priority", "low")], 20);
    // Enough for those that a busy machine lets pass before all have been asked.
    let high = ordered.ask("/x?team=high", &[("X-Priority", "high")], 200);
    ordered.until_asked(220).await;
    let first = ordered.upstream.calls().len() + 3;
    let teams = eventually("they are sent", async || {
        let teams = ordered.teams();
        (teams.len() >= first + 60).then(|| teams[first..first + 60].to_vec())
    })
    .await;
    let own = count(&teams, "low");
    assert!((2..=5).contains(&own), "{own} of 60: {teams:?}");
    served(high).await;
    served(low).await;
    let mut waits = Vec::new();
    for priority in ["high", "normal", "low"] {
        let labels = [("route", "x"), ("priority", priority)];
        waits.push(ordered.metric("paceway_wait_seconds_count", &labels).await);
    }
    assert_eq!(waits, [200.0, 0.0, 20.0]);
}

/// 60 requests of a tenant wait, twelve seconds of slots, and leave at once. Those after them do not wait for these slots.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(3)]
#[tokio::test(flavor = "multi_thread")]
async fn slots_of_a_cancelled_tenant_are_used(#[case] gateways: usize) {
    const RATE: f64 = 5.0;
    let ordered = Ordered::of(
        gateways,
        "limiters: { vendor: { rate: 5/s, burst: 1, fair: { by: '{query.team}', weights: { batch: 1000 } } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }]
",
    )
    .await;
    let start = Instant::now();
    let batch = ordered.ask("/x?team=batch", &[], 60);
    ordered.until_asked(60).await;
    let users = ordered.ask("/x?team=users", &[], 6);
    ordered.until_asked(66).await;
    batch.iter().for_each(JoinHandle::abort);
    served(users).await;
    let promised = start + Duration::from_secs_f64(60.0 / RATE);
    assert!(Instant::now() < promised, "the slots of those that left passed unused");
    assert_lawful(start, &ordered.upstream.arrivals(), 1.0, RATE);
}

/// 50 requests wait, ten seconds of slots. A program that waits for its answer takes its turn, as the tenant `-`.
#[rstest]
#[case::in_memory(0)]
#[case::on_redis(2)]
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_waits_for_a_decision_takes_its_turn(#[case] gateways: usize) {
    let ordered = Ordered::of(
        gateways,
        "services: { decisions: { listen: 127.0.0.1:0, max_wait: 5s } }
limiters: { vendor: { rate: 5/s, burst: 1, fair: { by: '{query.team}' } } }
routes: [{ name: x, suffix: /x, limiters: [vendor], max_wait: 60s }]
",
    )
    .await;
    let batch = ordered.ask("/x?team=batch", &[], 50);
    ordered.until_asked(50).await;
    let mut conn = Conn::to(service_address(&ordered.gateway, "decisions")).await.expect("connect");
    let body = r#"{"limiters":[{"limiter":"vendor"}],"wait":true,"max_wait_ms":5000}"#;
    let length = body.len().to_string();
    let fields = [("Content-Type", "application/json"), ("Content-Length", &*length)];
    conn.send(request("POST", "/v1/acquire", &fields) + body).await.expect("send");
    let answer = conn.answer().await.expect("a whole answer").json();
    assert_eq!(answer["limited"], false, "{answer}");
    batch.iter().for_each(JoinHandle::abort);
}
