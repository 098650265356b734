//! The limiter as a `tower::Layer` for requests of any type: it holds a request until it may be made, or ends it with an
//! error. All that it does for a request is [`pace`], in a box.
//!
//! The service itself is always ready, as `tower`'s `LoadShed` is. Readiness of the inner service (a connection, a permit
//! of a `ConcurrencyLimit`) is taken for one request, shortly before its instant, and not while the request waits.

use super::{
    AcquireError, CostLimit, KeyLimit, Limiter, ReadResponse, Reservation, Responses,
    asked::Asked,
    duration,
    extract::Extract,
    limiter::LimiterCaller,
    micros,
    service::{Callee, MOST_LEAD, lead, pace},
};
use crate::{algorithm::fair::Priority, store::Pause};
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

/// Puts a [`Limiter`] in front of a service for requests of the type `R`: of reqwest, tonic, or a program's own. A request
/// takes one permit of each limit unless a closure says otherwise. Its concurrency permits are held until the future of
/// the inner service ends.
///
/// ```
/// use paceway_limit::{AcquireError, Limit, Limiter, PaceError, PaceLayer, Rate, memory};
/// use std::{convert::Infallible, time::Duration};
/// use tower::{Layer, Service, service_fn};
///
/// struct Prompt {
///     tenant: String,
///     tokens: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Limit::token_bucket("tokens", Rate::per_minute(6_000), 1_000), memory())?;
/// let layer = PaceLayer::new(limiter)
///     .max_wait(Duration::from_secs(2))
///     .key("tokens", |prompt: &Prompt| Some(prompt.tenant.clone()))
///     .cost("tokens", |prompt: &Prompt| prompt.tokens);
/// let mut model = layer.layer(service_fn(async |prompt: Prompt| {
///     Ok::<_, Infallible>(format!("an answer to {} tokens", prompt.tokens))
/// }));
///
/// let answer = model.call(Prompt { tenant: "acme".into(), tokens: 900 }).await?;
/// assert_eq!(answer, "an answer to 900 tokens");
/// let refused = model.call(Prompt { tenant: "acme".into(), tokens: 900 }).await;
/// assert!(matches!(refused, Err(PaceError::Limited(AcquireError::Refused { .. }))));
/// # Ok(())
/// # }
/// ```
///
/// [`pause_when`](Self::pause_when) and [`settle`](Self::settle) read its responses.
#[derive(Debug)]
pub struct PaceLayer<R, A = ()> {
    pub(super) limiter: Limiter,
    max_wait: Duration,
    pub(super) extract: Extract<R>,
    pub(super) responses: A,
    /// The time that the inner service took last to become ready, in µs.
    readying: Arc<AtomicI64>,
}

/// A service whose requests wait for a [`Limiter`]. [`PaceLayer`] makes it.
///
/// ```
/// use paceway_limit::{Limit, Limiter, PaceLayer, PaceService, Rate, memory};
/// use tower::Layer;
///
/// let limiter = Limiter::new(Limit::leaky_bucket("vendor", Rate::per_second(5)), memory())?;
/// let client: PaceService<&str, u32> = PaceLayer::new(limiter).layer("any service");
/// # Ok::<(), paceway_limit::RuleError>(())
/// ```
#[derive(Debug)]
pub struct PaceService<S, R, A = ()> {
    inner: S,
    layer: PaceLayer<R, A>,
}

/// Why a [`PaceService`] has no response.
///
/// ```
/// use paceway_limit::{AcquireError, PaceError};
///
/// let error: PaceError<std::fmt::Error> = AcquireError::Unknown("tenant".into()).into();
/// assert_eq!(error.to_string(), "the limiter has no limit `tenant`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PaceError<E> {
    /// The limiter gave no permits; the inner service was not called.
    #[error(transparent)]
    Limited(#[from] AcquireError),
    /// The inner service failed.
    #[error("{0}")]
    Inner(E),
}

/// The inner service as a call sees it: cloned for the call, and made ready shortly before its instant.
struct Inner<'a, S, Q> {
    service: S,
    readying: &'a AtomicI64,
    /// A clone that is ready and was not used, because the call was late.
    kept: Option<S>,
    request: PhantomData<fn(Q)>,
}

// === impl PaceLayer ===

impl<R> PaceLayer<R> {
    /// A layer that refuses each request for which no permit is free at once, until [`max_wait`](Self::max_wait) says
    /// otherwise.
    pub fn new(limiter: Limiter) -> Self {
        let (extract, readying) = (Extract::default(), Arc::default());
        Self { limiter, max_wait: Duration::ZERO, extract, responses: (), readying }
    }

    pub(super) fn reading<P>(self) -> PaceLayer<R, Responses<P>> {
        let Self { limiter, max_wait, extract, responses: (), readying } = self;
        PaceLayer { limiter, max_wait, extract, responses: Responses::default(), readying }
    }
}

impl<R, A> PaceLayer<R, A> {
    /// Holds a request up to `max_wait` before it is refused, and no longer than [`Limiter::max_wait`].
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Reads the key of a request for `limit`. All requests without a key share one state.
    ///
    /// A limit that the limiter does not have is the error of each request; [`Limiter::key`] says it when the program
    /// starts.
    #[must_use]
    pub fn key(
        mut self,
        limit: impl KeyLimit,
        key: impl Fn(&R) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        match limit.find(&self.limiter.limits) {
            Ok(index) => self.extract.key(index, key),
            Err(error) => self.extract.fail(error),
        }
        self
    }

