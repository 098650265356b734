//! Failover stores over the native rules, on virtual time.

mod full;
mod heartbeats;
mod outages;
mod pace;
mod pauses;
mod permits;
mod returns;
mod slow;
mod support;
mod ways;

use super::*;
use crate::{
    algorithm::{
        Algorithm, CalendarWindow, Concurrency, FixedWindow, LeakyBucket, MAX_BUDGET, Rule,
        SlidingWindow, TokenBucket, WarmUp, gate::Bounds, nanohertz::nanohertz,
    },
    store::{
        Beat, Entry, Heartbeat, Placement, Reply, hash_tag,
        health::{Breaker, Health, HealthMetrics, Pace, PaceMetrics},
        memory::MemoryStore,
    },
};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use support::*;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn three_calls_without_an_answer_open_the_breaker_and_end_the_waits() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(100, SHARE);
    settled().await;
    set(&far, Mood::IsSlow);
    let (mut waited, mut calls) = (0, 0);
    for _ in 0..50 {
        let asked = Instant::now();
        assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
        assert!(asked.elapsed() <= TIMEOUT, "{:?}", asked.elapsed());
        waited += usize::from(asked.elapsed() > Duration::ZERO);
        if failover.is_away() && calls == 0 {
            calls = far.calls.load(SeqCst);
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert!((1..=3).contains(&waited), "{waited} waited");
    assert!(failover.is_away());
    // But for what is given back because it came too late.
    assert!(far.calls.load(SeqCst) <= calls + 1, "{calls} and then {:?}", far.calls);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_finds_a_hanging_store_without_requests() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    set(&far, Mood::Hangs);
    until(&failover, Breaker::Open).await;
    let checks = bucket(100, SHARE);
    let asked = Instant::now();
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
    assert_eq!((asked.elapsed(), far.calls.load(SeqCst)), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn one_slow_call_leaves_the_breaker_closed_and_its_permit_is_charged() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(10, SHARE);
    settled().await;
    set(&far, Mood::Hangs);
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
    set(&far, Mood::Works);
    settled().await;
    assert_eq!(failover.process.health.breaker(), Breaker::Closed);
    assert!(failover.process.local.is_empty());
    // The permit of the late call is spent, and the one that was decided here is charged.
    assert_eq!(far.remaining(&checks).await, 8);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_opens_at_once_and_is_probed_one_at_a_time() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(10, OnFailure::Reject);
    settled().await;
    set(&far, Mood::IsGone);
    assert_eq!(ask(&failover, &checks, 0).await, Err(StoreError::NotConnected));
    assert_eq!(failover.process.health.breaker(), Breaker::Open);
    set(&far, Mood::Hangs);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(failover.process.health.breaker(), Breaker::Open);
    // One of each side.
    assert!(far.most.load(SeqCst) <= 2, "{:?}", far.most);
    set(&far, Mood::Works);
    let back = Instant::now();
    until(&failover, Breaker::Closed).await;
    assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Shared));
}

/// One of several servers: limiters that are not its own come back though it does not.
#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_keeps_only_its_own_limiters_local() {
    let backend = FarBackend::default();
    *backend.0.gone.lock() = Some("lost");
    let [failover, _] = process(&backend);
    let of = |key: &str| -> Checks {
        [Check { key: key.into(), ..bucket(1000, SHARE)[0].clone() }].into()
    };
    let (lost, other) = (of("{lost}:a"), of("{other}:a"));
    settled().await;
    // A call to the healthy one is late, once.
    set(&backend.0, Mood::Hangs);
    assert_eq!(pass(&failover, &other, 1).await, (1, Source::Local));
    set(&backend.0, Mood::Works);
    for _ in 0..100 {
        assert_eq!(pass(&failover, &lost, 1).await, (1, Source::Local));
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(pass(&failover, &other, 1).await, (1, Source::Shared));
    *backend.0.gone.lock() = Some("nobody");
    settled().await;
    assert_eq!(pass(&failover, &lost, 1).await, (1, Source::Shared));
    // All that were decided here have been charged.
    assert_eq!(backend.0.remaining(&lost).await, 1000 - 101);
}

#[tokio::test(start_paused = true)]
async fn a_store_is_charged_the_owed_permits_after_a_long_outage() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(10, SHARE);
    assert_eq!(pass(&failover, &checks, 4).await, (4, Source::Shared));
    set(&far, Mood::IsGone);
    assert_eq!(
        pass(&failover, &checks, 20).await,
        (6, Source::Local),
        "from the level that was known"
    );
    // Two come back, and one of them is used.
    sleep(Duration::from_secs(2 * 3600 + 60)).await;
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
    bring_back(&far, &failover).await;
    assert!(failover.process.local.is_empty());
    assert_eq!(pass(&failover, &checks, 9).await, (1, Source::Shared));
}

#[tokio::test(start_paused = true)]
async fn each_of_several_gateways_has_a_share() {
    let (far, [failover, _]) = failovers(4);
    let checks = bucket(10, SHARE);
    settled().await;
    set(&far, Mood::IsGone);
    assert_eq!(pass(&failover, &checks, 9).await, (2, Source::Local));
    // One permit an hour each, as the whole has: a share is never less.
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(pass(&failover, &checks, 9).await, (1, Source::Local));
}

