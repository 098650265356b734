//! Where each side of the gateway gets its decisions: one memory for all, or a connection of its own.

use super::ServerError;
use crate::{
    config::{self, Mode, Scope},
    metrics,
    plan::Plan,
    store::{
        Check, Store, StoreError,
        batch::Script,
        guard::{Guard, Process},
        health::{Health, Pace},
        memory::MemoryStore,
        redis::{Claim, ConnectError, Groups, Markers, RedisStore, RedisUrl},
    },
};
use std::{sync::Arc, time::Duration};

/// How long a start waits for a server.
const PROBE: Duration = Duration::from_secs(2);

/// How long a gateway waits for the store to hear that it ends, or, of a Cluster, that it begins.
const GOODBYE: Duration = Duration::from_millis(500);

/// Where one side of the gateway gets its decisions.
#[derive(Debug, Clone)]
pub(super) enum StoreSource {
    Memory(MemoryStore),
    Redis {
        url: RedisUrl,
        markers: Arc<Markers>,
        /// Of a Cluster.
        groups: Option<Arc<Groups>>,
        /// Shared by all sides.
        process: Arc<Process>,
        /// Somebody may have to wait for a place.
        places: bool,
    },
}

// === impl StoreSource ===

impl StoreSource {
    pub(super) async fn open(plan: &Plan) -> Result<Self, ServerError> {
        let config = &plan.config;
        let config::Store::Redis { url, timeout, prefix, gateways, .. } = &config.store else {
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
        let markers = Markers::new(prefix, metrics::store_losses());
        let groups = url.is_cluster().then(|| Groups::new(prefix, claims(plan)));
        if process.health.is_closed() {
            let script = RedisStore::open(url, &markers).map_err(ServerError::Store)?;
            // It was there a moment ago; if it is not, each side says so. A server of a Cluster may be away alone.
            let limit = if script.has_many_servers() { GOODBYE } else { PROBE };
            if script.connected(limit).await.is_ok() {
                process.introduce(&script, limit).await;
                if let Some(groups) = &groups {
                    // Before the first request: none is refused because it is not known yet which hash tags are in use.
                    script.with_groups(groups.clone()).claim_groups().await;
                }
            }
        }
        Ok(Self::Redis { url: url.clone(), markers, groups, process, places })
    }

    /// Every request has been decided: the other gateways need not miss this one.
    pub(super) async fn leave(&self) {
        if let Self::Redis { process, .. } = self {
            process.leave(GOODBYE).await;
        }
    }

    /// How the store is; the memory is never away.
    pub(super) fn health(&self) -> Option<Arc<Health>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis { process, .. } => Some(process.health.clone()),
        }
    }

    /// A store of the current runtime, connected if it can be.
    pub(super) async fn store(&self) -> Result<Arc<dyn Store>, ServerError> {
        self.connect(None).await
    }

    /// The same, which keeps the process known to the store; `looked` are the limiters that have one state.
    pub(super) async fn kept(&self, looked: Vec<Check>) -> Result<Arc<dyn Store>, ServerError> {
        self.connect(Some(looked)).await
    }

    async fn connect(&self, looked: Option<Vec<Check>>) -> Result<Arc<dyn Store>, ServerError> {
        let (url, markers, groups, process, places) = match self {
            Self::Memory(store) => {
                metrics::store_up().set(1.0);
                // An `Arc` for each side: who holds it is counted at each request.
                return Ok(Arc::new(store.clone()));
            }
            Self::Redis { url, markers, groups, process, places } => {
                (url, markers, groups, process, *places)
            }
        };
        let mut script = RedisStore::open(url, markers).map_err(ServerError::Store)?;
        if let Some(groups) = groups {
            script = script.with_groups(groups.clone());
            if looked.is_some() {
                tokio::spawn(script.clone().keep_groups());
            }
        }
        // It was there a moment ago.
        if process.health.is_closed()
            && let Err(error) = script.connected(PROBE).await
        {
            process.health.open(&StoreError::Unreachable(error.to_string()));
        }
        if places {
            script.hear_calls();
        }
        let metrics = metrics::store();
        let script = Arc::new(script);
        Ok(Arc::new(match looked {
            None => Guard::new(script, metrics, process.clone()),
            Some(looked) => Guard::keeper(script, metrics, process.clone(), looked),
        }))
    }
}

/// The hash tags of the limiters that gateways share.
fn claims(plan: &Plan) -> impl Iterator<Item = Claim> {
    let is_shared = |limiter: &config::Limiter| {
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
