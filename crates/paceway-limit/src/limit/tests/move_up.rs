//! Calls that move up because others have left, in virtual time over the memory store.

use super::*;
use crate::{
    algorithm::{FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp},
    store::{Decision, Pause, StoreError},
};
use proptest::{collection::vec, prelude::*};
use rstest::rstest;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::time::timeout;

const SECOND: Micros = 1_000_000;
/// The slots of the tests are 50 ms apart.
const RATE: i64 = 20;
const SLOT: Duration = Duration::from_millis(50);
/// Longer than any of these calls waits.
const LONGEST: Duration = Duration::from_secs(2);

/// A call with a budget of a minute that counts its moves.
struct Mover<'a> {
    until: Instant,
    promised: Option<Instant>,
    moves: &'a AtomicUsize,
}

/// How a call was served: the instant that it was promised first, and that at which it was made.
type Served = (Instant, Instant);

// === impl Mover ===

impl Caller for Mover<'_> {
    type Error = &'static str;

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn granted(&mut self, reservation: &Reservation) {
        self.promised = self.promised.or(Some(reservation.at));
    }

    fn moved(&mut self, reservation: &Reservation) {
        assert!(Some(reservation.at) < self.promised, "no call moves back");
        self.moves.fetch_add(1, Relaxed);
    }

    fn refused(&mut self, _: Decision) -> Self::Error {
        "refused"
    }

    fn undecided(&mut self, _: StoreError) -> Self::Error {
        "undecided"
    }
}

fn check(algorithm: Option<Algorithm>, cost: i64) -> Check {
    Check { cost, ..Check::new("a", algorithm.expect("a rule")) }
}

fn call(
    store: &Arc<dyn Store>,
    checks: impl Into<Checks>,
    moves: &Arc<AtomicUsize>,
) -> tokio::task::JoinHandle<Served> {
    let (store, checks, moves) = (store.clone(), checks.into(), moves.clone());
    let until = Instant::now() + Duration::from_secs(60);
    tokio::spawn(async move {
        let mut caller = Mover { until, promised: None, moves: &moves };
        let (mut reservation, ()) =
            pace(&store, &checks, &mut caller, &mut Ready).await.expect("a slot");
        reservation.spend();
        (caller.promised.expect("a promise"), Instant::now())
    })
}

/// The upstream has refused a call, and the pause of 100 ms is over: then permits flow at the working rate.
async fn refuse(store: &Arc<dyn Store>, check: Check) {
    let pause = Pause::for_micros(SECOND / 10, 429);
    store.pause(&[check].into(), pause).get().await.expect("an answer");
    sleep(Duration::from_millis(100)).await;
}

/// Takes all turns, as calls do that ask again because a rate has fallen.
async fn take_all_turns(store: &dyn Store) -> Vec<impl Sized + '_> {
    let mut turns = Vec::new();
    while let Ok(turn) = timeout(Duration::from_millis(1), store.pauses().turn()).await {
        turns.push(turn);
    }
    turns
}

/// A call gets no turn before its slot comes, because many calls ask again. It is made in its own slot.
#[tokio::test(start_paused = true)]
async fn a_call_without_a_turn_keeps_its_slot() {
    let (store, moves) = (Arc::new(MemoryStore::default()), Arc::new(AtomicUsize::new(0)));
    let shared: Arc<dyn Store> = store.clone();
    let checks = [check(TokenBucket::new(RATE, SECOND, 1).map(Algorithm::TokenBucket), 1)];
    let calls: Vec<_> = (0..20).map(|_| call(&shared, checks.clone(), &moves)).collect();
    let _turns = take_all_turns(&*store).await;
    calls[5].abort();
    for call in calls {
        let served = timeout(LONGEST, call).await.expect("it does not wait for a turn");
        assert!(served.map_or(true, |(promised, made)| made == promised));
    }
}

/// An answer of the upstream says that nothing remains, while a call asks for an earlier slot. It does not keep its own one.
#[tokio::test(start_paused = true)]
async fn a_call_that_asks_for_an_earlier_slot_learns_that_nothing_remains() {
    let (store, moves) = (Arc::new(MemoryStore::default()), Arc::new(AtomicUsize::new(0)));
    let (shared, start): (Arc<dyn Store>, _) = (store.clone(), Instant::now());
    let checks = [check(TokenBucket::new(RATE, SECOND, 1).map(Algorithm::TokenBucket), 1)];
    let mut calls: Vec<_> = (0..3).map(|_| call(&shared, checks.clone(), &moves)).collect();
    let turns = take_all_turns(&*store).await;
    calls[1].abort();
    sleep(Duration::from_millis(10)).await;
    store.lower(&checks[0], 0, SECOND).get().await.expect("an answer");
    drop(turns);
    let (_, made) = calls.remove(2).await.expect("a slot");
    assert!(made - start >= Duration::from_secs(1), "{:?}", made - start);
}

