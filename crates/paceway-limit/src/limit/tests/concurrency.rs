//! Requests that need permits of a rate and a concurrency permit, in virtual time: as many are let in as both rules allow.

use super::*;
use crate::algorithm::{Concurrency, SlidingWindow};
use rstest::rstest;

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
async fn a_rate_and_concurrency_together_let_in_what_both_allow(
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
        Check::new("{k}:C", Algorithm::Concurrency(concurrency)),
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
async fn who_leaves_while_it_waits_for_permits_gives_its_concurrency_permit_to_the_next() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let window = SlidingWindow::new(1, 400_000, 0).expect("a rule");
    let concurrency = Concurrency::new(1, 60_000_000).expect("a rule");
    let concurrent = Check::new("{k}:C", Algorithm::Concurrency(concurrency));
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
