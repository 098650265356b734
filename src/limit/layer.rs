//! The limiter as a `tower::Layer`, for axum and other tower programs: holds a request for its slot, or
//! answers 429 in its place.

use super::{AcquireError, Limiter};
use crate::answer::Failure;
use bytes::Bytes;
use http::{Request, Response};
use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service};

/// Puts a [`Limiter`] before a service; each request takes one permit.
#[derive(Debug, Clone)]
pub struct LimitLayer {
    limiter: Limiter,
    max_wait: Duration,
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
        Self { limiter, max_wait: Duration::ZERO }
    }

    /// Holds a request up to `max_wait` (at most an hour) before it is refused.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
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

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled ready is the one to call; a fresh clone stays behind.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move {
            match layer.limiter.try_acquire(1, layer.max_wait).await {
                Ok(_) => inner.call(request).await,
                Err(error) => Ok(layer.failure(error).response().map(R::from)),
            }
        })
    }
}

impl LimitLayer {
    fn failure(&self, error: AcquireError) -> Failure {
        match error {
            AcquireError::Refused { retry_after } => Failure::Limited {
                policy: self.limiter.policy.clone(),
                retry_after: i64::try_from(retry_after.as_micros()).unwrap_or(i64::MAX),
                // The layer asks for one permit each: none is left.
                remaining: 0,
            },
            AcquireError::Store(error) => Failure::Store(error),
            AcquireError::Impossible { .. } => {
                Failure::BadRequest("the limiter gives no permits".into())
            }
        }
    }
}