/// A rate that has only bounds: two gateways share the one that was found by then.
#[tokio::test(start_paused = true)]
async fn each_gateway_has_its_part_of_a_rate_that_is_found() {
    let (far, [failover, _]) = failovers(2);
    let second = 1_000_000;
    let rule = TokenBucket::new(100, second, 1).expect("a rule");
    let [start, min] = [8, 1].map(|count| nanohertz(count, second));
    let share = OnFailure::Share { period: second };
    let found = check(Algorithm::TokenBucket(rule), share);
    let checks: Checks = [found.with_bounds(Bounds { start, min, unit: 3600 * second })].into();
    settled().await;
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Shared));
    set(&far, Mood::IsGone);
    let mut waits = Vec::new();
    for _ in 0..3 {
        let decision = ask(&failover, &checks, MAX_BUDGET).await.expect("a decision");
        assert_eq!(decision.source, Source::Local);
        waits.push(decision.wait);
    }
    // 4/s, where the rule of the highest rate would grant 50/s.
    assert!((249_000..=251_000).contains(&(waits[2] - waits[1])), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_was_not_used_is_not_charged() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(10, SHARE);
    settled().await;
    set(&far, Mood::IsGone);
    let used = ask(&failover, &checks, 0).await.expect("a decision");
    let unused = ask(&failover, &checks, 0).await.expect("a decision");
    assert!(used.admitted && unused.admitted);
    failover.refund(unused.source, &checks, &unused.parts);
    bring_back(&far, &failover).await;
    assert_eq!(far.remaining(&checks).await, 9);
    // Nor is it given to the store, which has not granted it.
    failover.refund(used.source, &checks, &used.parts);
    failover.flush().await;
    assert_eq!(far.remaining(&checks).await, 9);
}

/// During an outage the true costs count here, and afterwards they are charged to the store.
#[tokio::test(start_paused = true)]
async fn true_costs_are_settled_locally_during_an_outage() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(10, SHARE);
    let costly: Checks = [checks[0].clone().with_cost(4)].into();
    settled().await;
    let before = ask(&failover, &costly, 0).await.expect("a decision");
    assert_eq!(before.source, Source::Shared);
    set(&far, Mood::IsGone);
    let local = ask(&failover, &costly, 0).await.expect("a decision");
    assert_eq!(local.source, Source::Local);
    failover.settle(Source::Local, &costly[0], local.parts[0], 1);
    failover.settle(Source::Shared, &costly[0], before.parts[0], 6);
    // 10 less 4 + 2 and less 1; the debt of 2 is for a request that the store granted.
    assert_eq!(pass(&failover, &checks, 1).await, (1, Source::Local));
    bring_back(&far, &failover).await;
    assert_eq!(far.remaining(&checks).await, 2);
}

/// Slots that lie ahead are charged, too: a request that comes after the return waits until they have passed.
#[tokio::test(start_paused = true)]
async fn a_waiting_request_keeps_its_slot_before_later_requests() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(1, SHARE);
    settled().await;
    set(&far, Mood::IsGone);
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(ask(&failover, &checks, 3 * HOUR).await.expect("a decision"));
    }
    assert_eq!(waits.iter().filter(|decision| decision.admitted).count(), 2, "an hour at most");
    bring_back(&far, &failover).await;
    let level = far.memory.look(&checks[0]).get().await.expect("a level");
    assert!((HOUR..=2 * HOUR).contains(&level.next), "{level:?}");
}

#[tokio::test(start_paused = true)]
async fn a_window_keeps_its_level_through_an_outage() {
    let (far, [failover, _]) = failovers(2);
    settled().await;
    let rule = SlidingWindow::new(10, HOUR, 0).expect("a rule");
    let checks: Checks = [check(Algorithm::SlidingWindow(rule), SHARE)].into();
    assert_eq!(pass(&failover, &checks, 4).await, (4, Source::Shared));
    sleep(Duration::from_secs(1800)).await;
    set(&far, Mood::IsGone);
    assert_eq!(pass(&failover, &checks, 9).await, (3, Source::Local), "5 for each, less 2");
    sleep(Duration::from_secs(1800)).await;
    assert_eq!(
        pass(&failover, &checks, 9).await,
        (2, Source::Local),
        "those that were known are past"
    );
    bring_back(&far, &failover).await;
    assert_eq!(pass(&failover, &checks, 9).await, (5, Source::Shared));
}

/// Any time may pass between the look at the breaker and the decision, if the thread stalls.
#[tokio::test(start_paused = true)]
async fn a_caller_that_saw_an_outage_uses_the_returned_store() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(4, SHARE);
    let Process { local, health, .. } = &*failover.process;
    let decides = || {
        let decision = local.decide(health, &Question::from(&checks).ways(), 0, None, true)?;
        Ok(decision.map(|decision| decision.admitted))
    };
    settled().await;
    assert_eq!(decides(), Err(IsBack));
    set(&far, Mood::Hangs);
    until(&failover, Breaker::Open).await;
    assert_eq!(decides(), Ok(Some(true)));
    bring_back(&far, &failover).await;
    assert_eq!(decides(), Err(IsBack));
    assert_eq!(pass(&failover, &checks, 5).await, (3, Source::Shared));
}

