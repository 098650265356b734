//! Requests that need permits of a rate and a concurrency permit, in virtual time: as many are let in as both rules allow.

use super::*;
use crate::{
    algorithm::{Concurrency, SlidingWindow, fair::Priority},
    store::Turn,
};
use rstest::rstest;
use tokio::task::JoinHandle;

/// Waits in the loop of the gateway, and holds its permit for the length of a call. Returns the instant of its start.
async fn call(
    store: Arc<dyn Store>,
    checks: Checks,
    budget: Duration,
    length: Duration,
) -> Option<Instant> {
    let mut attempt = limiter::LimiterCaller::within(budget);
    let paced =
        pace(&store, &checks, &mut attempt, &mut AlwaysReady::<AcquireError>::default()).await;
    let mut slot = match paced {
        Ok((reservation, ())) => reservation,
        Err(AcquireError::Refused { .. }) => return None,
        Err(error) => panic!("a decision: {error}"),
    };
    slot.spend();
    let at = Instant::now();
    sleep(length).await;
    Some(at)
}

/// With more callers than both rules allow, and waits that are longer than a window. A greedy schedule lets `greedy`
/// in per second.
#[rstest]
#[case::both_bind(20, 30, 12, 700, 17.1)]
#[case::few_concurrency_permits(20, 30, 8, 400, 19.4)]
#[case::concurrency_binds(5, 0, 4, 900, 4.4)]
#[case::the_rate_binds(5, 0, 5, 900, 5.0)]
#[tokio::test(start_paused = true)]
async fn a_rate_and_concurrency_admit_as_many_calls_as_both_allow(
    #[case] rate: i64,
    #[case] margin: i64,
    #[case] max: i64,
    #[case] length: u64,
    #[case] greedy: f64,
    #[values(1_500, 4_000)] budget: u64,
) {
    const SECONDS: u64 = 24;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let window = SlidingWindow::new(rate, 1_000_000, margin * 1_000).expect("a rule");
    let concurrency = Concurrency::new(max, 60_000_000).expect("a rule");
    let checks: Checks = Arc::new([
        Check::new("{k}:S", Algorithm::SlidingWindow(window)),
        Check::new("{k}:C", concurrency),
    ]);
    let [budget, length] = [budget, length].map(Duration::from_millis);
    let (started, mut calls) = (Instant::now(), Vec::new());
    for i in 0..SECONDS * 40 {
        // Not in step with the windows.
        sleep_until(started + Duration::from_millis(i * 25 + i * 7 % 11)).await;
        calls.push(tokio::spawn(call(store.clone(), checks.clone(), budget, length)));
    }
    let mut let_in = Vec::new();
    for call in calls {
        let_in.extend(call.await.expect("no panic").map(|at| (at - started).as_secs_f64()));
    }
    let_in.sort_by(f64::total_cmp);
    let (count, span) = (usize::try_from(rate).expect("few"), 1.0 + margin as f64 / 1_000.0);
    // A ms of the timer.
    assert!(let_in.windows(count + 1).all(|all| all[count] - all[0] > span - 0.002));
    let busy = let_in.iter().filter(|at| (4.0..SECONDS as f64).contains(*at)).count();
    let share = busy as f64 / (SECONDS as f64 - 4.0) / greedy;
    assert!(share > 0.95, "{:.0} % of a greedy schedule", 100.0 * share);
}

/// A caller who leaves while it waits with a concurrency permit for permits of the rate leaves it to the next.
#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_leaves_its_concurrency_permit_to_the_next() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let window = SlidingWindow::new(1, 400_000, 0).expect("a rule");
    let concurrency = Concurrency::new(1, 60_000_000).expect("a rule");
    let concurrent = Check::new("{k}:C", concurrency);
    let both: Checks =
        Arc::new([Check::new("{k}:S", Algorithm::SlidingWindow(window)), concurrent.clone()]);
    let budget = Duration::from_secs(5);
    let hold = Duration::from_millis(100);
    let ask = |checks: Checks, length| tokio::spawn(call(store.clone(), checks, budget, length));
    let first = ask(both.clone(), hold);
    let waiter = ask(both.clone(), hold);
    sleep(Duration::from_millis(10)).await;
    let next = ask(Arc::new([concurrent]), hold);
    // The first one's concurrency permit is handed to the waiter, whose permit comes at 400 ms.
    first.await.expect("no panic").expect("let in");
    sleep(Duration::from_millis(100)).await;
    waiter.abort();
    let left = Instant::now();
    let at = next.await.expect("no panic").expect("let in");
    assert!(at - left < Duration::from_millis(10), "{:?}", at - left);
}

