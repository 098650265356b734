//! The process around the data plane: opens the sockets, starts a runtime for each worker, and drains them after SIGTERM.

mod acceptor;
mod address_limit;
mod admin_connections;
mod balancer;
mod client_timer;
mod connection;
mod connection_limit;
mod context;
mod descriptors;
mod edge;
mod error;
mod forward;
mod handshake;
mod http2;
mod load_guard;
mod listeners;
mod losses;
mod mount;
mod outages;
mod pauses;
mod phase;
mod proxy_protocol;
mod shutdown;
mod socket;
mod source;
mod tracked_body;
mod transport;
mod unread_body;
mod windows;
mod worker;

#[cfg(fuzzing)]
pub use proxy_protocol::fuzzing as proxy_fuzzing;

pub use error::ServerError;
pub(crate) use forward::{ForwardHosts, ForwardSettings};
pub use mount::router;
pub(crate) use shutdown::BesideCommand;

use crate::{
    admin::{self, AdminParts},
    config::{Config, Service},
    live::{ConfigParts, Live, ReadFile, watch_file},
    metrics,
    overrides::Overrides,
    plan::Plan,
    rows,
    store::StoreAdmin,
    trace::{self, TraceExporter, Tracer},
};
use admin_connections::AdminTimeouts;
use balancer::ConnectionBalancer;
use connection_limit::ConnectionLimit;
use descriptors::Shares;
use error::system;
use forward::ForwardDoor;
use listeners::{Listeners, PortSockets};
use shutdown::{Shutdown, Stop};
use source::StoreSource;
use std::{
    collections::HashMap,
    iter,
    net::SocketAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};
use tokio::{
    runtime::{self, Runtime, RuntimeMetrics},
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc, watch},
};
use tracing::field;
use windows::WindowBudget;
use worker::{Door, Worker, WorkerPort};

/// A gateway whose sockets are open.
#[derive(Debug)]
pub struct Server {
    file: Arc<ReadFile>,
    access_log: bool,
    listeners: Listeners,
    listen: SocketAddr,
    admin_address: SocketAddr,
    shares: Shares,
    forward: Option<ForwardSettings>,
    /// The port of the data plane is that of the forward proxy, and there is no other.
    is_for_command: bool,
}

/// The addresses on which the process listens.
struct OwnAddresses {
    listen: SocketAddr,
    admin: SocketAddr,
    forward: Option<SocketAddr>,
    services: HashMap<Service, SocketAddr>,
}

/// The parts that all workers share.
struct WorkerParts<'a> {
    live: &'a Arc<Live>,
    source: &'a StoreSource,
    /// Makes the part of the forward proxy for one worker; `None` if there is no such proxy.
    forward_door: &'a dyn Fn() -> Option<Arc<ForwardDoor>>,
    shares: Shares,
}

// === impl Server ===

impl Server {
    /// Opens the sockets, and raises the process's limit of open files to the hard limit. With `access_log`, each request
    /// becomes a line on stdout.
    ///
    /// # Errors
    ///
    /// [`ServerError::Listen`] if an address is in use.
    pub fn bind(config: Config, access_log: bool) -> Result<Self, ServerError> {
        Self::bind_file(ReadFile::without_file(config), access_log)
    }

    /// Opens the sockets of a configuration file, which SIGHUP and `POST /reload` read again.
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
    pub fn bind_file(file: ReadFile, access_log: bool) -> Result<Self, ServerError> {
        let config = &file.config;
        metrics::begin();
        let shares = Shares::of(descriptors::raise(), config);
        metrics::MAX_FILES.level(&[]).set(shares.limit as f64);
        let listeners = Listeners::open(config)?;
        let listen = listeners.data.sockets[0].local_addr().map_err(system)?;
        let admin_address = listeners.admin.local_addr().map_err(system)?;
        let forward = ForwardSettings::of(config)?;
        let file = Arc::new(file);
        let is_for_command = false;
        Ok(Self {
            file,
            access_log,
            listeners,
            listen,
            admin_address,
            shares,
            forward,
            is_for_command,
        })
    }

    /// Opens the sockets of a gateway for one command: `listen` is the address of its forward proxy, and there is no other
    /// way to it.
    ///
    /// # Errors
    ///
    /// As [`Self::bind`].
    pub(crate) fn bind_for_command(
        config: Config,
        forward: ForwardSettings,
    ) -> Result<Self, ServerError> {
        let own = Self::bind(config, false)?;
        Ok(Self { forward: Some(forward), is_for_command: true, ..own })
    }

