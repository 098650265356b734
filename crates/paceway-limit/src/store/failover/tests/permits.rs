//! Permits while the store is away, forgets, and is back: never more calls under way than there are permits, over all
//! gateways.

use super::*;
use crate::{
    limit::{self, Admission, Reservation, Waiter},
    store::calls::Callable,
};
use rstest::rstest;
use std::collections::VecDeque;

const SECOND: Micros = 1_000_000;
const MAX: i64 = 4;

/// A call under way.
struct Running<'a> {
    failover: &'a Failover,
    decision: Decision,
    checks: Checks,
    _ticket: Callable,
    until: usize,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.failover.refund(self.decision.source, &self.checks, &self.decision.parts);
    }
}

fn four(lease: Micros) -> Checks {
    let rule = Rule::from(Concurrency::new(MAX, lease).expect("a rule"));
    [check(rule, SHARE).with_horizon(rule.horizon(0, 1))].into()
}

async fn start<'a>(failover: &'a Failover, checks: &Checks) -> Option<Running<'a>> {
    let (decision, ticket) = permit(failover, checks).await;
    let (checks, until) = (checks.clone(), usize::MAX);
    decision.admitted.then_some(Running { failover, decision, checks, _ticket: ticket, until })
}

async fn free(far: &Far, checks: &Checks) -> i64 {
    far.remaining(checks).await
}

/// As after `FLUSHALL`.
async fn lose(far: &Far, created: Instant, checks: &Checks) {
    let elapsed = i64::try_from(created.elapsed().as_micros()).expect("a short time");
    far.memory.lose(1_000_000_000_000_000 + elapsed);
    let forget = Entry::Forget { check: checks[0].clone() };
    far.memory.run(vec![forget].into()).await.expect("a reply");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_alone_gives_no_permit_that_another_may_hold() {
    let backend = FarBackend::default();
    backend.0.gateways.store(2, SeqCst);
    let [[one, _], [other, _]] = [process(&backend), process(&backend)];
    settled().await;
    let checks = four(60 * SECOND);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.extend(start(&one, &checks).await);
    }
    assert_eq!(held.len(), 4);
    set(&backend.0, Mood::IsGone);
    until(&one, Breaker::Open).await;
    assert!(start(&other, &checks).await.is_none(), "all four are held by the first");
    // A call of the first that ends leaves its permit to the next one of the first.
    held.truncate(1);
    held.extend(start(&one, &checks).await);
    assert_eq!((held.len(), held[1].decision.source), (2, Source::Local));
    assert!(start(&one, &checks).await.is_none(), "two are its share");
    assert!(start(&other, &checks).await.is_none());
    set(&backend.0, Mood::Works);
    settled().await;
    assert_eq!(free(&backend.0, &checks).await, 2, "two were not taken over");
    held.clear();
    one.flush().await;
    assert_eq!(free(&backend.0, &checks).await, 4);
}

#[tokio::test(start_paused = true)]
async fn each_gateway_has_its_share_when_all_leases_have_ended() {
    let backend = FarBackend::default();
    backend.0.gateways.store(2, SeqCst);
    let processes = [process(&backend), process(&backend)];
    settled().await;
    let checks = four(SECOND);
    set(&backend.0, Mood::IsGone);
    for [failover, _] in &processes {
        assert!(start(failover, &checks).await.is_none());
    }
    // Its last answer was before the other one's breaker opened, too.
    sleep(Duration::from_millis(1100)).await;
    let mut held = Vec::new();
    for [failover, _] in &processes {
        for _ in 0..4 {
            held.extend(start(failover, &checks).await);
        }
    }
    assert_eq!(held.len(), 4, "two each");
    set(&backend.0, Mood::Works);
    sleep(Duration::from_millis(900)).await;
    assert_eq!(free(&backend.0, &checks).await, 0);
}

