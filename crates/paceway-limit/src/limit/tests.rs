mod move_up;
mod settled;
mod turns;
mod pauses;
mod concurrency;
mod several;
mod rates;
mod responses;

use super::*;
use crate::{
    algorithm::Algorithm,
    memory,
    rate::Rate,
    store::{Check, Checks, Decision, Store, StoreError, memory::MemoryStore},
};
use http::{Request, Response, StatusCode};
use std::{convert::Infallible, sync::Arc};
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, Service, service_fn};

/// A call that may wait until this instant.
struct Patient(Instant);

/// The part that a call needs besides permits: it is there at once, 20 ms before the slot.
struct Ready;

// === impl Patient ===

impl Caller for Patient {
    type Error = &'static str;

    fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    fn refused(&mut self, _: Decision) -> Self::Error {
        "refused"
    }

    fn undecided(&mut self, _: StoreError) -> Self::Error {
        "undecided"
    }
}

// === impl Ready ===

impl Callee for Ready {
    type Ready = ();
    type Error = &'static str;

    fn lead(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn at_hand(&mut self) -> Option<()> {
        Some(())
    }

    async fn ready(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn put_back(&mut self, (): ()) {}
}

fn limiter(count: u64, burst: u32) -> Limiter {
    let rate = Rate { count, period: Duration::from_secs(1) };
    Limiter::new(Limit::token_bucket("test", rate, burst), memory()).expect("a rule")
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
    let limiter = Limiter::new(Limit::token_bucket("slow", rate, 1), memory()).expect("a rule");
    limiter.acquire(1).await.expect("permits");
    let waited = limiter.acquire(1).await.expect("permits");
    assert_eq!(waited.waited(), Duration::from_secs(3 * 3600));
}

#[tokio::test(start_paused = true)]
async fn try_acquire_refuses_at_once_with_retry_after() {
    let limiter = limiter(5, 5);
    limiter.try_acquire(5).await.expect("the burst");
    let started = Instant::now();
    let budget = Duration::from_millis(150);
    let refused = limiter.acquire_within(1, budget).await;
    let retry_after = Duration::from_millis(50);
    let limit = "test".into();
    assert_eq!(refused.unwrap_err(), AcquireError::Refused { limit, retry_after, remaining: 0 });
    assert_eq!(started.elapsed(), Duration::ZERO);
    sleep(retry_after).await;
    assert_eq!(limiter.acquire_within(1, budget).await.unwrap().waited(), budget);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_leaves_its_slot_to_the_next() {
    let limiter = limiter(1, 1);
    limiter.acquire(1).await.expect("permits");
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(1).await }
    });
    sleep(Duration::from_millis(500)).await;
    waiter.abort();
    assert!(waiter.await.expect_err("aborted").is_cancelled());
    assert_eq!(limiter.acquire(1).await.unwrap().waited(), Duration::from_millis(500));
}

#[tokio::test]
async fn more_than_the_burst_is_impossible_not_a_wait_for_ever() {
    let limiter = limiter(5, 5);
    for asked in [6, 0] {
        let impossible = AcquireError::Impossible { limit: "test".into(), asked, most: 5 };
        assert_eq!(limiter.acquire(asked).await.unwrap_err(), impossible);
    }
}

/// A machine that is suspended, say. At 5/s callers may use the slots of the last 100 ms then, and no older ones.
#[tokio::test(start_paused = true)]
async fn callers_that_wake_late_reserve_again() {
    let limiter = limiter(5, 1);
    let callers = (0..20).map(|i| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let taken = match i % 2 {
                0 => limiter.acquire(1).await,
                _ => limiter.acquire_within(1, Duration::from_secs(30)).await,
            };
            taken.map(|_| Instant::now())
        })
    });
    let callers: Vec<_> = callers.collect();
    sleep(Duration::from_millis(10)).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    let mut instants = Vec::new();
    for caller in callers {
        instants.push(caller.await.expect("a task").expect("permits"));
    }
    instants.sort();
    let spans: Vec<_> = instants.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(spans.len(), 19);
    // A slot comes 200 ms after the one before it, and may be used 100 ms late.
    assert!(spans.iter().all(|span| *span >= Duration::from_millis(100)), "{spans:?}");
}

/// After a loss of the store's states a process refuses for as long as any other may hold reservations, whatever waits it
/// has seen itself.
#[tokio::test(start_paused = true)]
async fn the_horizon_after_a_loss_is_the_declared_wait() {
    let second = 1_000_000;
    let limiter = limiter(5, 5);
    let horizon = |limiter: &Limiter| limiter.call().asked().expect("a check").checks[0].horizon;
    assert_eq!(
        horizon(&limiter),
        61 * second,
        "a minute, and the time that the bucket takes to fill"
    );
    let limiter = limiter.max_wait(Duration::from_secs(10));
    assert_eq!(horizon(&limiter), 11 * second);
    limiter.try_acquire(5).await.expect("the burst");
    limiter.acquire_within(5, Duration::from_secs(30)).await.expect("within a second");
    assert_eq!(horizon(&limiter), 11 * second);
    let limiter = limiter.max_wait(Duration::MAX);
    assert_eq!(horizon(&limiter), 3601 * second);
}

