//! Accepts the clients of one worker until the gateway drains, and starts a task for each. Reads and writes no byte of
//! HTTP, except the 503 for a client beyond the connection limit.

use super::{
    balancer::{ConnectionBalancer, Handoff},
    connection::ConnectionDriver,
    connection_limit::ConnectionPermit,
    context::ConnectionContext,
    edge::{ClientStream, serialized},
    error::{ServerError, system},
    handshake::{Handshake, Opened},
    phase::{LINGER, Phase},
};
use crate::{
    answer::Failure,
    key,
    log::{Permit, Throttle},
    metrics::{Protocol, Refusal},
    proxy::Client,
};
use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// The pause after a failed accept. Most likely the process has no file descriptor left, and the next try would fail, too.
const PAUSE: Duration = Duration::from_millis(100);

static FAILED_ACCEPTS: Throttle = Throttle::new();
static FAILED_HANDOFFS: Throttle = Throttle::new();

/// Accepts the clients of one worker.
pub(super) struct Acceptor {
    /// This worker's socket. Every worker has one on the same port.
    pub(super) listener: StdListener,
    /// A supervisor keeps the socket open: connections that wait in it are those of the next process.
    pub(super) is_inherited: bool,
    /// Connections that other workers accepted for this one.
    pub(super) handoffs: mpsc::Receiver<Handoff>,
    pub(super) balancer: Arc<ConnectionBalancer>,
    /// The number of this worker, from 0.
    pub(super) number: usize,
    /// Bounds the clients that are being answered with 503 because too many are connected.
    pub(super) turned_away: Arc<Semaphore>,
    pub(super) context: Arc<ConnectionContext>,
    /// The tasks of all connections that this worker serves. At the end of the drain they are aborted.
    pub(super) connections: JoinSet<()>,
}

// === impl Acceptor ===

impl Acceptor {
    /// Accepts clients until the gateway drains, then closes the port. Returns the connections that are still open.
    ///
    /// # Errors
    ///
    /// [`ServerError::System`] if the listener cannot be registered with this worker's runtime.
    pub(super) async fn run(
        mut self,
        drain_end: Arc<OnceLock<Instant>>,
    ) -> Result<JoinSet<()>, ServerError> {
        self.accept().await?;
        if let Some(end) = drain_end.get() {
            self.context.proxy.load().drain(*end);
        }
        // From now on the other workers keep the connections that they accept.
        self.handoffs.close();
        while let Some(handoff) = self.handoffs.recv().await {
            self.take_over(handoff);
        }
        // Clients whose connection the kernel completed before the port closes are still served.
        while !self.is_inherited
            && let Ok((tcp, address)) = self.listener.accept()
        {
            let load = self.balancer.keep(self.number);
            match (registered(tcp), self.context.connections.acquire(load)) {
                (Ok(tcp), Some(permit)) => self.serve(tcp, address, permit),
                (Ok(tcp), None) => self.turn_away(tcp),
                (Err(_), _) => {}
            }
        }
        Ok(self.connections)
    }

    async fn accept(&mut self) -> Result<(), ServerError> {
        let listener = TcpListener::from_std(self.listener.try_clone().map_err(system)?);
        let listener = listener.map_err(system)?;
        let mut phases = self.context.phases.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((tcp, address)) => self.admit(tcp, address),
                    // That client disconnected before it was accepted. Others may be waiting.
                    Err(error) if is_of_one_client(&error) => {}
                    Err(error) => {
                        if let Some(Permit { suppressed }) = FAILED_ACCEPTS.permit() {
                            tracing::warn!(%error, suppressed, "cannot accept");
                        }
                        while let Ok(handoff) = self.handoffs.try_recv() {
                            self.take_over(handoff);
                        }
                        sleep(PAUSE).await;
                    }
                },
                Some(handoff) = self.handoffs.recv() => self.take_over(handoff),
                () = async { drop(phases.wait_for(|phase| *phase >= Phase::Draining).await) } => return Ok(()),
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    /// Serves a new client here, hands it over to the worker with the fewest connections, or answers it with 503.
    fn admit(&mut self, tcp: TcpStream, address: SocketAddr) {
        let (worker, load) = self.balancer.choose(self.number);
        let Some(permit) = self.context.connections.acquire(load) else {
            return self.turn_away(tcp);
        };
        if worker == self.number {
            return self.serve(tcp, address, permit);
        }
        // A socket that cannot leave the runtime is closed, without a socket to answer on.
        let Ok(tcp) = tcp.into_std() else { return };
        let handed_over = self.balancer.hand_over(worker, Handoff { tcp, address, permit });
        if let Err(mut handoff) = handed_over {
            handoff.permit.set_load(self.balancer.keep(self.number));
            self.take_over(handoff);
        }
    }

