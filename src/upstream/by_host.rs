//! Upstreams that the requests name themselves: a pool for each origin, made when it is first asked for. Only `paceway exec`
//! has them; the upstreams of a configuration are known at its start.

use super::{
    cluster::{AddressMetrics, Cluster, ClusterSettings, Timeouts},
    names::follow,
    off_limits::{OffLimits, OffLimitsError},
    origin::UrlOrigin,
    pool::Pool,
    sockets::Sockets,
    target::Target,
};
use crate::tls::client::{ClientTls, TrustError};
use hashlink::LruCache;
use parking_lot::Mutex;
use rustls::RootCertStore;
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc};

/// The most origins whose connections are kept. The one that was used longest ago makes room for another; requests that it
/// serves end as they would have.
const MOST: usize = 256;

/// The settings that all origins share.
pub struct HostSettings {
    /// The name in metrics and log lines.
    pub name: String,
    /// The time-outs of each.
    pub timeouts: Timeouts,
    /// The idle connections that are kept to each.
    pub pool_size: usize,
    /// The authorities that certificates are checked with.
    pub roots: Arc<RootCertStore>,
    /// The bound of open connections.
    pub sockets: Arc<Sockets>,
    /// The DNS servers; those of the system if empty.
    pub resolver: Vec<SocketAddr>,
    /// The addresses that no request leads to.
    pub off_limits: OffLimits,
    /// The metrics of all of them.
    pub metrics: AddressMetrics,
}

/// The pools of one worker, by origin.
pub struct HostPools {
    settings: HostSettings,
    known: Mutex<LruCache<PoolKey, Pool>>,
}

/// gRPC needs HTTP/2, and WebSockets need HTTP/1.1, so that an origin may have two pools.
#[derive(Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    origin: UrlOrigin,
    is_http2: bool,
}

/// Why an origin has no pool.
#[derive(Debug, thiserror::Error)]
pub enum HostPoolError {
    /// It is no host that a URL can have.
    #[error("the host cannot be used")]
    Target,
    /// It is an address to which no request is sent.
    #[error(transparent)]
    OffLimits(#[from] OffLimitsError),
    /// It is no name that a certificate can have.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

// === impl HostPools ===

impl HostPools {
    /// Begins without any pool.
    pub fn new(settings: HostSettings) -> Self {
        Self { settings, known: Mutex::new(LruCache::new(MOST)) }
    }

    /// Returns the pool of an origin. Must be called on the runtime of the worker, whose tasks resolve names.
    ///
    /// # Errors
    ///
    /// [`HostPoolError`] if the host is none.
    pub fn pool(&self, origin: &UrlOrigin, is_http2: bool) -> Result<Pool, HostPoolError> {
        let mut known = self.known.lock();
        let key = PoolKey { origin: origin.clone(), is_http2 };
        if let Some(pool) = known.get(&key) {
            return Ok(pool.clone());
        }
        let cluster = self.cluster(origin, is_http2)?;
        follow(std::slice::from_ref(&cluster), &self.settings.resolver);
        let pool = Pool::new(cluster, NonZeroUsize::MIN);
        known.insert(key, pool.clone());
        Ok(pool)
    }

    fn cluster(&self, origin: &UrlOrigin, is_http2: bool) -> Result<Arc<Cluster>, HostPoolError> {
        let own = &self.settings;
        if let Ok(ip) = origin.host.parse() {
            let address = SocketAddr::new(ip, origin.port);
            if own.off_limits.has(address) {
                return Err(OffLimitsError(address).into());
            }
        }
        let target = Target::parse(&origin.to_string()).map_err(|_| HostPoolError::Target)?;
        let settings = ClusterSettings {
            name: own.name.clone(),
            targets: vec![target],
            timeouts: own.timeouts,
            pool_size: own.pool_size,
            http2: is_http2,
            tls: ClientTls::default(),
            sockets: own.sockets.clone(),
            health: None,
            via: None,
            off_limits: Some(own.off_limits.clone()),
        };
        Ok(Cluster::new(settings, own.metrics.clone(), &mut Some(own.roots.clone()))?)
    }
}
