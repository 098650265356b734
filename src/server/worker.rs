//! One worker: a thread with its own runtime, listener, upstream connections and store connection. Starts and ends them.

use super::{
    acceptor::Acceptor,
    balancer::{ConnectionBalancer, Handoff},
    connection_limit::ConnectionLimit,
    context::ConnectionContext,
    error::{ServerError, system},
    forward::ForwardDoor,
    phase::{LINGER, Phase},
    source::StoreSource,
};
use crate::{config::Service, live::Live, proxy::CurrentProxy};
use std::{
    mem,
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
    /// The port of the data plane, and those of services.
    pub(super) ports: Vec<WorkerPort>,
    pub(super) live: Arc<Live>,
    /// The number of this worker, from 0, by which the plan keeps its counters.
    pub(super) number: usize,
    pub(super) source: StoreSource,
    /// The forward proxy, if there is one.
    pub(super) forward: Option<Arc<ForwardDoor>>,
    /// The connection limit of all workers together, for clients of the data plane.
    pub(super) connections: Arc<ConnectionLimit>,
    /// That for programs that call services.
    pub(super) of_services: Arc<ConnectionLimit>,
    /// Bounds the clients that this worker answers with 503 at one time because too many are connected.
    pub(super) turned_away: Arc<Semaphore>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
    /// The instant at which the drain ends. The main thread sets it before [`Phase::Draining`].
    pub(super) drain_end: Arc<OnceLock<Instant>>,
}

/// A port as one worker serves it.
pub(super) struct WorkerPort {
    /// This worker's socket. Every worker has one on the same port.
    pub(super) listener: TcpListener,
    /// A supervisor keeps the socket open, so that the next process accepts from it.
    pub(super) is_inherited: bool,
    /// Connections that other workers accepted for this one.
    pub(super) handoffs: mpsc::Receiver<Handoff>,
    pub(super) balancer: Arc<ConnectionBalancer>,
    pub(super) door: Door,
}

/// The use of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    Data,
    Forward,
    Service(Service),
}

// === impl Door ===

impl Door {
    fn service(self) -> Option<Service> {
        match self {
            Self::Data | Self::Forward => None,
            Self::Service(service) => Some(service),
        }
    }
}

// === impl Worker ===

impl Worker {
    /// Serves clients until the gateway has drained, then returns unused permits to the store.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if the store's URL cannot be used or the listener fails at the start.
    pub(super) async fn run(mut self) -> Result<(), ServerError> {
        let store = self.source.store().await?;
        let proxy = self.live.join(self.number, store.clone());
        let mut acceptors = JoinSet::new();
        for port in mem::take(&mut self.ports) {
            acceptors.spawn(self.acceptor(port, &proxy)?.run(self.drain_end.clone()));
        }
        let mut phases = self.phases;
        let mut connections = Vec::new();
        while let Some(ended) = acceptors.join_next().await {
            connections.push(ended.map_err(|_| ServerError::Worker)??);
        }
        let all_ended = async {
            for of_port in &mut connections {
                while of_port.join_next().await.is_some() {}
            }
            // The proxy that replaces another one has its tunnels.
            proxy.load().tunnels_ended().await;
        };
        let aborted = async {
            let _ = phases.wait_for(|phase| *phase >= Phase::ClosingTunnels).await;
            proxy.load().close_tunnels();
            let _ = phases.wait_for(|phase| *phase == Phase::Aborting).await;
            proxy.load().cut_tunnels();
            // Connections watch the phase, too: they release all that they hold before they end.
            sleep(LINGER).await;
        };
        tokio::select! {
            () = all_ended => {}
            () = aborted => {}
        }
        proxy.load().cut_tunnels();
        for of_port in &mut connections {
            of_port.shutdown().await;
        }
        proxy.load().tunnels_ended().await;
        // Unused permits are on their way back to the store, which may be away.
        let _ = timeout(LINGER, store.flush()).await;
        Ok(())
    }

    fn acceptor(&self, port: WorkerPort, proxy: &CurrentProxy) -> Result<Acceptor, ServerError> {
        let (service, is_forward) = (port.door.service(), port.door == Door::Forward);
        let connections = if service.is_some() { &self.of_services } else { &self.connections };
        let tls = if is_forward { watch::channel(None).1 } else { self.live.certificates(service) };
        let context = Arc::new(ConnectionContext {
            proxy: proxy.clone(),
            service,
            forward: self.forward.clone().filter(|_| is_forward),
            tls,
            port: port.listener.local_addr().map_err(system)?.port(),
            connections: connections.clone(),
            draining: self.draining.clone(),
            phases: self.phases.clone(),
        });
        Ok(Acceptor {
            listener: port.listener,
            is_inherited: port.is_inherited,
            handoffs: port.handoffs,
            balancer: port.balancer,
            number: self.number,
            turned_away: self.turned_away.clone(),
            context,
            connections: JoinSet::new(),
        })
    }
}