    /// Serves a connection that another worker accepted.
    fn take_over(&mut self, Handoff { tcp, address, permit }: Handoff) {
        match registered(tcp) {
            Ok(tcp) => self.serve(tcp, address, permit),
            Err(error) => {
                if let Some(Permit { suppressed }) = FAILED_HANDOFFS.permit() {
                    tracing::warn!(%error, suppressed, "cannot take a connection over");
                }
            }
        }
    }

    fn serve(&mut self, tcp: TcpStream, address: SocketAddr, mut permit: ConnectionPermit) {
        let plan = self.context.plan();
        let (ip, config) = (address.ip().to_canonical(), &plan.config);
        // A proxy has many clients. It may name each of them with the PROXY protocol, which is read later. A program that
        // calls a service is a proxy, too.
        if let most @ Some(_) = config.client.max_connections_per_address
            && self.context.service.is_none()
            && !key::is_trusted(ip, &config.trusted_proxies)
            && permit.count_for(ip, most).is_err()
        {
            return self.turn_away(tcp);
        }
        // A small answer must not wait for the client's delayed acknowledgement.
        let _ = tcp.set_nodelay(true);
        self.connections.spawn(serve(self.context.clone(), tcp, address, permit));
    }

    /// Answers a client beyond the connection limit with 503. Over TLS, and when as many clients as may be are being
    /// answered so, the connection is closed without an answer.
    fn turn_away(&mut self, tcp: TcpStream) {
        if self.context.tls.borrow().is_none()
            && let Ok(permit) = self.turned_away.clone().try_acquire_owned()
        {
            // The answer must not wait for the client's delayed acknowledgement.
            let _ = tcp.set_nodelay(true);
            self.connections.spawn(async move {
                say(tcp, &serialized(&Failure::TooManyConnections.response(), None)).await;
                drop(permit);
            });
        }
    }
}

/// Serves a client until it disconnects, exceeds a time-out, or the gateway stops.
async fn serve(
    context: Arc<ConnectionContext>,
    tcp: TcpStream,
    address: SocketAddr,
    mut permit: ConnectionPermit,
) {
    let limit = context.client().header_timeout;
    let perform = Handshake::perform(&context, tcp, address, &mut permit);
    let mut opened = begin(&context, timely(limit, perform)).await;
    let handshake = loop {
        // Each step of a CONNECT has the whole time.
        opened = match opened {
            None => return,
            Some(Opened::Http(handshake)) => break *handshake,
            Some(Opened::Asked(asked)) => Box::pin(begin(&context, asked.answer(&context))).await,
            Some(Opened::Granted(granted)) => {
                Box::pin(begin(&context, timely(limit, granted.open()))).await
            }
            Some(Opened::Tunnel(tunnel)) => {
                return Box::pin(tunnel.run(permit, context.phases.clone())).await;
            }
        };
    };
    let plan = context.plan();
    let config = &plan.config;
    let (is_tls, trusted) = (handshake.is_tls(), handshake.trusted(&config.trusted_proxies));
    let Handshake { transport, early, protocol, address, forward, .. } = handshake;
    let stream = Arc::new(ClientStream::new(transport, early, protocol, permit, config.limits));
    let client = Client::new(address.ip, address.port, is_tls, trusted, stream.clone());
    let client = client.with_forward(forward);
    drop(plan);
    let driver = ConnectionDriver::new(context, Arc::new(client), stream);
    match protocol {
        Protocol::Http2 => Box::pin(driver.http2()).await,
        Protocol::Http1 | Protocol::Tunnel => driver.http1().await,
    }
}

/// Waits for a step at the beginning of a connection, until the gateway closes idle ones. `None` ends the connection.
async fn begin(
    context: &ConnectionContext,
    step: impl Future<Output = Result<Opened, Option<Refusal>>>,
) -> Option<Opened> {
    let mut phases = context.phases.clone();
    let opened = tokio::select! {
        biased;
        opened = step => opened,
        _ = phases.wait_for(|phase| *phase >= Phase::ClosingIdle) => return None,
    };
    if let Err(Some(reason)) = opened {
        context.connections.refuse(reason);
    }
    opened.ok()
}

/// Lets a step take `limit` at most.
async fn timely(
    limit: Duration,
    step: impl Future<Output = Result<Opened, Option<Refusal>>>,
) -> Result<Opened, Option<Refusal>> {
    timeout(limit, step).await.unwrap_or(Err(Some(Refusal::HeaderTimeout)))
}

/// Writes an answer to a client that is not served, and reads for up to 1 s until the client has closed, so that it receives
/// the answer instead of a reset.
pub(super) async fn say(mut tcp: TcpStream, answer: &[u8]) {
    let answered = async {
        tcp.write_all(answer).await?;
        tcp.shutdown().await?;
        let mut sink = [0; 1024];
        while tcp.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, answered).await;
}

/// Whether an error of accept is about one connection, which has disappeared with it.
fn is_of_one_client(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

/// Registers a socket with the runtime of this worker.
fn registered(tcp: StdStream) -> io::Result<TcpStream> {
    tcp.set_nonblocking(true)?;
    TcpStream::from_std(tcp)
}
