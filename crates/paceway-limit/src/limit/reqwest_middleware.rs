//! A [`PaceLayer`] as a middleware of the crate `reqwest-middleware`. All that it does for a request is [`pace`].

use super::{
    AcquireError, PaceLayer, ReadResponse,
    service::{AlwaysReady, pace},
};
use async_trait::async_trait;
use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Error, Middleware, Next, Result};

/// A layer for requests of reqwest is a middleware as well: `ClientBuilder::with` takes it. A refused request ends with
/// [`Error::Middleware`], whose source is an [`AcquireError`]. A middleware that repeats requests, and is added before it,
/// takes permits for each attempt.
///
/// ```
/// use paceway_limit::{AcquireError, Limit, Limiter, PaceLayer, Rate, memory};
/// use reqwest_middleware::{ClientBuilder, Error};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Limit::token_bucket("vendor", Rate::per_second(5), 1), memory())?;
/// let client = ClientBuilder::new(reqwest::Client::new()).with(PaceLayer::new(limiter.clone())).build();
///
/// limiter.acquire(1).await?;
/// match client.get("http://vendor.example/").send().await {
///     Err(Error::Middleware(error)) => assert!(error.is::<AcquireError>()),
///     other => panic!("the bucket is empty: {other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[async_trait]
impl<A: ReadResponse<Response>> Middleware for PaceLayer<Request, A> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let asked = self.extract.call(&self.limiter, &request).asked();
        let asked = asked.map_err(Error::middleware)?;
        let mut attempt = self.attempt(&asked);
        // The client makes its connection when it is called.
        let mut ready = AlwaysReady::<AcquireError>::default();
        let paced = pace(&self.limiter.store, &asked.checks, &mut attempt, &mut ready).await;
        let (mut reservation, ()) = paced.map_err(Error::middleware)?;
        reservation.spend();
        // Its concurrency permits are held until the end.
        let response = next.run(request, extensions).await?;
        if let Some(span) = self.read_response(&response, &asked, &mut reservation) {
            self.pause(&asked, span).await;
        }
        Ok(response)
    }
}
