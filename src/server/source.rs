//! Opens the store for each worker and for the admin side: one memory for all of them, or a Redis connection for each.

use super::error::ServerError;
use crate::{
    config::{self, Mode, Scope},
    metrics,
    plan::Plan,
    store::{Check, StoreAdmin, health::Health, memory::MemoryStore, redis::Claim},
};
use jiff::Timestamp;
use paceway_limit::redis::{RedisMetrics, RedisProcess, RedisSettings};
use std::{fs, net::SocketAddr, sync::Arc};
use tokio::sync::watch;

/// The store of the configuration, of which each worker and the admin side open a connection of their own.
#[derive(Debug, Clone)]
pub(super) enum StoreSource {
    Memory(MemoryStore),
    Redis(RedisProcess),
}

// === impl StoreSource ===

impl StoreSource {
    /// Opens the store of `plan`. `notified` becomes true when a limiter counts calls at a time. A gateway that listens on
    /// the address `listen` has a name, by which its next life replaces it if it dies.
    pub(super) async fn open(
        plan: &Plan,
        notified: watch::Receiver<bool>,
        listen: Option<SocketAddr>,
    ) -> Result<Self, ServerError> {
        let config = &plan.config;
        let config::StoreConfig::Redis { url, timeout, prefix, gateways, .. } = &config.store
        else {
            return Ok(Self::Memory(MemoryStore::starting_at(Timestamp::now().as_microsecond())));
        };
        let metrics = RedisMetrics {
            health: metrics::store_health(),
            pace: metrics::store_pace(),
            losses: metrics::STORE_LOSSES.count(&[]),
        };
        let settings = RedisSettings::of(url.clone(), prefix, *timeout, *gateways);
        let settings =
            settings.named(listen.and_then(name)).clock(Timestamp::now().as_microsecond());
        let process = RedisProcess::open(&settings, metrics, notified, Some(claims(plan)));
        Ok(Self::Redis(process.await.map_err(ServerError::Store)?))
    }

    /// Takes this gateway off the store's list, after its last decision, so that the others do not count it as absent.
    pub(super) async fn leave(&self) {
        if let Self::Redis(process) = self {
            process.leave().await;
        }
    }

    /// Returns the health of the store; `None` for the memory, which is never away.
    pub(super) fn health(&self) -> Option<Arc<Health>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(process) => Some(process.health()),
        }
    }

    /// Opens a store on the current runtime, and waits up to 2 s for its connection.
    pub(super) async fn store(&self) -> Result<Arc<dyn StoreAdmin>, ServerError> {
        Ok(match self {
            Self::Memory(store) => for_one_side(store),
            Self::Redis(process) => {
                Arc::new(process.store(metrics::store()).await.map_err(ServerError::Store)?)
            }
        })
    }

    /// Opens a store that also sends the heartbeats of this process; `looked` are the limiters with one state each, whose
    /// levels it reads.
    pub(super) async fn with_recovery(
        &self,
        looked: watch::Receiver<Arc<[Check]>>,
    ) -> Result<Arc<dyn StoreAdmin>, ServerError> {
        Ok(match self {
            Self::Memory(store) => for_one_side(store),
            Self::Redis(process) => {
                let store = process.with_recovery(metrics::store(), looked).await;
                Arc::new(store.map_err(ServerError::Store)?)
            }
        })
    }
}

/// The name of the gateway on this host that listens on an address: no other process can have it at the same time. `None` if
/// the host has no name.
fn name(listen: SocketAddr) -> Option<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(host.trim()).filter(|host| !host.is_empty()).map(|host| format!("{host}/{listen}"))
}

/// Gives a worker an `Arc` of its own, because each request changes its reference count.
fn for_one_side(store: &MemoryStore) -> Arc<dyn StoreAdmin> {
    metrics::STORE_UP.level(&[]).set(1.0);
    Arc::new(store.clone())
}

/// Returns the hash tags of the limiters that gateways share, for the other gateways of a Cluster to compare with theirs.
fn claims(plan: &Plan) -> Vec<Claim> {
    let is_shared = |limiter: &config::LimiterConfig| {
        plan.config.limiting && limiter.mode != Mode::Off && limiter.scope == Scope::Cluster
    };
    let shared = plan.limiters.iter().filter(|plan| is_shared(&plan.limiter));
    let claims = shared.map(|plan| {
        let limiter = &plan.limiter;
        let spread = if limiter.spread { ".*" } else { "" };
        Claim {
            limiter: limiter.name.clone(),
            tag: format!("{}{spread}", limiter.group),
            checks: plan.checks.clone(),
        }
    });
    claims.collect()
}