/// Checks of a call of `tenant` at a limiter whose calls take turns: permits alone, or a rate besides.
fn in_turns(max: i64, (tenant, weight, priority): (&str, i64, Priority), has_rate: bool) -> Checks {
    let turn = Turn::new(tenant, weight, priority);
    let permits = Concurrency::new(max, 60_000_000).expect("a rule").with_turns(true);
    let window = SlidingWindow::new(1_000, 1_000_000, 0).expect("a rule");
    let rate = Check::new("{k}:S", Algorithm::SlidingWindow(window)).with_turn(turn.clone());
    let permits = Check::new("{k}:C", permits).with_turn(turn);
    std::iter::once(rate).filter(|_| has_rate).chain([permits]).collect()
}

/// Starts `count` calls of 100 ms, which may wait for a minute.
fn calls(
    store: &Arc<dyn Store>,
    checks: &Checks,
    count: usize,
) -> Vec<JoinHandle<Option<Instant>>> {
    let length = Duration::from_millis(100);
    let one = |_| call(store.clone(), checks.clone(), Duration::from_secs(60), length);
    (0..count).map(one).map(tokio::spawn).collect()
}

/// How many calls of each group are among the first `first` that were made.
async fn among<const N: usize>(
    first: usize,
    groups: [Vec<JoinHandle<Option<Instant>>>; N],
) -> [usize; N] {
    let mut made = Vec::new();
    for (i, group) in groups.into_iter().enumerate() {
        for call in group {
            made.push((call.await.expect("no panic").expect("let in"), i));
        }
    }
    made.sort_unstable();
    let mut counts = [0; N];
    made.iter().take(first).for_each(|(_, i)| counts[*i] += 1);
    counts
}

/// Three tenants with 100 calls each. Each makes its share by weight of the first 120.
#[rstest]
#[case::permits_alone(false)]
#[case::with_a_rate(true)]
#[tokio::test(start_paused = true)]
async fn tenants_share_permits_by_weight(#[case] has_rate: bool) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let all = [("b", 1), ("c", 1), ("a", 4)].map(|(tenant, weight)| {
        calls(&store, &in_turns(3, (tenant, weight, Priority::Normal), has_rate), 100)
    });
    let counts = among(120, all).await;
    // Three of the first tenant were made at once.
    for (own, share) in counts.iter().zip([23, 20, 78_usize]) {
        assert!(own.abs_diff(share) <= 2, "{counts:?}");
    }
}

/// A call beside a batch of 100 gets the next permit or the one after it. First come, first served it would wait for 10 s.
#[tokio::test(start_paused = true)]
async fn a_newcomer_gets_a_permit_in_its_turn() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let batch = calls(&store, &in_turns(1, ("batch", 1, Priority::Normal), false), 100);
    sleep(Duration::from_millis(1_050)).await;
    let asked = Instant::now();
    let user = calls(&store, &in_turns(1, ("user", 1, Priority::Normal), false), 1);
    for call in user {
        let at = call.await.expect("no panic").expect("let in");
        assert!(at - asked < Duration::from_millis(210), "{:?}", at - asked);
    }
    assert_eq!(among(100, [batch]).await, [100]);
}

/// A lower priority keeps a twentieth of the permits while a higher one waits.
#[tokio::test(start_paused = true)]
async fn a_lower_priority_keeps_a_part_of_the_permits() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let low = calls(&store, &in_turns(1, ("-", 1, Priority::Low), false), 20);
    let high = calls(&store, &in_turns(1, ("-", 1, Priority::High), false), 100);
    // The first call was made at once.
    assert_eq!(among(101, [low, high]).await, [1 + 5, 95]);
}
