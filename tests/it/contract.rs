//! The promises of a store, checked on every store.

use crate::support::{Authority, Cluster, Redis};
use paceway::{
    AcquireError, Limiter, Rate,
    algorithm::{Algorithm, TokenBucket},
    store::{
        Check, Checks, Decision, Source, StoreAdmin, StoreError,
        batch::{Batched, StoreMetrics},
        memory::MemoryStore,
        redis::{Epochs, RedisStore, RedisUrl},
    },
    tls::client::ClientTls,
};
use std::{sync::Arc, time::Duration};

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

async fn slots_are_in_the_order_of_asking(store: Arc<dyn StoreAdmin>) {
    let checks: Checks = Arc::new([check("{t}:order", 1, HOUR / 100, 1)]);
    let mut last = -1;
    for _ in 0..20 {
        let decision = decide(&store, &checks, HOUR).await;
        assert!(decision.wait > last, "{decision:?} after {last}");
        last = decision.wait;
    }
}

async fn what_is_given_back_goes_to_the_next(store: Arc<dyn StoreAdmin>) {
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

async fn an_observing_limiter_counts_and_refuses_nobody(store: Arc<dyn StoreAdmin>) {
    let observing = Check { enforce: false, ..check("{t}:observing", 1, HOUR, 1) };
    let checks: Checks = Arc::new([check("{t}:strict", 1, HOUR, 9), observing.clone()]);
    let would = [decide(&store, &checks, 0).await, decide(&store, &checks, 0).await];
    assert!(would.iter().all(|decision| decision.admitted));
    assert_eq!(would.map(|decision| decision.parts[1].at), [0, -1]);
    assert_eq!(remaining(&store, &observing).await, 0);
}

async fn a_lone_caller_who_comes_back_in_time_passes(store: Arc<dyn StoreAdmin>) {
    let rate = Rate { count: 20, period: Duration::from_secs(1) };
    let limiter = Limiter::token_bucket("lone", rate, 1, store).expect("a rule");
    limiter.try_acquire(1, Duration::ZERO).await.expect("a full bucket");
    let mut refused = 0;
    while let Err(error) = limiter.try_acquire(1, Duration::ZERO).await {
        let AcquireError::Refused { retry_after } = error else { panic!("{error}") };
        tokio::time::sleep(retry_after).await;
        refused += 1;
        assert!(refused <= 1, "came back and was refused again");
    }
}

async fn looking_changes_nothing(store: Arc<dyn StoreAdmin>) {
    let check = check("{t}:look", 1, HOUR, 3);
    for _ in 0..5 {
        assert_eq!(remaining(&store, &check).await, 3);
    }
}

macro_rules! contract {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $test() {
                super::$test(std::sync::Arc::new(super::MemoryStore::default())).await;
            })*
        }
        mod redis {
            $(#[tokio::test] async fn $test() {
                let redis = super::Redis::that_is_heard();
                super::$test(super::shared(&redis).await).await;
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
        }
    };
}
contract!(
    admits_exactly_the_burst_under_contention,
    a_refusal_charges_no_limiter,
    slots_are_in_the_order_of_asking,
    what_is_given_back_goes_to_the_next,
    an_observing_limiter_counts_and_refuses_nobody,
    a_lone_caller_who_comes_back_in_time_passes,
    looking_changes_nothing,
);

async fn shared(redis: &Redis) -> Arc<dyn StoreAdmin> {
    store(&RedisUrl::parse(&redis.url()).expect("a URL")).await
}

async fn store(url: &RedisUrl) -> Arc<dyn StoreAdmin> {
    let script =
        RedisStore::open(url, &Epochs::new("paceway", metrics::Counter::noop())).expect("a store");
    script.connected(LIMIT).await.expect("a connection");
    Arc::new(Batched::new(Arc::new(script), LIMIT, StoreMetrics::noop()))
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
async fn a_flushed_script_is_loaded_again_and_changes_nothing() {
    let redis = Redis::that_is_heard();
    let store = shared(&redis).await;
    let checks: Checks = Arc::new([check("{t}:flush", 1, HOUR, 3)]);
    let mut admitted = Vec::new();
    for _ in 0..5 {
        admitted.push(decide(&store, &checks, 0).await.admitted);
        redis.command(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(admitted, [true, true, true, false, false]);
}
