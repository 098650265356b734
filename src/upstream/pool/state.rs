//! The state of one worker's pool for one upstream, which its connections share. Makes no connection.

use super::idle::IdleConnections;
use crate::upstream::{
    balance::Address,
    cluster::{Cluster, Timeouts},
    h1::H1Connection,
    sockets::CloseIdle,
    target::Target,
};
use parking_lot::Mutex;
use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::Instant;

/// The state that a pool and its connections share.
pub(in crate::upstream) struct PoolState {
    pub(in crate::upstream) cluster: Arc<Cluster>,
    /// The most idle connections that this worker keeps; 0 keeps none.
    pub(super) keeps: usize,
    pub(super) idle: Mutex<IdleConnections>,
    /// The number of connections that are open or being made.
    pub(super) open: Arc<AtomicUsize>,
    /// The time that the last connection took to make, in microseconds.
    pub(super) connect_micros: AtomicU64,
}

// === impl PoolState ===

impl PoolState {
    /// The state of a pool without connections, of one of `workers`, which share the pool size of the configuration.
    pub(super) fn new(cluster: Arc<Cluster>, workers: NonZeroUsize) -> Arc<Self> {
        let keeps = match cluster.settings.pool_size {
            0 => 0,
            size => (size / workers).max(1),
        };
        Arc::new(Self {
            idle: Mutex::new(IdleConnections::new(cluster.group.clone())),
            cluster,
            keeps,
            open: Arc::default(),
            connect_micros: AtomicU64::new(0),
        })
    }

    pub(in crate::upstream) fn timeouts(&self) -> Timeouts {
        self.cluster.settings.timeouts
    }

    /// The time before its slot at which a request should take a connection: twice as long as the last one took to make.
    pub(super) fn lead(&self) -> Duration {
        paceway_limit::limit::lead(Duration::from_micros(self.connect_micros.load(Relaxed)))
    }

    /// Whether the only address has accepted no connection for as long as `connect_timeout`.
    pub(super) fn is_dead(&self) -> bool {
        match &*self.cluster.group.load().addresses {
            [only] => only.is_dead(Instant::now(), self.timeouts().connect),
            _ => false,
        }
    }

    /// The target that an address belongs to: its host and its base path.
    pub(in crate::upstream) fn target_of(&self, address: &Address) -> &Target {
        &self.cluster.settings.targets[address.target]
    }

    /// Keeps a connection for the next request, if it can be used again. Its response had ended by `since`.
    pub(in crate::upstream) fn keep(
        &self,
        mut wire: Box<H1Connection>,
        address: Arc<Address>,
        since: Instant,
    ) {
        if wire.rest() {
            self.idle.lock().put(wire, address, since, self.keeps);
        }
    }
}

impl CloseIdle for PoolState {
    fn close_oldest(&self) -> bool {
        let oldest = self.idle.lock().take_oldest();
        oldest.is_some()
    }
}