/// The permits that a gateway granted alone count in a state that is full, or whose data has just been lost.
#[rstest]
#[case::full(false)]
#[case::lost(true)]
#[tokio::test(start_paused = true)]
async fn a_permit_that_was_given_without_the_store_counts_there(#[case] is_lost: bool) {
    let created = Instant::now();
    let backend = FarBackend::default();
    let [failover, _] = process(&backend);
    settled().await;
    let checks = four(10 * SECOND);
    set(&backend.0, Mood::IsGone);
    let local = start(&failover, &checks).await.expect("a permit");
    if is_lost {
        lose(&backend.0, created, &checks).await;
    } else {
        for number in 0..4 {
            let ticket = Some(Ticket { gateway: 7, number, deadline: 0 });
            let taken = backend.0.memory.reserve(&checks, 0, ticket).get().await;
            assert!(taken.expect("a decision").admitted);
        }
    }
    set(&backend.0, Mood::Works);
    settled().await;
    assert!(failover.process.local.is_empty());
    // Without another lease those of the others end.
    sleep(Duration::from_secs(6)).await;
    assert_eq!(
        failover.renew(Source::Local, &checks[0], local.decision.parts[0].grant).get().await,
        Ok(true)
    );
    sleep(Duration::from_secs(5)).await;
    assert_eq!(free(&backend.0, &checks).await, 3);
}

/// The store gave a permit in a call that was answered too late, and the gateway gave another one to the same request.
#[tokio::test(start_paused = true)]
async fn a_late_permit_is_refunded_and_the_earlier_one_kept() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    let checks = four(60 * SECOND);
    set(&far, Mood::Hangs);
    let held = start(&failover, &checks).await.expect("a permit");
    assert_eq!(held.decision.source, Source::Local);
    set(&far, Mood::Works);
    settled().await;
    assert!(failover.process.local.is_empty());
    assert_eq!(free(&far, &checks).await, 3, "one call runs");
    drop(held);
    failover.flush().await;
    assert_eq!(free(&far, &checks).await, 4);
}

/// Calls whose answers are under way hold permits, too.
#[tokio::test(start_paused = true)]
async fn calls_that_await_the_store_count_as_permits() {
    let (_, [failover, _]) = failovers(1);
    settled().await;
    let checks = four(60 * SECOND);
    let tickets: Vec<_> = (0..5).map(|_| failover.calls().ticket()).collect();
    let asked: Vec<_> =
        tickets[..3].iter().map(|it| failover.reserve(&checks, 0, Some(it.ticket))).collect();
    let alone = |i: usize| {
        let ticket = Some(tickets[i].ticket);
        let decided =
            failover.process.decide_without(StoreError::Timeout, &(&checks).into(), 0, ticket);
        decided.expect("a decision").admitted
    };
    assert_eq!((alone(3), alone(4)), (true, false));
    for answer in asked {
        assert!(answer.get().await.expect("a decision").admitted);
    }
    assert!(!alone(4));
}

/// The first of `waiting` that is called now, without any wait.
async fn called(waiting: &mut VecDeque<Waiter>) -> Option<Waiter> {
    for i in 0..waiting.len() {
        let is_called = tokio::select! {
            biased;
            () = waiting[i].notified() => true,
            () = std::future::ready(()) => false,
        };
        if is_called {
            return waiting.remove(i);
        }
    }
    None
}

/// One call without an answer: the gateway decides the limiter alone while the breaker is closed. Waiters for its permit are
/// called there. Each of them that took the store for the one that decides would leave that queue, hand the permit to the
/// next, and join the queue again.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_hand_each_other_a_permit_for_ever() {
    let (far, [failover, _]) = failovers(1);
    settled().await;
    let rule = Rule::from(Concurrency::new(1, 60 * SECOND).expect("a rule"));
    let checks: Checks = [check(rule, SHARE).with_horizon(rule.horizon(SECOND, 1))].into();
    let (store, budget): (Arc<dyn Store>, _) = (Arc::new(failover.clone()), Duration::from_secs(1));
    let ask = || limit::ask(&store, &checks, budget);
    set(&far, Mood::Hangs);
    let Ok(Admission::Granted(held)) = ask().await else { panic!("the permit is free") };
    assert_eq!((held.source, failover.is_away()), (Source::Local, false));
    let mut waiting = VecDeque::new();
    for _ in 0..2 {
        let Ok(Admission::Queued(waiter)) = ask().await else { panic!("the permit is held") };
        waiting.push_back(waiter);
    }
    drop(held);
    let mut given: Vec<Reservation> = Vec::new();
    for _ in 0..10 {
        let Some(waiter) = called(&mut waiting).await else { break };
        match waiter.ask_again(budget).await.expect("a decision") {
            Admission::Granted(slot) => given.push(slot),
            Admission::Queued(waiter) => waiting.push_back(waiter),
            Admission::Refused(refused) => panic!("{refused:?}"),
        }
    }
    assert!(!failover.is_away());
    assert_eq!((given.len(), waiting.len()), (1, 1), "one has the permit, the other waits");
}

