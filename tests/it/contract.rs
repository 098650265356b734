//! The promises of a store, on every store, and those of a limiter over it, as a call and as a layer.

mod both_ways;
#[path = "../../crates/paceway-limit/examples/own_store.rs"]
#[allow(dead_code, reason = "its `main` runs as an example")]
mod own_store;

use crate::support::{Authority, Cluster, Redis, connected_store};
use both_ways::{
    Way, a_cancelled_waiting_caller_is_refunded, a_lone_caller_passes_at_the_announced_instant,
    callers_at_once_take_exactly_the_burst, waiting_callers_pass_no_faster_than_the_rate,
};
use own_store::OwnStore;
use paceway::{
    algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket},
    store::{
        Backend, Check, Checks, Decision, NoteChange, ScanPlace, Source, StoreAdmin, StoreError,
        batch::{Batched, StoreMetrics},
        memory::MemoryStore,
        redis::RedisUrl,
    },
    tls::client::ClientTls,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// Long enough for any machine; no test is about it.
const LIMIT: Duration = Duration::from_secs(20);
const HOUR: i64 = 3_600_000_000;

fn check(key: &str, count: i64, period: i64, burst: i64) -> Check {
    let rule = TokenBucket::new(count, period, burst).expect("a rule");
    let algorithm = Algorithm::TokenBucket(rule);
    Check::new(key, algorithm)
}

async fn decide(store: &Arc<dyn StoreAdmin>, checks: &Checks, budget: i64) -> Decision {
    store.reserve(checks, budget, None).get().await.expect("a decision")
}

async fn remaining(store: &Arc<dyn StoreAdmin>, check: &Check) -> i64 {
    store.look(check).get().await.expect("a level").remaining
}

async fn admits_exactly_the_burst_under_contention(store: Arc<dyn StoreAdmin>) {
    let checks: Checks = Arc::new([check("{t}:burst", 1, HOUR, 50)]);
    let asks = (0..200).map(|_| {
        let (store, checks) = (store.clone(), checks.clone());
        tokio::spawn(async move { decide(&store, &checks, 0).await.admitted })
    });
    let mut admitted = 0;
    for ask in asks.collect::<Vec<_>>() {
        admitted += u32::from(ask.await.expect("task"));
    }
    assert_eq!(admitted, 50);
}

async fn a_refusal_charges_no_limiter(store: Arc<dyn StoreAdmin>) {
    let (small, large) = (check("{t}:small", 1, HOUR, 2), check("{t}:large", 1, HOUR, 9));
    let both: Checks = Arc::new([large.clone(), small.clone()]);
    for admitted in [true, true, false, false] {
        let decision = decide(&store, &both, 0).await;
        assert_eq!((decision.admitted, decision.bound_by), (admitted, 1));
    }
    assert_eq!((remaining(&store, &small).await, remaining(&store, &large).await), (0, 7));
}

/// An upstream may know of calls that no gateway made; it never knows of permits that the limiter does not have.
async fn a_level_can_be_lowered_and_never_raised(store: Arc<dyn StoreAdmin>) {
    let check = check("{t}:lower", 1, HOUR, 50);
    for (told, expected) in [(60, 50), (10, 10), (20, 10), (-1, 0)] {
        let level = store.lower(&check, told, 0).get().await.expect("a level");
        assert_eq!((level.remaining, remaining(&store, &check).await), (expected, expected));
    }
    assert!(!decide(&store, &[check].into(), 0).await.admitted);
}

async fn slots_are_granted_in_the_order_of_requests(store: Arc<dyn StoreAdmin>) {
    let checks: Checks = Arc::new([check("{t}:order", 1, HOUR / 100, 1)]);
    let mut last = -1;
    for _ in 0..20 {
        let decision = decide(&store, &checks, HOUR).await;
        assert!(decision.wait > last, "{decision:?} after {last}");
        last = decision.wait;
    }
}

