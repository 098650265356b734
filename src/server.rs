//! The process around the data plane: sockets, one runtime and one set of connections per worker, and the
//! way down: stop accepting, finish, give back.

mod certificates;
mod clock;
mod connection;
mod crew;
mod descriptors;
mod door;
mod edge;
mod http2;
mod operators;
mod proxy_protocol;
mod seats;
mod socket;
mod source;
mod transport;
mod windows;
mod worker;

#[cfg(fuzzing)]
pub use proxy_protocol::fuzzing as proxy_fuzzing;

use crate::{
    admin::{self, Admin},
    config::Config,
    log, metrics,
    plan::Plan,
    store::redis::ConnectError,
    tls::TlsError,
    upstream::{self, TrustError},
};
use crew::Crew;
use descriptors::Shares;
use metrics_exporter_prometheus::PrometheusHandle;
use operators::Limits;
use seats::Seats;
use socket::{clusters, ensure_free, listen};
use source::StoreSource;
use std::{
    io,
    net::{SocketAddr, TcpListener as StdListener},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tokio::{
    runtime::{self, Runtime, RuntimeMetrics},
    signal::unix::{Signal, SignalKind, signal},
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use worker::Worker;

/// After SIGTERM, connections stay open this long for clients that were about to use them; what they get then
/// says `Connection: close`.
const LINGER: Duration = Duration::from_secs(1);
const UPKEEP: Duration = Duration::from_secs(5);
/// At a second signal the last lines of the log get this long to be written.
const LAST_LINES: Duration = Duration::from_millis(200);

/// Why a gateway cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address} (`{key}`)")]
    Listen {
        /// As configured.
        address: SocketAddr,
        /// Of the configuration.
        key: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The store will never serve us as configured.
    #[error("the store cannot be used")]
    Store(#[source] ConnectError),
    /// An https upstream cannot be spoken to as configured.
    #[error("the upstream `{name}` cannot be used")]
    Upstream {
        /// As configured.
        name: String,
        /// Its certificates, or its name.
        source: TrustError,
    },
    /// No certificates to show to clients.
    #[error("the certificates for clients cannot be used")]
    Tls(#[source] TlsError),
    /// Threads, runtimes, signals, recorders.
    #[error("cannot start")]
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
    shares: Shares,
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

// === impl Server ===

impl Server {
    /// Opens the sockets. Installs the metrics recorder of the process, and raises its limit of open files as far as it
    /// may.
    ///
    /// # Errors
    ///
    /// [`ServerError`].
    pub fn bind(config: Config, access_log: bool) -> Result<Self, ServerError> {
        let metrics = metrics::install().map_err(|error| ServerError::System(error.into()))?;
        let shares = Shares::of(descriptors::raise(), &config);
        metrics::max_files().set(shares.limit as f64);
        let failed = |address, key| move |source| ServerError::Listen { address, key, source };
        let open = |address, key, shared| listen(address, shared).map_err(failed(address, key));
        // Sockets of one port spread its connections, also those of another process: make sure there is none.
        ensure_free(config.listen).map_err(failed(config.listen, "listen"))?;
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
        Ok(Self { plan, metrics, data, admin, listen, admin_address, shares })
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
            let shares = self.shares;
            shares.log(self.plan.config.client.max_connections);
            let source = StoreSource::open(&self.plan).await?;
            let clusters = clusters(&self.plan.config, shares.upstreams)?;
            upstream::follow(&clusters, &self.plan.config.resolver);
            let draining = Arc::new(AtomicBool::new(false));
            let tls = self.plan.config.tls.clone().map(certificates::open).transpose()?;
            if tls.is_none() {
                tokio::spawn(outlive_hangups(signal(SignalKind::hangup()).map_err(system)?));
            }
            let seats = Arc::new(Seats::new(Some(shares.clients)));
            let (phase, phases) = watch::channel(Phase::Running);
            let drain_end = Arc::new(OnceLock::new());
            let (ended, mut ends) = mpsc::channel(1);
            let (crew, heard) = Crew::new(self.data.len());
            let (crew, mut runtimes) = (Arc::new(crew), Vec::new());
            for (number, (listener, guests)) in self.data.into_iter().zip(heard).enumerate() {
                let worker = Worker {
                    listener,
                    guests,
                    crew: crew.clone(),
                    plan: self.plan.clone(),
                    number,
                    source: source.clone(),
                    clusters: clusters.clone(),
                    tls: tls.clone(),
                    seats: seats.clone(),
                    turned_away: Arc::new(Semaphore::new(shares.turned_away)),
                    draining: draining.clone(),
                    phases: phases.clone(),
                    drain_end: drain_end.clone(),
                };
                runtimes.push(start(worker, ended.clone())?);
            }
            drop(ended);
            let store = source.kept(self.plan.levels()).await?;
            let admin = Admin {
                plan: self.plan.clone(),
                store,
                health: source.health(),
                metrics: self.metrics.clone(),
                draining: draining.clone(),
                runtimes,
            };
            let (pages, limits) = (admin::router(admin), Limits::of(self.plan.config.client));
            tokio::spawn(operators::serve(self.admin, pages, limits, shares.admin, phases));
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
            let limit = self.plan.config.drain_timeout;
            let _ = drain_end.set(Instant::now() + limit);
            let drained = drain(&phase, &mut ends, limit).await;
            source.leave().await;
            drained
        })
    }
}

/// Runs a worker on a thread of its own, which says how it `ended`.
fn start(
    worker: Worker,
    ended: mpsc::Sender<Result<(), ServerError>>,
) -> Result<RuntimeMetrics, ServerError> {
    let runtime = new_runtime()?;
    let (metrics, name) = (runtime.metrics(), format!("worker-{}", worker.number));
    let work = move || {
        // A gateway with a part of its workers would look well.
        let run = AssertUnwindSafe(|| runtime.block_on(worker.run()));
        let result = catch_unwind(run).unwrap_or(Err(ServerError::Worker));
        // Nobody listens only when the process is on its way out.
        let _ = ended.blocking_send(result);
    };
    thread::Builder::new().name(name).spawn(work).map_err(system)?;
    Ok(metrics)
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
        log::flush(LAST_LINES);
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

/// Whoever asks for certificates to be read again does not mean the end where there are none.
async fn outlive_hangups(mut hangups: Signal) {
    while hangups.recv().await.is_some() {
        tracing::info!("SIGHUP: there are no certificates to read again");
    }
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

fn system(error: io::Error) -> ServerError {
    ServerError::System(error.into())
}

fn new_runtime() -> Result<Runtime, ServerError> {
    runtime::Builder::new_current_thread().enable_all().build().map_err(system)
}

async fn upkeep(metrics: PrometheusHandle) {
    loop {
        sleep(UPKEEP).await;
        metrics.run_upkeep();
    }
}