    /// Reads the cost of a request for `limit`; a limit with a cost of 0 is not asked.
    #[must_use]
    pub fn cost(
        mut self,
        limit: impl CostLimit,
        cost: impl Fn(&R) -> u32 + Send + Sync + 'static,
    ) -> Self {
        match limit.find(&self.limiter.limits) {
            Ok(index) => self.extract.cost(index, cost),
            Err(error) => self.extract.fail(error),
        }
        self
    }

    /// Reads the tenant of a request, for limits with [`Limit::fair`](crate::Limit::fair). Requests without one are a tenant
    /// together.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Fn(&R) -> Option<String> + Send + Sync + 'static) -> Self {
        self.extract.tenant(tenant);
        self
    }

    /// Reads the priority of a request, for limits with [`Limit::fair`](crate::Limit::fair).
    #[must_use]
    pub fn priority(mut self, priority: impl Fn(&R) -> Priority + Send + Sync + 'static) -> Self {
        self.extract.priority(priority);
        self
    }

    /// Holds `request` for the permits that it `asked` for, and calls the inner service with it.
    pub(super) async fn paced<S: Service<Q> + Clone + Send, Q>(
        &self,
        service: S,
        asked: &Asked,
        request: Q,
    ) -> Result<S::Response, PaceError<S::Error>>
    where
        A: ReadResponse<S::Response>,
    {
        let readying = &*self.readying;
        let mut inner = Inner { service, readying, kept: None, request: PhantomData };
        let mut attempt = self.attempt(asked);
        let paced = pace(&self.limiter.store, &asked.checks, &mut attempt, &mut inner).await;
        let (mut reservation, mut service) = paced?;
        reservation.spend();
        // Its concurrency permits are held until the end.
        let response = service.call(request).await.map_err(PaceError::Inner)?;
        if let Some(span) = self.read_response(&response, asked, &mut reservation) {
            self.pause(asked, span).await;
        }
        Ok(response)
    }

    /// The attempt of a request to get the permits that it `asked` for.
    pub(super) fn attempt<'a, E>(&self, asked: &'a Asked) -> LimiterCaller<'a, E> {
        LimiterCaller::within(self.max_wait.min(self.limiter.max_wait)).of(asked)
    }

    /// Settles the true costs that a response names. Returns how long the limits pause.
    pub(super) fn read_response<P>(
        &self,
        response: &P,
        asked: &Asked,
        reservation: &mut Reservation,
    ) -> Option<Duration>
    where
        A: ReadResponse<P>,
    {
        self.responses.costs(response, &mut |index, cost| {
            let check = asked.check_at(index);
            if let Some(settlement) = check.and_then(|check| reservation.settlement(check)) {
                settlement.settle(cost.into());
            }
        });
        self.responses.pause(response)
    }

    /// Pauses the limits of a call.
    pub(super) async fn pause(&self, asked: &Asked, span: Duration) {
        if let Err(error) = self.limiter.store.pause(&asked.checks, Pause::of(span, 0)).get().await
        {
            tracing::warn!(%error, ?span, "other processes may not know of a pause");
        }
    }
}

impl<R, A: Clone> Clone for PaceLayer<R, A> {
    fn clone(&self) -> Self {
        let Self { limiter, max_wait, extract, responses, readying } = self;
        Self {
            limiter: limiter.clone(),
            max_wait: *max_wait,
            extract: extract.clone(),
            responses: responses.clone(),
            readying: readying.clone(),
        }
    }
}

impl<S, R, A: Clone> Layer<S> for PaceLayer<R, A> {
    type Service = PaceService<S, R, A>;

    fn layer(&self, inner: S) -> PaceService<S, R, A> {
        PaceService { inner, layer: self.clone() }
    }
}

// === impl PaceService ===

impl<S: Clone, R, A: Clone> Clone for PaceService<S, R, A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S, R, A> Service<R> for PaceService<S, R, A>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send,
    R: Send + 'static,
    A: ReadResponse<S::Response>,
{
    type Response = S::Response;
    type Error = PaceError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, PaceError<S::Error>>> + Send>>;

    /// Always ready: whether the inner service is ready is asked for each request, shortly before its instant.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (inner, layer) = (self.inner.clone(), self.layer.clone());
        let asked = layer.extract.call(&layer.limiter, &request).asked();
        Box::pin(async move { layer.paced(inner, &asked?, request).await })
    }
}

// === impl Inner ===

impl<S: Service<Q> + Clone + Send, Q> Callee for Inner<'_, S, Q> {
    type Ready = S;
    type Error = PaceError<S::Error>;

    fn lead(&self) -> Duration {
        lead(duration(self.readying.load(Relaxed)))
    }

    fn at_hand(&mut self) -> Option<S> {
        self.kept.take()
    }

    async fn ready(&mut self) -> Result<S, PaceError<S::Error>> {
        if let Some(service) = self.kept.take() {
            return Ok(service);
        }
        let mut service = self.service.clone();
        let started = Instant::now();
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(PaceError::Inner)?;
        self.readying.store(micros(started.elapsed()), Relaxed);
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
