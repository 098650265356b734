//! Calls that wait for their instants when their limiters are paused, in virtual time.

use super::*;
use crate::{
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp,
        fair::Priority,
    },
    store::{Entry, LimiterHold, Pause, StoreAdmin, Turn},
};
use rstest::rstest;

const SECOND: Micros = 1_000_000;

/// A callee that takes some time to be ready.
struct Slow(Duration);

impl Callee for Slow {
    type Ready = ();
    type Error = AcquireError;

    fn lead(&self) -> Duration {
        self.0
    }

    fn at_hand(&mut self) -> Option<()> {
        None
    }

    async fn ready(&mut self) -> Result<(), AcquireError> {
        sleep(self.0).await;
        Ok(())
    }

    fn put_back(&mut self, (): ()) {}
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn checks(key: &str, count: i64, burst: i64) -> Checks {
    let rule = TokenBucket::new(count, SECOND, burst).expect("a rule");
    [Check::new(key, Algorithm::TokenBucket(rule))].into()
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

async fn pause(store: &Arc<dyn Store>, checks: &Checks, span: Micros) {
    store.pause(checks, Pause::for_micros(span, 429)).get().await.expect("an answer");
}

/// One call: the instant at which it is made, or at which it is refused.
type Call = tokio::task::JoinHandle<Result<Instant, (Instant, Duration)>>;

fn call(store: &Arc<dyn Store>, checks: &Checks, budget: Duration) -> Call {
    call_to(store, checks, budget, Slow(Duration::ZERO))
}

fn call_to(store: &Arc<dyn Store>, checks: &Checks, budget: Duration, mut callee: Slow) -> Call {
    let (store, checks) = (store.clone(), checks.clone());
    tokio::spawn(async move {
        let mut caller = limiter::LimiterCaller::within(budget);
        match pace(&store, &checks, &mut caller, &mut callee).await {
            Ok((mut reservation, ())) => {
                reservation.spend();
                Ok(Instant::now())
            }
            Err(AcquireError::Refused { retry_after, .. }) => Err((Instant::now(), retry_after)),
            Err(error) => panic!("a decision: {error}"),
        }
    })
}

/// The instants at which all of `calls` are made, in their order.
async fn instants(calls: impl IntoIterator<Item = Call>) -> Vec<Instant> {
    let mut made = Vec::new();
    for call in calls {
        made.push(call.await.expect("no panic").expect("made"));
    }
    made.sort();
    made
}

/// The limiter allows 10/s. At 1 s the upstream asks for 5 s; ten calls have been made, and 40 wait with budgets of 8 s.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_are_made_after_the_pause_at_the_limiters_pace() {
    let (store, checks, start) = (store(), checks("a", 10, 1), Instant::now());
    let calls: Vec<_> = (0..50).map(|_| call(&store, &checks, seconds(8.0))).collect();
    sleep(seconds(0.95)).await;
    pause(&store, &checks, 5 * SECOND).await;
    let mut made = Vec::new();
    for call in calls {
        made.extend(call.await.expect("no panic").map(|at| at.duration_since(start)));
    }
    made.sort();
    let (before, after) = made.split_at(10);
    assert!(before.iter().all(|at| *at < seconds(0.96)), "{before:?}");
    assert_eq!(after.first(), Some(&seconds(5.95)));
    assert!(after.windows(2).all(|pair| pair[1] - pair[0] >= seconds(0.099)), "{after:?}");
    // From 5.95 s on, 21 instants come within the budgets: the rate begins with 9.85/s.
    assert_eq!(after.len(), 21);
}

/// The limiter could grant 20 at once. The upstream refuses ten calls that were under way, one each 30 ms, and each answer
/// asks for 2 s from then on. However often the end moves, no burst comes after it.
#[tokio::test(start_paused = true)]
async fn a_pause_that_grows_is_followed_by_no_burst() {
    let (store, checks) = (store(), checks("a", 10, 20));
    pause(&store, &checks, 2 * SECOND).await;
    let calls: Vec<_> = (0..40).map(|_| call(&store, &checks, seconds(20.0))).collect();
    for _ in 0..10 {
        sleep(seconds(0.03)).await;
        pause(&store, &checks, 2 * SECOND).await;
    }
    let end = Instant::now() + seconds(2.0);
    let made = instants(calls).await;
    assert!(made[0] >= end);
    for (before, at) in made.iter().enumerate() {
        let most = 1.01 + 10.0 * (*at - end).as_secs_f64();
        assert!((before + 1) as f64 <= most, "{} calls after {:?}", before + 1, *at - end);
    }
}

/// A waiting call whose budget ends before the pause is refused when the pause begins, and learns when to come back.
#[tokio::test(start_paused = true)]
async fn a_call_whose_budget_ends_before_the_pause_is_refused_at_once() {
    let (store, checks, start) = (store(), checks("a", 1, 1), Instant::now());
    let calls: Vec<_> = (0..3).map(|_| call(&store, &checks, seconds(4.0))).collect();
    sleep(seconds(0.5)).await;
    pause(&store, &checks, 6 * SECOND).await;
    let mut refused = Vec::new();
    for call in calls {
        refused.extend(call.await.expect("no panic").err());
    }
    assert_eq!(refused.len(), 2);
    for (at, retry_after) in refused {
        assert_eq!(at - start, seconds(0.5));
        assert!(retry_after >= seconds(6.0 - 4.0), "{retry_after:?}");
    }
    assert_eq!(
        call(&store, &checks, Duration::ZERO).await.unwrap().unwrap_err().0 - start,
        seconds(0.5)
    );
}

/// A call that is granted at once, and whose connection takes 300 ms to make.
#[tokio::test(start_paused = true)]
async fn a_call_is_not_made_if_the_pause_begins_while_it_connects() {
    let (store, checks, start) = (store(), checks("a", 10, 10), Instant::now());
    let call = call_to(&store, &checks, seconds(5.0), Slow(seconds(0.09)));
    sleep(seconds(0.01)).await;
    pause(&store, &checks, 2 * SECOND).await;
    let at = call.await.expect("no panic").expect("made") - start;
    assert!((seconds(2.01)..seconds(2.2)).contains(&at), "{at:?}");
}

/// The store has lost the pause, say by a failover to a replica that did not have it yet. The call that notices holds back,
/// and writes it again; others are refused or held by then as before.
#[tokio::test(start_paused = true)]
async fn a_pause_that_the_store_has_lost_is_kept_and_written_again() {
    let memory = Arc::new(MemoryStore::default());
    let store: Arc<dyn Store> = memory.clone();
    let (checks, start) = (checks("a", 10, 10), Instant::now());
    pause(&store, &checks, 3 * SECOND).await;
    forget(&store, &memory, &checks);
    store.pauses().lost_states();
    let refused = call(&store, &checks, Duration::ZERO).await.expect("no panic");
    assert_eq!(refused.expect_err("refused"), (start, seconds(3.0)));
    let calls: Vec<_> = (0..20).map(|_| call(&store, &checks, seconds(10.0))).collect();
    let made = instants(calls).await;
    assert!(made[0] >= start + seconds(2.9), "{made:?}");
    // The store has the pause, and with it the pace after the pause.
    assert!(made.windows(2).all(|pair| pair[1] - pair[0] >= seconds(0.099)), "{made:?}");
}

/// An operator ends a pause, and the message comes late or never. After 100 ms the pause was written to the store again.
#[tokio::test(start_paused = true)]
async fn a_pause_that_an_operator_has_ended_is_not_written_again() {
    let memory = Arc::new(MemoryStore::default());
    let store: Arc<dyn Store> = memory.clone();
    let (checks, start) = (checks("a", 10, 10), Instant::now());
    pause(&store, &checks, 3 * SECOND).await;
    let waits = call(&store, &checks, seconds(10.0));
    sleep(seconds(0.05)).await;
    forget(&store, &memory, &checks);
    let calls = [(); 2].map(|()| call(&store, &checks, Duration::ZERO));
    for call in calls.into_iter().chain([waits]) {
        assert_eq!(call.await.expect("no panic").expect("made") - start, seconds(0.05));
    }
    assert_eq!(store.look(&checks[0]).get().await.expect("a level").paused, 0);
}

/// Makes the store forget a pause that this process still knows.
fn forget(store: &Arc<dyn Store>, memory: &MemoryStore, checks: &Checks) {
    let known = store.pauses().get(&checks[0].key).expect("a pause");
    let now = memory.now();
    memory.run_at(now, &[Entry::Forget { check: checks[0].clone() }]);
    assert_eq!(store.pauses().get(&checks[0].key), Some(known));
}

/// A call in the queue of a paused `concurrency` limiter keeps its place before one that comes later.
#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_place_during_a_pause() {
    let (store, start) = (store(), Instant::now());
    let rule = Concurrency::new(1, 60 * SECOND).expect("a rule");
    let checks: Checks = [Check::new("c", rule)].into();
    let hold = |store: &Arc<dyn Store>| {
        let (store, checks) = (store.clone(), checks.clone());
        tokio::spawn(async move {
            let mut caller = limiter::LimiterCaller::<AcquireError>::within(seconds(10.0));
            let paced =
                pace(&store, &checks, &mut caller, &mut AlwaysReady::<AcquireError>::default())
                    .await;
            let (mut reservation, ()) = paced.expect("a permit");
            reservation.spend();
            let at = Instant::now();
            sleep(seconds(0.1)).await;
            at
        })
    };
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(hold(&store));
        sleep(seconds(0.01)).await;
    }
    pause(&store, &checks, 2 * SECOND).await;
    sleep(seconds(0.5)).await;
    calls.push(hold(&store));
    let mut at = Vec::new();
    for call in calls {
        at.push(call.await.expect("no panic") - start);
    }
    assert_eq!(at[0], Duration::ZERO);
    assert!(at[1..].is_sorted() && at[1] >= seconds(2.02), "{at:?}");
    assert!(at[1] < seconds(2.2), "{at:?}");
}

