//! One worker: a thread with its own runtime, listener, upstream connections and store connection. Starts and ends them.

use super::{
    acceptor::Acceptor,
    balancer::{ConnectionBalancer, Handoff},
    connection_limit::ConnectionLimit,
    context::ConnectionContext,
    error::{ServerError, system},
    phase::{LINGER, Phase},
    source::StoreSource,
};
use crate::{live::Live, store::Store};
use std::{
    net::TcpListener,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};
use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// One worker, before it runs.
pub(super) struct Worker {
    /// This worker's socket. Every worker has one on the same port.
    pub(super) listener: TcpListener,
    /// A supervisor keeps the socket open, so that the next process accepts from it.
    pub(super) is_inherited: bool,
    /// Connections that other workers accepted for this one.
    pub(super) handoffs: mpsc::Receiver<Handoff>,
    pub(super) balancer: Arc<ConnectionBalancer>,
    pub(super) live: Arc<Live>,
    /// The number of this worker, from 0, by which the plan keeps its counters.
    pub(super) number: usize,
    pub(super) source: StoreSource,
    /// The connection limit of all workers together.
    pub(super) connections: Arc<ConnectionLimit>,
    /// Bounds the clients that this worker answers with 503 at one time because too many are connected.
    pub(super) turned_away: Arc<Semaphore>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
    /// The instant at which the drain ends. The main thread sets it before [`Phase::Draining`].
    pub(super) drain_end: Arc<OnceLock<Instant>>,
}

// === impl Worker ===

impl Worker {
    /// Serves clients until the gateway has drained, then returns unused permits to the store.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if the store's URL cannot be used or the listener fails at the start.
    pub(super) async fn run(self) -> Result<(), ServerError> {
        let store = self.source.store().await?;
        let context = self.context(store.clone())?;
        let mut phases = self.phases;
        let acceptor = Acceptor {
            listener: self.listener,
            is_inherited: self.is_inherited,
            handoffs: self.handoffs,
            balancer: self.balancer,
            number: self.number,
            turned_away: self.turned_away,
            context: context.clone(),
            connections: JoinSet::new(),
        };
        let mut connections = acceptor.run(&self.drain_end).await?;
        let all_ended = async {
            while connections.join_next().await.is_some() {}
            // The proxy that replaces another one has its tunnels.
            context.proxy.load().tunnels_ended().await;
        };
        let aborted = async {
            let _ = phases.wait_for(|phase| *phase >= Phase::ClosingTunnels).await;
            context.proxy.load().close_tunnels();
            let _ = phases.wait_for(|phase| *phase == Phase::Aborting).await;
            context.proxy.load().cut_tunnels();
            // Connections watch the phase, too: they release all that they hold before they end.
            sleep(LINGER).await;
        };
        tokio::select! {
            () = all_ended => {}
            () = aborted => {}
        }
        context.proxy.load().cut_tunnels();
        connections.shutdown().await;
        context.proxy.load().tunnels_ended().await;
        // Unused permits are on their way back to the store, which may be away.
        let _ = timeout(LINGER, store.flush()).await;
        Ok(())
    }

    fn context(&self, store: Arc<dyn Store>) -> Result<Arc<ConnectionContext>, ServerError> {
        Ok(Arc::new(ConnectionContext {
            proxy: self.live.join(self.number, store),
            tls: self.live.certificates(),
            port: self.listener.local_addr().map_err(system)?.port(),
            connections: self.connections.clone(),
            draining: self.draining.clone(),
            phases: self.phases.clone(),
        }))
    }
}