async fn the_next_request_gets_a_refunded_permit(store: Arc<dyn StoreAdmin>) {
    let checks: Checks = Arc::new([check("{t}:gift", 1, HOUR / 100, 1)]);
    let grants = [
        decide(&store, &checks, HOUR).await,
        decide(&store, &checks, HOUR).await,
        decide(&store, &checks, HOUR).await,
    ];
    store.refund(Source::Shared, &checks, &grants[1].parts);
    store.flush().await;
    let next = decide(&store, &checks, HOUR).await;
    assert_eq!(next.parts[0].grant, grants[1].parts[0].grant);
    assert!(decide(&store, &checks, HOUR).await.wait > grants[2].wait);
}

/// Every rate, because each keeps its permits in a way of its own.
async fn a_request_that_cost_less_returns_the_rest_once(store: Arc<dyn StoreAdmin>) {
    let rules = [
        Algorithm::TokenBucket(TokenBucket::new(10, HOUR, 10).expect("a rule")),
        Algorithm::SlidingWindow(SlidingWindow::new(10, HOUR, 0).expect("a rule")),
        Algorithm::FixedWindow(FixedWindow::new(10, 366 * 24 * HOUR).expect("a rule")),
        CalendarWindow::new(10, [0, 1, 2].map(|year| year * 366 * 24 * HOUR))
            .expect("a rule")
            .into(),
    ];
    for rule in rules {
        let check = Check::new(format!("{{t}}:{}:settled", rule.facts().letter), rule);
        let reserve: Checks = Arc::new([check.clone().with_cost(6)]);
        let granted = decide(&store, &reserve, 0).await;
        assert_eq!(remaining(&store, &check).await, 4, "{}", rule.facts().name);
        store.settle(Source::Shared, &reserve[0], granted.parts[0], 2);
        store.flush().await;
        assert_eq!(remaining(&store, &check).await, 8, "{}", rule.facts().name);
        let all: Checks = Arc::new([check.clone().with_cost(8)]);
        assert!(decide(&store, &all, 0).await.admitted, "{}", rule.facts().name);
        assert!(!decide(&store, &Checks::from([check]), 0).await.admitted, "{}", rule.facts().name);
    }
}

async fn a_request_that_cost_more_delays_the_next(store: Arc<dyn StoreAdmin>) {
    let check = check("{t}:debt", 10, HOUR / 100, 10);
    let one: Checks = Arc::new([check.clone()]);
    let granted = decide(&store, &one, 0).await;
    // 33 permits in pieces of 10: 23 of them are of the next 2.3 periods.
    store.settle(Source::Shared, &check, granted.parts[0], 33);
    store.flush().await;
    let wait = decide(&store, &one, HOUR).await.wait;
    let period = HOUR / 100;
    assert!((period * 22 / 10..=period * 24 / 10).contains(&wait), "{wait}");
}

async fn an_observing_limiter_counts_and_refuses_no_request(store: Arc<dyn StoreAdmin>) {
    let observing = Check { enforce: false, ..check("{t}:observing", 1, HOUR, 1) };
    let checks: Checks = Arc::new([check("{t}:strict", 1, HOUR, 9), observing.clone()]);
    let would = [decide(&store, &checks, 0).await, decide(&store, &checks, 0).await];
    assert!(would.iter().all(|decision| decision.admitted));
    assert_eq!(would.map(|decision| decision.parts[1].at), [0, -1]);
    assert_eq!(remaining(&store, &observing).await, 0);
}

async fn a_peek_changes_no_state(store: Arc<dyn StoreAdmin>) {
    let check = check("{t}:look", 1, HOUR, 3);
    for _ in 0..5 {
        assert_eq!(remaining(&store, &check).await, 3);
    }
}

/// The clock of a store is its own, and a text is replaced only by a writer that knows it.
async fn a_shared_text_changes_only_for_a_writer_that_knows_it(store: Arc<dyn StoreAdmin>) {
    let key: Arc<str> = "paceway:text".into();
    let put = |expected: Option<&str>, text: &str| {
        let change = NoteChange { expected: expected.map(Arc::from), text: text.into() };
        let exchanged = store.exchange(key.clone(), Some(change));
        async move { exchanged.await.expect("an answer").text.expect("a text").to_string() }
    };
    let before = store.exchange(key.clone(), None).await.expect("an answer");
    assert_eq!(before.text, None);
    assert_eq!(put(None, "one").await, "one");
    assert_eq!(put(None, "two").await, "one", "the writer knew of none");
    // A text that did not change since the last reading is read as well.
    for _ in 0..3 {
        let read = store.exchange(key.clone(), None).await.expect("an answer");
        assert_eq!(read.text.as_deref(), Some("one"));
        assert!(read.now >= before.now);
    }
    assert_eq!(put(Some("one"), "one").await, "one");
    let long = "x".repeat(100_000);
    assert_eq!(put(Some("one"), &long).await, long);
    assert_eq!(put(Some("one"), "three").await, long);
    assert_eq!(put(Some(&long), "four").await, "four");
}

