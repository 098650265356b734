//! The process around the data plane: sockets, one runtime and one set of connections per worker, and the
//! way down: stop accepting, finish, give back.

use crate::{
    admin::{self, Admin},
    config::{self, Config},
    gateway::{Gateway, Peer, Plan},
    metrics,
    store::{
        Store,
        batch::Batched,
        memory::MemoryStore,
        redis::{ConnectError, RedisStore, RedisUrl},
    },
    upstream::Upstream,
};
use http::{HeaderValue, Request, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use metrics_exporter_prometheus::PrometheusHandle;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{self, Runtime},
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

const BACKLOG: i32 = 4096;
/// A client gets this long to send a request's head; between two requests likewise.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// After SIGTERM, connections stay open this long for clients that were about to use them; what they get then
/// says `Connection: close`.
const LINGER: Duration = Duration::from_secs(1);
const UPKEEP: Duration = Duration::from_secs(5);
const PROBE: Duration = Duration::from_secs(2);
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Why a gateway cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address} (`{key}`): {source}")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// Of the configuration.
        key: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The store will never serve us as configured.
    #[error("the store {0}")]
    Store(#[source] ConnectError),
    /// No certificates of authorities to check an https upstream with.
    #[error("cannot read the system's certificate authorities, which https upstreams need: {0}")]
    Roots(#[source] io::Error),
    /// Threads, runtimes, signals, recorders.
    #[error("cannot start: {0}")]
    System(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Never by itself.
    #[error("a worker ended; this is a bug")]
    Worker,
}

/// A gateway with its sockets open.
#[derive(Debug)]
pub struct Server {
    plan: Arc<Plan>,
    metrics: PrometheusHandle,
    data: Vec<StdListener>,
    admin: StdListener,
    listen: SocketAddr,
    admin_address: SocketAddr,
}

/// How far down a gateway is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// No new connections; those there are finish.
    Draining,
    /// Nobody is about to use an idle connection any more.
    ClosingIdle,
    /// The time is up.
    Aborting,
}

/// Where one side of the gateway gets its decisions.
#[derive(Debug, Clone)]
enum StoreSource {
    Memory(Arc<MemoryStore>),
    Redis { url: RedisUrl, timeout: Duration, reachable: bool },
}

// === impl Server ===

impl Server {
    /// Opens the sockets. Installs the metrics recorder of the process.
    ///
    /// # Errors
    ///
    /// [`ServerError`].
    pub fn bind(config: Config, access_log: bool) -> Result<Self, ServerError> {
        let metrics = metrics::install().map_err(|error| ServerError::System(error.into()))?;
        let open = |address, key, shared| {
            bind(address, shared).map_err(|source| ServerError::Listen { address, key, source })
        };
        // Sockets of one port spread its connections, also those of another process: make sure there is none.
        drop(open(config.listen, "listen", false)?);
        let first = open(config.listen, "listen", true)?;
        let listen = first.local_addr().map_err(|error| ServerError::System(error.into()))?;
        let mut data = vec![first];
        for _ in 1..config.workers.get() {
            data.push(open(listen, "listen", true)?);
        }
        let admin = open(config.admin, "admin", false)?;
        let admin_address =
            admin.local_addr().map_err(|error| ServerError::System(error.into()))?;
        let plan = Arc::new(Plan::new(config, access_log));
        Ok(Self { plan, metrics, data, admin, listen, admin_address })
    }

    /// The addresses of the data plane and of the admin side, with the ports that the system chose.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.listen, self.admin_address)
    }

    /// Serves until SIGTERM or SIGINT, then drains. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// [`ServerError`].
    pub fn run(self) -> Result<(), ServerError> {
        let main = new_runtime()?;
        main.block_on(async move {
            let source = StoreSource::open(&self.plan.config).await?;
            let connector = connector(&self.plan.config)?;
            let draining = Arc::new(AtomicBool::new(false));
            let (phase, phases) = watch::channel(Phase::Running);
            let (ended, mut ends) = mpsc::channel(1);
            for (i, listener) in self.data.into_iter().enumerate() {
                let worker = Worker {
                    listener,
                    plan: self.plan.clone(),
                    source: source.clone(),
                    connector: connector.clone(),
                    draining: draining.clone(),
                    phases: phases.clone(),
                };
                let (runtime, ended) = (new_runtime()?, ended.clone());
                thread::Builder::new()
                    .name(format!("worker-{i}"))
                    .spawn(move || {
                        let result = runtime.block_on(worker.run());
                        // Nobody listens only when the process is on its way out.
                        let _ = ended.blocking_send(result);
                    })
                    .map_err(|error| ServerError::System(error.into()))?;
            }
            drop(ended);
            let store = source.store().await?;
            let admin = Admin {
                plan: self.plan.clone(),
                store,
                metrics: self.metrics.clone(),
                draining: draining.clone(),
            };
            tokio::spawn(serve_admin(self.admin, admin));
            tokio::spawn(upkeep(self.metrics));
            tracing::info!(
                listen = %self.listen,
                admin = %self.admin_address,
                workers = self.plan.config.workers,
                version = env!("CARGO_PKG_VERSION"),
                "listening"
            );
            tokio::select! {
                signal = shutdown_signal() => tracing::info!(signal = signal?, "draining"),
                _ = ends.recv() => return Err(ServerError::Worker),
            }
            draining.store(true, Relaxed);
            drain(&phase, &mut ends, self.plan.config.drain_timeout).await
        })
    }
}

