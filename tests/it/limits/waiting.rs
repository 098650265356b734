//! Requests that wait: how long they may, how many, and the slots of those that leave.

use super::{answers, config, stored_at, with_status};
use crate::support::{Chaos, Gateway, Redis, Upstream, assert_lawful, eventually};
use rstest::rstest;
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_cancelled_callers_go_to_later_callers() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let rest = "limiters: { search: { rate: 10/s, burst: 5 } }
routes: [{ suffix: /search, limiters: [search], max_wait: 4s }]
";
    let config = config(Some(&redis), &upstream, rest);
    let gateways = [Gateway::start(&config).await, Gateway::start(&config).await];
    let ask = async |count: usize, target: &str| {
        let mut conns = Vec::new();
        for gateway in gateways.iter().cycle().take(count) {
            conns.push(gateway.ask(target, &[]).await);
        }
        conns
    };
    let decisions = async |count: usize| {
        eventually("as many decisions as requests", async || {
            let mut all = 0.0;
            for gateway in &gateways {
                all += gateway.metric("paceway_decisions_total", &[]).await;
            }
            (all as usize == count).then_some(())
        })
        .await;
    };

    // 5 pass at once; the last of the others has its slot after 3.5 s.
    let started = Instant::now();
    let seconds = || started.elapsed().as_secs_f64();
    let mut stayers = ask(14, "/stay/search").await;
    let leavers = ask(12, "/leave/search").await;
    stayers.extend(ask(14, "/stay/search").await);
    decisions(40).await;
    let all_decided = seconds();

    let leave = seconds();
    drop(leavers);
    let left = eventually("they are seen to leave", async || {
        let lines = gateways.iter().flat_map(Gateway::access);
        let lines: Vec<_> = lines.filter(|line| line["path"] == "/leave/search").collect();
        // On a machine that stalled, some had been served before.
        let left = lines.iter().filter(|line| line["outcome"] == "cancelled").count();
        (lines.len() == 12).then_some(left)
    })
    .await;

    let later_sent = seconds();
    let later = ask(40, "/later/search").await;
    decisions(80).await;
    let later_decided = seconds();

    for answer in answers(stayers).await {
        assert_eq!(answer.status, 200, "who stays gets his slot");
    }
    let later = answers(later).await;
    let forwarded = upstream.calls().len();
    assert_lawful(started, &upstream.arrivals(), 5.0, 10.0);

    // All slots up to the end of the later callers' budgets, except those that came while no caller could take them; and
    // no more than there were callers.
    let reached = 5.0 + 10.0 * (later_sent + 4.0 - all_decided);
    let unused = 10.0 * (later_decided - leave) + 2.0;
    let least = (reached - unused).min((80 - left) as f64);
    let (passed, refused) = (with_status(&later, 200).len(), with_status(&later, 429).len());
    assert_eq!(passed + refused, 40);
    assert!(
        forwarded as f64 >= least,
        "{forwarded} forwarded, {least:.1} could be; {passed} of the later callers passed; \
         decided {all_decided:.2}, left {leave:.2}, came {later_sent:.2}, decided {later_decided:.2}"
    );
}

#[rstest]
#[case::a_long_body("Content-Length: 40000", 40_000)]
#[case::an_unfinished_body("Content-Length: 900000", 40_000)]
#[case::an_unfinished_chunk("Transfer-Encoding: chunked", 0)]
#[tokio::test(flavor = "multi_thread")]
async fn an_uploading_client_that_leaves_the_queue_refunds_its_slot(
    #[case] framing: &str,
    #[case] sent: usize,
) {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: { rate: 4/hour, burst: 1 } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1h }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let mut conn = gateway.connect().await;
    let head = format!("POST /search HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
    conn.send(head).await.expect("send");
    // More than is read ahead, so that some of it hides the end; less than the socket holds, because an end after bytes
    // that do not fit cannot be seen.
    conn.send(vec![b'x'; sent]).await.expect("send");
    gateway.until_waiting("search", 1).await;
    drop(conn);
    gateway.until_waiting("search", 0).await;
    // The request waits no more a moment before it has given its slot back and is counted.
    eventually("its slot is free", async || {
        let next = gateway.limiter("search").await["next_slot_ms"].as_f64().expect("ms");
        (next <= 15.0 * 60.0 * 1000.0).then_some(())
    })
    .await;
    gateway.until_counted("search", "cancelled", 1).await;
    assert_eq!(upstream.calls().len(), 1);
}

