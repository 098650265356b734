//! The proxy for programs that bring their own server: opens what the binary opens, except for listeners, workers and the
//! admin side.

use super::{
    descriptors::{self, Shares},
    error::ServerError,
    source::StoreSource,
    tracer,
};
use crate::{
    config::Config,
    learn, live,
    plan::Plan,
    proxy::Proxy,
    rows::{self, WithRates},
    upstream::{self, Pool, Sockets},
};
use axum::Router;
use std::{num::NonZeroUsize, sync::Arc};
use tokio::sync::watch;

// === impl Proxy ===

impl Proxy {
    /// Opens the store and the upstreams of `config` on the current runtime. `listen`, `admin`, `tls`, `workers` and the
    /// time-outs of clients are ignored: they are for the server that mounts the proxy. The configuration stays as it is:
    /// files, overrides and `limits_from` are not followed.
    ///
    /// The limit of open files stays as it is (the binary raises it): about half of it is for connections to upstreams. When
    /// the program ends, it does not sign off from a Redis store, so the other gateways leave it its share for up to 10 s, as
    /// after `kill -9`.
    ///
    /// # Errors
    ///
    /// [`ServerError::Store`] if Redis refuses, [`ServerError::Upstream`] if the certificates of an upstream cannot be used,
    /// [`ServerError::MissingLimiters`] if a route names a limiter that only a row of `limits_from` can have.
    pub async fn open(config: Config) -> Result<Self, ServerError> {
        if !config.missing.is_empty() {
            let names = config.missing.iter().map(|missing| missing.name.as_str());
            return Err(ServerError::MissingLimiters(names.collect::<Vec<_>>().join(", ")));
        }
        if config.limits_from.is_some() {
            tracing::warn!(
                "`limits_from` is for the gateway's own process; this router has the limiters of the file"
            );
        }
        // A file that changes has no effect, as that of the configuration.
        let WithRates { config, flaws } = rows::with_files(config);
        flaws.iter().for_each(|flaw| tracing::warn!(flaw, "the rates of keys"));
        let shares = Shares::of(descriptors::current(), &config);
        // Its task ends with the last plan.
        let tracer = tracer(&config)?.map(|(tracer, _)| tracer);
        let plan = Arc::new(Plan::new(config, false).traced(tracer));
        let notified = watch::channel(plan.is_notified()).1;
        let source = StoreSource::open(&plan, notified, None).await?;
        let sockets = Sockets::new(shares.upstreams);
        let clusters = live::clusters(&plan.config, &sockets, None)?;
        upstream::follow(&clusters, &plan.config.resolver);
        // The store that sends this process's heartbeats is the only one: no worker has one of its own.
        let (_, levels) = watch::channel(plan.levels().into());
        let store = source.with_recovery(levels).await?;
        learn::begin(&plan, &store).await;
        let pool = |cluster| Pool::new(cluster, NonZeroUsize::MIN);
        Ok(Self::new(plan, 0, store, clusters.into_iter().map(pool).collect()))
    }
}

/// Makes an axum router that serves every request by the routes of `config`. Merge or nest it beside other routes, or mount
/// [`Proxy::open`] with `Router::fallback_service`.
///
/// # Errors
///
/// As [`Proxy::open`].
pub async fn router(config: Config) -> Result<Router, ServerError> {
    Ok(Router::new().fallback_service(Proxy::open(config).await?))
}
