//! The limiter as a `tower::Layer`, for axum and other tower programs: holds a request for its slot, or
//! answers 429 in its place.
//!
//! `LimitService` itself is always ready, as `tower`'s `LoadShed` is. What makes the inner service ready (a connection,
//! a permit of a `ConcurrencyLimit`) is taken for one request, shortly before its slot, and not while it waits.

use super::{AcquireError, Limiter, duration, micros};
use crate::answer::Failure;
use bytes::Bytes;
use http::{Request, Response};
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::time::Instant;
use tower::{Layer, Service};

/// How long before its slot a request makes the inner service ready: twice as long as that took last, within these.
const LEAD: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Puts a [`Limiter`] before a service; each request takes one permit.
#[derive(Debug, Clone)]
pub struct LimitLayer {
    limiter: Limiter,
    max_wait: Duration,
    /// How long the inner service took last to become ready, µs.
    readying: Arc<AtomicI64>,
}

/// A service behind a [`Limiter`].
#[derive(Debug, Clone)]
pub struct LimitService<S> {
    inner: S,
    layer: LimitLayer,
}

// === impl LimitLayer ===

impl LimitLayer {
    /// Refuses what cannot go at once.
    pub fn new(limiter: Limiter) -> Self {
        Self { limiter, max_wait: Duration::ZERO, readying: Arc::default() }
    }

    /// Holds a request up to `max_wait` before it is refused, and no longer than [`Limiter::max_wait`].
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    fn lead(&self) -> Duration {
        (duration(self.readying.load(Relaxed)) * 2).clamp(LEAD.0, LEAD.1)
    }

    /// `service` when it is ready for one call.
    async fn ready<R, S: Service<R>>(&self, mut service: S) -> Result<S, S::Error> {
        let started = Instant::now();
        poll_fn(|cx| service.poll_ready(cx)).await?;
        self.readying.store(micros(started.elapsed()), Relaxed);
        Ok(service)
    }

    fn failure(&self, error: AcquireError) -> Failure {
        match error {
            AcquireError::Refused { retry_after } => Failure::Limited {
                policy: self.limiter.policy.clone(),
                retry_after: i64::try_from(retry_after.as_micros()).unwrap_or(i64::MAX),
                // The layer asks for one permit for each request: none is left.
                remaining: 0,
            },
            AcquireError::Store(error) => Failure::Store(error),
            AcquireError::Impossible { .. } => {
                Failure::BadRequest("the limiter gives no permits".into())
            }
        }
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> LimitService<S> {
        LimitService { inner, layer: self.clone() }
    }
}

// === impl LimitService ===

impl<S, B, R> Service<Request<B>> for LimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<Bytes>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    /// Always ready: whether the inner service is ready is asked for each request, shortly before its slot.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, layer) = (self.inner.clone(), self.layer.clone());
        Box::pin(async move {
            let limiter = &layer.limiter;
            let started = Instant::now();
            let refused = |error| Ok(layer.failure(error).response().map(R::from));
            let checks = match limiter.checks(1) {
                Ok(checks) => checks,
                Err(error) => return refused(error),
            };
            let mut at_hand = None;
            loop {
                let budget = layer.max_wait.min(limiter.max_wait);
                let left = budget.saturating_sub(started.elapsed());
                let mut slot = match limiter.reserve(&checks, left).await {
                    Ok(slot) => slot,
                    Err(error) => return refused(error),
                };
                // A ready service is not kept from other requests for longer than the longest lead.
                let kept = at_hand.take().filter(|_| slot.wait <= LEAD.1);
                slot.near(LEAD.1).await;
                slot.near(layer.lead()).await;
                let mut service = match kept {
                    Some(service) => service,
                    None => layer.ready(inner.clone()).await?,
                };
                slot.come().await;
                if !slot.is_late() {
                    slot.spend();
                    return service.call(request).await;
                }
                // The inner service took too long, or the task woke too late: the slot goes back with its drop.
                at_hand = Some(service);
            }
        })
    }
}
