//! Concurrency permits before, during and after an outage of the store.

use super::{CLOSED, OPEN, config, until_breaker};
use crate::support::{Gateway, Redis, Reply, Upstream, eventually, reached};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// An upstream that answers as many as have a permit of the first, and gives one of the second for each that arrives.
async fn gated() -> (Upstream, Arc<Semaphore>, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let (behind, arrived) = (gate.clone(), Arc::new(Semaphore::new(0)));
    let come = arrived.clone();
    let upstream = Upstream::start(move |_| {
        come.add_permits(1);
        Reply::ok().behind(&behind)
    })
    .await;
    (upstream, gate, arrived)
}

/// A request that waits for a permit when the store dies gets it from the gateway, and a permit that is still held is not
/// granted again.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_request_gets_its_permit_without_the_store() {
    let (upstream, gate, arrived) = gated().await;
    let redis = Redis::start();
    let rest = "limiters: { places: { algorithm: concurrency, max: 2, lease: 60s } }
routes: [{ name: search, suffix: /search, limiters: [places], max_wait: 5min }]
";
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 200ms", &upstream, rest)).await;
    let mut holders = Vec::new();
    for _ in 0..2 {
        holders.push(gateway.ask("/search", &[]).await);
        reached(&arrived, "a holder at the upstream").await;
    }
    let mut waiters = Vec::new();
    for waiting in 1..=3 {
        waiters.push(gateway.ask("/search", &[]).await);
        gateway.until_waiting("search", waiting).await;
    }
    redis.freeze();
    until_breaker(&gateway, OPEN).await;
    // Both permits are held, though the store that gave them is gone.
    let mut late = gateway.ask("/search", &[("Prefer", "wait=0")]).await;
    assert_eq!(late.answer().await.expect("an answer").status, 429);
    gateway.until_waiting("search", 3).await;
    assert_eq!(upstream.calls().len(), 2);
    gate.add_permits(1);
    reached(&arrived, "a waiter at the upstream").await;
    gateway.until_waiting("search", 2).await;
    assert_eq!(upstream.calls().len(), 3);
    redis.thaw();
    until_breaker(&gateway, CLOSED).await;
    gate.add_permits(10);
    for conn in holders.iter_mut().chain(&mut waiters) {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    eventually("all permits are free", async || {
        (gateway.limiter("places").await["level"] == 2).then_some(())
    })
    .await;
}

/// A permit is never there twice because the store died between.
#[tokio::test(flavor = "multi_thread")]
async fn permits_taken_without_the_store_are_charged_to_it_later() {
    let (upstream, gate, arrived) = gated().await;
    let redis = Redis::start();
    let rest = "limiters: { places: { algorithm: concurrency, max: 2, lease: 60s } }
routes: [{ name: search, suffix: /search, limiters: [places] }]
";
    let gateway = Gateway::start(&config(&redis.url(), "timeout: 200ms", &upstream, rest)).await;
    let mut first = gateway.ask("/search", &[]).await;
    reached(&arrived, "a holder at the upstream").await;
    redis.freeze();
    until_breaker(&gateway, OPEN).await;
    let mut second = gateway.ask("/search", &[]).await;
    reached(&arrived, "another holder").await;
    assert_eq!(gateway.get("/search").await.status, 429);
    redis.thaw();
    until_breaker(&gateway, CLOSED).await;
    eventually("both are held", async || {
        (gateway.limiter("places").await["level"] == 0).then_some(())
    })
    .await;
    assert_eq!(gateway.get("/search").await.status, 429);
    gate.add_permits(2);
    for conn in [&mut first, &mut second] {
        assert_eq!(conn.answer().await.expect("an answer").status, 200);
    }
    eventually("both are free", async || {
        (gateway.limiter("places").await["level"] == 2).then_some(())
    })
    .await;
}
