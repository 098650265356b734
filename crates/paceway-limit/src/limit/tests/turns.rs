//! Calls that take turns at a limiter with fair sharing, in virtual time over the memory store.

use super::*;
use crate::{
    algorithm::{
        FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp, fair::Priority,
    },
    store::{Decision, StoreAdmin, StoreError, Turn},
};
use rstest::rstest;
use tokio::task::JoinHandle;

const SECOND: Micros = 1_000_000;
/// The slots of the tests are 50 ms apart.
const RATE: i64 = 20;
const SLOT: Duration = Duration::from_millis(50);

/// A call with a budget.
struct Waits(Instant);

// === impl Waits ===

impl Caller for Waits {
    type Error = &'static str;

    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    fn refused(&mut self, _: Decision) -> Self::Error {
        "refused"
    }

    fn undecided(&mut self, _: StoreError) -> Self::Error {
        "undecided"
    }
}

/// The wait of a call of `tenant`, or why it was not made.
type Served = JoinHandle<Result<Duration, &'static str>>;

fn bucket() -> Option<Algorithm> {
    TokenBucket::new(RATE, SECOND, 1).map(Algorithm::TokenBucket)
}

fn check(algorithm: Option<Algorithm>, tenant: &str, weight: i64) -> Check {
    let turn = Turn::new(tenant, weight, Priority::Normal);
    Check::new("a", algorithm.expect("a rule")).with_turn(turn)
}

fn call(store: &Arc<dyn Store>, check: Check, budget: u64) -> Served {
    let (store, checks) = (store.clone(), Checks::from([check]));
    let began = Instant::now();
    tokio::spawn(async move {
        let mut caller = Waits(began + Duration::from_secs(budget));
        let mut callee = AlwaysReady::default();
        let (mut reservation, ()) = pace(&store, &checks, &mut caller, &mut callee).await?;
        reservation.spend();
        Ok(began.elapsed())
    })
}

async fn wait_of(served: Served) -> Duration {
    served.await.expect("no panic").expect("a slot")
}

/// A batch of 100 waits for five seconds of slots. A caller with a budget of a second was refused without fair sharing; now it
/// is served with one of the next slots, and the whole batch afterwards.
#[rstest]
#[case::token_bucket(bucket())]
#[case::leaky_bucket(LeakyBucket::new(RATE, SECOND, 0, None).map(Algorithm::LeakyBucket))]
#[case::sliding_window(SlidingWindow::new(RATE, SECOND, 0).map(Algorithm::SlidingWindow))]
#[case::fixed_window(FixedWindow::new(RATE, SECOND).map(Algorithm::FixedWindow))]
#[case::warm_up(WarmUp::new(RATE, SECOND, SECOND / 10, 3.0).map(Algorithm::WarmUp))]
#[tokio::test(start_paused = true)]
async fn a_caller_beside_a_batch_is_served_in_its_turn(#[case] algorithm: Option<Algorithm>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let batch: Vec<_> = (0..100).map(|_| call(&store, check(algorithm, "batch", 1), 60)).collect();
    sleep(Duration::from_millis(210)).await;
    let user = wait_of(call(&store, check(algorithm, "user", 1), 2)).await;
    // A window of a second has its next slots a second later.
    assert!(user <= Duration::from_secs(1), "{user:?}");
    let mut last = Duration::ZERO;
    for served in batch {
        last = last.max(wait_of(served).await);
    }
    assert!(last <= Duration::from_secs(6), "all slots are used: {last:?}");
}

/// Three tenants with 300 calls each and weights 4 : 1 : 1, over the first 20 seconds.
#[tokio::test(start_paused = true)]
async fn weights_share_the_slots() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut served = Vec::new();
    for _ in 0..300 {
        for (i, (tenant, weight)) in [("a", 4), ("b", 1), ("c", 1)].into_iter().enumerate() {
            served.push((i, call(&store, check(bucket(), tenant, weight), 600)));
        }
    }
    let mut counts = [0; 3];
    for (i, served) in served {
        counts[i] += i32::from(wait_of(served).await <= Duration::from_secs(20));
    }
    let share = counts.map(|count| f64::from(count) / 401.0 * 100.0);
    for (share, fair) in share.into_iter().zip([66.7, 16.7, 16.7]) {
        assert!((share - fair).abs() <= 2.0, "{counts:?}");
    }
}

/// Among 100 calls that wait, 80 leave. The others use each of the next slots.
#[tokio::test(start_paused = true)]
async fn slots_of_calls_that_leave_are_used() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut waiting: Vec<_> = (0..100).map(|_| call(&store, check(bucket(), "t", 1), 60)).collect();
    sleep(Duration::from_millis(110)).await;
    waiting.drain(3..83).for_each(|served| served.abort());
    let mut waits = Vec::new();
    for served in waiting {
        waits.push(wait_of(served).await);
    }
    waits.sort_unstable();
    for (slot, wait) in (0_u32..).zip(&waits) {
        assert!(*wait <= SLOT * (slot + 1), "{slot}: {waits:?}");
    }
    for pair in waits.windows(2) {
        assert!(pair[1] - pair[0] >= SLOT - Duration::from_millis(1), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn operators_see_the_tenants() {
    let memory = MemoryStore::default();
    let store: Arc<dyn Store> = Arc::new(memory.clone());
    let calls: Vec<_> = ["a", "a", "a", "b", "a"]
        .map(|tenant| call(&store, check(bucket(), tenant, 1), 60))
        .into_iter()
        .collect();
    sleep(Duration::from_millis(1)).await;
    let known = memory.tenants(&check(bucket(), "", 1)).get().await.expect("an answer");
    let seen: Vec<_> = known.iter().map(|it| (&*it.tenant, it.waiting)).collect();
    assert_eq!(seen, [("a", 3), ("b", 1)], "the first call did not wait");
    for served in calls {
        wait_of(served).await;
    }
    assert!(memory.tenants(&check(bucket(), "", 1)).get().await.expect("an answer").is_empty());
}