#[tokio::test(start_paused = true)]
async fn no_reservation_reaches_further_than_declared() {
    let limiter = limiter(1, 1).max_wait(Duration::from_secs(2));
    limiter.try_acquire(1).await.expect("permits");
    let started = Instant::now();
    // In the order of asking, though only two of them fit into what is reserved ahead.
    let callers: Vec<_> = (0..6)
        .map(|i| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire(1).await.map(|_| (i, Instant::now())) })
        })
        .collect();
    sleep(Duration::from_millis(1)).await;
    let longer = limiter.acquire_within(1, Duration::from_secs(60)).await;
    let Err(AcquireError::Refused { retry_after, .. }) = longer else { panic!("{longer:?}") };
    assert_eq!(retry_after, Duration::from_millis(999));
    for caller in callers {
        let (i, at) = caller.await.expect("a task").expect("permits");
        assert_eq!(at - started, Duration::from_secs(i + 1), "{i}");
    }
}

/// A service that takes its time to become ready, and says when it was asked whether it is.
#[derive(Clone)]
struct Slow {
    takes: Duration,
    asked: Arc<parking_lot::Mutex<Vec<Instant>>>,
    /// When this clone was first asked whether it is ready, until it is.
    begun: Option<Instant>,
    called: Arc<parking_lot::Mutex<Vec<Instant>>>,
}

impl Slow {
    fn new(takes: Duration) -> Self {
        Self { takes, asked: Arc::default(), begun: None, called: Arc::default() }
    }
}

impl Service<Request<()>> for Slow {
    type Response = Response<http_body_util::Full<bytes::Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        let now = Instant::now();
        if self.begun.is_none() {
            self.asked.lock().push(now);
        }
        let ready_at = *self.begun.get_or_insert(now) + self.takes;
        if now >= ready_at {
            return std::task::Poll::Ready(Ok(()));
        }
        let waker = cx.waker().clone();
        tokio::spawn(async move {
            sleep_until(ready_at).await;
            waker.wake();
        });
        std::task::Poll::Pending
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let begun = self.begun.take().expect("it was asked whether it is ready");
        assert!(begun.elapsed() >= self.takes, "it was not ready");
        self.called.lock().push(Instant::now());
        std::future::ready(Ok(Response::new(http_body_util::Full::new(bytes::Bytes::new()))))
    }
}

#[tokio::test(start_paused = true)]
async fn the_layer_makes_the_service_ready_shortly_before_the_slot() {
    let slow = Slow::new(Duration::from_millis(50));
    let rate = Rate { count: 1, period: Duration::from_secs(600) };
    let limiter = Limiter::new(Limit::token_bucket("slow", rate, 1), memory()).expect("a rule");
    let layer = LimitLayer::new(limiter.max_wait(Duration::from_secs(3600)));
    let mut service = layer.max_wait(Duration::from_secs(3600)).layer(slow.clone());
    let ready = std::future::poll_fn(|cx| service.poll_ready(cx));
    tokio::time::timeout(Duration::ZERO, ready).await.expect("always ready").expect("infallible");
    assert_eq!(slow.asked.lock().len(), 0, "the inner service is not asked");
    let started = Instant::now();
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(service.call(Request::new(())))).collect();
    for call in calls {
        let answer = call.await.expect("a task").expect("infallible");
        assert_eq!(answer.status(), StatusCode::OK);
    }
    let since = |instants: &[Instant]| -> Vec<u128> {
        instants.iter().map(|at| (*at - started).as_millis()).collect()
    };
    // Twice the 50 ms that it took for the first.
    assert_eq!(since(&slow.asked.lock()), [0, 599_900, 1_199_900]);
    assert_eq!(since(&slow.called.lock()), [50, 600_000, 1_200_000]);
}

/// A slot that has passed by more than 100 ms is not used; the service that is ready by then is kept for the next.
#[tokio::test(start_paused = true)]
async fn a_request_whose_service_is_ready_late_reserves_again() {
    let slow = Slow::new(Duration::from_millis(300));
    let layer = LimitLayer::new(limiter(1, 1)).max_wait(Duration::from_secs(3));
    let mut service = layer.layer(slow.clone());
    let started = Instant::now();
    let first = service.call(Request::new(())).await.expect("infallible");
    assert_eq!(first.status(), StatusCode::OK);
    // 300 ms: late, asked again, granted at once and ready.
    assert_eq!(started.elapsed(), Duration::from_millis(300));
    assert_eq!(slow.asked.lock().len(), 1);
    assert_eq!(slow.called.lock().len(), 1);
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
async fn the_layer_announces_the_whole_time_beyond_the_longest_wait() {
    let service = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(http_body_util::Full::new(bytes::Bytes::new())))
    });
    let rate = Rate { count: 1, period: Duration::from_secs(86_400) };
    let limiter = Limiter::new(Limit::token_bucket("daily", rate, 1), memory()).expect("a rule");
    let mut service = LimitLayer::new(limiter).layer(service);
    service.call(Request::new(())).await.expect("infallible");
    let refused = service.call(Request::new(())).await.expect("infallible");
    assert_eq!(refused.headers()["retry-after"], "86400");
}
