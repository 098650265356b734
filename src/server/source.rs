//! Where each side of the gateway gets its decisions: one memory for all, or a connection of its own.

use super::ServerError;
use crate::{
    config::{self, Config},
    metrics,
    store::{
        Store,
        batch::Batched,
        memory::MemoryStore,
        redis::{ConnectError, Markers, RedisStore, RedisUrl},
    },
};
use std::{sync::Arc, time::Duration};

/// How long a start waits for a server.
const PROBE: Duration = Duration::from_secs(2);

/// Where one side of the gateway gets its decisions.
#[derive(Debug, Clone)]
pub(super) enum StoreSource {
    Memory(Arc<MemoryStore>),
    Redis {
        url: RedisUrl,
        timeout: Duration,
        reachable: bool,
        markers: Arc<Markers>,
        /// Somebody may have to wait for a place.
        places: bool,
    },
}

// === impl StoreSource ===

impl StoreSource {
    pub(super) async fn open(config: &Config) -> Result<Self, ServerError> {
        let config::Store::Redis { url, timeout, prefix } = &config.store else {
            return Ok(Self::Memory(Arc::default()));
        };
        let reachable = match RedisStore::probe(url, prefix, PROBE).await {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!(store = %url, warning, "store");
                }
                true
            }
            Err(error @ ConnectError::Refused(_)) => return Err(ServerError::Store(error)),
            Err(error @ ConnectError::Unreachable(_)) => {
                tracing::warn!(store = %url, %error, "the store is away; limited requests get 503");
                false
            }
        };
        let places = config
            .limiters
            .iter()
            .any(|limiter| limiter.algorithms.iter().any(|rule| rule.lease().is_some()));
        let markers = Markers::new(prefix, metrics::store_losses());
        Ok(Self::Redis { url: url.clone(), timeout: *timeout, reachable, markers, places })
    }

    /// A store of the current runtime, connected if it can be.
    pub(super) async fn store(&self) -> Result<Arc<dyn Store>, ServerError> {
        let (url, timeout, reachable, markers, places) = match self {
            Self::Memory(store) => {
                metrics::store().up.set(1.0);
                return Ok(store.clone());
            }
            Self::Redis { url, timeout, reachable, markers, places } => {
                (url, *timeout, *reachable, markers, *places)
            }
        };
        let script = RedisStore::open(url, markers).map_err(ServerError::Store)?;
        // It was there a moment ago; if it is away again, requests are told so one by one.
        if reachable && let Err(error) = script.connected(PROBE).await {
            tracing::warn!(store = %url, %error, "the store is away; limited requests get 503");
        }
        if places {
            script.hear_calls();
        }
        let metrics = metrics::store();
        metrics.up.set(f64::from(u8::from(script.is_connected())));
        Ok(Arc::new(Batched::new(Arc::new(script), timeout, metrics)))
    }
}
