//! One core's share of the data plane: its own runtime, listener, connections and store.

use super::{
    LINGER, Phase, ServerError,
    crew::{Crew, Guest},
    door::{Door, turn_away},
    seats::{Seat, Seats},
    source::StoreSource,
    system,
};
use crate::{
    log::{Permit, Throttle},
    plan::Plan,
    proxy::Proxy,
    store::Store,
    upstream::{Cluster, Pool},
};
use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
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
    pub(super) clusters: Vec<Arc<Cluster>>,
    /// `None`: clear text.
    pub(super) tls: Option<watch::Receiver<Arc<ServerConfig>>>,
    /// Those of all workers.
    pub(super) seats: Arc<Seats>,
    /// Bounds the clients that are told at one time that there is no seat.
    pub(super) turned_away: Arc<Semaphore>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) phases: watch::Receiver<Phase>,
    /// When the drain ends; set before it begins.
    pub(super) drain_end: Arc<OnceLock<Instant>>,
}

static UNACCEPTED: Throttle = Throttle::new();
static LOST: Throttle = Throttle::new();

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
            door.proxy.tunnels_ended().await;
        };
        let aborted = async {
            let _ = self.phases.wait_for(|phase| *phase == Phase::Aborting).await;
            door.proxy.cut_tunnels();
            // Connections hear of it too, and let go of everything before they end.
            sleep(LINGER).await;
        };
        tokio::select! {
            () = all => {}
            () = aborted => {}
        }
        door.proxy.cut_tunnels();
        connections.shutdown().await;
        door.proxy.tunnels_ended().await;
        // What was not used is on its way back to a store that may be away.
        let _ = timeout(LINGER, store.flush()).await;
        Ok(())
    }

    fn door(&self, store: Arc<dyn Store>) -> Result<Arc<Door>, ServerError> {
        let workers = self.plan.config.workers;
        let upstreams = self.clusters.iter().map(|cluster| Pool::new(cluster.clone(), workers));
        Ok(Arc::new(Door {
            proxy: Proxy::new(self.plan.clone(), self.number, store, upstreams.collect()),
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
                    // That client has left before it was let in; others wait.
                    Err(error) if is_its_own(&error) => {}
                    Err(error) => {
                        // Most likely out of file descriptors: wait until some are free.
                        if let Some(Permit { suppressed }) = UNACCEPTED.permit() {
                            tracing::warn!(%error, suppressed, "cannot accept");
                        }
                        while let Ok(guest) = self.guests.try_recv() {
                            take_over(door, connections, guest);
                        }
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(guest) = self.guests.recv() => take_over(door, connections, guest),
                _ = drain.wait_for(|phase| *phase >= Phase::Draining) => break,
                Some(_) = connections.join_next() => {}
            }
        }
        if let Some(end) = self.drain_end.get() {
            door.proxy.drain(*end);
        }
        // From now on others keep whom they let in.
        self.guests.close();
        while let Some(guest) = self.guests.recv().await {
            take_over(door, connections, guest);
        }
        // Those who got through to us before the door closed are still served.
        while let Ok((tcp, address)) = self.listener.accept() {
            let turn = self.crew.own_turn(self.number);
            match (registered(tcp), door.seats.take(turn)) {
                (Ok(tcp), Some(seat)) => serve(door, connections, tcp, address, seat),
                (Ok(tcp), None) => self.turn_away(door, connections, tcp),
                (Err(_), _) => {}
            }
        }
        Ok(())
    }

    /// A client has come: it stays here, or goes to a worker that has fewer, or is told that there is no seat for it.
    fn let_in(
        &self,
        door: &Arc<Door>,
        connections: &mut JoinSet<()>,
        tcp: TcpStream,
        address: SocketAddr,
    ) {
        let (worker, turn) = self.crew.turn(self.number);
        let Some(seat) = door.seats.take(turn) else {
            return self.turn_away(door, connections, tcp);
        };
        if worker == self.number {
            return serve(door, connections, tcp, address, seat);
        }
        // Of a socket that cannot be had back nothing is left to be told.
        let Ok(tcp) = tcp.into_std() else { return };
        if let Err(mut guest) = self.crew.hand_over(worker, Guest { tcp, address, seat }) {
            guest.seat.stays(self.crew.own_turn(self.number));
            take_over(door, connections, guest);
        }
    }

    fn turn_away(&self, door: &Door, connections: &mut JoinSet<()>, tcp: TcpStream) {
        if door.tls.is_none()
            && let Ok(permit) = self.turned_away.clone().try_acquire_owned()
        {
            // The answer must not wait for the client's delayed acknowledgement.
            let _ = tcp.set_nodelay(true);
            connections.spawn(async move {
                turn_away(tcp).await;
                drop(permit);
            });
        }
    }
}

/// A client that another worker has let in is served here.
fn take_over(door: &Arc<Door>, connections: &mut JoinSet<()>, Guest { tcp, address, seat }: Guest) {
    match registered(tcp) {
        Ok(tcp) => serve(door, connections, tcp, address, seat),
        Err(error) => {
            if let Some(Permit { suppressed }) = LOST.permit() {
                tracing::warn!(%error, suppressed, "cannot take a connection over");
            }
        }
    }
}

fn serve(
    door: &Arc<Door>,
    connections: &mut JoinSet<()>,
    tcp: TcpStream,
    address: SocketAddr,
    seat: Seat,
) {
    // Small answers must not wait for a client's delayed acknowledgement.
    let _ = tcp.set_nodelay(true);
    connections.spawn(door.clone().serve(tcp, address, seat));
}

/// Whether an error of accept is about one connection, which it takes away.
fn is_its_own(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

/// With this worker's runtime.
fn registered(tcp: StdStream) -> io::Result<TcpStream> {
    tcp.set_nonblocking(true)?;
    TcpStream::from_std(tcp)
}
