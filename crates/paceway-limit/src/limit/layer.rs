//! The limiter as a `tower::Layer`, for axum and other tower programs: it holds a request until it may be made, or answers
//! 429 in its place. All that it does for a request is [`pace`], in a box.
//!
//! `LimitService` itself is always ready, as `tower`'s `LoadShed` is. Readiness of the inner service (a connection, a
//! permit of a `ConcurrencyLimit`) is taken for one request, shortly before its instant, and not while the request waits.

use super::{
    duration,
    limiter::{AcquireError, Attempt, Limiter},
    micros,
    service::{Callee, LEAST_LEAD, MOST_LEAD, pace},
};
use crate::answer::Failure;
use bytes::Bytes;
use http::{Request, Response};
use std::{
    future::{Future, poll_fn},
    marker::PhantomData,
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

/// Puts a [`Limiter`] in front of a service; each request takes one permit.
#[derive(Debug, Clone)]
pub struct LimitLayer {
    limiter: Limiter,
    max_wait: Duration,
    /// The time that the inner service took last to become ready, in µs.
    readying: Arc<AtomicI64>,
}

/// A service whose requests wait for a [`Limiter`]. [`LimitLayer`] makes it.
#[derive(Debug, Clone)]
pub struct LimitService<S> {
    inner: S,
    layer: LimitLayer,
}

/// The inner service as a call sees it: cloned for the call, and made ready shortly before its instant.
struct Inner<'a, S, R> {
    service: S,
    layer: &'a LimitLayer,
    /// A clone that is ready and was not used, because the call was late.
    kept: Option<S>,
    request: PhantomData<fn(R)>,
}

/// Why a request did not reach the inner service.
enum Unmade<E> {
    Limited(AcquireError),
    Unready(E),
}

// === impl LimitLayer ===

impl LimitLayer {
    /// A layer that refuses each request for which no permit is free at once, until [`max_wait`](Self::max_wait) says
    /// otherwise.
    pub fn new(limiter: Limiter) -> Self {
        Self { limiter, max_wait: Duration::ZERO, readying: Arc::default() }
    }

    /// Holds a request up to `max_wait` before it is refused, and no longer than [`Limiter::max_wait`].
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
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

impl<S: Clone + Send> LimitService<S> {
    /// Holds `request` and calls the inner service with it.
    async fn paced<R>(self, request: R) -> Result<S::Response, Unmade<S::Error>>
    where
        S: Service<R>,
    {
        let Self { inner, layer } = self;
        let limiter = &layer.limiter;
        let checks = limiter.checks(1).map_err(Unmade::Limited)?;
        let mut attempt = Attempt::within(layer.max_wait.min(limiter.max_wait));
        let mut inner = Inner { service: inner, layer: &layer, kept: None, request: PhantomData };
        let paced = pace(&limiter.store, &checks, &mut attempt, &mut inner).await;
        let (mut reservation, mut service) = paced?;
        reservation.spend();
        service.call(request).await.map_err(Unmade::Unready)
    }
}

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

    /// Always ready: whether the inner service is ready is asked for each request, shortly before its instant.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        let layer = self.layer.clone();
        Box::pin(async move {
            match service.paced(request).await {
                Ok(response) => Ok(response),
                Err(Unmade::Limited(error)) => Ok(layer.failure(error).response().map(R::from)),
                Err(Unmade::Unready(error)) => Err(error),
            }
        })
    }
}

// === impl Inner ===

impl<S: Service<R> + Clone + Send, R> Callee for Inner<'_, S, R> {
    type Ready = S;
    type Error = Unmade<S::Error>;

    fn lead(&self) -> Duration {
        (duration(self.layer.readying.load(Relaxed)) * 2).clamp(LEAST_LEAD, MOST_LEAD)
    }

    fn at_hand(&mut self) -> Option<S> {
        self.kept.take()
    }

    async fn ready(&mut self) -> Result<S, Unmade<S::Error>> {
        if let Some(service) = self.kept.take() {
            return Ok(service);
        }
        let mut service = self.service.clone();
        let started = Instant::now();
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(Unmade::Unready)?;
        self.layer.readying.store(micros(started.elapsed()), Relaxed);
        Ok(service)
    }

    fn put_back(&mut self, service: S) {
        self.kept = Some(service);
    }

    /// A ready service is not kept from other requests for longer than the longest lead.
    fn waits(&mut self, time: Option<Duration>) {
        if time.is_none_or(|time| time > MOST_LEAD) {
            self.kept = None;
        }
    }
}

impl<E> From<AcquireError> for Unmade<E> {
    fn from(error: AcquireError) -> Self {
        Self::Limited(error)
    }
}
