//! Holds what all workers share of one upstream: its targets, the addresses that they have now, and which of them work.
//! Opens no connection and asks no DNS server.

mod settings;

pub use settings::{AddressMetrics, ClusterSettings, Timeouts};

use super::{
    balance::{Address, AddressChange, AddressFailure, AddressSet, AddressStatus, PickedAddress},
    error::UpstreamError,
    target::Target,
    tls::UpstreamTls,
    via::{Via, ViaCause},
};
use crate::{
    log::{Permit, Throttle},
    tls::client::{Chain, TrustError},
};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::RootCertStore;
use std::{
    error::Error,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// The most addresses of one upstream, unless its configuration names more targets: a DNS answer may have hundreds, and
/// each of them costs memory in every worker. Those beyond are left out.
const MAX_ADDRESSES: usize = 64;
/// The pause between two log lines about requests without a response: under load there are thousands in a second.
const QUIET: Duration = Duration::from_secs(60);

/// These bound the lines of an upstream that fails and recovers with each request, or of a name with each lookup.
static RESOLVED: Throttle = Throttle::new();
static UNRESOLVED: Throttle = Throttle::new();
static REACHED: Throttle = Throttle::new();
static FAILED: Throttle = Throttle::new();
static ANSWERED: Throttle = Throttle::new();
static CHECKED: Throttle = Throttle::new();

/// One upstream as all workers share it: settings, addresses, and their health.
pub struct Cluster {
    pub(super) settings: ClusterSettings,
    /// `None` for an upstream in clear text.
    pub(super) tls: Option<UpstreamTls>,
    /// The addresses that requests choose from, replaced whole when DNS answers differently.
    pub(super) group: Arc<ArcSwap<AddressSet>>,
    /// The result of the last lookup of each target's name, by index of the target.
    names: Mutex<Vec<ResolvedTarget>>,
    /// Notifies requests that wait for the first address after each lookup, successful or not.
    looked_up: watch::Sender<()>,
    /// The upstream did not choose HTTP/2 by ALPN, and a log line has said so. Further connections no longer wait for
    /// one another, as each serves one request.
    pub(super) is_http1: AtomicBool,
    /// Until then a request without a response is logged at level debug only.
    quiet_until: Mutex<Option<Instant>>,
    metrics: AddressMetrics,
}

/// The result of the last lookup of one target's name.
#[derive(Default)]
struct ResolvedTarget {
    addresses: Vec<Arc<Address>>,
    failure: Option<Arc<dyn Error + Send + Sync>>,
    /// A log line has said that the name is not found, and none yet that it is found again.
    is_noted: bool,
}

/// The error of a request whose upstream has a name without a known address.
#[derive(Debug, thiserror::Error)]
#[error("no address of {name} is known")]
struct UnknownAddress {
    name: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

// === impl Cluster ===

impl Cluster {
    /// Makes the shared part of an upstream, without a connection. `roots` are the certificate authorities of the system,
    /// which the first upstream that needs them reads for all.
    ///
    /// # Errors
    ///
    /// [`TrustError`] if a certificate, a key or the authorities cannot be used.
    pub fn new(
        settings: ClusterSettings,
        metrics: AddressMetrics,
        roots: &mut Option<Arc<RootCertStore>>,
    ) -> Result<Arc<Self>, TrustError> {
        let ClusterSettings { tls, http2, targets, .. } = &settings;
        let is_https = targets.iter().any(Target::is_https);
        let client_tls =
            is_https.then(|| UpstreamTls::new(tls, *http2, targets, roots)).transpose()?;
        let fixed = (0..targets.len()).map(|i| {
            let mut sockets = settings.next_hop(i).fixed_sockets().unwrap_or_default();
            let barred = settings.remove_off_limits(&mut sockets);
            let addresses = (!sockets.is_empty()).then(|| Arc::new(Address::new(i, sockets)));
            ResolvedTarget {
                addresses: addresses.into_iter().collect(),
                failure: barred.map(|error| Arc::new(error) as _),
                ..ResolvedTarget::default()
            }
        });
        let cluster = Self {
            tls: client_tls,
            group: Arc::new(ArcSwap::from_pointee(AddressSet::new(Vec::new()))),
            names: Mutex::new(fixed.collect()),
            looked_up: watch::Sender::new(()),
            is_http1: AtomicBool::new(false),
            quiet_until: Mutex::default(),
            metrics,
            settings,
        };
        cluster.regroup(&cluster.names.lock());
        Ok(Arc::new(cluster))
    }

    /// The targets whose addresses come from DNS, with their indices.
    pub(super) fn unresolved(&self) -> impl Iterator<Item = (usize, &Target)> {
        let hops = (0..self.settings.targets.len()).map(|i| (i, self.settings.next_hop(i)));
        hops.filter(|(_, hop)| hop.fixed_sockets().is_none())
    }

    /// Takes the addresses that DNS gave for a target. Addresses that it no longer names get no further request, and
    /// their idle connections are closed within a second.
    pub(super) fn resolved(&self, target: usize, ips: impl Iterator<Item = IpAddr>) {
        let port = self.settings.next_hop(target).port();
        let mut names = self.names.lock();
        let named = &mut names[target];
        let mut addresses: Vec<Arc<Address>> = Vec::new();
        let mut sockets: Vec<_> =
            ips.take(MAX_ADDRESSES).map(|ip| SocketAddr::new(ip, port)).collect();
        let barred = self.settings.remove_off_limits(&mut sockets);
        for socket in sockets {
            let is_same = |address: &&Arc<Address>| address.sockets[..] == [socket];
            if addresses.iter().any(|address| is_same(&address)) {
                continue;
            }
            // An address that stays keeps its failures and its requests in flight.
            let known = named.addresses.iter().find(is_same).cloned();
            addresses.push(known.unwrap_or_else(|| Arc::new(Address::new(target, [socket]))));
        }
        let is_same = addresses.len() == named.addresses.len()
            && addresses.iter().all(|new| named.addresses.iter().any(|old| Arc::ptr_eq(old, new)));
        let was_noted = std::mem::take(&mut named.is_noted);
        named.failure = barred.map(|error| Arc::new(error) as _);
        if !is_same {
            named.addresses = addresses;
            self.regroup(&names);
        }
        if was_noted && let Some(Permit { suppressed }) = RESOLVED.permit() {
            let name = self.settings.next_hop(target).host_name();
            tracing::info!(upstream = self.settings.name, name, suppressed, "resolved again");
        }
        drop(names);
        self.looked_up.send_replace(());
    }

    /// Notes that a lookup failed. The addresses of the lookup before stay in use.
    pub(super) fn not_resolved(&self, target: usize, error: impl Error + Send + Sync + 'static) {
        let name = self.settings.next_hop(target).host_name();
        let mut names = self.names.lock();
        let named = &mut names[target];
        if !std::mem::replace(&mut named.is_noted, true)
            && let Some(Permit { suppressed }) = UNRESOLVED.permit()
        {
            tracing::warn!(
                upstream = self.settings.name,
                via = self.settings.via.as_ref().map(Via::host_and_port),
                name,
                suppressed,
                kept = named.addresses.len(),
                error = %Chain(&error),
                "cannot be resolved"
            );
        }
        named.failure = Some(Arc::new(error));
        drop(names);
        self.looked_up.send_replace(());
    }

    /// Publishes the addresses of all targets to the workers.
    fn regroup(&self, names: &[ResolvedTarget]) {
        let all = names.iter().flat_map(|named| &named.addresses);
        let most = MAX_ADDRESSES.max(names.len());
        let group = AddressSet::new(all.take(most).cloned().collect());
        if let [only] = &*group.addresses {
            only.reinstate();
        }
        self.group.store(Arc::new(group));
        self.measure();
    }

    /// Sets the gauges of addresses that work and that get no requests.
    fn measure(&self) {
        let group = self.group.load();
        let ejected = group.addresses.iter().filter(|address| !address.is_up()).count();
        self.metrics.ejected.set(ejected as f64);
        self.metrics.up.set((group.addresses.len() - ejected) as f64);
    }

    /// The name of the upstream in the configuration.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The addresses with their states, in the order of the targets.
    pub fn addresses(&self) -> Vec<AddressStatus> {
        let now = Instant::now();
        self.group.load().addresses.iter().map(|address| address.status(now)).collect()
    }

    /// Waits at most `limit` for the first address, at the start of the gateway for example. Fails at once when a lookup
    /// has failed.
    pub(super) async fn first_address(&self, limit: Duration) -> Result<(), UpstreamError> {
        let mut looked_up = self.looked_up.subscribe();
        let known = async {
            loop {
                looked_up.mark_unchanged();
                if !self.group.load().addresses.is_empty() {
                    return Ok(());
                }
                let in_vain = self.names.lock().iter().position(|named| named.failure.is_some());
                if let Some(target) = in_vain {
                    return Err(self.unknown(target));
                }
                if looked_up.changed().await.is_err() {
                    return Err(self.unknown(0));
                }
            }
        };
        tokio::time::timeout(limit, known).await.unwrap_or_else(|_| Err(self.unknown(0)))
    }

    fn unknown(&self, target: usize) -> UpstreamError {
        let source = self.names.lock()[target].failure.clone();
        if let Some(via) = &self.settings.via {
            let cause = source.map_or(ViaCause::NameTimeout, ViaCause::NoAddress);
            return UpstreamError::Via(via.error(cause));
        }
        let name = self.settings.next_hop(target).host_name().to_owned();
        UpstreamError::Connect(Box::new(UnknownAddress { name, source }))
    }

    /// Notes that a connection to the address was made, and logs it if a failure was logged before.
    pub(super) fn reached(&self, address: &Address) {
        address.note_connected(Instant::now());
        if !address.is_ejected()
            && address.is_noted.swap(false, Relaxed)
            && let Some(Permit { suppressed }) = REACHED.permit()
        {
            let upstream = &*self.settings.name;
            tracing::info!(upstream, %address, suppressed, "can be reached again");
        }
    }

    /// Notes a request that had no connection or no response: counts it, may eject the address, and logs it.
    pub(super) fn failed(
        &self,
        address: &Address,
        picked: Option<&mut PickedAddress>,
        fault: AddressFailure,
        error: &UpstreamError,
    ) {
        let group = self.group.load();
        let change = picked.and_then(|picked| group.failed(picked, fault, Instant::now()));
        let upstream = &*self.settings.name;
        if let Some(AddressChange::Ejected(_)) = change {
            self.metrics.ejections.increment(1);
            self.measure();
        } else if fault == AddressFailure::NoAnswer {
            return self.no_answer(address, error);
        }
        if address.is_noted.swap(true, Relaxed) {
            tracing::debug!(upstream, %address, error = %Chain(error), "still fails");
            return;
        }
        let Some(Permit { suppressed }) = FAILED.permit() else { return };
        let error = Chain(error);
        match change {
            Some(AddressChange::Ejected(span)) => {
                let for_s = span.as_secs_f64();
                tracing::warn!(upstream, %address, for_s, %error, suppressed, "ejected");
            }
            _ => tracing::warn!(upstream, %address, %error, suppressed, "cannot be reached"),
        }
    }

    /// Logs a request without a response, at level warn once in 60 s: the cause may be that request alone, or all of
    /// them fail.
    fn no_answer(&self, address: &Address, error: &UpstreamError) {
        let (now, upstream) = (Instant::now(), &*self.settings.name);
        let mut quiet_until = self.quiet_until.lock();
        if quiet_until.is_some_and(|until| now < until) {
            tracing::debug!(upstream, %address, error = %Chain(error), "an address of the upstream gave no answer");
            return;
        }
        *quiet_until = Some(now + QUIET);
        tracing::warn!(upstream, %address, error = %Chain(error), "an address of the upstream gave no answer");
    }

    /// Notes a health check of an address: counts it, and logs it where it `changes` whether requests are sent there. A check
    /// that passes then also ends an ejection.
    pub(super) fn checked(
        &self,
        address: &Address,
        changes: bool,
        failure: Option<&(dyn Error + 'static)>,
    ) {
        let upstream = &*self.settings.name;
        match failure {
            None => self.metrics.checks_passed.increment(1),
            Some(error) => {
                self.metrics.checks_failed.increment(1);
                tracing::debug!(upstream, %address, error = %Chain(error), "a health check fails");
            }
        }
        if !changes {
            return;
        }
        if failure.is_none() {
            address.reinstate();
        }
        self.measure();
        let Some(Permit { suppressed }) = CHECKED.permit() else { return };
        match failure {
            None => {
                tracing::info!(upstream, %address, suppressed, "passes its health checks again")
            }
            Some(error) => {
                let error = Chain(error);
                let message = "fails its health checks, and gets no requests";
                tracing::warn!(upstream, %address, %error, suppressed, "{message}");
            }
        }
    }

    /// Notes that a request had its response, which ends an ejection of its address.
    pub(super) fn note_answer(&self, picked: &mut PickedAddress) {
        if picked.succeeded().is_some() {
            self.measure();
            picked.address.is_noted.store(false, Relaxed);
            let (upstream, address) = (&*self.settings.name, &picked.address);
            if let Some(Permit { suppressed }) = ANSWERED.permit() {
                tracing::info!(upstream, %address, suppressed, "answers again, and is used again");
            }
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tls::client::ClientTls, upstream::sockets::Sockets};
    use metrics::{Counter, Gauge};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_named_address_is_used() {
        let target = |i| Target::parse(&format!("http://127.0.0.1:{i}")).expect("a target");
        let settings = ClusterSettings {
            name: "vendor".into(),
            targets: (1..=100).map(target).collect(),
            timeouts: Timeouts { connect: SECOND, response: SECOND, idle: SECOND },
            pool_size: 1,
            http2: false,
            tls: ClientTls::default(),
            sockets: Sockets::new(1),
            health: None,
            off_limits: None,
            via: None,
        };
        let (noop, never) = (Gauge::noop, Counter::noop);
        let metrics = AddressMetrics {
            up: noop(),
            ejected: noop(),
            ejections: never(),
            checks_passed: never(),
            checks_failed: never(),
        };
        let cluster = Cluster::new(settings, metrics, &mut None).expect("a cluster");
        assert_eq!(cluster.group.load().addresses.len(), 100);
    }
}
