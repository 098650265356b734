//! The upstreams of a configuration, as all workers share them.

use super::error::UnusableUpstream;
use crate::{
    config::{self, Config},
    metrics,
    upstream::{Cluster, ClusterSettings, Sockets},
};
use std::sync::Arc;

/// The upstreams until now, with their configuration.
#[derive(Clone, Copy)]
pub struct FormerClusters<'c> {
    pub(super) config: &'c Config,
    pub(super) clusters: &'c [Arc<Cluster>],
}

/// Makes the upstreams that all workers share; `sockets` bounds their connections. An upstream that is the same in `before`
/// keeps its addresses and connections. Reads the system's certificate authorities only if an upstream needs them.
///
/// # Errors
///
/// [`UnusableUpstream`] if certificates or the name of an upstream cannot be used for TLS.
pub fn clusters(
    config: &Config,
    sockets: &Arc<Sockets>,
    before: Option<FormerClusters<'_>>,
) -> Result<Vec<Arc<Cluster>>, UnusableUpstream> {
    let mut roots = None;
    // Other DNS servers may know other addresses.
    let before = before.filter(|old| old.config.resolver == config.resolver);
    let known = |upstream: &config::Upstream| {
        let FormerClusters { config, clusters } = before?;
        let i = config.upstreams.iter().position(|old| connects_as(old, upstream))?;
        Some(clusters[i].clone())
    };
    let cluster = |upstream: &config::Upstream| {
        if let Some(known) = known(upstream) {
            return Ok(known);
        }
        let settings = ClusterSettings {
            name: upstream.name.clone(),
            targets: upstream.targets.clone(),
            timeouts: upstream.timeouts,
            pool_size: upstream.pool_size,
            http2: upstream.http2,
            tls: upstream.tls.clone(),
            sockets: sockets.clone(),
            health: upstream.health.clone(),
            via: upstream.via.clone(),
            off_limits: None,
        };
        Cluster::new(settings, metrics::addresses(&upstream.name), &mut roots)
            .map_err(|source| UnusableUpstream { name: upstream.name.clone(), source })
    };
    config.upstreams.iter().map(cluster).collect()
}

/// Whether connections to one of the upstreams serve the other one as well.
fn connects_as(one: &config::Upstream, other: &config::Upstream) -> bool {
    // Exhaustive, so that a new key of upstreams does not compile until it is either compared here or named as one that does
    // not concern connections.
    let config::Upstream {
        name,
        targets,
        timeouts,
        pool_size,
        http2,
        tls,
        health,
        via,
        preserve_host: _,
        forwarded: _,
        headers: _,
        limiters: _,
        missing: _,
        throttle: _,
        accounts: _,
        revalidate: _,
        answers: _,
    } = one;
    (name, targets, timeouts, pool_size, http2, tls, health, via)
        == (
            &other.name,
            &other.targets,
            &other.timeouts,
            &other.pool_size,
            &other.http2,
            &other.tls,
            &other.health,
            &other.via,
        )
}
