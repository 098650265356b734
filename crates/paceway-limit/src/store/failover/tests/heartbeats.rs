//! Heartbeats: what their answers bring, late ones as well, and how many gateways share a rule because of them.

use super::*;

/// A gateway that starts while each answer is late knows of the others nevertheless: its share is not the whole rule.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_is_answered_late_brings_the_number_of_gateways() {
    let backend = FarBackend::default();
    backend.0.gateways.store(3, SeqCst);
    set(&backend.0, Mood::IsSlow);
    let [failover, _keeper] = process(&backend);
    settled().await;
    assert!(failover.is_away());
    assert_eq!(failover.process.health.gateways(), 3);
    assert_eq!(pass(&failover, &bucket(9, SHARE), 9).await, (3, Source::Local));
}

/// `FLUSHALL` erases who lives, and the store stalls before all are back: the share is that of three.
#[tokio::test(start_paused = true)]
async fn a_number_that_the_store_forgets_is_kept() {
    let (far, [failover, _]) = failovers(3);
    settled().await;
    far.gateways.store(1, SeqCst);
    sleep(Duration::from_millis(1500)).await;
    set(&far, Mood::IsGone);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(pass(&failover, &bucket(9, SHARE), 9).await, (3, Source::Local));
    // It is confirmed when the store is back and still says so.
    set(&far, Mood::Works);
    until(&failover, Breaker::Closed).await;
    assert_eq!(failover.process.health.gateways(), 3);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(failover.process.health.gateways(), 1);
}

/// The first decisions fall before the first answer of a heartbeat: the share shrinks when that brings the number.
#[tokio::test(start_paused = true)]
async fn a_share_follows_a_number_that_grows_while_the_store_is_away() {
    let backend = FarBackend::default();
    backend.0.gateways.store(3, SeqCst);
    set(&backend.0, Mood::IsSlow);
    let [failover, _keeper] = process(&backend);
    let checks = bucket(9, SHARE);
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
    settled().await;
    assert_eq!(pass(&failover, &checks, 9).await, (2, Source::Local));
}

/// Gateways that start while the store is away share by the number that `store.gateways` says.
#[tokio::test(start_paused = true)]
async fn a_number_that_is_expected_holds_from_the_start_and_when_fewer_are_counted() {
    let (far, [failover, _]) = failovers(2);
    set(&far, Mood::IsGone);
    failover.process.health.expect(3);
    assert_eq!(pass(&failover, &bucket(9, SHARE), 9).await, (3, Source::Local));
    bring_back(&far, &failover).await;
    assert_eq!(failover.process.health.gateways(), 3);
    far.gateways.store(5, SeqCst);
    settled().await;
    assert_eq!(failover.process.health.gateways(), 5);
}
