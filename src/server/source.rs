//! Opens the store for each worker and for the admin side: one memory for all of them, or a Redis connection for each.

use super::error::ServerError;
use crate::{
    config::{self, Mode, Scope},
    metrics,
    plan::Plan,
    store::{
        Check, StoreAdmin, StoreError,
        batch::Script,
        failover::{Failover, Process},
        health::{Health, Pace},
        memory::MemoryStore,
        redis::{Claim, ConnectError, Epochs, Groups, RedisStore, RedisUrl},
    },
};
use std::{sync::Arc, time::Duration};

/// The start waits up to 2 s for the answer of Redis. Without one the gateway starts with `on_failure`.
const PROBE: Duration = Duration::from_secs(2);

/// A gateway that ends waits up to 0.5 s for Redis to take it off the list of gateways; one that starts with a Cluster waits
/// as long to be added.
const GOODBYE: Duration = Duration::from_millis(500);

/// The store of the configuration, of which each worker and the admin side open a connection of their own.
#[derive(Debug, Clone)]
pub(super) enum StoreSource {
    Memory(MemoryStore),
    Redis {
        url: RedisUrl,
        epochs: Arc<Epochs>,
        /// The hash tags that limiters have in a Cluster; `None` where one server has all keys.
        groups: Option<Arc<Groups>>,
        /// The state of the store as all connections of the process have found it.
        process: Arc<Process>,
        /// A limiter counts requests in progress, so that requests may wait for a concurrency permit.
        places: bool,
    },
}

// === impl StoreSource ===

impl StoreSource {
    pub(super) async fn open(plan: &Plan) -> Result<Self, ServerError> {
        let config = &plan.config;
        let config::StoreConfig::Redis { url, timeout, prefix, gateways, .. } = &config.store
        else {
            return Ok(Self::Memory(MemoryStore::default()));
        };
        let pace = Pace::new(*timeout, metrics::store_pace());
        let process = Process::new(prefix, Health::new(metrics::store_health(), pace));
        process.health.expect(*gateways);
        match RedisStore::probe(url, prefix, PROBE).await {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!(store = %url, warning, "store");
                }
            }
            Err(error @ ConnectError::Refused(_)) => return Err(ServerError::Store(error)),
            Err(ConnectError::Unreachable(why)) => {
                process.health.open(&StoreError::Unreachable(why))
            }
        }
        let places = config
            .limiters
            .iter()
            .any(|limiter| limiter.algorithms.iter().any(|rule| rule.lease().is_some()));
        let epochs = Epochs::new(prefix, metrics::store_losses());
        let groups = url.is_cluster().then(|| Groups::new(prefix, claims(plan)));
        if process.health.is_closed() {
            let script = RedisStore::open(url, &epochs).map_err(ServerError::Store)?;
            // The server answered a moment ago. If it is away by now, each connection reports it. In a Cluster one server may
            // be away alone, and the start does not wait 2 s for it.
            let limit = if script.has_many_servers() { GOODBYE } else { PROBE };
            if script.connected(limit).await.is_ok() {
                process.introduce(&script, limit).await;
                if let Some(groups) = &groups {
                    // Claimed before the first request, so that none is refused because the tags in use are unknown.
                    script.with_groups(groups.clone()).claim_groups().await;
                }
            }
        }
        Ok(Self::Redis { url: url.clone(), epochs, groups, process, places })
    }

    /// Takes this gateway off the store's list, after its last decision, so that the others do not count it as absent.
    pub(super) async fn leave(&self) {
        if let Self::Redis { process, .. } = self {
            process.leave(GOODBYE).await;
        }
    }

    /// Returns the health of the store; `None` for the memory, which is never away.
    pub(super) fn health(&self) -> Option<Arc<Health>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis { process, .. } => Some(process.health.clone()),
        }
    }

    /// Opens a store on the current runtime, and waits up to 2 s for its connection.
    pub(super) async fn store(&self) -> Result<Arc<dyn StoreAdmin>, ServerError> {
        self.connect(None).await
    }

    /// Opens a store that also sends the heartbeats of this process; `looked` are the limiters with one state each, whose
    /// levels it reads.
    pub(super) async fn kept(
        &self,
        looked: Vec<Check>,
    ) -> Result<Arc<dyn StoreAdmin>, ServerError> {
        self.connect(Some(looked)).await
    }

    async fn connect(
        &self,
        looked: Option<Vec<Check>>,
    ) -> Result<Arc<dyn StoreAdmin>, ServerError> {
        let (url, epochs, groups, process, places) = match self {
            Self::Memory(store) => {
                metrics::store_up().set(1.0);
                // Each worker gets an `Arc` of its own, because each request changes its reference count.
                return Ok(Arc::new(store.clone()));
            }
            Self::Redis { url, epochs, groups, process, places } => {
                (url, epochs, groups, process, *places)
            }
        };
        let mut script = RedisStore::open(url, epochs).map_err(ServerError::Store)?;
        if let Some(groups) = groups {
            script = script.with_groups(groups.clone());
            if looked.is_some() {
                tokio::spawn(script.clone().keep_groups());
            }
        }
        // The server answered a moment ago.
        if process.health.is_closed()
            && let Err(error) = script.connected(PROBE).await
        {
            process.health.open(&StoreError::Unreachable(error.to_string()));
        }
        if places {
            script.receive_calls();
        }
        let metrics = metrics::store();
        let script = Arc::new(script);
        Ok(Arc::new(match looked {
            None => Failover::new(script, metrics, process.clone()),
            Some(looked) => Failover::with_recovery(script, metrics, process.clone(), looked),
        }))
    }
}

/// Returns the hash tags of the limiters that gateways share, for the other gateways of a Cluster to compare with theirs.
fn claims(plan: &Plan) -> impl Iterator<Item = Claim> {
    let is_shared = |limiter: &config::LimiterConfig| {
        plan.config.limiting && limiter.mode != Mode::Off && limiter.scope == Scope::Cluster
    };
    plan.limiters.iter().filter(move |plan| is_shared(&plan.limiter)).map(|plan| {
        let limiter = &plan.limiter;
        let spread = if limiter.spread { ".*" } else { "" };
        Claim {
            limiter: limiter.name.clone(),
            tag: format!("{}{spread}", limiter.group),
            checks: plan.checks.clone(),
        }
    })
}
