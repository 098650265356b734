//! Tests that a charge for gateways that decide alone reaches the store, however late.

use super::*;
use crate::{
    algorithm::{Grant, reserve::Part},
    store::{
        OnFailure, Source,
        batch::queued::QUEUE,
        health::{Health, HealthMetrics, Pace, PaceMetrics},
    },
};

/// A store of one of two gateways, the other of which decides alone: each permit costs two.
fn beside_an_absent_gateway() -> (DistantBackend, Batched, Arc<Health>) {
    let health =
        Health::new(HealthMetrics::noop(), Pace::between(TIMEOUT, TIMEOUT, PaceMetrics::noop()));
    let backend = DistantBackend::default();
    let member = health.join(Backend::calls(&backend).clone(), false);
    health.counted(&Beat { gateways: 2, absent: 1, entered: false, now: None }, Instant::now());
    let store = Batched::with_member(member, Arc::new(backend.clone()), StoreMetrics::noop());
    (backend, store, health)
}

fn shared(burst: i64, period: Micros) -> Checks {
    let rule = TokenBucket::new(1, period, burst).expect("a rule");
    let check = Check::new("{t}:a", Algorithm::TokenBucket(rule));
    Arc::new([check.with_on_failure(OnFailure::Share { period })])
}

const HOUR: Micros = 3_600_000_000;

#[tokio::test(start_paused = true)]
async fn a_charge_follows_each_grant() {
    let (_, store, _health) = beside_an_absent_gateway();
    let checks = shared(10, HOUR);
    assert!(passes(&store, &checks).await);
    store.flush().await;
    assert_eq!(remaining(&store, &checks).await, 8);
}

#[tokio::test(start_paused = true)]
async fn a_charge_whose_call_has_no_answer_is_sent_again() {
    let (far, store, _health) = beside_an_absent_gateway();
    let checks = shared(10, HOUR);
    assert!(passes(&store, &checks).await);
    far.0.loses.store(true, SeqCst);
    sleep(Duration::from_millis(700)).await;
    far.0.loses.store(false, SeqCst);
    assert_eq!(remaining(&store, &checks).await, 9, "the charge and its repetition are lost");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(remaining(&store, &checks).await, 8);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(remaining(&store, &checks).await, 8, "it is charged once");
}

#[tokio::test(start_paused = true)]
async fn a_charge_is_dropped_when_the_store_stays_away() {
    let (far, store, _health) = beside_an_absent_gateway();
    let checks = shared(10, HOUR);
    assert!(passes(&store, &checks).await);
    far.0.loses.store(true, SeqCst);
    sleep(Duration::from_secs(11)).await;
    far.0.loses.store(false, SeqCst);
    let calls = far.0.calls.load(SeqCst);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(far.0.calls.load(SeqCst), calls, "no further repetition");
    assert_eq!(remaining(&store, &checks).await, 9);
}

#[tokio::test(start_paused = true)]
async fn a_charge_more_than_an_hour_ahead_is_made_within_the_hour() {
    let (_, store, _health) = beside_an_absent_gateway();
    // One permit every two hours: the charge of the second one is two hours ahead.
    let checks = shared(1, 2 * HOUR);
    assert!(passes(&store, &checks).await);
    store.flush().await;
    let reset = async || store.look(&checks[0]).get().await.expect("a level").reset_after;
    assert!(reset().await <= 2 * HOUR, "not charged yet");
    sleep(Duration::from_secs(65 * 60)).await;
    let left = 4 * HOUR - 65 * HOUR / 60;
    assert!((left - 1_000_000..=left).contains(&reset().await), "charged: {}", reset().await);
}

#[tokio::test(start_paused = true)]
async fn a_charge_that_finds_the_queue_full_is_made_later() {
    let (_, store, _health) = beside_an_absent_gateway();
    let (checks, other) = (shared(10, HOUR), check("{t}:b", 1));
    let granted = store.reserve(&checks, 0, None);
    // The call is under way, and what follows waits for the next ones.
    sleep(Duration::from_millis(1)).await;
    let unused = [Part { at: 0, grant: Grant::default() }];
    for _ in 0..QUEUE {
        store.refund(Source::Shared, &other, &unused);
    }
    assert!(granted.get().await.expect("a decision").admitted);
    store.flush().await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(remaining(&store, &checks).await, 8);
}
