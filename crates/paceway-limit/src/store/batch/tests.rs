//! Tests group commit over the memory rules, on virtual time.

mod blocks;
mod charges;

use super::{call::BATCH, *};
use crate::{
    algorithm::{Algorithm, Micros, TokenBucket},
    limit::{Admission, ask},
    store::{
        Backend, Beat, BoxFuture, Check, Checks, Decision, Entry, Placement, Reply, Store,
        StoreAdmin, StoreError, calls::Calls, memory::MemoryStore,
    },
};
use proptest::prelude::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

const TIMEOUT: Duration = Duration::from_millis(50);

/// A store 10 ms away, which can hang, and which notices when two calls are under way at the same time.
#[derive(Debug, Default)]
struct DistantStore {
    memory: MemoryStore,
    calls: AtomicUsize,
    in_flight: AtomicUsize,
    overlapped: AtomicBool,
    hangs: AtomicBool,
    /// Calls end without an answer and without having been executed.
    loses: AtomicBool,
    largest: AtomicUsize,
    /// The permits of blocks for later requests.
    in_blocks: AtomicI64,
    /// Several servers have the keys.
    has_many_servers: AtomicBool,
}

const FAR: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Default)]
struct DistantBackend(Arc<DistantStore>);

impl Backend for DistantBackend {
    fn calls(&self) -> &Arc<Calls> {
        Backend::calls(&self.0.memory)
    }

    fn placement(&self) -> Placement {
        if self.0.has_many_servers.load(SeqCst) {
            Placement::ManyServers { one_answers: true }
        } else {
            Placement::OneServer
        }
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let far = self.0.clone();
        Box::pin(async move {
            far.calls.fetch_add(1, SeqCst);
            far.largest.fetch_max(entries.len(), SeqCst);
            let others = far.in_flight.fetch_add(1, SeqCst);
            far.overlapped.fetch_or(others > 0, SeqCst);
            sleep(FAR / 2).await;
            while far.hangs.load(SeqCst) {
                sleep(FAR).await;
            }
            let replies = match far.loses.load(SeqCst) {
                true => Err(StoreError::Unreachable("lost".into())),
                false => far.memory.run(entries.clone()).await,
            };
            for (entry, reply) in entries.iter().zip(replies.iter().flatten()) {
                if let (Entry::Block { checks, ask, .. }, Reply::Block { .. }) = (entry, reply) {
                    far.in_blocks.fetch_add((ask.requests - 1) * checks[0].cost, SeqCst);
                }
            }
            sleep(FAR / 2).await;
            far.in_flight.fetch_sub(1, SeqCst);
            replies
        })
    }
}

fn far() -> (DistantBackend, Batched) {
    let backend = DistantBackend::default();
    let store = Batched::new(Arc::new(backend.clone()), TIMEOUT, StoreMetrics::noop());
    (backend, store)
}

fn check(key: &str, burst: i64) -> Checks {
    let rule = TokenBucket::new(1, 3_600_000_000, burst).expect("a rule");
    let algorithm = Algorithm::TokenBucket(rule);
    Arc::new([Check::new(key, algorithm)])
}

async fn passes(store: &Batched, checks: &Checks) -> bool {
    store.reserve(checks, 0, None).get().await.expect("a decision").admitted
}

async fn remaining(store: &Batched, checks: &Checks) -> i64 {
    store.look(&checks[0]).get().await.expect("a level").remaining
}

#[tokio::test(start_paused = true)]
async fn one_call_at_a_time_carries_all_waiting_requests() {
    let (far, store) = far();
    let checks = check("{t}:a", 100);
    let asks = (0..400).map(|_| {
        let (store, checks) = (store.clone(), checks.clone());
        tokio::spawn(async move { passes(&store, &checks).await })
    });
    let mut admitted = 0;
    for ask in asks.collect::<Vec<_>>() {
        admitted += usize::from(ask.await.expect("task"));
    }
    assert_eq!(admitted, 100);
    assert!(!far.0.overlapped.load(SeqCst));
    // Each call carries up to 128 entries, and the first one may carry a single entry.
    assert!(far.0.calls.load(SeqCst) <= 5, "{:?}", far.0.calls);
    assert_eq!(far.0.largest.load(SeqCst), BATCH);
}