/// The events in a fleet.
#[derive(Debug, Clone)]
struct History {
    gateways: usize,
    /// Ticks of 10 ms.
    moods: Vec<(Mood, usize)>,
    losses: Vec<usize>,
    /// How long calls run.
    runs: Vec<usize>,
}

fn histories() -> impl Strategy<Value = History> {
    let moods = prop_oneof![
        2 => Just(Mood::Works),
        1 => Just(Mood::IsGone),
        1 => Just(Mood::Hangs),
        1 => Just(Mood::IsSlow)
    ];
    (
        1..4usize,
        prop::collection::vec((moods, 5..150usize), 1..6),
        prop::collection::vec(0..600usize, 0..3),
        prop::collection::vec(1..30usize, 20),
    )
        .prop_map(|(gateways, moods, losses, runs)| History { gateways, moods, losses, runs })
}

/// The most calls that were under way at once, and all.
async fn most_at_once(history: History) -> (usize, usize) {
    let created = Instant::now();
    let backend = FarBackend::default();
    backend.0.gateways.store(history.gateways, SeqCst);
    let processes: Vec<_> = (0..history.gateways).map(|_| process(&backend)).collect();
    settled().await;
    // No call outlives a lease.
    let checks = four(SECOND);
    let (mut running, mut most, mut all) = (Vec::new(), 0, 0);
    let mut moods = history.moods.iter();
    let mut next = 0;
    for tick in 0..900 {
        if tick == next {
            let (mood, span) = moods.next().copied().unwrap_or((Mood::Works, 1000));
            set(&backend.0, mood);
            next += span;
        }
        if history.losses.contains(&tick) {
            lose(&backend.0, created, &checks).await;
        }
        running.retain(|call: &Running<'_>| call.until > tick);
        for [failover, _] in &processes {
            // A call that waits for its answer is no work of the others.
            if let Some(mut call) = start(failover, &checks).await {
                call.until = tick + history.runs[all % history.runs.len()];
                all += 1;
                running.push(call);
            }
        }
        most = most.max(running.len());
        sleep(Duration::from_millis(10)).await;
    }
    (most, all)
}

fn run(history: History) -> (usize, usize) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(most_at_once(history))
}

#[test]
fn two_gateways_with_a_slow_store_keep_the_permit_limit() {
    let runs = vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 2, 2, 1, 1, 1, 1, 1];
    let moods = vec![(Mood::IsSlow, 31)];
    let (most, _) = run(History { gateways: 2, moods, losses: Vec::new(), runs });
    assert!(most <= 4, "{most} at once");
}

proptest! {
    #![proptest_config(crate::algorithm::tests::cases(48))]

    #[test]
    fn calls_never_exceed_the_permits(history in histories()) {
        let (most, all) = run(history);
        prop_assert!(most <= MAX as usize, "{} at once", most);
        prop_assert!(all > 20, "{} in all", all);
    }
}

/// One server of a Cluster is away, so the breaker stays closed. After a lease without an answer each of two gateways
/// gives its part of the 4 permits.
#[tokio::test(start_paused = true)]
async fn permits_of_a_server_that_is_away_alone_are_given_after_a_lease() {
    let backend = FarBackend::default();
    backend.0.gateways.store(2, SeqCst);
    *backend.0.gone.lock() = Some("t");
    let [failover, _] = process(&backend);
    settled().await;
    let rule = crate::algorithm::Concurrency::new(4, 10_000_000).expect("a rule");
    let checks: Checks = [check(rule, SHARE)].into();
    let mut given = Vec::new();
    for second in 0..30 {
        let ticket = Some(failover.calls().ticket().ticket);
        let decision = failover.reserve(&checks, 0, ticket).get().await;
        if decision.expect("a decision").admitted {
            given.push(second);
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!(given.first().is_some_and(|first| (9..=12).contains(first)), "{given:?}");
}