    /// Returns the addresses of the data plane and of the admin side. Where the configuration has port 0, the system has
    /// chosen one.
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (self.listen, self.admin_address)
    }

    /// Serves until SIGTERM or SIGINT, then drains for up to `drain_timeout`. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// [`ServerError`] if the store, an upstream or certificates cannot be used, or a worker ends by itself.
    pub fn run(self) -> Result<(), ServerError> {
        new_runtime()?.block_on(self.serve(None))
    }

    /// Serves until the command ends, whatever signals come. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// As [`Self::run`].
    pub(crate) fn run_with_command(self, command: BesideCommand) -> Result<(), ServerError> {
        new_runtime()?.block_on(self.serve(Some(command)))
    }

    async fn serve(self, beside: Option<BesideCommand>) -> Result<(), ServerError> {
        let shares = self.shares;
        let (tracer, traces) = tracer(&self.file.config)?.unzip();
        let plan = Arc::new(Plan::new(self.file.config.clone(), self.access_log).traced(tracer));
        shares.log(plan.config.client.max_connections);
        let (notifies, notified) = watch::channel(plan.is_notified());
        let source = StoreSource::open(&plan, notified, Some(self.listen)).await?;
        let parts = ConfigParts::of(self.file);
        let live = Arc::new(Live::new(plan, parts, shares.upstreams, notifies)?);
        rows::begin(&live).await;
        if beside.is_none() {
            tokio::spawn(watch_file(live.clone(), signal(SignalKind::hangup()).map_err(system)?));
        }
        // Before the workers start, so that no request is decided without the overrides.
        let store = source.with_recovery(live.levels()).await?;
        let overrides = Overrides::begin(live.clone(), store.clone()).await;
        let addresses = OwnAddresses::of(&self.listeners, self.listen, self.admin_address);
        let Listeners { admin: admin_socket, data, services, forward } = self.listeners;
        let (ended, ends) = mpsc::channel(1);
        let mut shutdown = Shutdown::new(ends);
        let door = if self.is_for_command { Door::Forward } else { Door::Data };
        let services = services.into_iter().map(|(of, port)| (Door::Service(of), port));
        let ports = iter::once((door, data)).chain(forward.map(|port| (Door::Forward, port)));
        // Before the first client: a signal that comes before this ends the process at once.
        let stop = Stop::of(beside)?;
        let forward_door = || {
            let (settings, own) = (self.forward.as_ref()?, addresses.all());
            Some(Arc::new(settings.door(&live.plan().config, &live.sockets(), &own)))
        };
        let parts =
            WorkerParts { live: &live, source: &source, forward_door: &forward_door, shares };
        let runtimes = start_workers(ports.chain(services), parts, &shutdown, ended)?;
        live.learn(&store).await;
        spawn_reports(&live, &store, &source);
        let admin = AdminParts {
            live: live.clone(),
            overrides,
            store,
            health: source.health(),
            draining: shutdown.stopping.clone(),
            runtimes,
            quotas: Default::default(),
        };
        let timeouts = AdminTimeouts::of(live.plan().config.client);
        let pages = admin::router(admin);
        let (most, phases) = (shares.admin, shutdown.phase.subscribe());
        tokio::spawn(admin_connections::serve(admin_socket, pages, timeouts, most, phases));
        addresses.log(&live);
        let signal = tokio::select! {
            signal = stop.wait() => signal?,
            _ = shutdown.ends.recv() => return Err(ServerError::Worker),
        };
        shutdown.delay(&live, signal).await?;
        let drained = shutdown.drain(&live, signal).await;
        source.leave().await;
        if let Some(traces) = traces {
            traces.finish().await;
        }
        drained
    }
}

// === impl OwnAddresses ===

impl OwnAddresses {
    fn of(listeners: &Listeners, listen: SocketAddr, admin: SocketAddr) -> Self {
        let address_of = |port: &PortSockets| port.sockets.first()?.local_addr().ok();
        let services = listeners.services.iter();
        let services = services.filter_map(|(of, port)| Some((*of, address_of(port)?))).collect();
        Self { listen, admin, forward: listeners.forward.as_ref().and_then(address_of), services }
    }

    fn all(&self) -> Vec<SocketAddr> {
        let own = [self.listen, self.admin].into_iter().chain(self.forward);
        own.chain(self.services.values().copied()).collect()
    }