/// Among 100 calls that wait, 80 leave: those at the front, or four of each five. The others use the next 20 slots in their
/// order, each with at most one move.
#[rstest]
#[case::token_bucket(TokenBucket::new(RATE, SECOND, 1).map(Algorithm::TokenBucket))]
#[case::leaky_bucket(LeakyBucket::new(RATE, SECOND, 0, None).map(Algorithm::LeakyBucket))]
#[case::sliding_window(SlidingWindow::new(RATE, SECOND, 0).map(Algorithm::SlidingWindow))]
#[case::fixed_window(FixedWindow::new(RATE, SECOND).map(Algorithm::FixedWindow))]
#[case::warm_up(WarmUp::new(RATE, SECOND, SECOND / 10, 3.0).map(Algorithm::WarmUp))]
#[tokio::test(start_paused = true)]
async fn remaining_waiters_use_the_slots_of_cancelled_ones(
    #[case] algorithm: Option<Algorithm>,
    #[values(true, false)] at_the_front: bool,
    #[values(true, false)] is_refused: bool,
) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let moves = Arc::new(AtomicUsize::new(0));
    if is_refused {
        if matches!(algorithm, Some(Algorithm::WarmUp(_))) {
            // Its grants have no room for their place in the count of a working rate.
            return;
        }
        refuse(&store, check(algorithm, 1)).await;
    }
    let mut calls = Vec::new();
    for _ in 0..100 + RATE {
        calls.push(call(&store, [check(algorithm, 1)], &moves));
        tokio::task::yield_now().await;
    }
    // Those that are granted at once or soon are no matter.
    sleep(Duration::from_millis(990)).await;
    let waiting: Vec<_> = calls.into_iter().filter(|call| !call.is_finished()).collect();
    let count = waiting.len();
    let stays = |i: usize| if at_the_front { i + 20 >= count } else { i % 5 == 4 };
    let (stay, leave): (Vec<_>, Vec<_>) =
        waiting.into_iter().enumerate().partition(|(i, _)| stays(*i));
    let left = Instant::now();
    leave.iter().for_each(|(_, call)| call.abort());
    let mut instants = Vec::new();
    for (_, call) in stay {
        instants.push(call.await.expect("a task").1);
    }
    assert!(instants.is_sorted(), "first come, first served");
    let slots = instants.len() as u32 + 1;
    let last = *instants.last().expect("20 calls") - left;
    // The working rate is 1.5 % below the written one.
    let slot = if is_refused { SLOT * 102 / 100 } else { SLOT };
    assert!(last <= slots * slot, "{last:?} for {slots} slots");
    assert!(moves.load(Relaxed) <= instants.len(), "{moves:?}");
}

/// Refused at 20/s, 40 calls wait. Ten of them leave, and no call moves up. A reload makes the rate another one before ten others
/// come: they get the places that are free, and no two permits flow at one instant.
#[rstest]
#[case::twice_the_rate(2 * RATE)]
#[case::half_of_the_rate(RATE / 2)]
#[tokio::test(start_paused = true)]
async fn free_places_of_a_working_rate_outlive_a_change_of_the_rate(#[case] then: i64) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let moves = Arc::new(AtomicUsize::new(0));
    let rule = |rate| check(TokenBucket::new(rate, SECOND, 1).map(Algorithm::TokenBucket), 1);
    refuse(&store, rule(RATE)).await;
    let turns = take_all_turns(&*store).await;
    let ask_for = |count: usize, rate: i64| {
        let calls = (0..count).map(|_| call(&store, [rule(rate)], &moves));
        calls.collect::<Vec<_>>()
    };
    let calls = ask_for(40, RATE);
    sleep(Duration::from_millis(10)).await;
    let (stay, leave): (Vec<_>, Vec<_>) =
        calls.into_iter().enumerate().partition(|(i, _)| !(10..20).contains(i));
    leave.iter().for_each(|(_, call)| call.abort());
    sleep(Duration::from_millis(10)).await;
    let mut made = Vec::new();
    let calls = stay.into_iter().map(|(_, call)| call).chain(ask_for(10, then));
    for call in calls.collect::<Vec<_>>() {
        made.push(call.await.expect("a task").1);
    }
    drop(turns);
    made.sort();
    let slot = SLOT * RATE as u32 / RATE.max(then) as u32;
    for pair in made.windows(2) {
        assert!(pair[1] - pair[0] + Duration::from_millis(2) >= slot, "{pair:?}");
    }
    let longest = 40 * SLOT * RATE as u32 / RATE.min(then) as u32;
    assert!(made[39] - made[0] <= longest * 103 / 100, "{:?}", made[39] - made[0]);
}

/// A call reserves all of 10 permits and uses one, and another waits for five since then. It need not wait until five have
/// flowed in again.
#[tokio::test(start_paused = true)]
async fn unused_permits_let_waiting_calls_move_up() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let rule = TokenBucket::new(1, SECOND, 10).map(Algorithm::TokenBucket);
    let (checks, moves) = (Checks::from([check(rule, 10)]), Arc::new(AtomicUsize::new(0)));
    let waits = Checks::from([check(rule, 5)]);
    let Ok(Admission::Granted(mut first)) = ask(&store, &checks, Duration::ZERO).await else {
        panic!("the burst");
    };
    first.spend();
    let waiting = call(&store, waits, &moves);
    sleep(Duration::from_secs(1)).await;
    let settled = first.settlement(0).expect("its permits").settle(1);
    assert_eq!(settled, Settled::Refunded(9));
    let (promised, at) = waiting.await.expect("a task");
    assert_eq!((promised - at).as_secs(), 4);
}

