//! The store of a program's limiters, with the first part of its keys. Decides nothing itself.

use crate::store::{
    Backend, Store,
    batch::StoreMetrics,
    failover::{Failover, Process},
    health::{Health, HealthMetrics, Pace, PaceMetrics},
    memory::MemoryStore,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// The first part of every key, unless the store was connected with another one.
const PREFIX: &str = "paceway";

/// A store for [`Limiter`](crate::Limiter)s: the memory of this process, or Redis. Clones are the same store.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, StoreHandle, memory};
///
/// let store: StoreHandle = memory();
/// // Two limiters of one name in one store are one.
/// let limit = Limit::token_bucket("search", Rate::per_second(5), 1);
/// let (here, there) = (Limiter::new(limit.clone(), store.clone())?, Limiter::new(limit, store)?);
/// # Ok::<(), paceway_limit::RuleError>(())
/// ```
#[derive(Debug, Clone)]
pub struct StoreHandle {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) prefix: Arc<str>,
}

/// A store in the memory of this process: no other process shares its limits, and no call of it ever fails.
///
/// ```
/// use paceway_limit::{Limit, Limiter, Rate, memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Limit::token_bucket("mail", Rate::per_second(5), 2), memory())?;
/// limiter.acquire(1).await?;
/// # Ok(())
/// # }
/// ```
pub fn memory() -> StoreHandle {
    StoreHandle::from(Arc::new(MemoryStore::default()))
}

// === impl StoreHandle ===

impl StoreHandle {
    /// A store of the program's own, whose calls may take as long as `timeout`, and up to 500 ms if its measured round trips
    /// are longer. Calls that come while another one is under way travel together, as with Redis, and while the store is away
    /// each limit does what it declares for that ([`Limit::without_store`](crate::Limit::without_store)).
    ///
    /// It runs on the current tokio runtime, and so must all callers of its limiters. `examples/own_store.rs` of this package
    /// is an example.
    pub fn over(backend: Arc<dyn Backend>, timeout: Duration) -> Self {
        let health = Health::new(HealthMetrics::noop(), Pace::new(timeout, PaceMetrics::noop()));
        let (metrics, process) = (StoreMetrics::noop(), Process::new(PREFIX, health));
        let (_, none) = watch::channel([].into());
        Arc::new(Failover::with_recovery(backend, metrics, process, none)).into()
    }

    /// A store whose keys begin with `prefix`.
    #[cfg(feature = "redis")]
    pub(crate) fn new(store: Arc<dyn Store>, prefix: &str) -> Self {
        Self { store, prefix: prefix.into() }
    }
}

impl<S: Store + 'static> From<Arc<S>> for StoreHandle {
    fn from(store: Arc<S>) -> Self {
        Self { store, prefix: PREFIX.into() }
    }
}

impl From<Arc<dyn Store>> for StoreHandle {
    fn from(store: Arc<dyn Store>) -> Self {
        Self { store, prefix: PREFIX.into() }
    }
}