fn checks_of_other() -> Checks {
    checks("b", 1000, 1)
}

/// With 10,000 calls that wait for other keys, a pause costs about nothing; with 10,000 that it concerns, each asks once.
#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_reserve_once_each() {
    let (store, checks) = (store(), checks("a", 1000, 1));
    let other = checks_of_other();
    let calls: Vec<_> = (0..10_000).map(|_| call(&store, &checks, seconds(30.0))).collect();
    sleep(seconds(0.5)).await;
    let version = store.pauses().version();
    pause(&store, &other, 5 * SECOND).await;
    pause(&store, &checks, 12 * SECOND).await;
    assert!(store.pauses().version() > version);
    let made = instants(calls).await;
    let gap = made.windows(2).map(|pair| pair[1] - pair[0]).max().expect("many");
    assert!(gap > seconds(11.9), "{gap:?}");
    let after = made.iter().filter(|at| **at > made[0] + seconds(2.0)).count();
    assert!((9_450..9_550).contains(&after), "{after}");
}

/// An operator holds `a` for 60 s, and ends that after 5 s. The limiter `b` of the same calls stays free meanwhile.
#[tokio::test(start_paused = true)]
async fn calls_wait_until_an_operator_resumes_the_limiter() {
    let (store, start) = (store(), Instant::now());
    let (a, b) = (checks("{t}:a", 10, 1), checks("{t}:b", 100, 20));
    let both: Checks = [a[0].clone(), b[0].clone()].into();
    let until = start + seconds(60.0);
    let hold = |until| LimiterHold { is_its: Arc::new(|state| state == "{t}:a"), until };
    // One call waits for its slot when the hold begins.
    let early = [call(&store, &a, seconds(90.0)), call(&store, &a, seconds(90.0))];
    sleep(seconds(0.01)).await;
    store.pauses().hold(vec![hold(until)]);
    let refused = call(&store, &both, seconds(30.0)).await.expect("no panic");
    let (at, retry_after) = refused.expect_err("the hold is longer than its budget");
    assert_eq!((at, at + retry_after), (start + seconds(0.01), until));
    let calls: Vec<_> = (0..10).map(|_| call(&store, &both, seconds(90.0))).collect();
    sleep(seconds(1.0)).await;
    let free = store.look(&b[0]).get().await.expect("a level").remaining;
    assert_eq!(free, 20, "no call keeps permits while it waits");
    call(&store, &b, Duration::ZERO).await.expect("no panic").expect("`b` is not held");
    sleep(seconds(5.0) - start.elapsed()).await;
    store.pauses().hold(Vec::new());
    let made = instants(early.into_iter().chain(calls)).await;
    assert_eq!(made[..2], [start, start + seconds(5.0)]);
    assert!(made.windows(2).all(|pair| pair[1] - pair[0] >= seconds(0.099)), "{made:?}");
    assert!(made[11] < start + seconds(6.5), "{made:?}");
    assert!(store.pauses().is_empty());

    // A hold ends by itself, too.
    store.pauses().hold(vec![hold(Instant::now() + seconds(2.0))]);
    let begun = Instant::now();
    let at = call(&store, &a, seconds(10.0)).await.expect("no panic").expect("time enough");
    assert_eq!(at.duration_since(begun), seconds(2.0));
}

