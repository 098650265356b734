//! Calls that use fewer permits than they reserve while others wait, in virtual time over the memory store.

use super::*;
use crate::{
    algorithm::{
        FixedWindow, LeakyBucket, Micros, SlidingWindow, TokenBucket, WarmUp,
        fair::{Priority, Turn},
    },
    store::{Entry, Pause, Reply, memory::MemoryStore},
};
use rstest::rstest;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const SECOND: Micros = 1_000_000;
/// The scene: 6000 tokens in 10 s, of which each call reserves 1000 and uses 300.
const TOKENS: i64 = 6_000;
const PERIOD: Micros = 10 * SECOND;
const RESERVED: i64 = 1_000;
const USED: i64 = 300;
const LASTS: Duration = Duration::from_secs(40);

/// A vendor of 6000 tokens in 10 s, whose answers may say what remains until its window ends.
struct Vendor {
    tells: bool,
    begins: Instant,
    used: AtomicI64,
}

impl Vendor {
    fn new(tells: bool) -> Arc<Self> {
        Arc::new(Self { tells, begins: Instant::now(), used: AtomicI64::new(0) })
    }

    /// Counts a call, and tells the limiter of the tokens what remains.
    async fn answer(&self, store: &Arc<dyn Store>, tokens: &Check) {
        let since = self.begins.elapsed().as_micros() as Micros;
        let (window, span) = (since / PERIOD, PERIOD - since % PERIOD);
        // The number of the window is ahead of what was used in it.
        let before = self.used.load(Relaxed).max(window << 32);
        let used = before + USED;
        self.used.store(used, Relaxed);
        if self.tells {
            let left = (TOKENS - (used - (window << 32))).max(0);
            store.lower(tokens, left, span).get().await.expect("a level");
        }
    }
}

/// Makes calls one after the other until `end`; each takes 300 ms. Returns their instants and what they used, and the longest
/// wait of one.
async fn make_calls(
    store: Arc<dyn Store>,
    checks: Checks,
    end: Instant,
    vendor: Arc<Vendor>,
) -> (Vec<Instant>, Duration) {
    let (mut made, mut longest) = (Vec::new(), Duration::ZERO);
    while Instant::now() < end {
        let asked = Instant::now();
        let mut caller = Patient(asked + Duration::from_secs(60));
        let (mut reservation, ()) =
            pace(&store, &checks, &mut caller, &mut Ready).await.expect("a slot");
        longest = longest.max(asked.elapsed());
        reservation.spend();
        made.push(Instant::now());
        sleep(Duration::from_millis(300)).await;
        for i in 0..checks.len() {
            let settlement = reservation.settlement(i).filter(|it| it.reserved() == RESERVED);
            if let Some(settlement) = settlement {
                assert_eq!(settlement.settle(USED), Settled::Refunded(RESERVED - USED));
            }
        }
        let tokens = checks.iter().find(|check| check.cost == RESERVED).expect("the tokens");
        vendor.answer(&store, tokens).await;
    }
    (made, longest)
}

/// Twelve callers live through the scene. Returns the instants of their calls in order, since the start.
async fn live(checks: Checks, vendor: Arc<Vendor>, is_refused: bool) -> Vec<Micros> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    if is_refused {
        let tokens = checks.iter().filter(|check| check.cost == RESERVED).cloned().collect();
        store.pause(&tokens, Pause::for_micros(SECOND, 429)).get().await.expect("an answer");
        sleep(Duration::from_secs(1)).await;
    }
    let start = Instant::now();
    let caller = || make_calls(store.clone(), checks.clone(), start + LASTS, vendor.clone());
    let callers: Vec<_> = (0..12).map(|_| tokio::spawn(caller())).collect();
    let mut made = Vec::new();
    for caller in callers {
        made.extend(caller.await.expect("a task").0);
    }
    made.sort();
    made.iter().map(|at| i64::try_from((*at - start).as_micros()).expect("40 s")).collect()
}

