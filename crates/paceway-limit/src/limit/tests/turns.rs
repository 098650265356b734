//! Calls that take turns at a limiter with fair sharing, in virtual time over the memory store.

use super::{super::move_up::Moved, *};
use crate::{
    algorithm::{
        FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp, fair::Priority,
    },
    store::{Opening, Pause, StoreAdmin, Turn},
};
use rstest::rstest;
use tokio::{task::JoinHandle, time::timeout};

const SECOND: Micros = 1_000_000;
/// The slots of the tests are 50 ms apart.
const RATE: i64 = 20;
const SLOT: Duration = Duration::from_millis(50);

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
        let mut caller = Patient(began + Duration::from_secs(budget));
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
async fn a_caller_is_served_in_turn_with_a_batch(#[case] algorithm: Option<Algorithm>) {
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

/// Calls of cost 1 take each slot at twice the rate, as soon as it is within their budgets. A call of cost 5 is refused once,
/// and served when it comes back after its `Retry-After`; no slot is lost by that, nor when it does not come back.
#[rstest]
#[case::comes_back(true)]
#[case::stays_away(false)]
#[tokio::test(start_paused = true)]
async fn a_call_of_five_permits_is_served_in_its_turn(#[case] comes_back: bool) {
    const BURST: i64 = 5;
    const END: Duration = Duration::from_secs(20);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let start = Instant::now();
    let once = {
        let store = store.clone();
        move |tenant: &str, cost: i64| {
            let rule = TokenBucket::new(RATE, SECOND, BURST).map(Algorithm::TokenBucket);
            let checks = Checks::from([check(rule, tenant, 1).with_cost(cost)]);
            let (store, began) = (store.clone(), Instant::now());
            tokio::spawn(async move {
                let mut caller = Patient(began + 10 * SLOT);
                let mut callee = AlwaysReady::default();
                let (mut reservation, ()) = pace(&store, &checks, &mut caller, &mut callee).await?;
                reservation.spend();
                Ok::<_, &'static str>((start.elapsed(), cost))
            })
        }
    };
    let heavy = tokio::spawn({
        let once = once.clone();
        async move {
            let (mut sent, mut tries) = (Vec::new(), Vec::new());
            sleep(Duration::from_secs(2)).await;
            while start.elapsed() < END {
                for attempt in 1.. {
                    if let Ok(own) = once("heavy", 5).await.expect("no panic") {
                        sent.push(own);
                        tries.push(attempt);
                        break;
                    }
                    // `Retry-After: 1`.
                    sleep(Duration::from_secs(if comes_back { 1 } else { 3 })).await;
                }
            }
            (sent, tries)
        }
    });
    let mut light = Vec::new();
    for i in 0..(20 * RATE * 2) as u32 {
        tokio::time::sleep_until(start + SLOT / 2 * i).await;
        light.push(once("light", 1));
    }
    let (mut sent, tries) = heavy.await.expect("no panic");
    for served in light {
        sent.extend(served.await.expect("no panic"));
    }
    if comes_back {
        assert!(tries.len() >= 10 && tries.iter().all(|tries| *tries <= 2), "{tries:?}");
    }
    sent.sort_unstable();
    let within = |from: Duration, to: Duration| {
        sent.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, cost)| cost).sum::<i64>()
    };
    for (i, (from, _)) in sent.iter().enumerate() {
        for (to, _) in &sent[i..] {
            let most = BURST as f64 + (*to - *from).as_secs_f64() * RATE as f64;
            assert!(within(*from, *to) as f64 <= most + 0.1, "from {from:?} to {to:?}");
        }
    }
    let used = within(Duration::from_secs(2), END);
    assert!(used * 100 >= 18 * RATE * 99, "{used} permits of {}", 18 * RATE);
}

/// A batch of `calls` calls of the tenant `job` through `limiter`.
fn job(limiter: &Limiter, calls: usize) -> Vec<JoinHandle<Duration>> {
    let one = |_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let call = limiter.call().tenant("job").priority(Priority::Low);
            call.acquire().await.expect("let in").waited()
        })
    };
    (0..calls).map(one).collect()
}

