//! Blocks of permits, on virtual time: how many calls they save, the order of requests, the law, and what ends them.

use super::*;
use crate::store::{Answer, Pause, Source, batch::callee::CalledStore};
use metrics::Counter;
use rstest::rstest;
use std::sync::atomic::AtomicU64;

/// Random numbers below the argument, the same for the same seed: the upper half of a linear congruential generator
/// with the factor of Knuth's MMIX.
fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |most| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) % most
    }
}

/// A bucket of this many permits that fills in a second.
fn fast(rate: i64) -> Checks {
    let rule = TokenBucket::new(rate, 1_000_000, rate).expect("a rule");
    Arc::new([Check::new("{t}:fast", Algorithm::TokenBucket(rule)).with_blocks()])
}

/// Asks so often, one after the other, and returns the number of calls that the store executed for it.
async fn calls_of(
    far: &DistantBackend,
    store: &Batched,
    checks: &Checks,
    requests: usize,
) -> usize {
    let before = far.0.calls.load(SeqCst);
    for _ in 0..requests {
        sleep(Duration::from_millis(10)).await;
        let (store, checks) = (store.clone(), checks.clone());
        tokio::spawn(async move { assert!(passes(&store, &checks).await) });
    }
    far.0.calls.load(SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn a_busy_gateway_makes_one_call_for_many_requests() {
    let (far, store) = far();
    let (fast, slow) = (fast(10_000), check("{t}:slow", 1000));
    calls_of(&far, &store, &fast, 100).await;
    let calls = calls_of(&far, &store, &fast, 200).await;
    assert!((1..=12).contains(&calls), "{calls} calls");
    // The gateway ends: others have all permits but those of one block.
    let other = Batched::new(Arc::new(far.clone()), TIMEOUT, StoreMetrics::noop());
    let level = remaining(&other, &fast).await;
    assert!(level >= 10_000 - 64, "{level}");
    let calls = calls_of(&far, &store, &slow, 200).await;
    assert!(calls > 95, "{calls} calls for a limiter that is no fast one");
}

/// Requests that ask less often than the permits of a block can be used get none.
#[tokio::test(start_paused = true)]
async fn an_idle_gateway_takes_no_block() {
    let (far, store) = far();
    let checks = fast(10_000);
    for request in 0..20 {
        sleep(Duration::from_millis(250)).await;
        assert!(passes(&store, &checks).await);
        assert_eq!(far.0.calls.load(SeqCst), request + 1);
    }
    let level = remaining(&store, &checks).await;
    assert!(level >= 9_900, "{level}");
}

/// Each event ends the block, so that the next request asks the store.
#[derive(Debug, Clone, Copy)]
enum Event {
    Pause,
    NewsOfAPause,
    Reset,
    Lower,
    Rule,
    Deaf,
    Time,
    OtherKeys,
    LateAnswer,
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn every_disturbance_ends_the_permits_of_a_block(
    #[values(
        Event::Pause,
        Event::NewsOfAPause,
        Event::Reset,
        Event::Lower,
        Event::Rule,
        Event::Deaf,
        Event::Time,
        Event::OtherKeys,
        Event::LateAnswer
    )]
    event: Event,
) {
    let far = DistantBackend::default();
    let [used, lapsed] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let blocks = [&used, &lapsed].map(|count| Counter::from_arc(count.clone()));
    let metrics = StoreMetrics { blocks, ..StoreMetrics::noop() };
    let store = Batched::new(Arc::new(far.clone()), TIMEOUT, metrics);
    let mut checks = fast(10_000);
    calls_of(&far, &store, &checks, 100).await;
    // Until a block has just come.
    let mut calls = far.0.calls.load(SeqCst);
    while far.0.calls.load(SeqCst) == calls {
        calls_of(&far, &store, &checks, 1).await;
    }
    sleep(FAR * 2).await;
    calls = far.0.calls.load(SeqCst);
    assert!(passes(&store, &checks).await);
    assert_eq!(far.0.calls.load(SeqCst), calls, "it is served from the block");
    // Operators, and the answers that other workers receive, change limiters through stores of their own.
    let (backend, pauses) = (Arc::new(far.clone()), store.pauses().clone());
    let callee = CalledStore::new(backend, StoreMetrics::noop(), None, TIMEOUT, &pauses);
    let admin = Batched::over(callee, pauses);
    match event {
        Event::Pause => {
            let pause = Pause::for_micros(3_000_000, 429);
            store.pause(&checks, pause).get().await.expect("an answer");
        }
        Event::NewsOfAPause => store.pauses().learn(&checks[0].key, 100_000, 429),
        Event::Reset => assert!(admin.forget(&checks[0]).get().await.expect("an answer")),
        Event::Lower => drop(admin.lower(&checks[0], 5_000, 0).get().await.expect("a level")),
        Event::Rule => checks = fast(20_000),
        Event::Deaf => store.pauses().set_hears(false),
        Event::Time => sleep(Duration::from_millis(500)).await,
        // Twice as many as there are places: the first ones are idle when the others come.
        Event::OtherKeys => {
            for key in 0..512 {
                if key == 256 {
                    sleep(Duration::from_secs(2)).await;
                }
                let check = Check { key: format!("{{t}}:{key}").into(), ..checks[0].clone() };
                assert!(passes(&store, &[check].into()).await);
            }
        }
        Event::LateAnswer => {
            far.0.hangs.store(true, SeqCst);
            while far.0.calls.load(SeqCst) == calls {
                tokio::spawn(store.reserve(&checks, 0, None).get());
                sleep(Duration::from_millis(10)).await;
            }
            sleep(TIMEOUT).await;
            far.0.hangs.store(false, SeqCst);
            store.flush().await;
        }
    }
    calls = far.0.calls.load(SeqCst);
    let passed = passes(&store, &checks).await;
    assert_eq!(far.0.calls.load(SeqCst), calls + 1, "the store is asked");
    assert_eq!(passed, !matches!(event, Event::Pause));
    // Each permit is used or lapses.
    store.pauses().drop_permits(None);
    let ended = used.load(SeqCst) + lapsed.load(SeqCst);
    let taken = far.0.in_blocks.load(SeqCst);
    assert_eq!(i64::try_from(ended), Ok(taken), "{used:?} used, {lapsed:?} lapsed");
}

/// A gateway of another configuration settles true costs at the limiter. The line moves back then, and would move under the
/// permits of a block.
#[tokio::test(start_paused = true)]
async fn a_bucket_moved_by_true_costs_grants_no_blocks() {
    let (far, store) = far();
    let checks = fast(2_000);
    calls_of(&far, &store, &checks, 100).await;
    // No permit of a block is promised any more, for which the line would stay as it is.
    sleep(Duration::from_secs(1)).await;
    let other = Batched::new(Arc::new(far.clone()), TIMEOUT, StoreMetrics::noop());
    let large = Check { blocks: false, ..checks[0].clone().with_cost(400) };
    let take = async || {
        let decision = other.reserve(&[large.clone()].into(), 0, None).get().await;
        decision.expect("a decision").parts
    };
    let (reserved, _after) = (take().await, [take().await, take().await]);
    other.settle(Source::Shared, &large, reserved[0], 1);
    sleep(2 * FAR).await;
    let given = || far.0.in_blocks.load(SeqCst);
    let before = given();
    calls_of(&far, &store, &checks, 30).await;
    assert_eq!(given(), before);
    // A bucket that was full since has forgotten them.
    sleep(Duration::from_secs(2)).await;
    calls_of(&far, &store, &checks, 100).await;
    assert!(given() > before, "no block of a full bucket");
}

/// Requests that come while a call is under way wait for it, also when it brings a block.
#[tokio::test(start_paused = true)]
async fn requests_are_decided_in_their_order() {
    let (_, store) = far();
    let checks = fast(2_000);
    let decided = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut random = numbers(1);
    let begun = Instant::now();
    let mut asks = Vec::new();
    for number in 0..3_000 {
        if random(4) > 0 {
            sleep(Duration::from_millis(random(4))).await;
        }
        let (store, checks, decided) = (store.clone(), checks.clone(), decided.clone());
        let answer = store.reserve(&checks, 0, None);
        asks.push(tokio::spawn(async move {
            answer.get().await.expect("a decision");
            decided.lock().push((number, begun.elapsed()));
        }));
        tokio::task::yield_now().await;
    }
    for ask in asks {
        ask.await.expect("a task");
    }
    let mut decided = decided.lock();
    decided.sort_unstable();
    let is_overtaken = |pair: &&[(i32, Duration)]| pair[0].1 > pair[1].1;
    assert_eq!(decided.windows(2).find(is_overtaken), None);
}

/// Three gateways ask one limiter as often as they like. Now and then they are silent until the bucket is full and the permits
/// of their blocks have lapsed, and then ask for more than all permits at once.
#[test]
fn several_gateways_never_exceed_the_rule() {
    let mut saved = 0;
    for seed in 0..30 {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        saved += runtime.block_on(never_too_many(seed));
    }
    assert!(saved > 10_000, "{saved} requests were served from blocks");
}

/// Returns how many requests were answered without the store.
async fn never_too_many(seed: u64) -> usize {
    const BURST: i64 = 400;
    let mut random = numbers(seed);
    let rule = TokenBucket::new(1_000, 1_000_000, BURST).expect("a rule");
    let checks: Checks =
        Arc::new([Check::new("{t}:fast", Algorithm::TokenBucket(rule)).with_blocks()]);
    let backend = DistantBackend::default();
    let store = || Batched::new(Arc::new(backend.clone()), TIMEOUT * 10, StoreMetrics::noop());
    let stores = [store(), store(), store()];
    let begun = Instant::now();
    let granted = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (mut asks, mut saved) = (Vec::new(), 0);
    for _ in 0..4 {
        let most = [1, 3, 8][random(3) as usize];
        for request in 0..900 {
            match request {
                ..450 => sleep(Duration::from_millis(random(most))).await,
                450 => sleep(Duration::from_millis(random(500))).await,
                _ => {}
            }
            let store = &stores[random(3) as usize];
            let budget = if request < 450 { [0, 0, 50_000][random(3) as usize] } else { 0 };
            let answer = store.reserve(&checks, budget, None);
            saved += usize::from(matches!(answer, Answer::Ready(_)));
            let granted = granted.clone();
            asks.push(tokio::spawn(async move {
                let decision = answer.get().await.expect("a decision");
                if decision.admitted {
                    sleep(Duration::from_micros(decision.wait.unsigned_abs())).await;
                    granted.lock().push(begun.elapsed());
                }
            }));
        }
    }
    for ask in asks {
        ask.await.expect("a task");
    }
    // From the i-th to the j-th of them are at most `BURST` permits, one for each ms, and those of 7 ms: answers are 5 ms on
    // their way, and timers count in ms.
    let mut least = i64::MAX;
    for (number, at) in (0..).zip(&*granted.lock()) {
        let ahead = number - i64::try_from(at.as_millis()).expect("short");
        least = least.min(ahead);
        let count = ahead - least + 1;
        assert!(count <= BURST + 7, "seed {seed}: {count} permits at {at:?}");
    }
    saved
}