/// Each state is found once at least, and one that was forgotten is not.
async fn the_names_of_states_are_listed_in_steps(store: Arc<dyn StoreAdmin>) {
    let keyed = |name: &str, i: u32| {
        let check = check(&format!("paceway:{{{name}.{:02}}}:T:{name}:{i}", i % 64), 1, HOUR, 1);
        Check { overflow: Some(format!("paceway:{{{name}}}:T:{name}:#overflow").into()), ..check }
    };
    for i in 0..300 {
        decide(&store, &[keyed("mine", i)].into(), 0).await;
        decide(&store, &[keyed("other", i)].into(), 0).await;
    }
    let names = async || {
        let (mut found, mut place) = (BTreeSet::new(), Some(ScanPlace::default()));
        while let Some(at) = place {
            let step = store.scan("paceway:{mine".into(), at).await.expect("a step");
            // The epochs of a Cluster have the tags of the states.
            let states = step.names.iter().filter(|name| name.contains(":T:mine:"));
            found.extend(states.map(ToString::to_string));
            place = step.next;
        }
        found
    };
    let all: BTreeSet<_> = (0..300).map(|i| keyed("mine", i).key.to_string()).collect();
    assert_eq!(names().await, all);
    for i in 1..300 {
        assert!(store.forget(&keyed("mine", i)).get().await.expect("an answer"));
    }
    assert_eq!(names().await, BTreeSet::from([keyed("mine", 0).key.to_string()]));
}

macro_rules! contract {
    ([$($test:ident),* $(,)?], both ways: [$($way:ident),* $(,)?]) => {
        mod memory {
            $(#[tokio::test] async fn $test() {
                super::$test(std::sync::Arc::new(super::MemoryStore::default())).await;
            })*
            $(
                #[rstest::rstest]
                #[case::call(crate::contract::Way::Call)]
                #[case::layer(crate::contract::Way::Layer)]
                #[tokio::test]
                async fn $way(#[case] way: super::Way) {
                    super::$way(std::sync::Arc::new(super::MemoryStore::default()), way).await;
                }
            )*
        }
        mod own {
            $(#[tokio::test] async fn $test() {
                super::$test(super::over(super::OwnStore::default())).await;
            })*
            $(
                #[rstest::rstest]
                #[case::call(crate::contract::Way::Call)]
                #[case::layer(crate::contract::Way::Layer)]
                #[tokio::test]
                async fn $way(#[case] way: super::Way) {
                    super::$way(super::over(super::OwnStore::default()), way).await;
                }
            )*
        }
        mod redis {
            $(#[tokio::test] async fn $test() {
                let redis = super::Redis::that_is_heard();
                super::$test(super::shared(&redis).await).await;
            })*
            $(
                #[rstest::rstest]
                #[case::call(crate::contract::Way::Call)]
                #[case::layer(crate::contract::Way::Layer)]
                #[tokio::test]
                async fn $way(#[case] way: super::Way) {
                    let redis = super::Redis::that_is_heard();
                    super::$way(super::shared(&redis).await, way).await;
                }
            )*
        }
        mod script {
            $(#[tokio::test] async fn $test() {
                let redis = super::Redis::that_is_heard();
                let url = super::RedisUrl::parse(&redis.url()).expect("a URL");
                super::$test(super::store(&url.without_functions()).await).await;
                assert_eq!(redis.calls_of("fcall"), 0);
            })*
        }
        mod tls {
            $(#[tokio::test] async fn $test() {
                let authority = super::Authority::new();
                let (_redis, port) = authority.redis("no");
                let url = super::RedisUrl::parse(&format!("rediss://localhost:{port}"));
                let ca = Some(authority.file().into());
                let tls = super::ClientTls { ca, ..super::ClientTls::default() };
                super::$test(super::store(&url.expect("a URL").with_tls(tls)).await).await;
            })*
        }
        mod cluster {
            $(#[tokio::test] async fn $test() {
                let cluster = super::Cluster::start(3, 0).await;
                let url = super::RedisUrl::parse(&cluster.url()).expect("a URL");
                super::$test(super::store(&url).await).await;
            })*
            $(
                #[rstest::rstest]
                #[case::call(crate::contract::Way::Call)]
                #[case::layer(crate::contract::Way::Layer)]
                #[tokio::test]
                async fn $way(#[case] way: super::Way) {
                    let cluster = super::Cluster::start(3, 0).await;
                    let url = super::RedisUrl::parse(&cluster.url()).expect("a URL");
                    super::$way(super::store(&url).await, way).await;
                }
            )*
        }
    };
}
contract!(
    [
        admits_exactly_the_burst_under_contention,
        a_refusal_charges_no_limiter,
        a_level_can_be_lowered_and_never_raised,
        slots_are_granted_in_the_order_of_requests,
        the_next_request_gets_a_refunded_permit,
        a_request_that_cost_less_returns_the_rest_once,
        a_request_that_cost_more_delays_the_next,
        an_observing_limiter_counts_and_refuses_no_request,
        a_peek_changes_no_state,
        the_names_of_states_are_listed_in_steps,
        a_shared_text_changes_only_for_a_writer_that_knows_it,
    ],
    both ways: [
        a_lone_caller_passes_at_the_announced_instant,
        callers_at_once_take_exactly_the_burst,
        waiting_callers_pass_no_faster_than_the_rate,
        a_cancelled_waiting_caller_is_refunded,
    ]
);