#[rstest]
#[case::rate(Limit::token_bucket("account", Rate::per_second(20), 1))]
#[case::permits(Limit::concurrency("account", 1))]
#[tokio::test(start_paused = true)]
async fn a_program_shares_a_limit_by_tenants_and_priorities(#[case] limit: Limit) {
    let limiter = Limiter::new(limit.fair([("checkout", 4)]), memory()).expect("a rule");
    let held = limiter.acquire(1).await.expect("the first");
    let batch = job(&limiter, 40);
    sleep(Duration::from_millis(10)).await;
    let checkout = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            let call = limiter.call().tenant("checkout");
            call.acquire_within(Duration::from_secs(5)).await.expect("let in").waited()
        }
    });
    sleep(Duration::from_millis(10)).await;
    drop(held);
    let waited = checkout.await.expect("no panic");
    assert!(waited <= 3 * SLOT, "{waited:?} beside a batch of 40");
    for call in batch {
        call.await.expect("no panic");
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_reads_the_tenant_and_the_priority_of_a_request() {
    let limit = Limit::token_bucket("account", Rate::per_second(20), 1).fair([("a", 1)]);
    let limiter = Limiter::new(limit, memory()).expect("a rule");
    limiter.acquire(1).await.expect("the first");
    let batch = job(&limiter, 40);
    sleep(Duration::from_millis(10)).await;
    let layer = PaceLayer::new(limiter)
        .max_wait(Duration::from_secs(5))
        .tenant(|tenant: &&str| Some((*tenant).to_owned()))
        .priority(|_| Priority::High);
    let service = tower::service_fn(async |_: &str| Ok::<_, AcquireError>(()));
    let began = Instant::now();
    tower::Service::call(&mut tower::Layer::layer(&layer, service), "a").await.expect("let in");
    assert!(began.elapsed() <= 2 * SLOT, "{:?}", began.elapsed());
    batch.iter().for_each(JoinHandle::abort);
}

/// Three tenants wait at 20/s, and the upstream asks for 5 s. Nothing is made meanwhile. The calls of a tenant with budgets of 3
/// s are refused at once, and the other two alternate afterwards as before.
#[tokio::test(start_paused = true)]
async fn a_pause_keeps_the_order() {
    let (store, start) = (Arc::new(MemoryStore::default()), Instant::now());
    let shared: Arc<dyn Store> = store.clone();
    let mut calls = Vec::new();
    for (tenant, count, budget) in [("a", 40, 60), ("b", 40, 60), ("c", 20, 3)] {
        for _ in 0..count {
            let served = call(&shared, check(bucket(), tenant, 1), budget);
            let ended = tokio::spawn(async move {
                let made = served.await.expect("no panic");
                (start.elapsed(), tenant, made.is_ok())
            });
            calls.push(ended);
        }
    }
    sleep(Duration::from_millis(975)).await;
    let checks = Checks::from([check(bucket(), "", 1)]);
    let pause = Pause::for_micros(5 * SECOND, 429);
    shared.pause(&checks, pause).get().await.expect("an answer");
    let mut ended = Vec::new();
    for call in calls {
        ended.push(call.await.expect("no panic"));
    }
    ended.sort_unstable();
    let (paused, released) = (Duration::from_millis(975), Duration::from_millis(5_975));
    let is_during = |at: &Duration| *at > paused && *at < released;
    assert!(!ended.iter().any(|(at, _, is_made)| *is_made && is_during(at)), "{ended:?}");
    let refused: Vec<_> = ended.iter().filter(|(.., is_made)| !is_made).collect();
    assert!(refused.len() >= 10, "{refused:?}");
    let at_once = paused + Duration::from_millis(1);
    assert!(refused.iter().all(|(at, tenant, _)| *tenant == "c" && *at <= at_once), "{refused:?}");
    let made: Vec<_> = ended.iter().filter(|(at, ..)| *at >= released).collect();
    assert!(made.len() >= 60, "{made:?}");
    for stretch in made.windows(8) {
        let own = stretch.iter().filter(|(_, tenant, _)| *tenant == "a").count();
        assert!((3..=5).contains(&own), "{made:?}");
    }
    for pair in made.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= SLOT - Duration::from_millis(1), "{made:?}");
    }
}

/// A call whose slot comes after a pause confirms, because the store has given it another slot, or asks for a slot that has become
/// free. An operator resets the limiter at that moment. Such a call was not woken, and was made at the end of the pause.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_reset_while_a_call_asks_the_store_wakes_it_afterwards(
    #[values(true, false)] takes_turns: bool,
) {
    let memory = Arc::new(MemoryStore::default());
    let store: Arc<dyn Store> = memory.clone();
    let check = check(bucket(), "tenant", 1);
    let checks: Checks = [if takes_turns { check } else { Check { turn: None, ..check } }].into();
    let pause = Pause::for_micros(60 * SECOND, 429);
    store.pause(&checks, pause).get().await.expect("paused");
    let asked = ask(&store, &checks, Duration::from_secs(180)).await.expect("an answer");
    let Admission::Granted(mut reservation) = asked else { panic!("a slot") };
    assert!(reservation.wait >= Duration::from_secs(60));
    memory.forget(&checks[0]).get().await.expect("reset");
    if takes_turns {
        assert!(reservation.confirm().await, "it keeps its slot");
        let woken = reservation.until_paused(Duration::ZERO);
        assert_eq!(timeout(Duration::ZERO, woken).await, Ok(None));
        return;
    }
    let opening = Some(Opening::new(Instant::now()));
    let Moved::Up(moved) = reservation.move_up(opening, None, Duration::ZERO).await else {
        panic!("it has no earlier slot")
    };
    assert!(moved.wait.is_zero());
}