#[tokio::test(start_paused = true)]
async fn groups_do_not_wait_for_each_other() {
    let (far, store) = far();
    far.0.has_many_servers.store(true, SeqCst);
    let (a, b) = (check("{a}:x", 1), check("{b}:x", 1));
    let started = Instant::now();
    let both = tokio::join!(passes(&store, &a), passes(&store, &b));
    assert_eq!(both, (true, true));
    assert_eq!(started.elapsed(), FAR);
    assert!(far.0.overlapped.load(SeqCst));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_batch_leader_blocks_no_request_and_takes_no_permit() {
    let (_, store) = far();
    let checks = check("{t}:a", 2);
    for leaves_after in [0, 1, 4, 6, 9] {
        let (store, checks) = (store.clone(), checks.clone());
        let leader = {
            let (store, checks) = (store.clone(), checks.clone());
            tokio::spawn(async move { passes(&store, &checks).await })
        };
        sleep(Duration::from_millis(leaves_after)).await;
        leader.abort();
        assert_eq!(remaining(&store, &checks).await, 2, "left after {leaves_after} ms");
    }
    assert!(passes(&store, &checks).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_cancelled_before_the_call_is_not_sent() {
    let (far, store) = far();
    let checks = check("{t}:a", 2);
    let first = store.reserve(&checks, 0, None).get();
    drop(store.reserve(&checks, 0, None));
    assert!(first.await.expect("a decision").admitted);
    store.flush().await;
    assert_eq!(far.0.calls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_store_costs_a_caller_at_most_one_timeout() {
    let (far, store) = far();
    far.0.hangs.store(true, SeqCst);
    let checks = check("{t}:a", 2);
    let started = Instant::now();
    let early = (0..3).map(|_| store.reserve(&checks, 0, None).get()).collect::<Vec<_>>();
    for ask in early {
        assert_eq!(ask.await, Err(StoreError::Timeout));
    }
    assert_eq!(started.elapsed(), TIMEOUT);
    sleep(Duration::from_millis(1)).await;
    let later = Instant::now();
    assert_eq!(store.reserve(&checks, 0, None).get().await, Err(StoreError::Timeout));
    assert_eq!(later.elapsed(), Duration::ZERO);
    assert_eq!(far.0.calls.load(SeqCst), 1, "nothing piles up in front of it");
    // The decisions for callers that have left are given back as soon as the store answers.
    far.0.hangs.store(false, SeqCst);
    store.flush().await;
    assert_eq!(remaining(&store, &checks).await, 2);
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_is_taken_off_the_budget() {
    let (_, store) = far();
    let rule = TokenBucket::new(1, 100_000, 1).expect("a rule");
    let algorithm = Algorithm::TokenBucket(rule);
    let checks: Checks = Arc::new([Check::new("{t}:a", algorithm)]);
    let first = store.reserve(&checks, 0, None);
    // The second is asked for 10 ms later, when 100 - 10 ms are left until its slot.
    let second = store.reserve(&checks, 96_000, None);
    assert!(first.get().await.expect("a decision").admitted);
    assert!(!second.get().await.expect("a decision").admitted, "86 ms are left of its 96");
}

/// 1,000 waiting requests leave at once, and another one asks meanwhile: it does not wait until all of their permits are given
/// back, 80 ms later.
#[tokio::test(start_paused = true)]
async fn a_caller_does_not_wait_for_many_releases() {
    let (far, store) = far();
    let checks = check("{t}:a", 2_000);
    let mut held = Vec::new();
    for _ in 0..10 {
        let asked: Vec<_> = (0..100).map(|_| store.reserve(&checks, 0, None)).collect();
        for asked in asked {
            held.push(asked.get().await.expect("a decision"));
        }
    }
    let calls = far.0.calls.load(SeqCst);
    held.iter().for_each(|it| store.refund(it.source, &checks, &it.parts));
    let started = Instant::now();
    assert!(passes(&store, &checks).await);
    assert_eq!(started.elapsed(), FAR, "in the first call");
    store.flush().await;
    assert_eq!(far.0.calls.load(SeqCst) - calls, 8);
}

/// Requests that all give their permits back do not fill the queue with releases, of which each call would send too few.
#[tokio::test(start_paused = true)]
async fn releases_of_many_callers_do_not_pile_up() {
    let (far, store) = far();
    let checks = check("{t}:a", 1_000_000);
    let mut held: Vec<Decision> = Vec::new();
    for _ in 0..100 {
        let asked: Vec<_> = (0..384).map(|_| store.reserve(&checks, 0, None)).collect();
        held.drain(..).for_each(|it| store.refund(it.source, &checks, &it.parts));
        for asked in asked {
            held.extend(asked.get().await);
        }
    }
    let calls = far.0.calls.load(SeqCst);
    store.flush().await;
    let more = far.0.calls.load(SeqCst) - calls;
    assert!(more <= 24, "{more} calls for the releases that were left");
}

/// A working rate falls while 700 requests wait for their slots. Each asks again, after the permits of all of them are given back,
/// and none has to be decided without the store.
#[tokio::test(start_paused = true)]
async fn many_calls_that_ask_again_find_the_permits_of_all_others() {
    let store: Arc<dyn Store> = Arc::new(far().1);
    let rule = TokenBucket::new(100, 1_000_000, 1).expect("a rule");
    let checks: Checks = Arc::new([Check::new("{t}:a", Algorithm::TokenBucket(rule))]);
    let mut waiting = Vec::new();
    for _ in 0..700 {
        let asked = ask(&store, &checks, Duration::from_secs(60)).await;
        let Ok(Admission::Granted(reservation)) = asked else { panic!("{asked:?}") };
        waiting.push(reservation);
    }
    let again = waiting
        .into_iter()
        .map(|it| tokio::spawn(it.ask_in_turn(None, || Duration::from_secs(60))));
    let (again, started) = (again.collect::<Vec<_>>(), Instant::now());
    let mut slots = Vec::new();
    for asked in again {
        let asked = asked.await.expect("a task");
        let Ok(Admission::Granted(reservation)) = asked else { panic!("{asked:?}") };
        slots.push((reservation.at - started).as_millis());
        std::mem::forget(reservation);
    }
    assert!(slots.is_sorted(), "in their order: {slots:?}");
    // The first 7 s of slots are gone when they were granted one call after the other.
    assert!(slots[0] < 200 && slots[699] - slots[0] == 6_990, "{} and {}", slots[0], slots[699]);
}

/// Each caller has its own time-out, whichever call is under way: a caller that asks 30 ms into a call receives its error
/// 50 ms later, not together with the callers of that call.
#[tokio::test(start_paused = true)]
async fn each_caller_gets_its_error_after_its_own_timeout() {
    let (far, store) = far();
    let checks = check("{t}:a", 2);
    // In flight for 40 ms, so that the next call begins late.
    far.0.hangs.store(true, SeqCst);
    let slow = tokio::spawn({
        let (store, checks) = (store.clone(), checks.clone());
        async move { store.reserve(&checks, 0, None).get().await }
    });
    sleep(Duration::from_millis(20)).await;
    let started = Instant::now();
    let next = tokio::spawn({
        let (store, checks) = (store.clone(), checks.clone());
        async move { (store.reserve(&checks, 0, None).get().await, Instant::now()) }
    });
    sleep(Duration::from_millis(15)).await;
    far.0.hangs.store(false, SeqCst);
    assert!(slow.await.expect("a task").expect("a decision").admitted);
    far.0.hangs.store(true, SeqCst);
    let (said, at) = next.await.expect("a task");
    assert_eq!(said, Err(StoreError::Timeout));
    assert_eq!(at - started, TIMEOUT);
    far.0.hangs.store(false, SeqCst);
    store.flush().await;
    assert_eq!(remaining(&store, &checks).await, 1);
}

#[test]
fn waiters_get_an_error_when_the_calling_runtime_ends() {
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_time().start_paused(true).build().expect("a runtime")
    };
    let (far, store) = far();
    far.0.hangs.store(true, SeqCst);
    let (first, second) = (runtime(), runtime());
    let checks = check("{t}:a", 2);
    let asked = first.block_on(async {
        let asked = [(); 2].map(|()| store.reserve(&checks, 0, None));
        tokio::task::yield_now().await;
        let queued = store.reserve(&checks, 0, None);
        (asked, queued)
    });
    drop(first);
    let ([a, b], queued) = asked;
    for asked in [a, b, queued] {
        assert_eq!(second.block_on(asked.get()), Err(StoreError::Timeout));
    }
    far.0.hangs.store(false, SeqCst);
    // And others can make them.
    assert!(second.block_on(passes(&store, &checks)));
}

#[derive(Debug, Clone)]
enum Ask {
    Decide { key: usize, budget: Micros },
    GiveBack(usize),
    Look(usize),
}

proptest! {
    /// A batch is a serial order of its entries: run at once or one by one, they get the same replies.
    #[test]
    fn a_batch_equals_its_entries_one_by_one(asks in prop::collection::vec(prop_oneof![
        (0..3usize, 0..2_000_000i64).prop_map(|(key, budget)| Ask::Decide { key, budget }),
        (0..8usize).prop_map(Ask::GiveBack),
        (0..3usize).prop_map(Ask::Look),
    ], 1..40), cuts in prop::collection::vec(1..8usize, 40)) {
        let rule = TokenBucket::new(7, 1_000_000, 3).expect("a rule");
        let algorithm = Algorithm::TokenBucket(rule);
        let check = |key: usize| Check::new(format!("{{t}}:{key}"), algorithm);
        let (one_by_one, batched) = (MemoryStore::default(), MemoryStore::default());
        let (mut granted, mut entries, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for ask in asks {
            let entry = match ask {
                Ask::Decide { key, budget } => {
                    Entry::Reserve { checks: Arc::new([check(key)]), budget, ticket: None }
                }
                Ask::Look(key) => Entry::Look { check: check(key) },
                Ask::GiveBack(i) => match granted.get(i).cloned() {
                    Some((check, grant)) => Entry::Refund { check, grant },
                    None => continue,
                },
            };
            let reply = one_by_one.run_at(1_000_000, std::slice::from_ref(&entry)).remove(0);
            if let (Reply::Decision(decision), Entry::Reserve { checks, .. }) = (&reply, &entry) {
                granted.extend(decision.parts.iter().map(|part| (checks[0].clone(), part.grant)));
            }
            entries.push(entry);
            expected.push(reply);
        }
        let mut replies = Vec::new();
        let mut rest = &entries[..];
        for cut in cuts {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            replies.extend(batched.run_at(1_000_000, now));
            rest = later;
        }
        replies.extend(batched.run_at(1_000_000, rest));
        prop_assert_eq!(replies, expected);
    }
}
