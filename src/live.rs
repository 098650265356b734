//! The configuration of a running gateway, and the one way by which it changes.
//!
//! Each source of changes (the file, and whatever [`ConfigParts`] has beside it) calls [`Live::apply`]. That makes the effective
//! configuration from all parts, a new [`Plan`] from it, and swaps the plan of all workers. Nothing edits a plan in place: a
//! request keeps the plan with which it began, and the plan is dropped after its last request.

mod certificates;
mod clusters;
mod effective;
mod error;
mod file;
mod rows_status;
mod outcome;
mod parts;
mod restart;
pub(crate) mod supervisor;
mod watcher;

pub use clusters::{FormerClusters, clusters};
pub use effective::UnfitOverride;
pub use error::{ReloadError, UnusableUpstream};
pub use file::{ConfigFile, ReadFile};
pub use outcome::{LoadedConfig, MOST_RELOADS, ReloadNote, Reloaded};
pub use parts::ConfigParts;
pub use rows_status::RowsStatus;
pub use watcher::watch_file;

use crate::{
    config::{Config, Service},
    learn, metrics,
    plan::{CountLedger, ExchangeTotals, Plan},
    proxy::{CurrentProxy, Proxy},
    store::{Check, Store, StoreAdmin},
    tls::TlsError,
    upstream::{self, Cluster, Pool, Sockets},
};
use arc_swap::ArcSwap;
use certificates::Certificates;
use file::Fingerprint;
use jiff::Timestamp;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};
use tokio::{runtime::Handle, sync::watch, time::Instant};
use tokio_rustls::rustls::ServerConfig;

/// The configuration of a running gateway, shared by the whole process.
pub struct Live {
    plan: ArcSwap<Plan>,
    /// The counters of plans that were replaced.
    ledger: CountLedger,
    certificates: Certificates,
    /// The certificates of each service.
    of_services: Vec<(Service, Certificates)>,
    /// The checks of the limiters whose levels are read once a second, so that they are known when the store is away.
    levels: watch::Sender<Arc<[Check]>>,
    /// Whether a limiter counts calls at a time. The stores then subscribe to notifications.
    notifies: watch::Sender<bool>,
    /// The store of the admin side, by which limiters learn.
    store: OnceLock<Arc<dyn StoreAdmin>>,
    /// The runtime of the tasks that serve all workers.
    runtime: Handle,
    /// Held while the configuration changes, so that changes follow each other.
    changing: Mutex<Changing>,
    /// The content of the files that were applied last, or tried and refused. Held during a reload, so that reloads follow each
    /// other.
    seen: Mutex<Option<Fingerprint>>,
    loaded: Mutex<LoadedConfig>,
    /// The upstreams of the plan. `changing` has them, too, and is held for as long as a change takes.
    clusters: Mutex<Vec<Arc<Cluster>>>,
    /// The overrides that the configuration cannot have.
    unfit: Mutex<Vec<UnfitOverride>>,
    /// The state of `limits_from`; `None` if the configuration has none.
    limits: Mutex<Option<RowsStatus>>,
    /// The state of each `rates_from`, by the names of their limiters.
    rates: Mutex<BTreeMap<String, RowsStatus>>,
}

/// All that a change replaces, beside the plan.
struct Changing {
    parts: ConfigParts,
    clusters: Vec<Arc<Cluster>>,
    /// The bound on connections to all upstreams together.
    sockets: Arc<Sockets>,
    workers: Vec<LiveWorker>,
}

/// A worker whose proxy changes with the configuration.
struct LiveWorker {
    runtime: Handle,
    proxy: CurrentProxy,
}

// === impl Live ===