    fn log(&self, live: &Live) {
        let address = |of: Service| self.services.get(&of).map(field::display);
        tracing::info!(
            listen = %self.listen,
            admin = %self.admin,
            forward_auth = address(Service::ForwardAuth),
            envoy_rate_limit = address(Service::EnvoyRateLimit),
            ext_authz = address(Service::ExtAuthz),
            decisions = address(Service::Decisions),
            forward = self.forward.map(field::display),
            workers = live.plan().config.workers,
            version = env!("CARGO_PKG_VERSION"),
            "listening"
        );
    }
}

/// Starts a thread for each worker. Returns the metrics of their runtimes.
fn start_workers(
    ports: impl Iterator<Item = (Door, PortSockets)>,
    WorkerParts { live, source, forward_door, shares }: WorkerParts<'_>,
    shutdown: &Shutdown,
    ended: mpsc::Sender<Result<(), ServerError>>,
) -> Result<Vec<RuntimeMetrics>, ServerError> {
    let windows = WindowBudget::default();
    let connections = Arc::new(ConnectionLimit::new(shares.clients, windows.clone()));
    let of_services = Arc::new(ConnectionLimit::new(shares.services, windows));
    let workers = of_workers(ports, live.plan().config.workers.get()).map(|(number, ports)| {
        let worker = Worker {
            ports,
            live: live.clone(),
            number,
            source: source.clone(),
            forward: forward_door(),
            connections: connections.clone(),
            of_services: of_services.clone(),
            turned_away: Arc::new(Semaphore::new(shares.turned_away)),
            draining: shutdown.draining.clone(),
            phases: shutdown.phase.subscribe(),
            drain_end: shutdown.drain_end.clone(),
        };
        start(worker, ended.clone())
    });
    workers.collect()
}

/// Spawns the tasks that log and count what happens to limiters and the store.
fn spawn_reports(live: &Arc<Live>, store: &Arc<dyn StoreAdmin>, source: &StoreSource) {
    let events = store.pauses().events();
    tokio::spawn(pauses::report(live.clone(), store.clone(), events));
    if let Some(health) = source.health() {
        tokio::spawn(outages::report(health.clone()));
        tokio::spawn(losses::report(live.clone(), store.clone(), health));
    }
}

/// Gives each worker its number and its part of each port.
fn of_workers(
    ports: impl Iterator<Item = (Door, PortSockets)>,
    workers: usize,
) -> impl Iterator<Item = (usize, Vec<WorkerPort>)> {
    let mut all: Vec<_> = (0..workers).map(|_| Vec::new()).collect();
    for (door, PortSockets { sockets, are_inherited: is_inherited }) in ports {
        let (balancer, handoffs) = ConnectionBalancer::new(workers);
        let balancer = Arc::new(balancer);
        for ((listener, handoffs), own) in sockets.into_iter().zip(handoffs).zip(&mut all) {
            let balancer = balancer.clone();
            own.push(WorkerPort { listener, is_inherited, handoffs, balancer, door });
        }
    }
    all.into_iter().enumerate()
}

/// Starts the task that sends traces to the collector of `config`, if it names one.
pub(super) fn tracer(config: &Config) -> Result<Option<(Arc<Tracer>, TraceExporter)>, ServerError> {
    let collector = config.tracing.as_ref().map(|tracing| &tracing.collector);
    let started = collector.map(trace::start).transpose();
    started.map_err(|error| ServerError::System(error.into()))
}

/// Starts a thread that runs `worker`, and sends the result to `ended`. Returns the metrics of its runtime.
fn start(
    worker: Worker,
    ended: mpsc::Sender<Result<(), ServerError>>,
) -> Result<RuntimeMetrics, ServerError> {
    let runtime = new_runtime()?;
    let (metrics, name) = (runtime.metrics(), format!("worker-{}", worker.number));
    let work = move || {
        // Without this, a gateway that lost a worker would look healthy and refuse a part of its clients.
        let run = AssertUnwindSafe(|| runtime.block_on(worker.run()));
        let result = catch_unwind(run).unwrap_or(Err(ServerError::Worker));
        // Fails only if the main thread has returned, which ends the process.
        let _ = ended.blocking_send(result);
    };
    thread::Builder::new().name(name).spawn(work).map_err(system)?;
    Ok(metrics)
}

fn new_runtime() -> Result<Runtime, ServerError> {
    runtime::Builder::new_current_thread().enable_all().build().map_err(system)
}
