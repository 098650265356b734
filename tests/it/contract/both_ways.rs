//! The promises of a limiter, as a call and as a layer.

use super::LIMIT;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use paceway::{
    AcquireError, Limit, LimitLayer, Limiter, Rate,
    store::{Store, StoreAdmin},
};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::Instant;
use tower::{Layer, Service, service_fn};

/// One permit of a limiter, as a call or for a request through the layer. Both are the same loop, so the same must hold.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Call,
    Layer,
}

impl Way {
    /// Takes one permit within `budget`; the error is the time after which to come back.
    pub(super) async fn take(self, limiter: &Limiter, budget: Duration) -> Result<(), Duration> {
        match self {
            Self::Call => match limiter.acquire_within(1, budget).await {
                Ok(_) => Ok(()),
                Err(AcquireError::Refused { retry_after, .. }) => Err(retry_after),
                Err(error) => panic!("{error}"),
            },
            Self::Layer => {
                let service = service_fn(async |_: Request<()>| {
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
                });
                let mut service = LimitLayer::new(limiter.clone()).max_wait(budget).layer(service);
                let response = service.call(Request::new(())).await.expect("infallible");
                let Some(seconds) = response.headers().get("retry-after") else { return Ok(()) };
                let seconds = seconds.to_str().expect("text").parse().expect("a number");
                Err(Duration::from_secs(seconds))
            }
        }
    }
}

fn limiter(store: Arc<dyn Store>, count: u64, seconds: u64, burst: u32) -> Limiter {
    let rate = Rate { count, period: Duration::from_secs(seconds) };
    Limiter::new(Limit::token_bucket("contract", rate, burst), store).expect("a rule")
}

pub(super) async fn a_lone_caller_passes_at_the_announced_instant(
    store: Arc<dyn StoreAdmin>,
    way: Way,
) {
    let limiter = limiter(store, 20, 1, 1);
    way.take(&limiter, Duration::ZERO).await.expect("a full bucket");
    let mut refused = 0;
    while let Err(retry_after) = way.take(&limiter, Duration::ZERO).await {
        tokio::time::sleep(retry_after).await;
        refused += 1;
        assert!(refused <= 1, "came back and was refused again");
    }
}

pub(super) async fn callers_at_once_take_exactly_the_burst(store: Arc<dyn StoreAdmin>, way: Way) {
    let limiter = limiter(store, 1, 3600, 10);
    let takes = (0..50).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { way.take(&limiter, Duration::ZERO).await.is_ok() })
    });
    let mut taken = 0;
    for take in takes.collect::<Vec<_>>() {
        taken += u32::from(take.await.expect("a task"));
    }
    assert_eq!(taken, 10);
}

pub(super) async fn waiting_callers_pass_no_faster_than_the_rate(
    store: Arc<dyn StoreAdmin>,
    way: Way,
) {
    let limiter = limiter(store, 20, 1, 1);
    let started = Instant::now();
    let takes = (0..11).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { way.take(&limiter, LIMIT).await })
    });
    for take in takes.collect::<Vec<_>>() {
        take.await.expect("a task").expect("time enough");
    }
    // Ten intervals of 50 ms; two clocks may differ by some ms.
    assert!(started.elapsed() >= Duration::from_millis(490), "{:?}", started.elapsed());
}

pub(super) async fn a_cancelled_waiting_caller_is_refunded(store: Arc<dyn StoreAdmin>, way: Way) {
    let limiter = limiter(store.clone(), 1, 600, 1);
    way.take(&limiter, Duration::ZERO).await.expect("a full bucket");
    let longest = Duration::from_secs(50 * 60);
    let limiter = limiter.max_wait(longest);
    let waiting = tokio::time::timeout(Duration::from_millis(300), way.take(&limiter, longest));
    waiting.await.expect_err("it waits for ten minutes");
    store.flush().await;
    // Without the refund the next instant would be twice as far away.
    let retry_after = way.take(&limiter, Duration::ZERO).await.expect_err("taken");
    assert!(retry_after <= Duration::from_secs(600), "{retry_after:?}");
}
