mod places;

use super::*;
use crate::store::memory::MemoryStore;
use http::{Request, Response, StatusCode};
use std::convert::Infallible;
use tower::{Layer, Service, service_fn};

fn limiter(count: u64, burst: u32) -> Limiter {
    let rate = Rate { count, period: Duration::from_secs(1) };
    Limiter::token_bucket("test", rate, burst, Arc::new(MemoryStore::default())).expect("a rule")
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_exactly_as_long_as_needed() {
    let limiter = limiter(5, 2);
    let mut waits = Vec::new();
    let started = Instant::now();
    for _ in 0..4 {
        limiter.acquire(1).await.expect("permits");
        waits.push(started.elapsed().as_millis());
    }
    assert_eq!(waits, [0, 0, 200, 400]);
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_longer_than_any_reservation_reaches() {
    let rate = Rate { count: 1, period: Duration::from_secs(3 * 3600) };
    let store = Arc::new(MemoryStore::default());
    let limiter = Limiter::token_bucket("slow", rate, 1, store).expect("a rule");
    limiter.acquire(1).await.expect("permits");
    let waited = limiter.acquire(1).await.expect("permits");
    assert_eq!(waited, Duration::from_secs(3 * 3600));
}

#[tokio::test(start_paused = true)]
async fn try_acquire_refuses_at_once_and_says_when_to_come_back() {
    let limiter = limiter(5, 5);
    limiter.try_acquire(5, Duration::ZERO).await.expect("the burst");
    let started = Instant::now();
    let budget = Duration::from_millis(150);
    let refused = limiter.try_acquire(1, budget).await;
    let retry_after = Duration::from_millis(50);
    assert_eq!(refused, Err(AcquireError::Refused { retry_after }));
    assert_eq!(started.elapsed(), Duration::ZERO);
    sleep(retry_after).await;
    assert_eq!(limiter.try_acquire(1, budget).await, Ok(budget));
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_gives_the_slot_to_the_next() {
    let limiter = limiter(1, 1);
    limiter.acquire(1).await.expect("permits");
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await }
    });
    sleep(Duration::from_millis(500)).await;
    waiter.abort();
    assert!(waiter.await.expect_err("aborted").is_cancelled());
    assert_eq!(limiter.acquire(1).await, Ok(Duration::from_millis(500)));
}

#[tokio::test]
async fn more_than_the_burst_is_impossible_not_a_wait_for_ever() {
    let limiter = limiter(5, 5);
    assert_eq!(limiter.acquire(6).await, Err(AcquireError::Impossible { asked: 6, most: 5 }));
    assert_eq!(limiter.acquire(0).await, Err(AcquireError::Impossible { asked: 0, most: 5 }));
}

#[tokio::test(start_paused = true)]
async fn the_layer_holds_or_answers_429_in_place_of_the_service() {
    let service = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(http_body_util::Full::new(bytes::Bytes::new())))
    });
    let layer = LimitLayer::new(limiter(5, 1)).max_wait(Duration::from_millis(200));
    let mut service = layer.layer(service);
    let (first, second, third) = (
        service.call(Request::new(())),
        service.call(Request::new(())),
        service.call(Request::new(())),
    );
    let started = Instant::now();
    let (first, second, third) = tokio::join!(first, second, third);
    assert_eq!(started.elapsed(), Duration::from_millis(200));
    assert_eq!(first.expect("infallible").status(), StatusCode::OK);
    assert_eq!(second.expect("infallible").status(), StatusCode::OK);
    let refused = third.expect("infallible");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(refused.headers()["ratelimit-policy"], "\"test\";q=5;w=1");
}

#[tokio::test(start_paused = true)]
async fn the_layer_says_the_whole_time_also_beyond_the_longest_wait() {
    let service = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(http_body_util::Full::new(bytes::Bytes::new())))
    });
    let rate = Rate { count: 1, period: Duration::from_secs(86_400) };
    let store = Arc::new(MemoryStore::default());
    let limiter = Limiter::token_bucket("daily", rate, 1, store).expect("a rule");
    let mut service = LimitLayer::new(limiter).layer(service);
    service.call(Request::new(())).await.expect("infallible");
    let refused = service.call(Request::new(())).await.expect("infallible");
    assert_eq!(refused.headers()["retry-after"], "86400");
}