/// Takes the workers down, one phase after the other.
async fn drain(
    phase: &watch::Sender<Phase>,
    ends: &mut mpsc::Receiver<Result<(), ServerError>>,
    limit: Duration,
) -> Result<(), ServerError> {
    tokio::spawn(async {
        if let Ok(signal) = shutdown_signal().await {
            tracing::warn!(signal, "second signal: stopping at once");
        }
        std::process::exit(1);
    });
    phase.send_replace(Phase::Draining);
    let linger = LINGER.min(limit);
    let all_ended = async {
        while let Some(result) = ends.recv().await {
            result?;
        }
        Ok(())
    };
    tokio::pin!(all_ended);
    if let Ok(result) = timeout(linger, &mut all_ended).await {
        tracing::info!("stopped");
        return result;
    }
    phase.send_replace(Phase::ClosingIdle);
    if let Ok(result) = timeout(limit - linger, &mut all_ended).await {
        tracing::info!("stopped");
        return result;
    }
    tracing::warn!(limit_s = limit.as_secs_f64(), "drain_timeout is over: closing what is left");
    phase.send_replace(Phase::Aborting);
    all_ended.await
}

/// Until one of the signals that end a process politely; its name.
async fn shutdown_signal() -> Result<&'static str, ServerError> {
    let listen = |kind| signal(kind).map_err(|error| ServerError::System(error.into()));
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => Ok("SIGTERM"),
        _ = int.recv() => Ok("SIGINT"),
    }
}

/// One core's share of the data plane.
struct Worker {
    /// Its own: the kernel spreads connections over the listeners of one port.
    listener: StdListener,
    plan: Arc<Plan>,
    source: StoreSource,
    connector: HttpsConnector<HttpConnector>,
    draining: Arc<AtomicBool>,
    phases: watch::Receiver<Phase>,
}

// === impl Worker ===

