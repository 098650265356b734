//! The crate as a library: processes that share a limiter through Redis.

use crate::support::{Redis, Said, assert_lawful, connected_store, eventually};
use paceway::{
    AcquireError, Limit, Limiter, Rate,
    redis::RedisSettings,
    store::{
        batch::{Batched, StoreMetrics},
        redis::RedisUrl,
    },
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

/// Longer than any call takes; no test is about it.
const LIMIT: Duration = Duration::from_secs(20);

/// 20/s, at most 2 at once, with a connection and a memory of its own, as another process has.
async fn process(redis: &Redis) -> Limiter {
    let url = RedisUrl::parse(&redis.url()).expect("a URL");
    let script = connected_store(&url).await;
    let store = Arc::new(Batched::new(Arc::new(script), LIMIT, StoreMetrics::noop()));
    let rate = Rate { count: 20, period: Duration::from_secs(1) };
    let limiter = Limiter::new(Limit::token_bucket("jobs", rate, 2), store).expect("a rule");
    limiter.max_wait(Duration::from_secs(3))
}

/// One process has callers that wait for up to 2.5 s, the other only such that wait for 50 ms at most. After the loss the
/// second must not grant what the first has promised.
#[tokio::test(flavor = "multi_thread")]
async fn processes_with_short_waits_keep_the_law_when_redis_loses_its_data() {
    let redis = Redis::start();
    let start = Instant::now();
    let (patient, hasty) = (process(&redis).await, process(&redis).await);
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    hasty.try_acquire(1).await.expect("a full bucket");
    arrivals.lock().push(Instant::now());
    let mut callers = JoinSet::new();
    for _ in 0..50 {
        let (patient, arrivals) = (patient.clone(), arrivals.clone());
        callers.spawn(async move {
            patient.acquire(1).await.expect("permits");
            arrivals.lock().push(Instant::now());
        });
    }
    eventually("most of them have a reservation", async || match hasty.try_acquire(1).await {
        Err(AcquireError::Refused { retry_after, .. }) => {
            (retry_after > Duration::from_millis(1500)).then_some(())
        }
        taken => {
            taken.expect("an answer");
            arrivals.lock().push(Instant::now());
            None
        }
    })
    .await;
    assert_eq!(redis.command(&["FLUSHALL"]), Said::Line("OK".into()));
    let mut passed = 0;
    while passed < 5 {
        match hasty.acquire_within(1, Duration::from_millis(50)).await {
            Ok(_) => {
                arrivals.lock().push(Instant::now());
                passed += 1;
            }
            Err(AcquireError::Refused { .. }) => sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    }
    callers.join_all().await;
    let arrivals = arrivals.lock().clone();
    assert!(arrivals.len() >= 56, "{}", arrivals.len());
    assert_lawful(start, &arrivals, 2.0, 20.0);
}

/// `connect` is all that a process needs: two of them share one limit, and a server that refuses them is an error at once.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_connect_and_share_a_limit() {
    let redis = Redis::start();
    // A call without an answer in 50 ms, as on a busy machine, would be decided twice: here, and by the store.
    let settings = RedisSettings::new(&redis.url()).expect("a URL").timeout(Duration::from_secs(5));
    let limiter = async || {
        let store = settings.clone().connect().await.expect("a store");
        let parallel = Limit::concurrency("parallel", 2);
        let daily = Limit::token_bucket("daily", Rate::per_day(3), 3);
        Limiter::all("vendor", [parallel, daily], store).expect("rules")
    };
    let (here, there) = (limiter().await, limiter().await);
    let first = here.try_acquire(1).await.expect("permits");
    let second = there.try_acquire(1).await.expect("permits");
    let refused = async |limiter: &Limiter| match limiter.try_acquire(1).await {
        Err(AcquireError::Refused { limit, .. }) => limit,
        other => panic!("{other:?}"),
    };
    assert_eq!(&*refused(&here).await, "parallel");
    // A released permit wakes a call of the other process.
    let waiting = tokio::spawn({
        let there = there.clone();
        async move { there.acquire(1).await.map(|call| call.waited()) }
    });
    sleep(Duration::from_millis(200)).await;
    drop(first);
    waiting.await.expect("a task").expect("permits");
    assert_eq!(&*refused(&here).await, "daily");
    drop(second);
}

/// One process pauses a limit that its vendor has refused; no call of another one is granted before the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_holds_the_calls_of_all_processes() {
    let redis = Redis::start();
    let settings = RedisSettings::new(&redis.url()).expect("a URL").timeout(Duration::from_secs(5));
    let limiter = async || {
        let store = settings.clone().connect().await.expect("a store");
        let rate = Limit::token_bucket("vendor", Rate::new(1000, Duration::from_secs(1)), 1000);
        Limiter::new(rate, store).expect("a rule")
    };
    let (here, there) = (limiter().await, limiter().await);
    there.try_acquire(1).await.expect("permits");
    let span = Duration::from_secs(2);
    let paused = Instant::now();
    here.pause(span).await.expect("a pause");
    match there.acquire_within(1, span / 4).await {
        Err(AcquireError::Refused { retry_after, .. }) => assert!(retry_after <= span),
        other => panic!("{other:?}"),
    }
    there.acquire(1).await.expect("permits");
    // The clock of Redis ends the pause.
    assert!(paused.elapsed() > span - Duration::from_millis(50), "{:?}", paused.elapsed());
}