impl Live {
    /// Begins with `plan`, which was made from `parts`, and opens its upstreams, with at most `most` connections together. The
    /// current runtime resolves their names. `notifies` tells the stores when they have to notify requests.
    ///
    /// # Errors
    ///
    /// [`ReloadError`] if the certificates of an upstream or those for clients cannot be used.
    pub fn new(
        plan: Arc<Plan>,
        parts: ConfigParts,
        most: usize,
        notifies: watch::Sender<bool>,
    ) -> Result<Self, ReloadError> {
        let sockets = Sockets::new(most);
        let clusters = clusters(&plan.config, &sockets, None)?;
        upstream::follow(&clusters, &plan.config.resolver);
        let certificates = Certificates::open(plan.config.tls.clone())?;
        let services = plan.config.services.all();
        let of_services =
            services.map(|(service, port)| Ok((service, Certificates::open(port.tls.clone())?)));
        let of_services = of_services.collect::<Result<_, TlsError>>()?;
        let loaded = LoadedConfig::first(&parts.file.hash);
        Ok(Self {
            ledger: CountLedger::default(),
            certificates,
            of_services,
            notifies,
            levels: watch::Sender::new(plan.levels().into()),
            store: OnceLock::new(),
            runtime: Handle::current(),
            seen: Mutex::new(parts.file.fingerprint),
            clusters: Mutex::new(clusters.clone()),
            changing: Mutex::new(Changing { parts, clusters, sockets, workers: Vec::new() }),
            loaded: Mutex::new(loaded),
            unfit: Mutex::default(),
            limits: Mutex::default(),
            rates: Mutex::default(),
            plan: ArcSwap::new(plan),
        })
    }

    /// The plan for the next request.
    pub fn plan(&self) -> Arc<Plan> {
        self.plan.load_full()
    }

    /// The certificates for the next handshake of the data plane or of a service; `None` while its clients speak clear text.
    pub fn certificates(
        &self,
        service: Option<Service>,
    ) -> watch::Receiver<Option<Arc<ServerConfig>>> {
        let of_service = self.of_services.iter().find(|(own, _)| Some(*own) == service);
        of_service.map_or(&self.certificates, |(_, own)| own).current()
    }

    /// The checks of the limiters whose levels can be shown, as they change with the plan.
    pub fn levels(&self) -> watch::Receiver<Arc<[Check]>> {
        self.levels.subscribe()
    }

    /// Makes the proxy of the worker with this number, which runs on the current runtime and asks its limiters by `store`.
    /// Each change replaces it from now on.
    pub fn join(&self, number: usize, store: Arc<dyn Store>) -> CurrentProxy {
        let mut changing = self.changing.lock();
        let plan = self.plan();
        let workers = plan.config.workers;
        let pools = changing.clusters.iter().map(|cluster| Pool::new(cluster.clone(), workers));
        let proxy = CurrentProxy::new(Proxy::new(plan, number, store, pools.collect()));
        let runtime = Handle::current();
        changing.workers.push(LiveWorker { runtime, proxy: proxy.clone() });
        proxy
    }

    /// Begins to read and write what limiters learn, by `store`.
    pub async fn learn(&self, store: &Arc<dyn StoreAdmin>) {
        learn::begin(&self.plan(), store).await;
        // The admin side has one store, so that the cell is empty.
        drop(self.store.set(store.clone()));
    }

    /// Writes what limiters have learned lately, before the gateway ends. Takes at most a second.
    pub async fn finish_learning(&self) {
        if let Some(store) = self.store.get() {
            learn::finish(&self.plan(), store).await;
        }
    }

    /// Changes the parts of the configuration, checks the whole, and swaps the plan of all workers. Nothing changes if the
    /// whole is invalid. May take as long as a start, so that async code calls it by `spawn_blocking`.
    ///
    /// # Errors
    ///
    /// [`ReloadError`] with the mistakes as `paceway check` prints them.
    pub fn apply(&self, change: impl FnOnce(&mut ConfigParts)) -> Result<Reloaded, ReloadError> {
        let mut changing = self.changing.lock();
        let mut parts = changing.parts.clone();
        change(&mut parts);
        let before = self.plan();
        let (mut config, unfit) = self.effective(&parts)?;
        let needs_restart = restart::keep(&before.config, &mut config);
        let hash = parts.file.hash.clone();
        let is_new = config != before.config;
        if is_new {
            self.swap(&mut changing, &before, config)?;
        }
        let masked = if Arc::ptr_eq(&parts.file, &changing.parts.file) {
            Vec::new()
        } else {
            parts.masked(&changing.parts.file.config, &unfit)
        };
        self.note_unfit(unfit, &parts.overrides);
        changing.parts = parts;
        drop((before, changing));
        self.ledger.sweep(&self.plan.load());
        Ok(Reloaded { hash, is_new, masked, needs_restart })
    }

