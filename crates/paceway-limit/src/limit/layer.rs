//! The limiter as a `tower::Layer` for HTTP, for axum and other tower programs: it holds a request until it may be made,
//! or answers 429 in its place. [`PaceLayer`] does the same for requests of any type, with errors.

use super::{AcquireError, Limiter, PaceError, PaceLayer};
use crate::{algorithm::fair::Priority, answer::CallFailure};
use bytes::Bytes;
use http::{Request, Response, request::Parts};
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tower::{Layer, Service};

/// Puts a [`Limiter`] in front of an HTTP service. A request takes one permit of each limit unless a closure says
/// otherwise; a refused one is answered with 429 and `Retry-After`, `RateLimit` and a problem of RFC 9457.
///
/// A permit of [`Limit::concurrency`](crate::Limit::concurrency) comes back when the service has answered, which for a
/// streamed response is before the end of its body. A handler that streams for long calls
/// [`Limiter::acquire`](crate::Limiter::acquire) itself, and keeps the permits in the body.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use paceway_limit::{Limit, LimitLayer, Limiter, Rate, memory};
/// use std::convert::Infallible;
/// use tower::{Layer, Service, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Limit::fixed_window("tenant", Rate::per_minute(1)), memory())?;
/// let layer = LimitLayer::new(limiter).key("tenant", |request| {
///     Some(request.headers.get("x-tenant")?.to_str().ok()?.to_owned())
/// });
/// let mut service = layer.layer(service_fn(async |_: Request<()>| {
///     Ok::<_, Infallible>(Response::new(bytes::Bytes::new()))
/// }));
///
/// let of = |tenant| Request::builder().header("x-tenant", tenant).body(());
/// assert_eq!(service.call(of("acme")?).await?.status(), StatusCode::OK);
/// assert_eq!(service.call(of("acme")?).await?.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(service.call(of("zenith")?).await?.status(), StatusCode::OK);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct LimitLayer(PaceLayer<Parts>);

/// An HTTP service whose requests wait for a [`Limiter`]. [`LimitLayer`] makes it.
///
/// ```
/// use paceway_limit::{Limit, LimitLayer, LimitService, Limiter, Rate, memory};
/// use tower::Layer;
///
/// let limiter = Limiter::new(Limit::token_bucket("api", Rate::per_second(5), 1), memory())?;
/// let service: LimitService<&str> = LimitLayer::new(limiter).layer("any service");
/// # Ok::<(), paceway_limit::RuleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct LimitService<S> {
    inner: S,
    layer: PaceLayer<Parts>,
}

// === impl LimitLayer ===

impl LimitLayer {
    /// A layer that refuses each request for which no permit is free at once, until [`max_wait`](Self::max_wait) says
    /// otherwise.
    pub fn new(limiter: Limiter) -> Self {
        Self(PaceLayer::new(limiter))
    }

    /// Holds a request up to `max_wait` before it is refused, and no longer than [`Limiter::max_wait`].
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self(self.0.max_wait(max_wait))
    }

    /// Reads the key of a request for `limit`. All requests without a key share one state.
    #[must_use]
    pub fn key(
        self,
        limit: &str,
        key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self(self.0.key(limit, key))
    }

    /// Reads the cost of a request for `limit`; a limit with a cost of 0 is not asked.
    #[must_use]
    pub fn cost(self, limit: &str, cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static) -> Self {
        Self(self.0.cost(limit, cost))
    }

    /// Reads the tenant of a request, for limits with [`Limit::fair`](crate::Limit::fair). Requests without one are a tenant
    /// together.
    #[must_use]
    pub fn tenant(self, tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(self.0.tenant(tenant))
    }

    /// Reads the priority of a request, for limits with [`Limit::fair`](crate::Limit::fair).
    #[must_use]
    pub fn priority(self, priority: impl Fn(&Parts) -> Priority + Send + Sync + 'static) -> Self {
        Self(self.0.priority(priority))
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = LimitService<S>;

    fn layer(&self, inner: S) -> LimitService<S> {
        LimitService { inner, layer: self.0.clone() }
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

    /// Always ready: whether the inner service is ready is asked for each request, shortly before its instant.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (inner, layer) = (self.inner.clone(), self.layer.clone());
        let (parts, body) = request.into_parts();
        let asked = layer.extract.call(&layer.limiter, &parts).asked();
        let request = Request::from_parts(parts, body);
        Box::pin(async move {
            match layer.paced(inner, asked, request).await {
                Ok(response) => Ok(response),
                Err(PaceError::Limited(error)) => {
                    Ok(failure(&layer.limiter, error).response().map(R::from))
                }
                Err(PaceError::Inner(error)) => Err(error),
            }
        })
    }
}

/// The failure that a refused client reads.
fn failure(limiter: &Limiter, error: AcquireError) -> CallFailure {
    let (limit, retry_after, remaining) = match error {
        AcquireError::Refused { limit, retry_after, remaining } => (limit, retry_after, remaining),
        AcquireError::Store(error) => return CallFailure::Store(error),
        error => return CallFailure::BadRequest(error.to_string().into()),
    };
    let bound = limiter.limits.iter().find(|planned| planned.name == limit);
    let Some(bound) = bound.or(limiter.limits.first()) else {
        return CallFailure::BadRequest("the limiter has no limits".into());
    };
    CallFailure::Limited {
        policy: bound.policy.clone(),
        retry_after: i64::try_from(retry_after.as_micros()).unwrap_or(i64::MAX),
        remaining,
    }
}