impl Worker {
    async fn run(mut self) -> Result<(), ServerError> {
        let store = self.source.store().await?;
        let upstreams = self.plan.config.upstreams.iter().map(|upstream| {
            Upstream::new(upstream.target.clone(), upstream.timeouts, self.connector.clone())
        });
        let gateway = Gateway::new(self.plan.clone(), store.clone(), upstreams.collect());
        let gateway = Arc::new(gateway);
        let listener = TcpListener::from_std(self.listener.try_clone().map_err(system)?);
        let listener = listener.map_err(system)?;
        let mut connections = JoinSet::new();
        let mut drain = self.phases.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        connections.spawn(self.connection(&gateway, stream, peer));
                    }
                    Err(error) => {
                        // Most likely out of file descriptors: wait until some are free.
                        tracing::warn!(%error, "cannot accept");
                        sleep(Duration::from_millis(100)).await;
                    }
                },
                _ = drain.wait_for(|phase| *phase >= Phase::Draining) => break,
                Some(_) = connections.join_next() => {}
            }
        }
        // Those who got through to us before the door closed are still served.
        while let Ok((stream, peer)) = self.listener.accept() {
            let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
            if let Ok(stream) = stream {
                connections.spawn(self.connection(&gateway, stream, peer));
            }
        }
        drop((listener, self.listener));
        let all = async { while connections.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            _ = self.phases.wait_for(|phase| *phase == Phase::Aborting) => {}
        }
        connections.shutdown().await;
        // What was not used is on its way back to a store that may be away.
        let _ = timeout(LINGER, store.flush()).await;
        Ok(())
    }

    fn connection(
        &self,
        gateway: &Arc<Gateway>,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (gateway, draining) = (gateway.clone(), self.draining.clone());
        let mut phases = self.phases.clone();
        let peer = Arc::new(Peer::new(peer.ip()));
        // Small answers must not wait for a client's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (gateway, peer, draining) = (gateway.clone(), peer.clone(), draining.clone());
                async move {
                    let mut response = gateway.handle(&peer, request).await;
                    if draining.load(Relaxed) {
                        let close = HeaderValue::from_static("close");
                        response.headers_mut().insert(CONNECTION, close);
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            let closing =
                async { drop(phases.wait_for(|phase| *phase >= Phase::ClosingIdle).await) };
            // A connection's error is its client's: it left, or did not speak HTTP and was told so.
            tokio::select! {
                _ = connection.as_mut() => {}
                () = closing => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        }
    }
}

// === impl StoreSource ===

impl StoreSource {
    async fn open(config: &Config) -> Result<Self, ServerError> {
        let config::Store::Redis { url, timeout, .. } = &config.store else {
            return Ok(Self::Memory(Arc::default()));
        };
        let reachable = match RedisStore::probe(url, PROBE).await {
            Ok(warnings) => {
                for warning in warnings {
                    tracing::warn!(store = %url, warning, "store");
                }
                true
            }
            Err(error @ ConnectError::Refused(_)) => return Err(ServerError::Store(error)),
            Err(error @ ConnectError::Unreachable(_)) => {
                tracing::warn!(store = %url, %error, "the store is away; limited requests get 503");
                false
            }
        };
        Ok(Self::Redis { url: url.clone(), timeout: *timeout, reachable })
    }

    /// A store of the current runtime, connected if it can be.
    async fn store(&self) -> Result<Arc<dyn Store>, ServerError> {
        let (url, timeout, reachable) = match self {
            Self::Memory(store) => {
                metrics::store().up.set(1.0);
                return Ok(store.clone());
            }
            Self::Redis { url, timeout, reachable } => (url, *timeout, *reachable),
        };
        let script = RedisStore::open(url).map_err(ServerError::Store)?;
        // It was there a moment ago; if it is away again, requests are told so one by one.
        if reachable && let Err(error) = script.connected(PROBE).await {
            tracing::warn!(store = %url, %error, "the store is away; limited requests get 503");
        }
        Ok(Arc::new(Batched::new(Arc::new(script), timeout, metrics::store())))
    }
}

fn system(error: io::Error) -> ServerError {
    ServerError::System(error.into())
}

fn new_runtime() -> Result<Runtime, ServerError> {
    runtime::Builder::new_current_thread().enable_all().build().map_err(system)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Connects to upstreams; the system's authorities are read only where an upstream needs them.
fn connector(config: &Config) -> Result<HttpsConnector<HttpConnector>, ServerError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE));
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder = if config.upstreams.iter().any(|upstream| upstream.target.is_https()) {
        builder.with_native_roots().map_err(ServerError::Roots)?
    } else {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ServerError::System(error.into()))?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder.with_tls_config(tls)
    };
    Ok(builder.https_or_http().enable_http1().wrap_connector(http))
}

async fn upkeep(metrics: PrometheusHandle) {
    loop {
        sleep(UPKEEP).await;
        metrics.run_upkeep();
    }
}

async fn serve_admin(listener: StdListener, admin: Admin) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let router = admin::router(admin);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection);
    }
}