    /// Makes a plan of `config` and gives it to all workers.
    fn swap(
        &self,
        changing: &mut Changing,
        before: &Arc<Plan>,
        config: Config,
    ) -> Result<(), ReloadError> {
        let _runtime = self.runtime.enter();
        // All that can fail comes first.
        let old = FormerClusters { config: &before.config, clusters: &changing.clusters };
        let clusters = clusters(&config, &changing.sockets, Some(old))?;
        let certificates = self.certificates.of(&config.tls)?;
        let plan = Arc::new(before.next(config));
        for forgetful in plan.limiters.iter().filter(|plan| plan.forgets) {
            tracing::warn!(
                limiter = forgetful.limiter.name,
                "the limiter has new states: permits that were granted before may be granted again"
            );
        }
        let is_known =
            |own: &Arc<Cluster>| changing.clusters.iter().any(|old| Arc::ptr_eq(old, own));
        let opened: Vec<_> = clusters.iter().filter(|own| !is_known(own)).cloned().collect();
        upstream::follow(&opened, &plan.config.resolver);
        self.certificates.set(plan.config.tls.clone(), certificates);
        for worker in &changing.workers {
            worker.take(&plan, &clusters, &changing.clusters);
        }
        self.plan.store(plan.clone());
        self.levels.send_replace(plan.levels().into());
        self.notifies.send_replace(plan.is_notified());
        if let Some(store) = self.store.get() {
            learn::follow(&plan, before, store);
        }
        *self.clusters.lock() = clusters.clone();
        changing.clusters = clusters;
        self.ledger.retire(before.clone());
        Ok(())
    }

    /// Makes a plan for what time has changed: without the former states of limiters that no permit counts in any more, and with
    /// later instants of the calendar. A rule has the instants of the next window, too, so that a look now and then is enough.
    fn keep_up_with_time(&self) {
        let mut changing = self.changing.lock();
        let (before, now) = (self.plan(), Timestamp::now());
        let has_former = before.former_until().is_some_and(|until| until <= Instant::now());
        if has_former || before.config.has_past_windows(now) {
            let mut config = before.config.clone();
            config.renew_windows(now);
            // The parts have made a plan before. An error leaves that plan, until the next look.
            let made = self.swap(&mut changing, &before, config);
            drop((before, changing));
            drop(made.inspect_err(|error| tracing::debug!(%error, "the plan is out of date")));
            self.ledger.sweep(&self.plan.load());
        }
    }

    /// Reads the file again, with its variables, secrets and certificates, and applies it. Reports the result in the log, in the
    /// metrics and in [`Self::loaded`].
    ///
    /// # Errors
    ///
    /// [`ReloadError`] if the file is invalid. The old configuration stays.
    pub fn reload(&self) -> Result<Reloaded, ReloadError> {
        let mut seen = self.seen.lock();
        let file = self.changing.lock().parts.file.clone();
        // Taken before the file is read, so that a change in between is found.
        *seen = file.now();
        let result = file.again().and_then(|read| self.apply(|parts| parts.file = read));
        self.loaded.lock().note(&result);
        outcome::log(&result, &self.plan.load().config);
        // Their content may have changed under the same names.
        self.refresh_all(true);
        drop(seen);
        result
    }

    /// A hash of the content of the configuration file and of the secrets that it names; `None` without a file.
    fn fingerprint(&self) -> Option<Fingerprint> {
        let file = self.changing.lock().parts.file.clone();
        file.now()
    }