#[rstest]
#[case::memory(None)]
#[case::redis(Some(Redis::start()))]
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_the_queue_refunds_its_slot(#[case] redis: Option<Redis>) {
    let upstream = Upstream::ok().await;
    // Slots an hour apart, so that none comes during the test.
    let rest = "limiters: { search: { rate: 4/hour, burst: 1 } }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1h }]
";
    let gateway = Gateway::start(&config(redis.as_ref(), &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let mut waiting = Vec::new();
    for i in 1..=3 {
        waiting.push(gateway.ask("/search", &[]).await);
        gateway.until_waiting("search", i).await;
    }
    let next = async || gateway.limiter("search").await["next_slot_ms"].as_f64().expect("ms");
    let quarter = 15.0 * 60.0 * 1000.0;
    assert!(next().await > 3.0 * quarter, "the next slot is the fourth");
    // The one in the middle leaves; those after it keep their instants.
    drop(waiting.remove(1));
    eventually("the second slot is free", async || {
        let next = next().await;
        (next > quarter && next < 2.0 * quarter).then_some(())
    })
    .await;
    let short = gateway.ask("/search", &[("Prefer", "wait=1800")]).await;
    gateway.until_waiting("search", 3).await;
    assert!(next().await > 3.0 * quarter, "it is taken again, and once");
    drop((waiting, short));
    eventually("everything comes back", async || (next().await < quarter).then_some(())).await;
    gateway.until_counted("search", "cancelled", 4).await;
    assert_eq!(upstream.calls().len(), 1, "who left was not forwarded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_leading_a_batch_blocks_no_request() {
    // A connection to the store that hangs for two seconds is given up, as it should be: where the machine
    // stalled so long, the attempt says nothing.
    for _ in 0..10 {
        if leader_leaves_in_mid_call().await {
            return;
        }
    }
    panic!("no attempt went through within 1.5 s");
}

/// False when it took too long to say anything.
async fn leader_leaves_in_mid_call() -> bool {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let proxy = Chaos::before(&redis).await;
    let gateway = Gateway::start(&format!(
        "store: {}
upstream: {}
workers: 1
limiters: {{ search: {{ rate: 1/hour, burst: 50 }} }}
routes: [{{ suffix: \"*\", limiters: [search] }}]
",
        stored_at(&proxy.url()),
        upstream.url()
    ))
    .await;
    assert_eq!(gateway.get("/first").await.status, 200);

    let asked = proxy.asked();
    proxy.hold();
    let held = Instant::now();
    let leader = gateway.ask("/leader", &[]).await;
    eventually("its call is in flight", async || (proxy.asked() > asked).then_some(())).await;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(gateway.ask("/other", &[]).await);
    }
    drop(leader);
    let line = gateway.line("/leader").await;
    proxy.release();
    if held.elapsed() > Duration::from_millis(1500) {
        return false;
    }
    assert_eq!(line["outcome"], "cancelled");
    let others = answers(others).await;
    assert_eq!(with_status(&others, 200).len(), 8, "{others:?}");
    // The permits that were decided for the leader are refunded.
    eventually("all but what nine requests used is there", async || {
        (gateway.limiter("search").await["level"] == 41).then_some(())
    })
    .await;
    assert!(upstream.calls().iter().all(|call| call.target != "/leader"));
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn prefer_wait_shortens_and_lengthens_up_to_the_cap() {
    let upstream = Upstream::ok().await;
    // Each limiter's second slot is 10 s away.
    let rest = "limiters: { a: 1/10s, b: 1/10s }
routes:
  - { suffix: /plain, limiters: [a], max_wait: 5s }
  - { suffix: /long, limiters: [a], max_wait: 20s }
  - { suffix: /capped, limiters: [b], max_wait: 5s, max_wait_cap: 15s }
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    for target in ["/plain", "/capped"] {
        assert_eq!(gateway.get(target).await.status, 200);
    }
    let asked = async |target: &str, wait: &str| {
        let mut conn = gateway.ask(target, &[("Prefer", wait)]).await;
        conn.answer().await.expect("an answer").status
    };
    assert_eq!(asked("/long", "wait=0").await, 429, "it may ask for less");
    assert_eq!(asked("/long", "wait=1, respond-async").await, 429, "among others");
    assert_eq!(asked("/plain", "wait=60").await, 429, "the cap is max_wait");
    assert_eq!(gateway.get("/capped").await.status, 429);
    let longer = gateway.ask("/capped", &[("Prefer", "respond-async, wait=12")]).await;
    gateway.until_waiting("/capped", 1).await;
    // After the one that waits, the next slot is 20 s away: over the cap, whatever budget a request asks for.
    assert_eq!(asked("/capped", "wait=60").await, 429);
    drop(longer);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_requests_wait_longer() {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: 1/10min }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 15min, max_wait_cap: 1h }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let first = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 1).await;
    assert_eq!(gateway.get("/search").await.status, 429, "the slot in 10 minutes is the first's");
    let second = gateway.ask("/search", &[("Prefer", "wait=1500")]).await;
    gateway.until_waiting("search", 2).await;
    let mut third = gateway.ask("/search", &[("Prefer", "wait=1500")]).await;
    let third = third.answer().await.expect("an answer");
    assert_eq!(third.status, 429, "the one in 20 minutes is the second's");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_a_503_until_a_place_is_free() {
    let upstream = Upstream::ok().await;
    let rest = "limiters: { search: 1/10min }
routes: [{ name: search, suffix: /search, limiters: [search], max_wait: 1h, max_waiting: 2 }]
";
    let gateway = Gateway::start(&config(None, &upstream, rest)).await;
    assert_eq!(gateway.get("/search").await.status, 200);
    let first = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 1).await;
    let second = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 2).await;
    for _ in 0..3 {
        let full = gateway.get("/search").await;
        assert_eq!((full.status, full.problem().as_str()), (503, "queue-full"));
        let seconds: u64 = full.field("retry-after").expect("it").parse().expect("seconds");
        assert!(seconds >= 1);
    }
    assert_eq!(gateway.count("search", "queue_full").await, 3.0);
    // A request that would not be served in time even from an empty queue gets that reason instead.
    let mut impatient = gateway.ask("/search", &[("Prefer", "wait=1")]).await;
    assert_eq!(impatient.answer().await.expect("an answer").status, 429);
    drop(first);
    gateway.until_waiting("search", 1).await;
    let third = gateway.ask("/search", &[]).await;
    gateway.until_waiting("search", 2).await;
    drop((second, third));
}