/// A vendor asks for 15 s. After 3 s an operator resets the limiter: 21 calls that waited were made after 12 s, and newcomers
/// at once.
#[rstest]
#[case::token_bucket(TokenBucket::new(20, SECOND, 20).map(Algorithm::TokenBucket))]
#[case::leaky_bucket(LeakyBucket::new(20, SECOND, 0, None).map(Algorithm::LeakyBucket))]
#[case::sliding_window(SlidingWindow::new(20, SECOND, 0).map(Algorithm::SlidingWindow))]
#[case::fixed_window(FixedWindow::new(20, SECOND).map(Algorithm::FixedWindow))]
#[case::warm_up(WarmUp::new(20, SECOND, SECOND / 10, 3.0).map(Algorithm::WarmUp))]
#[tokio::test(start_paused = true)]
async fn a_reset_wakes_the_calls_that_wait_for_a_pause_in_their_order(
    #[case] rule: Option<Algorithm>,
    // A list has a state for each of its rates, which are reset one after the other.
    #[values(1, 2)] rates: usize,
    #[values(false, true)] is_fair: bool,
) {
    let memory = Arc::new(MemoryStore::default());
    let store: Arc<dyn Store> = memory.clone();
    let check = |i: usize| Check::new(format!("{{a}}{i}"), rule.expect("a rule"));
    let turn = Turn::new("tenant", 1, Priority::Normal);
    let fair = |check: Check| if is_fair { check.with_turn(turn.clone()) } else { check };
    let checks: Checks = (0..rates).map(|i| fair(check(i))).collect::<Vec<_>>().into();
    pause(&store, &checks, 15 * SECOND).await;
    let mut calls = Vec::new();
    for _ in 0..21 {
        calls.push(call(&store, &checks, seconds(30.0)));
        sleep(Duration::from_millis(1)).await;
    }
    // Calls that take turns have said by then that their gateway lives.
    sleep(seconds(3.0)).await;
    let reset = Instant::now();
    for check in checks.iter() {
        memory.forget(check).get().await.expect("an answer");
        sleep(Duration::from_millis(5)).await;
    }
    let mut made = Vec::new();
    for call in calls {
        made.push(call.await.expect("no panic").expect("made") - reset);
    }
    assert!(made.is_sorted(), "{made:?}");
    assert!(made[0] <= seconds(0.1), "{made:?}");
    // As fast as the rule allows, and no faster.
    assert!(made[20] <= seconds(2.3), "{made:?}");
    assert!(
        matches!(rule, Some(Algorithm::FixedWindow(_))) || made[20] >= seconds(0.05),
        "{made:?}"
    );
}

/// A reset of a limiter that is not paused frees it as well: the calls that wait for its old slots get new ones.
#[tokio::test(start_paused = true)]
async fn a_reset_of_a_limiter_that_is_used_up_wakes_the_calls_that_wait_for_it() {
    let memory = Arc::new(MemoryStore::default());
    let (store, checks): (Arc<dyn Store>, _) = (memory.clone(), checks("a", 1, 3));
    let calls: Vec<_> = (0..9).map(|_| call(&store, &checks, seconds(30.0))).collect();
    sleep(seconds(0.5)).await;
    let reset = Instant::now();
    memory.forget(&checks[0]).get().await.expect("an answer");
    let mut made = Vec::new();
    for call in calls {
        made.extend(call.await.expect("no panic").expect("made").checked_duration_since(reset));
    }
    made.sort();
    let expected = [0.0, 0.0, 0.0, 1.0, 2.0, 3.0].map(seconds);
    assert!(made.len() == 6 || made.len() == 9, "{made:?}");
    let waited = &made[made.len() - 6..];
    for (made, expected) in waited.iter().zip(expected) {
        assert!(*made <= expected + seconds(0.01), "{waited:?}");
    }
}