async fn shared(redis: &Redis) -> Arc<dyn StoreAdmin> {
    store(&RedisUrl::parse(&redis.url()).expect("a URL")).await
}

pub(crate) async fn store(url: &RedisUrl) -> Arc<dyn StoreAdmin> {
    let script = connected_store(url).await;
    over(script)
}

fn over(backend: impl Backend + 'static) -> Arc<dyn StoreAdmin> {
    Arc::new(Batched::new(Arc::new(backend), LIMIT, StoreMetrics::noop()))
}

#[tokio::test]
async fn a_foreign_value_is_an_error_of_its_key_only() {
    let redis = Redis::that_is_heard();
    let store = shared(&redis).await;
    redis.command(&["SET", "{t}:garbage", "not ours"]);
    redis.command(&["LPUSH", "{t}:list", "a"]);
    for key in ["{t}:garbage", "{t}:list"] {
        let foreign: Checks = Arc::new([check(key, 1, HOUR, 3)]);
        let error = store.reserve(&foreign, 0, None).get().await.expect_err("foreign");
        assert_eq!(error, StoreError::Foreign(key.into()));
        let both: Checks = Arc::new([check("{t}:good", 1, HOUR, 3), foreign[0].clone()]);
        store.reserve(&both, 0, None).get().await.expect_err("foreign");
    }
    let good = check("{t}:good", 1, HOUR, 3);
    assert_eq!(remaining(&store, &good).await, 3, "not charged for what failed");
    let good: Checks = Arc::new([good]);
    assert!(decide(&store, &good, 0).await.admitted);
    assert_eq!(redis.bytes("{t}:garbage"), b"not ours");
}

#[tokio::test]
async fn a_flushed_library_is_loaded_again_and_changes_nothing() {
    let redis = Redis::that_is_heard();
    let store = shared(&redis).await;
    let checks: Checks = Arc::new([check("{t}:flush", 1, HOUR, 3)]);
    let mut admitted = Vec::new();
    for _ in 0..5 {
        admitted.push(decide(&store, &checks, 0).await.admitted);
        redis.command(&["FUNCTION", "FLUSH"]);
    }
    assert_eq!(admitted, [true, true, true, false, false]);
}
