//! Permits that calls hold: until their answer has ended and no longer, whatever happens to clients, to gateways, and to the
//! messages between them.

mod held;

use crate::support::{Chaos, Conn, Gateway, Redis, Reply, Said, Upstream, eventually, request};
use rstest::rstest;
use std::{sync::Arc, time::Duration};
use tokio::{sync::Semaphore, time::Instant};

/// A lease that is longer than a test waits: a request gets a permit from its holder, never from the clock.
const ONE: &str = "max: 1, lease: 60s";

/// Three renewals each: two may come late on a busy machine.
const ONE_SHORT: &str = "max: 1, lease: 3s";

fn config(redis: &Redis, upstream: &Upstream, places: &str) -> String {
    format!(
        "store: {{ url: \"{}\", timeout: 2s }}
upstream: {}
limiters: {{ places: {{ algorithm: concurrency, {places} }} }}
routes: [{{ name: search, suffix: /search, limiters: [places], max_wait: 5min }}]
",
        redis.url(),
        upstream.url()
    )
}

async fn two_gateways(yaml: &str) -> [Gateway; 2] {
    [Gateway::start(yaml).await, Gateway::start(yaml).await]
}

/// An upstream that answers nothing until its gate has permits.
async fn gated() -> (Upstream, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let behind = gate.clone();
    (Upstream::start(move |_| Reply::ok().behind(&behind)).await, gate)
}

async fn until_asked(upstream: &Upstream, count: usize) {
    let what = format!("{count} calls at the upstream");
    eventually(&what, async || (upstream.calls().len() >= count).then_some(())).await;
}

async fn assert_passed(conn: &mut Conn) {
    assert_eq!(conn.answer().await.expect("a whole answer").status, 200);
}

// ------------------------------------------------------------------- requests that wait for a permit

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_notification_delays_no_waiter() {
    const COUNT: usize = 12;
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let gateways = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut conns = vec![gateways[0].ask("/search", &[]).await];
    until_asked(&upstream, 1).await;
    for gateway in gateways.iter().cycle().take(COUNT - 1) {
        conns.push(gateway.ask("/search", &[]).await);
    }
    gateways[0].until_waiting("search", COUNT / 2).await;
    gateways[1].until_waiting("search", COUNT / 2 - 1).await;
    for count in 1..=COUNT {
        until_asked(&upstream, count).await;
        assert_eq!(
            upstream.calls().len(),
            count,
            "no request has been answered since the last one came"
        );
        eventually("a subscriber for calls appears, and then leaves", async || {
            let killed = redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            matches!(killed, Said::Number(1..)).then_some(())
        })
        .await;
        gate.add_permits(1);
    }
    for conn in &mut conns {
        assert_passed(conn).await;
    }
}

