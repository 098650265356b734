//! Pauses that begin before, during or after an outage of the store, in virtual time.

use super::{support::*, *};
use crate::store::Pause;
use rstest::rstest;

const SECOND: Micros = 1_000_000;

/// 10 permits a second, 10 at once.
fn checks(on_failure: OnFailure) -> Checks {
    let rule = TokenBucket::new(10, SECOND, 10).expect("a rule");
    [check(Algorithm::TokenBucket(rule), on_failure)].into()
}

fn of(span: Micros) -> Pause {
    Pause::for_micros(span, 429)
}

/// How long the store says that the limiter is paused.
fn paused(far: &Far, checks: &Checks) -> Micros {
    let entry = Entry::Look { check: checks[0].clone() };
    match far.memory.run_at(far.memory.now(), &[entry]).pop() {
        Some(Reply::Level(level)) => level.paused,
        said => panic!("{said:?}"),
    }
}

/// Another gateway has begun a pause, and no message says so.
#[tokio::test(start_paused = true)]
async fn a_reply_brings_the_pause() {
    let (far, [failover, _]) = failovers(1);
    let checks = checks(SHARE);
    pass(&failover, &checks, 1).await;
    far.memory.pause(&checks, of(6 * SECOND)).get().await.expect("paused");
    assert!(failover.pauses().is_empty());
    let decision = ask(&failover, &checks, 0).await.expect("a decision");
    assert!(!decision.admitted && decision.level.paused > 0);
    let known = failover.pauses().get(&checks[0].key).expect("a pause");
    assert!((5_900_000..=6 * SECOND).contains(&known.left()), "{known:?}");
}

#[rstest]
#[case::share(OnFailure::Share { period: SECOND })]
#[case::whole(OnFailure::Whole)]
#[case::allow(OnFailure::Allow)]
#[tokio::test(start_paused = true)]
async fn a_known_pause_is_kept_without_the_store(#[case] on_failure: OnFailure) {
    let (far, [failover, _]) = failovers(1);
    let checks = checks(on_failure);
    settled().await;
    failover.pause(&checks, of(6 * SECOND)).get().await.expect("paused");
    let end = Instant::now() + Duration::from_secs(6);
    set(&far, Mood::IsGone);
    until(&failover, Breaker::Open).await;
    let decision = ask(&failover, &checks, SECOND).await.expect("a decision");
    assert_eq!((decision.admitted, decision.source), (false, Source::Local));
    assert!((4 * SECOND..=6 * SECOND).contains(&decision.retry_after), "{decision:?}");
    // Decisions count in µs, and pauses in ns.
    tokio::time::advance(Duration::from_nanos(13)).await;
    let decision = ask(&failover, &checks, 30 * SECOND).await.expect("a decision");
    assert!(decision.admitted);
    let at = Instant::now() + Duration::from_micros(decision.wait.unsigned_abs());
    assert!(at >= end, "{:?} too early", end - at);
    sleep(Duration::from_secs(6)).await;
    assert!(ask(&failover, &checks, SECOND).await.expect("a decision").admitted);
}

/// A call that was sent before the outage is refused by the upstream during it.
#[tokio::test(start_paused = true)]
async fn a_pause_that_begins_without_the_store_is_written_when_it_is_back() {
    let (far, [failover, _]) = failovers(1);
    let checks = checks(OnFailure::Share { period: SECOND });
    settled().await;
    set(&far, Mood::IsGone);
    until(&failover, Breaker::Open).await;
    failover.pause(&checks, of(20 * SECOND)).get().await.expect("paused here");
    let (passed, source) = pass(&failover, &checks, 5).await;
    assert_eq!((passed, source), (0, Source::Local));
    assert_eq!(paused(&far, &checks), 0);
    set(&far, Mood::Works);
    until(&failover, Breaker::Closed).await;
    sleep(Duration::from_secs(1)).await;
    let left = paused(&far, &checks);
    assert!((10 * SECOND..=20 * SECOND).contains(&left), "{left}");
    assert_eq!(pass(&failover, &checks, 5).await, (0, Source::Shared));
}

/// An operator ends the pause through another gateway during the outage. This one wrote it to the store again.
#[tokio::test(start_paused = true)]
async fn a_pause_that_was_ended_during_an_outage_is_not_written_again() {
    let (far, [failover, _]) = failovers(1);
    let checks = checks(OnFailure::Share { period: SECOND });
    settled().await;
    failover.pause(&checks, of(60 * SECOND)).get().await.expect("paused");
    set(&far, Mood::IsGone);
    until(&failover, Breaker::Open).await;
    assert_eq!(pass(&failover, &checks, 2).await, (0, Source::Local));
    far.memory.run_at(far.memory.now(), &[Entry::Forget { check: checks[0].clone() }]);
    set(&far, Mood::Works);
    until(&failover, Breaker::Closed).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!((failover.pauses().is_empty(), paused(&far, &checks)), (true, 0));
    assert_eq!(pass(&failover, &checks, 5).await, (5, Source::Shared));
}

/// The pause closes a limiter that has granted nothing. It is no debt that the store is charged.
#[tokio::test(start_paused = true)]
async fn a_pause_is_no_debt() {
    let (far, [failover, _]) = failovers(1);
    let checks = checks(OnFailure::Whole);
    settled().await;
    set(&far, Mood::IsGone);
    until(&failover, Breaker::Open).await;
    assert_eq!(pass(&failover, &checks, 2).await, (2, Source::Local));
    failover.pause(&checks, of(2 * SECOND)).get().await.expect("paused here");
    assert_eq!(pass(&failover, &checks, 1).await.0, 0);
    sleep(Duration::from_secs(5)).await;
    set(&far, Mood::Works);
    until(&failover, Breaker::Closed).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(pass(&failover, &checks, 20).await, (10, Source::Shared));
}

/// An operator ends a pause through this gateway.
#[tokio::test(start_paused = true)]
async fn a_reset_ends_a_pause() {
    let (far, [failover, _]) = failovers(1);
    let checks = checks(SHARE);
    failover.pause(&checks, of(6 * SECOND)).get().await.expect("paused");
    assert!(failover.forget(&checks[0]).get().await.expect("an answer"));
    assert_eq!((failover.pauses().is_empty(), paused(&far, &checks)), (true, 0));
    assert!(ask(&failover, &checks, 0).await.expect("a decision").admitted);
}
