//! One core's share of the data plane: its own runtime, listener, connections and store.

use super::{
    LINGER, Phase, ServerError,
    crew::{Crew, Guest, Turn},
    door::{Door, turn_away},
    seats::Seats,
    source::StoreSource,
    system,
};
use crate::{
    gateway::{Gateway, Plan},
    store::Store,
    upstream::{Site, Upstream},
};
use std::{
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::rustls::ServerConfig;

/// One core's share of the data plane.
pub(super) struct Worker {
    /// Its own, of the port of all.
    pub(super) listener: StdListener,
    /// Whom others have let in for it.
    pub(super) guests: mpsc::Receiver<Guest>,
    /// All workers.
    pub(super) crew: Arc<Crew>,
    pub(super) plan: Arc<Plan>,
    /// Which one it is of those of the plan.
    pub(super) number: usize,
    pub(super) source: StoreSource,
    /// Shared by all workers.
    pub(super) sites: Vec<Arc<Site>>,
    /// `None`: clear text.
    pub(super) tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// Those of all workers.
    pub(super) seats: Arc<Seats>,
    /// Bounds the clients that are told at one time that there is no seat.
    pub(super) turned_away: Arc<Semaphore>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
}

// === impl Worker ===

impl Worker {
    pub(super) async fn run(mut self) -> Result<(), ServerError> {
        let store = self.source.store().await?;
        let door = self.door(store.clone())?;
        let mut connections = JoinSet::new();
        self.accept(&door, &mut connections).await?;
        drop(self.listener);
        let all = async {
            while connections.join_next().await.is_some() {}
            door.gateway.tunnels_ended().await;
        };
        let aborted = async {
            let _ = self.phases.wait_for(|phase| *phase == Phase::Aborting).await;
            door.gateway.cut_tunnels();
            // Connections hear of it too, and let go of everything before they end.
            sleep(LINGER).await;
        };
        tokio::select! {
            () = all => {}
            () = aborted => {}
        }
        door.gateway.cut_tunnels();
        connections.shutdown().await;
        door.gateway.tunnels_ended().await;
        // What was not used is on its way back to a store that may be away.
        let _ = timeout(LINGER, store.flush()).await;
        Ok(())
    }

    fn door(&self, store: Arc<dyn Store>) -> Result<Arc<Door>, ServerError> {
        let workers = self.plan.config.workers;
        let upstreams = self.sites.iter().map(|site| Upstream::new(site.clone(), workers));
        Ok(Arc::new(Door {
            gateway: Gateway::new(self.plan.clone(), self.number, store, upstreams.collect()),
            plan: self.plan.clone(),
            tls: self.tls.clone(),
            port: self.listener.local_addr().map_err(system)?.port(),
            seats: self.seats.clone(),
            draining: self.draining.clone(),
            phases: self.phases.clone(),
        }))
    }

    /// Lets clients in until the gateway drains.
    async fn accept(
        &mut self,
        door: &Arc<Door>,
        connections: &mut JoinSet<()>,
    ) -> Result<(), ServerError> {
        let listener = TcpListener::from_std(self.listener.try_clone().map_err(system)?);
        let listener = listener.map_err(system)?;
        let mut drain = self.phases.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((tcp, address)) => self.let_in(door, connections, tcp, address),
                    Err(error) => {
                        // Most likely out of file descriptors: wait until some are free.
                        tracing::warn!(%error, "cannot accept");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(guest) = self.guests.recv() => self.take_over(door, connections, guest),
                _ = drain.wait_for(|phase| *phase >= Phase::Draining) => break,
                Some(_) = connections.join_next() => {}
            }
        }
        // Those who got through to us before the door closed are still served. Nobody is left to take them over.
        while let Ok((tcp, address)) = self.listener.accept() {
            let turn = self.crew.own_turn(self.number);
            self.take_over(door, connections, Guest { tcp, address, turn });
        }
        self.guests.close();
        while let Some(guest) = self.guests.recv().await {
            self.take_over(door, connections, guest);
        }
        Ok(())
    }

    /// A client has come: it stays here, or goes to a worker that has fewer.
    fn let_in(
        &self,
        door: &Arc<Door>,
        connections: &mut JoinSet<()>,
        tcp: TcpStream,
        address: SocketAddr,
    ) {
        let (worker, turn) = self.crew.turn(self.number);
        if worker == self.number {
            return self.welcome(door, connections, tcp, address, turn);
        }
        // Of a socket that cannot be had back nothing is left to be told.
        let Ok(tcp) = tcp.into_std() else { return };
        let handed_over = self.crew.hand_over(worker, Guest { tcp, address, turn });
        if let Err(guest) = handed_over {
            let turn = self.crew.own_turn(self.number);
            self.take_over(door, connections, Guest { turn, ..guest });
        }
    }

    /// A client that somebody has let in is served here.
    fn take_over(
        &self,
        door: &Arc<Door>,
        connections: &mut JoinSet<()>,
        Guest { tcp, address, turn }: Guest,
    ) {
        let tcp = tcp.set_nonblocking(true).and_then(|()| TcpStream::from_std(tcp));
        match tcp {
            Ok(tcp) => self.welcome(door, connections, tcp, address, turn),
            Err(error) => tracing::warn!(%error, "cannot take a connection over"),
        }
    }

    /// A client has come: there is a seat for it, or it is told that there is none.
    fn welcome(
        &self,
        door: &Arc<Door>,
        connections: &mut JoinSet<()>,
        tcp: TcpStream,
        address: SocketAddr,
        turn: Turn,
    ) {
        // Small answers must not wait for a client's delayed acknowledgement.
        let _ = tcp.set_nodelay(true);
        if let Some(seat) = door.seats.take(turn) {
            connections.spawn(door.clone().serve(tcp, address, seat));
        } else if door.tls.is_none()
            && let Ok(permit) = self.turned_away.clone().try_acquire_owned()
        {
            connections.spawn(async move {
                turn_away(tcp).await;
                drop(permit);
            });
        }
    }
}
