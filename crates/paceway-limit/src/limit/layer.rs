//! The limiter as a `tower::Layer` for HTTP, for axum and other tower programs: it holds a request until it may be made,
//! or answers 429 in its place. [`PaceLayer`] does the same for requests of any type, with errors.

use super::{AcquireError, CostLimit, KeyLimit, Limiter, PaceError, PaceLayer, asked::Asked};
use crate::{algorithm::fair::Priority, answer::CallFailure};
use bytes::Bytes;
use http::{Request, Response, request::Parts};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
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
pub struct LimitLayer {
    layer: PaceLayer<Parts>,
    refusal: Option<Refusal>,
}

/// The closure of [`LimitLayer::refusal`].
#[derive(Clone)]
struct Refusal(RefusalOf);

type RefusalOf = Arc<dyn Fn(&AcquireError, Response<Bytes>) -> Response<Bytes> + Send + Sync>;

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
    layer: LimitLayer,
}

// === impl LimitLayer ===

impl LimitLayer {
    /// A layer that refuses each request for which no permit is free at once, until [`max_wait`](Self::max_wait) says
    /// otherwise.
    pub fn new(limiter: Limiter) -> Self {
        Self { layer: PaceLayer::new(limiter), refusal: None }
    }

    /// Holds a request up to `max_wait` before it is refused, and no longer than [`Limiter::max_wait`].
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { layer: self.layer.max_wait(max_wait), ..self }
    }

    /// Reads the key of a request for `limit`. All requests without a key share one state.
    #[must_use]
    pub fn key(
        self,
        limit: impl KeyLimit,
        key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { layer: self.layer.key(limit, key), ..self }
    }

    /// Reads the cost of a request for `limit`; a limit with a cost of 0 is not asked.
    #[must_use]
    pub fn cost(
        self,
        limit: impl CostLimit,
        cost: impl Fn(&Parts) -> u32 + Send + Sync + 'static,
    ) -> Self {
        Self { layer: self.layer.cost(limit, cost), ..self }
    }

    /// Reads the tenant of a request, for limits with [`Limit::fair`](crate::Limit::fair). Requests without one are a tenant
    /// together.
    #[must_use]
    pub fn tenant(self, tenant: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { layer: self.layer.tenant(tenant), ..self }
    }

    /// Reads the priority of a request, for limits with [`Limit::fair`](crate::Limit::fair).
    #[must_use]
    pub fn priority(self, priority: impl Fn(&Parts) -> Priority + Send + Sync + 'static) -> Self {
        Self { layer: self.layer.priority(priority), ..self }
    }

    /// Makes the response to a refused request: `refusal` receives the error and the response that the layer has made, and
    /// may change its body, its fields and its status. Beside 429 this is 503 when the store gave no decision, and 400 for a
    /// request that the limiter cannot be asked for.
    ///
    /// ```
    /// use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
    /// use paceway_limit::{Limit, LimitLayer, Limiter, Rate, memory};
    /// use std::convert::Infallible;
    /// use tower::{Layer, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Limit::fixed_window("api", Rate::per_minute(1)), memory())?;
    /// let layer = LimitLayer::new(limiter).refusal(|error, response| {
    ///     let (mut parts, _) = response.into_parts(); // 429 with `Retry-After`
    ///     parts.headers.insert(CONTENT_TYPE, "text/plain".parse().expect("a value"));
    ///     Response::from_parts(parts, format!("slow down: {error}").into())
    /// });
    /// let mut service = layer.layer(service_fn(async |_: Request<()>| {
    ///     Ok::<_, Infallible>(Response::new(bytes::Bytes::new()))
    /// }));
    ///
    /// service.call(Request::new(())).await?;
    /// let refused = service.call(Request::new(())).await?;
    /// assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    /// assert!(refused.body().starts_with(b"slow down: the limit `api`"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn refusal(
        self,
        refusal: impl Fn(&AcquireError, Response<Bytes>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Self { refusal: Some(Refusal(Arc::new(refusal))), ..self }
    }

    /// The response to a request that `asked` and got no permits.
    fn refuse(&self, error: AcquireError, asked: Option<&Asked>) -> Response<Bytes> {
        let response = failure(&error, asked).response();
        match &self.refusal {
            Some(Refusal(refusal)) => refusal(&error, response),
            None => response,
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
    R: From<Bytes> + Send,
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
        let asked = layer.layer.extract.call(&layer.layer.limiter, &parts).asked();
        let request = Request::from_parts(parts, body);
        Box::pin(async move {
            let asked = match asked {
                Ok(asked) => asked,
                Err(error) => return Ok(layer.refuse(error, None).map(R::from)),
            };
            match layer.layer.paced(inner, &asked, request).await {
                Ok(response) => Ok(response),
                Err(PaceError::Limited(error)) => {
                    Ok(layer.refuse(error, Some(&asked)).map(R::from))
                }
                Err(PaceError::Inner(error)) => Err(error),
            }
        })
    }
}

// === impl Refusal ===

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refusal")
    }
}

/// The failure that a refused client reads.
fn failure(error: &AcquireError, asked: Option<&Asked>) -> CallFailure {
    match error {
        AcquireError::Refused { limit, retry_after, remaining } => {
            let Some(policy) = asked.and_then(|asked| asked.policy(limit)) else {
                return CallFailure::BadRequest("the limiter has no limits".into());
            };
            CallFailure::Limited {
                policy,
                retry_after: i64::try_from(retry_after.as_micros()).unwrap_or(i64::MAX),
                remaining: *remaining,
            }
        }
        AcquireError::Store(error) => CallFailure::Store(error.clone()),
        error => CallFailure::BadRequest(error.to_string().into()),
    }
}
