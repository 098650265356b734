//! A request that leaves at any point of its way to its slot gives everything back: over the memory store on virtual time,
//! and over a real Redis.

use crate::support::{Redis, connected_store};
use paceway::{
    algorithm::{Concurrency, Rule, SlidingWindow, TokenBucket},
    limit::{self, Callee, Caller, Reservation},
    store::{
        Check, Checks, Decision, Store, StoreAdmin, StoreError,
        batch::{Batched, StoreMetrics},
        memory::MemoryStore,
        redis::RedisUrl,
    },
};
use rstest::rstest;
use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Long enough for any machine; no test is about it.
const LIMIT: Duration = Duration::from_secs(20);
/// Until a permit comes back.
const PERIOD: Duration = Duration::from_millis(200);
/// How far two clocks and a slow machine may shift an instant: far less than the time of a permit.
const TOLERANCE: Duration = Duration::from_millis(90);
/// More polls than any wait takes.
const ENDLESS: usize = 50;

/// Limiters of a group of their own that give two at once; by their letters.
fn checks(group: &str, letters: &str) -> Checks {
    let period = limit::micros(PERIOD);
    let check = |letter: char| {
        let algorithm = match letter {
            'T' => Rule::from(TokenBucket::new(1, period, 2).expect("a rule")),
            'S' => Rule::from(SlidingWindow::new(2, period, 0).expect("a rule")),
            _ => Rule::from(Concurrency::new(2, 60_000_000).expect("a rule")),
        };
        let key = format!("{{{group}}}:{letter}");
        Check::new(key, algorithm)
    };
    letters.chars().map(check).collect()
}

/// A call that waits for up to 20 s.
struct Call {
    until: Instant,
}

impl Caller for Call {
    type Error = StoreError;

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn refused(&mut self, decision: Decision) -> StoreError {
        panic!("there is time enough: {decision:?}")
    }

    fn undecided(&mut self, error: StoreError) -> StoreError {
        error
    }
}

/// The things that the call needs besides permits: they are ready at once, and asked for 20 ms before the instant.
struct Tools;

impl Callee for Tools {
    type Ready = ();
    type Error = StoreError;

    fn lead(&self) -> Duration {
        PERIOD / 10
    }

    fn at_hand(&mut self) -> Option<()> {
        None
    }

    async fn ready(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn put_back(&mut self, (): ()) {}
}

/// Waits until a call may be made, in the loop of the gateway.
async fn held(store: Arc<dyn Store>, checks: Checks) -> Reservation {
    let mut call = Call { until: Instant::now() + LIMIT };
    let paced = limit::pace(&store, &checks, &mut call, &mut Tools).await;
    paced.expect("a decision").0
}

/// Polls `future` up to `polls` times, whenever it is woken; then leaves it alone for the time `unpolled`, and drops it.
async fn leave<T>(polls: usize, unpolled: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut polled) = (pin!(future), 0);
    let ended = poll_fn(|cx| {
        while polled < polls {
            polled += 1;
            match future.as_mut().poll(cx) {
                Poll::Ready(ended) => return Poll::Ready(Some(ended)),
                Poll::Pending if polled < polls => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        Poll::Ready(None)
    })
    .await;
    if ended.is_none() && !unpolled.is_zero() {
        sleep(unpolled).await;
    }
    ended
}

/// Until each limiter of permits is full again, and how many concurrency permits are free.
async fn levels(store: &Arc<dyn StoreAdmin>, checks: &Checks) -> Vec<(Duration, i64)> {
    store.flush().await;
    let mut levels = Vec::new();
    for check in checks.iter() {
        let level = store.look(check).get().await.expect("a level");
        levels.push(match check.is_lease() {
            true => (Duration::ZERO, level.remaining),
            false => (limit::duration(level.reset_after), 0),
        });
    }
    levels
}

/// Two others take all permits at once, and hold their concurrency permits beyond the instant of the next permit of the rate. A request that comes
/// then leaves at every await point of its way, and at the end of it.
async fn whoever_leaves_leaves_nothing_behind(store: Arc<dyn StoreAdmin>, letters: &str) {
    for (others, unpolled) in [(0, 0), (2, 0), (2, 2)] {
        let mut ended = false;
        for polls in 0..ENDLESS {
            let group = format!("{letters}:{others}:{unpolled}:{polls}");
            let checks = checks(&group, letters);
            let (start, mut working) = (Instant::now(), Vec::new());
            for _ in 0..others {
                let mut slot = held(store.clone(), checks.clone()).await;
                slot.spend();
                working.push(slot);
            }
            let before = levels(&store, &checks).await;
            let work = tokio::spawn(async move {
                sleep(PERIOD * 3 / 2).await;
                drop(working);
            });
            let slot = leave(polls, PERIOD * unpolled, held(store.clone(), checks.clone())).await;
            ended = slot.is_some();
            drop(slot);
            work.abort();
            let _ = work.await;
            let after = levels(&store, &checks).await;
            for ((before, _), (after, concurrent)) in before.into_iter().zip(after) {
                let expected = before.saturating_sub(start.elapsed());
                assert!(after.abs_diff(expected) < TOLERANCE, "{group}: {after:?} {expected:?}");
                assert!(
                    before > Duration::ZERO || concurrent == 2 || others == 0,
                    "{group}: {concurrent}"
                );
            }
            let calls = format!("{:?}", store.calls());
            assert!(calls.contains("waiting: Mutex { data: {} }"), "{group}: {calls}");
            if ended {
                break;
            }
        }
        assert!(ended, "{letters}: it never came to an end");
    }
}

#[rstest]
#[case::permits("T")]
#[case::window("S")]
#[case::concurrency("C")]
#[case::rate_and_concurrency("TC")]
#[tokio::test(start_paused = true)]
async fn cancelled_calls_leave_the_memory_store_unchanged(#[case] letters: &str) {
    whoever_leaves_leaves_nothing_behind(Arc::new(MemoryStore::default()), letters).await;
}

#[rstest]
#[case::permits("T")]
#[case::window("S")]
#[case::concurrency("C")]
#[case::rate_and_concurrency("TC")]
#[tokio::test(start_paused = true)]
async fn cancelled_calls_leave_a_batched_store_unchanged(#[case] letters: &str) {
    let script = Arc::new(MemoryStore::default());
    let store = Batched::new(script, LIMIT, StoreMetrics::noop());
    whoever_leaves_leaves_nothing_behind(Arc::new(store), letters).await;
}

#[rstest]
#[case::permits("T")]
#[case::window("S")]
#[case::concurrency("C")]
#[case::rate_and_concurrency("TC")]
#[tokio::test]
async fn cancelled_calls_leave_redis_unchanged(#[case] letters: &str) {
    let redis = Redis::that_is_heard();
    let url = RedisUrl::parse(&redis.url()).expect("a URL");
    let script = connected_store(&url).await;
    script.receive_calls();
    let store = Batched::new(Arc::new(script), LIMIT, StoreMetrics::noop());
    whoever_leaves_leaves_nothing_behind(Arc::new(store), letters).await;
}
