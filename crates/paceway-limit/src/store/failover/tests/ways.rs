//! Requests that can be made in several ways, while the store is away.

use super::*;
use crate::store::{Alternative, Alternatives, Question};

/// The ways of a request, in the order of their numbers from 0, each with one limiter.
fn among<const N: usize>(ways: [&Checks; N]) -> Question {
    let way = |(id, checks): (u8, &Checks)| Alternative { id, checks: checks.clone(), after: 0 };
    let ways = Alternatives::new((0..).zip(ways).map(way).collect());
    Question::Ways(Arc::new(ways.expect("ways")))
}

fn of_key(key: &str, of: &Checks) -> Checks {
    [Check { key: key.into(), ..of[0].clone() }].into()
}

/// The ways that `count` requests take, which do not wait; `None` for one that is refused.
async fn take_ways(failover: &Failover, question: &Question, count: usize) -> Vec<Option<u8>> {
    let mut taken = Vec::new();
    for _ in 0..count {
        let decision = failover.decide(question, 0, None).get().await.expect("a decision");
        assert_eq!(decision.source, Source::Local);
        taken.push(decision.chosen.filter(|_| decision.admitted));
    }
    taken
}

#[tokio::test(start_paused = true)]
async fn the_shares_of_all_ways_are_used() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    set(&far, Mood::Hangs);
    until(&failover, Breaker::Open).await;
    let [a, b] = ["a", "b"].map(|key| of_key(key, &bucket(3, SHARE)));
    let taken = take_ways(&failover, &among([&a, &b]), 7).await;
    let count = |way| taken.iter().filter(|it| **it == way).count();
    assert_eq!((count(Some(0)), count(Some(1)), count(None)), (3, 3, 1), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_way_that_only_the_store_may_decide_is_not_taken() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    set(&far, Mood::Hangs);
    until(&failover, Breaker::Open).await;
    let strict = of_key("a", &bucket(3, OnFailure::Reject));
    let own = of_key("b", &bucket(3, SHARE));
    let question = among([&strict, &own]);
    assert_eq!(take_ways(&failover, &question, 4).await, [Some(1), Some(1), Some(1), None]);
    let answer = failover.decide(&among([&strict]), 0, None).get().await;
    assert_eq!(answer, Err(StoreError::NotConnected));
}

#[tokio::test(start_paused = true)]
async fn a_way_that_is_paused_is_taken_only_where_all_are() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    set(&far, Mood::Hangs);
    until(&failover, Breaker::Open).await;
    let [a, b] = ["a", "b"].map(|key| of_key(key, &bucket(3, OnFailure::Allow)));
    let pause = |secs| Pause::of(Duration::from_secs(secs), 429);
    failover.pause(&a, pause(9)).get().await.expect("an answer");
    let decide = || failover.decide(&among([&a, &b]), 0, None).get();
    let open = decide().await.expect("a decision");
    assert_eq!((open.admitted, open.chosen), (true, Some(1)));
    failover.pause(&b, pause(5)).get().await.expect("an answer");
    let closed = decide().await.expect("a decision");
    assert_eq!((closed.admitted, closed.chosen), (false, Some(1)));
    assert!(closed.retry_after <= 5_000_000, "{closed:?}");
}
