//! Reads from the responses of a service how long its limits pause and how much a request has cost, for
//! [`PaceLayer`](super::PaceLayer). Asks no store.

use super::{CostLimit, PaceLayer};
use std::{fmt, sync::Arc, time::Duration};

type PauseOf<P> = Arc<dyn Fn(&P) -> Option<Duration> + Send + Sync>;
type CostOf<P> = Arc<dyn Fn(&P) -> Option<u32> + Send + Sync>;

/// The closures of a layer that read responses of the type `P`. [`PaceLayer::pause_when`](super::PaceLayer::pause_when) and
/// [`PaceLayer::settle`](super::PaceLayer::settle) make them.
pub struct Responses<P> {
    pause: Option<PauseOf<P>>,
    costs: Vec<ReadCost<P>>,
}

/// The closure of one limit.
struct ReadCost<P> {
    /// The index of the limit.
    index: usize,
    of: CostOf<P>,
}

/// A layer reads responses of the type `P`: [`Responses`] of it does, and `()` reads none of any type.
pub trait ReadResponse<P>: read::Read<P> + Clone + Send + Sync + 'static {}

/// Keeps the trait closed.
pub(super) mod read {
    use std::time::Duration;

    pub trait Read<P> {
        /// How long the limits of the call pause.
        fn pause(&self, _response: &P) -> Option<Duration> {
            None
        }

        /// Shows the true costs of the call, each with the index of its limit.
        fn costs(&self, _response: &P, _settle: &mut dyn FnMut(usize, u32)) {}
    }
}

// === impl Responses ===

impl<P> Responses<P> {
    pub(super) fn pause_when(
        self,
        pause: impl Fn(&P) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        Self { pause: Some(Arc::new(pause)), ..self }
    }

    /// Reads the true cost of the limit at `index`.
    pub(super) fn settle(
        mut self,
        index: usize,
        of: impl Fn(&P) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.costs.push(ReadCost { index, of: Arc::new(of) });
        self
    }
}

impl<P> Default for Responses<P> {
    fn default() -> Self {
        Self { pause: None, costs: Vec::new() }
    }
}

impl<P> Clone for Responses<P> {
    fn clone(&self) -> Self {
        Self { pause: self.pause.clone(), costs: self.costs.clone() }
    }
}

impl<P> fmt::Debug for Responses<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").field("pauses", &self.pause.is_some()).finish_non_exhaustive()
    }
}

impl<P: 'static> read::Read<P> for Responses<P> {
    fn pause(&self, response: &P) -> Option<Duration> {
        self.pause.as_ref()?(response)
    }

    fn costs(&self, response: &P, settle: &mut dyn FnMut(usize, u32)) {
        for ReadCost { index, of } in &self.costs {
            if let Some(cost) = of(response) {
                settle(*index, cost);
            }
        }
    }
}

impl<P: 'static> ReadResponse<P> for Responses<P> {}

// === impl () ===

impl<P> read::Read<P> for () {}

impl<P> ReadResponse<P> for () {}

// === impl ReadCost ===

impl<P> Clone for ReadCost<P> {
    fn clone(&self) -> Self {
        Self { index: self.index, of: self.of.clone() }
    }
}

// === impl PaceLayer ===

impl<R> PaceLayer<R> {
    /// Reads from each response whether the vendor asks to slow down, and for how long: the limits of the call, each for
    /// its key, are [paused](crate::LimitedCall::pause) before the response is returned. A limit without a key pauses for all
    /// requests. [`retry_after`](crate::retry_after) reads the usual field.
    ///
    /// ```
    /// use http::{Request, Response, StatusCode};
    /// use paceway_limit::{Limit, Limiter, PaceLayer, Rate, memory, retry_after};
    /// use std::convert::Infallible;
    /// use tower::{Layer, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Limit::token_bucket("vendor", Rate::per_second(5), 5), memory())?;
    /// let layer = PaceLayer::new(limiter)
    ///     .pause_when(|response: &Response<()>| retry_after(response.status(), response.headers()));
    /// let mut client = layer.layer(service_fn(async |_: Request<()>| {
    ///     let refused = Response::builder().status(429).header("retry-after", "30");
    ///     Ok::<_, Infallible>(refused.body(()).expect("a response"))
    /// }));
    ///
    /// assert_eq!(client.call(Request::new(())).await?.status(), StatusCode::TOO_MANY_REQUESTS);
    /// // The vendor is not called again for 30 s.
    /// assert!(client.call(Request::new(())).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pause_when<P>(
        self,
        pause: impl Fn(&P) -> Option<Duration> + Send + Sync + 'static,
    ) -> PaceLayer<R, Responses<P>> {
        self.reading().pause_when(pause)
    }

    /// Reads from each response how many permits of `limit` the request has really cost; `None` for what was reserved. The
    /// difference is refunded or charged, as by [`Acquired::settle`](crate::Acquired::settle).
    ///
    /// ```
    /// use paceway_limit::{Limit, Limiter, PaceLayer, Rate, memory};
    /// use std::convert::Infallible;
    /// use tower::{Layer, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Limit::token_bucket("tokens", Rate::per_minute(60), 1_000), memory())?;
    /// let tokens = limiter.cost("tokens")?;
    /// let layer = PaceLayer::new(limiter)
    ///     .cost(&tokens, |prompt: &&str| 900)
    ///     .settle(&tokens, |answer: &String| u32::try_from(answer.len()).ok());
    /// let mut model = layer.layer(service_fn(async |prompt| Ok::<_, Infallible>(format!("an answer to {prompt}"))));
    ///
    /// model.call("a question").await?;
    /// // All but the 24 tokens of the answer were refunded.
    /// model.call("another one").await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn settle<P>(
        self,
        limit: impl CostLimit,
        true_cost: impl Fn(&P) -> Option<u32> + Send + Sync + 'static,
    ) -> PaceLayer<R, Responses<P>> {
        self.reading().settle(limit, true_cost)
    }
}

impl<R, P> PaceLayer<R, Responses<P>> {
    /// As for a layer that reads no responses yet.
    #[must_use]
    pub fn pause_when(
        mut self,
        pause: impl Fn(&P) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.responses = self.responses.pause_when(pause);
        self
    }

    /// As for a layer that reads no responses yet.
    #[must_use]
    pub fn settle(
        mut self,
        limit: impl CostLimit,
        true_cost: impl Fn(&P) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        match limit.find(&self.limiter.limits) {
            Ok(index) => self.responses = self.responses.settle(index, true_cost),
            Err(error) => self.extract.fail(error),
        }
        self
    }
}
