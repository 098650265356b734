//! The part of the failover that all workers of a process share: the health of the store, the decisions made without it, and
//! the presence of this gateway among the others. It decides no request.

use super::local::LocalStore;
use crate::store::{Backend, Beat, BoxFuture, Heartbeat, StoreError, health::Health};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout};

/// Heartbeats before the first request. The first one opens the connections that calls need, and two more measure the
/// round trip.
const INTRODUCTIONS: usize = 3;

/// The knowledge of all workers of a process about their store, and their decisions without it.
#[derive(Debug)]
pub struct Process {
    /// Whether the store answers, and how slowly.
    pub health: Arc<Health>,
    pub(super) local: LocalStore,
    /// Key of the set of gateways that are alive, such as `paceway:{gateways}`.
    pub(super) gateways: Arc<str>,
    /// The store refuses to count gateways, which has been logged once.
    pub(super) uncounted: AtomicBool,
    /// Permits granted without the store are being charged to it all the time, so this gateway is not absent for others.
    pub(super) charges: AtomicBool,
    /// The connection of the task that sends heartbeats and brings the store back.
    pub(super) recovery: OnceLock<Arc<dyn Backend>>,
    /// This gateway has left the set of gateways, and sends no more heartbeats.
    pub(super) left: AtomicBool,
    /// A heartbeat was answered.
    is_known: AtomicBool,
}

// === impl Process ===

impl Process {
    /// The process of a gateway whose keys begin with `prefix`.
    pub fn new(prefix: &str, health: Arc<Health>) -> Arc<Self> {
        let gateways = format!("{prefix}:{{gateways}}").into();
        Arc::new(Self {
            health,
            local: LocalStore::default(),
            gateways,
            uncounted: AtomicBool::new(false),
            charges: AtomicBool::new(false),
            recovery: OnceLock::new(),
            left: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
        })
    }

    /// Announces this gateway before it decides anything, so that the first request already knows how many gateways share
    /// each rule and how slow the store is. If the store does not answer a heartbeat within `limit`, the regular
    /// heartbeats find out later.
    pub async fn introduce(self: &Arc<Self>, backend: &dyn Backend, limit: Duration) {
        for _ in 0..INTRODUCTIONS {
            let sent = Instant::now();
            let Ok(Ok(beat)) = timeout(limit, self.beat(backend)).await else { return };
            self.health.pace.measured(sent.elapsed());
            self.health.counted(&beat, sent);
        }
    }

    /// Takes this gateway out of the set of gateways after its last decision, so that the others have its share at once.
    /// If the store does not receive that within `limit`, they notice after [`ABSENT`](crate::store::ABSENT).
    pub async fn leave(&self, limit: Duration) {
        self.left.store(true, Relaxed);
        if let Some(backend) = self.recovery.get().filter(|_| self.health.is_closed()) {
            // The same connection carried the last heartbeat, so the store executes this one later.
            let last = Heartbeat { is_last: true, ..self.heartbeat(false) };
            drop(timeout(limit, backend.beat(last)).await);
        }
    }

    fn heartbeat(&self, is_alone: bool) -> Heartbeat {
        Heartbeat {
            key: self.gateways.clone(),
            id: self.health.id.clone(),
            is_alone,
            is_idle: self.health.is_idle(),
            is_first: !self.is_known.load(Relaxed),
            is_last: false,
        }
    }

    /// Sends one heartbeat over `backend`.
    pub(super) fn beat(
        self: &Arc<Self>,
        backend: &dyn Backend,
    ) -> BoxFuture<Result<Beat, StoreError>> {
        let is_alone = !self.health.is_closed() && !self.charges.load(Relaxed);
        // If one of several servers is away, only some limiters are decided alone, but the set is about all of them.
        let are_many = backend.placement().has_many_servers();
        let beat = backend.beat(self.heartbeat(is_alone && !are_many));
        let (absent_counts, process) = (!are_many, self.clone());
        Box::pin(async move {
            let beat = beat.await?;
            process.is_known.store(true, Relaxed);
            let absent = if absent_counts { beat.absent } else { 0 };
            Ok(Beat { absent, entered: beat.entered && absent_counts, ..beat })
        })
    }
}