/// The same where the upstream has refused: the permits flow at about 1/s, and the five would have their slot after the gap of ten.
/// It moves within what the bucket itself keeps for a promised slot.
#[tokio::test(start_paused = true)]
async fn unused_permits_of_a_working_rate_let_waiting_calls_move_up() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let rule = TokenBucket::new(1, SECOND, 10).map(Algorithm::TokenBucket);
    let (checks, moves) = (Checks::from([check(rule, 10)]), Arc::new(AtomicUsize::new(0)));
    refuse(&store, check(rule, 1)).await;
    let Ok(Admission::Granted(mut first)) = ask(&store, &checks, Duration::ZERO).await else {
        panic!("the burst");
    };
    first.spend();
    let waiting = call(&store, [check(rule, 5)], &moves);
    sleep(Duration::from_secs(1)).await;
    let settled = first.settlement(0).expect("its permits").settle(1);
    assert_eq!(settled, Settled::Refunded(9));
    let (promised, at) = waiting.await.expect("a task");
    assert!((promised - at).as_secs() >= 4, "{:?}", promised - at);
}

/// One call of a random history: when it comes and when it leaves, in ms, and its cost.
type Visit = (u64, Option<u64>, i64);

fn visits() -> impl Strategy<Value = Vec<Visit>> {
    let leaves = prop::option::weighted(0.5, 0..4_000_u64);
    vec((0..3_000_u64, leaves, 1..=3_i64), 1..120)
}

/// Lives through a history over one limiter. Returns for each call that was made its cost, and when it came, was promised
/// and was made.
async fn live(
    algorithm: Option<Algorithm>,
    is_refused: bool,
    visits: &[Visit],
) -> Vec<(i64, Instant, Served)> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    if is_refused {
        refuse(&store, check(algorithm, 1)).await;
    }
    let moves = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let calls = visits.iter().map(|(comes, leaves, cost)| {
        let (store, moves, check) = (store.clone(), moves.clone(), check(algorithm, *cost));
        let leaves = leaves.map_or(Duration::from_secs(60), Duration::from_millis);
        let (cost, comes) = (*cost, start + Duration::from_millis(*comes));
        tokio::spawn(async move {
            sleep_until(comes).await;
            let call = call(&store, [check], &moves);
            let leave = call.abort_handle();
            tokio::spawn(async move {
                sleep(leaves).await;
                leave.abort();
            });
            call.await.ok().map(|served| (cost, comes, served))
        })
    });
    let calls: Vec<_> = calls.collect();
    let mut made = Vec::new();
    for call in calls {
        made.extend(call.await.expect("a task"));
    }
    made.sort_by_key(|(_, _, (_, at))| *at);
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However calls come and leave, no limit is exceeded, no call is made later than it was promised, and a slot stays
    /// unused only if no call waits for it.
    #[test]
    fn no_slot_is_wasted_and_no_promised_slot_is_missed(
        visits in visits(), costs in any::<bool>(), is_refused in any::<bool>(),
    ) {
        let visits: Vec<Visit> =
            visits.into_iter().map(|(at, leaves, cost)| (at, leaves, if costs { cost } else { 1 })).collect();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        let rule = LeakyBucket::new(RATE, SECOND, 0, None).map(Algorithm::LeakyBucket);
        let (mut start, made) =
            runtime.block_on(async { (Instant::now(), live(rule, is_refused, &visits).await) });
        if is_refused {
            start += Duration::from_millis(100);
        }
        // Timers count in ms.
        let tick = Duration::from_millis(2);
        for (_, _, (promised, at)) in &made {
            prop_assert!(*at <= *promised + tick, "{promised:?} {at:?}");
        }
        for (i, pair) in made.windows(2).enumerate() {
            let [(cost, _, (_, at)), (_, _, (_, next))] = pair else { continue };
            let free = *at + *cost as u32 * SLOT;
            prop_assert!(*next + tick >= free, "too many: {at:?} {next:?}");
            if costs {
                continue;
            }
            // Those that come later than the slot is free, or were about to be made anyway, could not use it.
            let waits = |(_, came, (promised, _)): &&(i64, Instant, Served)| *came <= free && *promised > free;
            // Nor could others use the slot of a call that leaves in the moment at which it was to be made.
            let leaves = |(comes, leaves, _): &Visit| {
                leaves.is_some_and(|after| {
                    let left = start + Duration::from_millis(comes + after);
                    (free - tick..=free + 2 * tick).contains(&left)
                })
            };
            let unused = *next > free + Duration::from_millis(25) && !visits.iter().any(leaves);
            prop_assert!(!unused || made[i + 1..].iter().find(waits).is_none(), "unused: {free:?} {next:?}");
        }
    }
}