/// The most permits that the calls used within any 10 s.
fn most_in_a_window(made: &[Micros]) -> i64 {
    let calls = made.iter().map(|first| {
        made.iter().filter(|at| (*first..*first + PERIOD).contains(*at)).count() as i64
    });
    calls.max().unwrap_or(0) * USED
}

fn rule(name: &str) -> Algorithm {
    let rule = match name {
        "token_bucket" => TokenBucket::new(TOKENS, PERIOD, TOKENS).map(Algorithm::TokenBucket),
        "leaky_bucket" => LeakyBucket::new(TOKENS, PERIOD, 0, None).map(Algorithm::LeakyBucket),
        "sliding_window" => SlidingWindow::new(TOKENS, PERIOD, 0).map(Algorithm::SlidingWindow),
        "fixed_window" => FixedWindow::new(TOKENS, PERIOD).map(Algorithm::FixedWindow),
        _ => WarmUp::new(TOKENS, PERIOD, SECOND, 1.5).map(Algorithm::WarmUp),
    };
    rule.expect("a rule")
}

/// A call is possible when the vendor has 1000 tokens left, which is 17 calls in each 10 s: without the refunds it is 6. That is
/// so as well where the vendor says what remains, or has refused. Only to a `warm_up` limiter no permits come back then.
#[rstest]
#[tokio::test(start_paused = true)]
async fn waiting_calls_move_up_by_unused_permits(
    #[values("token_bucket", "leaky_bucket", "sliding_window", "fixed_window", "warm_up")]
    name: &str,
    #[values("alone", "fair", "two")] how: &str,
    #[values("says nothing", "tells", "has refused")] vendor: &str,
) {
    let tokens = Check::new("{t}:tokens", rule(name)).with_cost(RESERVED);
    let calls = SlidingWindow::new(100, SECOND, 0).map(Algorithm::SlidingWindow).expect("a rule");
    let checks: Checks = match how {
        "fair" => [tokens.with_turn(Turn::new("a", 1, Priority::Normal))].into(),
        "two" => [Check::new("{t}:calls", calls), tokens].into(),
        _ => [tokens].into(),
    };
    let (tells, is_refused) = (vendor == "tells", vendor == "has refused");
    let made = live(checks, Vendor::new(tells), is_refused).await;
    let within = made.iter().filter(|at| **at < 40 * SECOND).count() as i64;
    let [calls, early] = match (name, vendor) {
        ("warm_up", "tells") => [40, 28],
        ("warm_up", "has refused") => [36, 24],
        _ => [72, 60],
    };
    assert!(made.len() as i64 >= calls && within >= early, "{within} of {}: {made:?}", made.len());
    let most = if name == "token_bucket" { 2 * TOKENS } else { TOKENS };
    assert!(name == "fixed_window" || most_in_a_window(&made) <= most, "{made:?}");
}

/// A debt that the present window has no room for takes what is left of it, so that no further call is made in it.
#[rstest]
#[case::sliding_window(SlidingWindow::new(100, PERIOD, 0).map(Algorithm::SlidingWindow))]
#[case::fixed_window(FixedWindow::new(100, PERIOD).map(Algorithm::FixedWindow))]
#[case::token_bucket(TokenBucket::new(100, PERIOD, 100).map(Algorithm::TokenBucket))]
#[tokio::test(start_paused = true)]
async fn a_debt_closes_the_present_window_first(#[case] algorithm: Option<Algorithm>) {
    let store = Arc::new(MemoryStore::default());
    let check = Check::new("a", algorithm.expect("a rule")).with_cost(10);
    let checks = Checks::from([check.clone()]);
    let shared: Arc<dyn Store> = store.clone();
    let mut used = 0;
    while let Ok(Admission::Granted(mut call)) = ask(&shared, &checks, Duration::ZERO).await {
        call.spend();
        assert_eq!(call.settlement(0).expect("its permits").settle(60), Settled::Owed(50));
        used += 60;
    }
    assert_eq!(used, 120, "two calls, and no more");
    let level = store.run_at(store.now(), &[Entry::Look { check }]);
    assert!(matches!(level[..], [Reply::Level(level)] if level.remaining == 0), "{level:?}");
}