    /// The content of the files at the last reload.
    fn seen(&self) -> Option<Fingerprint> {
        *self.seen.lock()
    }

    /// Whether the last reload found mistakes, and another one would not find the same: they may be about other files, such as
    /// a certificate.
    fn is_corrected(&self) -> bool {
        let Some(failed) = self.loaded.lock().mistakes() else { return false };
        let parts = self.changing.lock().parts.clone();
        // Rows of a database may have to come first.
        let again = parts.file.again().and_then(|file| {
            self.effective(&ConfigParts { file, ..parts })?;
            Ok(())
        });
        again.map_or_else(|error| error.to_string() != failed, |()| true)
    }

    /// Reads the certificates for clients and for callers of services again if their files have changed.
    pub fn refresh_certificates(&self) {
        self.refresh_all(false);
    }

    /// Reads all certificates again whose files have changed, or all of them if an operator has `asked` for it.
    fn refresh_all(&self, asked: bool) {
        self.certificates.refresh(asked);
        self.of_services.iter().for_each(|(_, own)| own.refresh(asked));
    }

    /// Notes the state of `limits_from`, for `/readyz`.
    pub fn set_limits_status(&self, status: Option<RowsStatus>) {
        *self.limits.lock() = status;
    }

    /// The state of `limits_from`; `None` if the configuration has none.
    pub fn limits_status(&self) -> Option<RowsStatus> {
        self.limits.lock().clone()
    }

    /// Notes the state of `rates_from` of a limiter, for `/readyz`; `None` if it has none any more.
    pub fn set_rates_status(&self, limiter: &str, status: Option<RowsStatus>) {
        let mut rates = self.rates.lock();
        match status {
            Some(status) => drop(rates.insert(limiter.to_owned(), status)),
            None => drop(rates.remove(limiter)),
        }
    }

    /// The state of each `rates_from`, by the names of their limiters.
    pub fn rates_status(&self) -> BTreeMap<String, RowsStatus> {
        self.rates.lock().clone()
    }

    /// The result of the last reload, and the hash of the configuration that is in use.
    pub fn loaded(&self) -> LoadedConfig {
        self.loaded.lock().clone()
    }

    /// The counts of each route and of each upstream of `plan`, by their indices, over all workers and earlier plans.
    pub fn totals(&self, plan: &Plan) -> (Vec<ExchangeTotals>, Vec<ExchangeTotals>) {
        self.ledger.totals(plan)
    }

    /// The upstreams that are in use, each with its name.
    pub fn clusters(&self) -> Vec<Arc<Cluster>> {
        self.clusters.lock().clone()
    }

    /// The bound on connections to all upstreams together.
    pub fn sockets(&self) -> Arc<Sockets> {
        self.changing.lock().sockets.clone()
    }

    /// Writes all metrics as text.
    pub fn measured(&self) -> String {
        let mut scrape = self.ledger.scrape(&self.plan.load());
        scrape.value(&metrics::CONFIG_INFO, "", &[&self.loaded.lock().hash], 1);
        scrape.process();
        scrape.into_text()
    }
}

// === impl LiveWorker ===

impl LiveWorker {
    /// Gives the worker a proxy for `plan`. It keeps its connections to the clusters that are in both lists.
    fn take(&self, plan: &Arc<Plan>, clusters: &[Arc<Cluster>], before: &[Arc<Cluster>]) {
        // The tasks of new pools run where the worker does.
        let _runtime = self.runtime.enter();
        let pools = self.proxy.pools();
        let pool = |cluster: &Arc<Cluster>| {
            let known = before.iter().position(|old| Arc::ptr_eq(old, cluster));
            known.map_or_else(
                || Pool::new(cluster.clone(), plan.config.workers),
                |known| pools[known].clone(),
            )
        };
        self.proxy.replace(plan.clone(), clusters.iter().map(pool).collect());
    }
}