#[tokio::test(start_paused = true)]
async fn a_refusing_store_does_not_open_the_breaker() {
    let (far, [failover, _]) = failovers(1);
    let checks = bucket(5, SHARE);
    settled().await;
    set(&far, Mood::Refuses);
    assert_eq!(pass(&failover, &checks, 9).await, (5, Source::Local));
    settled().await;
    assert_eq!(failover.process.health.breaker(), Breaker::Closed);
    assert_eq!(pass(&failover, &checks, 9).await, (0, Source::Local), "it is not forgotten");
    set(&far, Mood::Works);
    settled().await;
    assert!(failover.process.local.is_empty());
    assert_eq!(pass(&failover, &checks, 9).await, (0, Source::Shared));
}

#[tokio::test(start_paused = true)]
async fn a_local_permit_is_charged_and_refunded_to_the_returned_store() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    let rule = Concurrency::new(2, MAX_BUDGET).expect("a rule");
    let checks: Checks = [check(rule, SHARE)].into();
    let mut tickets = Vec::new();
    let mut ask = async || {
        let callable = failover.calls().ticket();
        let ticket = Some(callable.ticket);
        tickets.push(callable);
        failover.reserve(&checks, 0, ticket).get().await.expect("a decision")
    };
    let shared = ask().await;
    set(&far, Mood::IsGone);
    let local = ask().await;
    assert_eq!((shared.source, local.source), (Source::Shared, Source::Local));
    assert!(!ask().await.admitted, "the store's permit counts here as well");
    bring_back(&far, &failover).await;
    assert!(!ask().await.admitted, "and the permit from here counts there");
    assert_eq!(
        failover.renew(local.source, &checks[0], local.parts[0].grant).get().await,
        Ok(true)
    );
    for decision in [&shared, &local] {
        failover.refund(decision.source, &checks, &decision.parts);
    }
    failover.flush().await;
    assert_eq!(far.remaining(&checks).await, 2);
}

/// Asks for a permit, which is this ticket's.
async fn permit(failover: &Failover, checks: &Checks) -> (Decision, crate::store::calls::Callable) {
    let callable = failover.calls().ticket();
    let ticket = Some(callable.ticket);
    let decision = failover.reserve(checks, 0, ticket).get().await;
    (decision.expect("a decision"), callable)
}

#[tokio::test(start_paused = true)]
async fn two_gateways_never_hold_too_many_permits_through_an_outage() {
    let backend = FarBackend::default();
    backend.0.gateways.store(2, SeqCst);
    let processes = [process(&backend), process(&backend)];
    settled().await;
    let rule = Concurrency::new(4, MAX_BUDGET).expect("a rule");
    let checks: Checks = [check(rule, SHARE)].into();
    let mut held = Vec::new();
    for tick in 0..600 {
        match tick {
            100 => set(&backend.0, Mood::IsGone),
            300 => set(&backend.0, Mood::Works),
            _ => {}
        }
        // One each from the store, and the others without it.
        for [failover, _] in processes.iter().filter(|_| tick == 50 || tick > 100) {
            let asked = permit(failover, &checks).await;
            held.extend(Some((failover, asked)).filter(|(_, (decision, _))| decision.admitted));
        }
        assert!(held.len() <= 4, "{} at {tick}", held.len());
        sleep(Duration::from_millis(10)).await;
    }
    let local = held.iter().filter(|(_, (decision, _))| decision.source == Source::Local);
    // No permit of the other's may live that is not known, for as long as a lease.
    assert_eq!((held.len(), local.count()), (4, 0));
    assert!(
        processes
            .iter()
            .all(|[failover, _]| !failover.is_away() && failover.process.local.is_empty())
    );
    for (failover, (decision, _)) in &held {
        failover.refund(decision.source, &checks, &decision.parts);
        failover.flush().await;
    }
    let level = backend.0.memory.look(&checks[0]).get().await.expect("a level");
    assert_eq!(level.remaining, 4);
}

#[tokio::test(start_paused = true)]
async fn limiters_that_allow_during_an_outage_take_no_permits() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    set(&far, Mood::IsGone);
    let (lax, strict) = (bucket(1, OnFailure::Allow), bucket(3, SHARE));
    let lax = Check { key: "{t}:lax".into(), ..lax[0].clone() };
    let both: Checks = [lax.clone(), strict[0].clone()].into();
    assert_eq!(pass(&failover, &both, 5).await, (3, Source::Local));
    let refused = ask(&failover, &both, 0).await.expect("a decision");
    assert_eq!((refused.admitted, refused.bound_by), (false, 1));
    assert_eq!(pass(&failover, &[lax.clone()].into(), 5).await, (5, Source::None));
    // A foreign value is about its key, whatever the policy.
    let foreign = StoreError::Foreign("k".into());
    assert_eq!(
        failover.process.decide_without(foreign.clone(), &Question::Checks([lax].into()), 0, None),
        Err(foreign)
    );
}