#[rstest]
#[case::without_a_body("GET", "")]
#[case::with_a_body("POST", "body")]
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_waiter_leaves_its_turn_to_the_next(#[case] method: &str, #[case] body: &str) {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut holder = gateway.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let mut leaving = Vec::new();
    for waiting in 1..=3 {
        let mut conn = gateway.connect().await;
        let length = body.len().to_string();
        let head = request(method, "/search", &[("Content-Length", &length)]);
        conn.send(head + body).await.expect("send");
        gateway.until_waiting("search", waiting).await;
        leaving.push(conn);
    }
    let mut last = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    drop(leaving);
    gateway.until_waiting("search", 0).await;
    gate.add_permits(2);
    assert_passed(&mut holder).await;
    assert_passed(&mut last).await;
    assert_eq!(upstream.calls().len(), 2);
    other.until_waiting("search", 0).await;
    eventually("the permit is free", async || {
        let page = gateway.page("/limiters/places").await.json();
        (page["level"] == 1 && page["waiting"] == 0).then_some(())
    })
    .await;
    assert_eq!(redis.keys(), [""; 0], "no request holds a place or waits for one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_permit_is_refused_at_the_end_of_its_budget() {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut holder = gateway.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let asked = Instant::now();
    let mut impatient = other.ask("/late/search", &[("Prefer", "wait=1")]).await;
    let refused = impatient.answer().await.expect("an answer before the lease ends");
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("1")));
    assert_eq!(refused.problem(), "quota-exceeded");
    assert!(refused.at - asked >= Duration::from_secs(1));
    let line = other.line("/late/search").await;
    assert!(line["wait_ms"].as_f64().is_some_and(|wait| wait >= 1000.0), "{line}");
    gate.add_permits(2);
    assert_passed(&mut holder).await;
    assert_eq!(other.get("/search").await.status, 200, "no other request is in the queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_gets_the_permit_of_a_reset_limiter() {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut holder = gateway.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let mut waiter = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    let mut admin = Conn::to(gateway.admin).await.expect("connect");
    admin.send(request("DELETE", "/limiters/places", &[])).await.expect("send");
    assert_eq!(admin.answer().await.expect("an answer").json()["reset"], true);
    until_asked(&upstream, 2).await;
    gate.add_permits(2);
    assert_passed(&mut holder).await;
    assert_passed(&mut waiter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_with_a_lost_answer_is_refunded() {
    let (redis, upstream) = (Redis::start(), Upstream::ok().await);
    let proxy = Chaos::before(&redis).await;
    let places = format!("{ONE}, on_failure: reject");
    let yaml = config(&redis, &upstream, &places).replace(&redis.url(), &proxy.url());
    let gateway = Gateway::start(&format!("workers: 1\n{yaml}")).await;
    let free = async || (gateway.limiter("places").await["level"] == 1).then_some(());
    eventually("a permit is taken whose answer is lost", async || {
        gateway.until_answered("/search", 200).await;
        eventually("its permit is free again", free).await;
        let (asked, lost) = (upstream.calls().len(), unreachable(&gateway).await);
        proxy.hold();
        let answer = gateway.get("/search").await;
        assert_eq!((answer.status, answer.problem().as_str()), (503, "store-unavailable"));
        eventually("the driver gives the connection up", async || {
            (unreachable(&gateway).await > lost).then_some(())
        })
        .await;
        // When the answer to the refund is held as well, no permit was asked for after it.
        let is_taken = !redis.keys().is_empty();
        proxy.release();
        eventually("the permit is free", free).await;
        assert_eq!(upstream.calls().len(), asked);
        is_taken.then_some(())
    })
    .await;
}

/// Reads from the metrics how often the store could not be reached.
async fn unreachable(gateway: &Gateway) -> f64 {
    gateway.metric("paceway_store_errors_total", &[("kind", "unreachable")]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_after_pipelining_a_request_is_noticed() {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut holder = gateway.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let mut leaving = other.ask("/search", &[]).await;
    leaving.send("G").await.expect("send");
    other.until_waiting("search", 1).await;
    drop(leaving);
    other.until_waiting("search", 0).await;
    gate.add_permits(1);
    assert_passed(&mut holder).await;
}

// ------------------------------------------------------------------------------- how long a permit is held

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_for_as_long_as_its_call_runs() {
    const WORK: Duration = Duration::from_secs(9);
    let redis = Redis::start();
    let upstream = Upstream::start(|call| match call.target.as_str() {
        "/long/search" => Reply::ok().after(WORK),
        _ => Reply::ok(),
    })
    .await;
    let [gateway, other] = two_gateways(&config(&redis, &upstream, ONE_SHORT)).await;
    let mut long = gateway.ask("/long/search", &[]).await;
    until_asked(&upstream, 1).await;
    assert_eq!(other.get("/search").await.status, 200);
    assert_passed(&mut long).await;
    let arrivals = upstream.arrivals();
    assert!(arrivals[1] - arrivals[0] >= WORK, "it came after {:?}", arrivals[1] - arrivals[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_stopped_gives_its_permits_and_its_turns_back() {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let yaml = format!("drain_timeout: 0\n{}", config(&redis, &upstream, ONE));
    let [mut stopped, other] = two_gateways(&yaml).await;
    let _held = stopped.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let _waiting = stopped.ask("/search", &[]).await;
    stopped.until_waiting("search", 1).await;
    let mut next = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    stopped.signal("TERM");
    stopped.end().await;
    // One for each, as the one that waits may still be sent while the one that holds is cut off.
    gate.add_permits(3);
    assert_passed(&mut next).await;
}

#[rstest]
#[case::killed("KILL")]
#[case::asleep("STOP")]
#[tokio::test(flavor = "multi_thread")]
async fn turns_of_a_silent_gateway_go_to_the_next(#[case] signal: &str) {
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [deaf, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    let mut holder = other.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let _first = [deaf.ask("/search", &[]).await, deaf.ask("/search", &[]).await];
    deaf.until_waiting("search", 2).await;
    let mut last = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    // The start's own "all who wait ask again" would hide what is asked here.
    eventually("all can be called", async || (redis.calls_of("publish") >= 6).then_some(())).await;
    deaf.signal(signal);
    gate.add_permits(2);
    assert_passed(&mut holder).await;
    assert_passed(&mut last).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_turns_of_a_dead_gateway_cost_no_time() {
    const DEAD: usize = 40;
    let (redis, (upstream, gate)) = (Redis::start(), gated().await);
    let [mut dead, other] = two_gateways(&config(&redis, &upstream, ONE)).await;
    eventually("all can be called", async || (redis.calls_of("publish") >= 6).then_some(())).await;
    let mut holder = other.ask("/search", &[]).await;
    until_asked(&upstream, 1).await;
    let mut turns = Vec::new();
    for _ in 0..DEAD {
        turns.push(dead.ask("/search", &[]).await);
    }
    dead.until_waiting("search", DEAD).await;
    let mut last = other.ask("/search", &[]).await;
    other.until_waiting("search", 1).await;
    dead.signal("KILL");
    dead.end().await;
    gate.add_permits(2);
    assert_passed(&mut holder).await;
    // 2 s for each of the dead would be longer than a test waits.
    assert_passed(&mut last).await;
}
