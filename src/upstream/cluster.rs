//! An upstream as all workers share it: its targets, the addresses that they have now, and who of them works.
//! Opens no connection and asks no DNS server.

use super::{
    AddressMetrics, Chain, ClientTls, Sockets, Target, Timeouts, TrustError, UpstreamError,
    balance::{Address, AddressChange, AddressFailure, AddressSet, PickedAddress},
    tls::UpstreamTls,
};
use crate::log::{Permit, Throttle};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::RootCertStore;
use smallvec::SmallVec;
use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

/// Addresses of one upstream, unless more are named. Beyond them, those that its names have are left out.
const MAX_ADDRESSES: usize = 64;
/// How often the log is told that requests have no answer.
const QUIET: Duration = Duration::from_secs(60);

/// An upstream that is there one moment and gone the next changes with each request, and names with each lookup.
static RESOLVED: Throttle = Throttle::new();
static UNRESOLVED: Throttle = Throttle::new();
static REACHED: Throttle = Throttle::new();
static FAILED: Throttle = Throttle::new();
static ANSWERED: Throttle = Throttle::new();

/// What the configuration says of an upstream's connections.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// Name in metrics and logs.
    pub name: String,
    /// Where it is: at least one, all of one scheme and base path.
    pub targets: Vec<Target>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// Idle connections that all workers keep to it.
    pub pool_size: usize,
    /// It is spoken to in HTTP/2.
    pub http2: bool,
    /// How an https upstream is checked, and what it is shown.
    pub tls: ClientTls,
    /// How many connections there may be; shared by all upstreams.
    pub sockets: Arc<Sockets>,
}

/// An upstream as all workers share it.
pub struct Cluster {
    pub(super) settings: ClusterSettings,
    /// Of https upstreams.
    pub(super) trust: Option<UpstreamTls>,
    /// What requests choose from.
    pub(super) group: Arc<ArcSwap<AddressSet>>,
    /// By target: what its name stands for, and why it stands for nothing.
    names: Mutex<Vec<ResolvedTarget>>,
    /// Told when a name has been looked up, well or not.
    looked_up: watch::Sender<()>,
    /// It was said that it does not choose HTTP/2.
    pub(super) is_old: AtomicBool,
    /// Until then the log is told of no more requests without an answer.
    quiet_until: Mutex<Option<Instant>>,
    metrics: AddressMetrics,
}

#[derive(Default)]
struct ResolvedTarget {
    addresses: Vec<Arc<Address>>,
    failure: Option<Arc<dyn Error + Send + Sync>>,
    /// The log says that it is not found.
    is_noted: bool,
}

/// A name whose addresses are not known.
#[derive(Debug, thiserror::Error)]
#[error("no address of {name} is known")]
struct UnknownAddress {
    name: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

// === impl Cluster ===

impl Cluster {
    /// Connects nowhere. `roots` are the system's authorities: read by the first upstream that needs them.
    ///
    /// # Errors
    ///
    /// [`TrustError`].
    pub fn new(
        settings: ClusterSettings,
        metrics: AddressMetrics,
        roots: &mut Option<Arc<RootCertStore>>,
    ) -> Result<Arc<Self>, TrustError> {
        let ClusterSettings { tls, http2, targets, .. } = &settings;
        let is_https = targets.iter().any(Target::is_https);
        let trust = is_https.then(|| UpstreamTls::new(tls, *http2, targets, roots)).transpose()?;
        let fixed = targets.iter().enumerate().map(|(i, target)| {
            let addresses = target.fixed_sockets().map(|sockets| Address::new(i, sockets));
            ResolvedTarget {
                addresses: addresses.map(Arc::new).into_iter().collect(),
                ..ResolvedTarget::default()
            }
        });
        let cluster = Self {
            trust,
            group: Arc::new(ArcSwap::from_pointee(AddressSet::new(Vec::new()))),
            names: Mutex::new(fixed.collect()),
            looked_up: watch::Sender::new(()),
            is_old: AtomicBool::new(false),
            quiet_until: Mutex::default(),
            metrics,
            settings,
        };
        cluster.regroup(&cluster.names.lock());
        Ok(Arc::new(cluster))
    }

    /// The targets that only DNS knows the addresses of.
    pub(super) fn unresolved(&self) -> impl Iterator<Item = (usize, &Target)> {
        let targets = self.settings.targets.iter().enumerate();
        targets.filter(|(_, target)| target.fixed_sockets().is_none())
    }

    /// What a target's name stands for now.
    pub(super) fn resolved(&self, target: usize, ips: impl Iterator<Item = IpAddr>) {
        let port = self.settings.targets[target].port();
        let mut names = self.names.lock();
        let named = &mut names[target];
        let mut addresses: Vec<Arc<Address>> = Vec::new();
        for socket in ips.take(MAX_ADDRESSES).map(|ip| SocketAddr::new(ip, port)) {
            let is_same = |address: &&Arc<Address>| address.sockets[..] == [socket];
            if addresses.iter().any(|address| is_same(&address)) {
                continue;
            }
            // What is known of it stays known.
            let known = named.addresses.iter().find(is_same).cloned();
            addresses.push(known.unwrap_or_else(|| Arc::new(Address::new(target, [socket]))));
        }
        let is_same = addresses.len() == named.addresses.len()
            && addresses.iter().all(|new| named.addresses.iter().any(|old| Arc::ptr_eq(old, new)));
        let was_noted = std::mem::take(&mut named.is_noted);
        named.failure = None;
        if !is_same {
            named.addresses = addresses;
            self.regroup(&names);
        }
        if was_noted && let Some(Permit { suppressed }) = RESOLVED.permit() {
            let name = self.settings.targets[target].host_name();
            tracing::info!(upstream = self.settings.name, name, suppressed, "resolved again");
        }
        drop(names);
        self.looked_up.send_replace(());
    }

    /// A target's name was not found; what it stood for before stays.
    pub(super) fn not_resolved(&self, target: usize, error: impl Error + Send + Sync + 'static) {
        let name = self.settings.targets[target].host_name();
        let mut names = self.names.lock();
        let named = &mut names[target];
        if !std::mem::replace(&mut named.is_noted, true)
            && let Some(Permit { suppressed }) = UNRESOLVED.permit()
        {
            tracing::warn!(
                upstream = self.settings.name,
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

    /// The addresses of all targets, as workers see them from now on.
    fn regroup(&self, names: &[ResolvedTarget]) {
        let all = names.iter().flat_map(|named| &named.addresses);
        let most = MAX_ADDRESSES.max(names.len());
        let group = AddressSet::new(all.take(most).cloned().collect());
        if let [only] = &*group.addresses {
            only.pardon();
        }
        self.group.store(Arc::new(group));
        self.measure();
    }

    fn measure(&self) {
        let group = self.group.load();
        let out = group.addresses.iter().filter(|address| address.is_out()).count();
        self.metrics.ejected.set(out as f64);
        self.metrics.up.set((group.addresses.len() - out) as f64);
    }

    /// Waits for the first address; it fails when a name was looked up in vain, or in `limit`.
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
        let name = self.settings.targets[target].host_name().to_owned();
        let source = self.names.lock()[target].failure.clone();
        UpstreamError::Connect(Box::new(UnknownAddress { name, source }))
    }

    /// A connection is there.
    pub(super) fn reached(&self, address: &Address) {
        if !address.is_out()
            && address.is_noted.swap(false, Relaxed)
            && let Some(Permit { suppressed }) = REACHED.permit()
        {
            let upstream = &*self.settings.name;
            tracing::info!(upstream, %address, suppressed, "can be reached again");
        }
    }

    /// A request had no connection or no answer.
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

    /// Says so from time to time: it may be some request's own fault, or each one's.
    fn no_answer(&self, address: &Address, error: &UpstreamError) {
        let (now, upstream) = (Instant::now(), &*self.settings.name);
        let mut quiet_until = self.quiet_until.lock();
        if quiet_until.is_some_and(|until| now < until) {
            tracing::debug!(upstream, %address, error = %Chain(error), "gave no answer");
            return;
        }
        *quiet_until = Some(now + QUIET);
        tracing::warn!(upstream, %address, error = %Chain(error), "gave no answer");
    }

    /// A request had its answer.
    pub(super) fn answered(&self, picked: &mut PickedAddress) {
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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sockets[0].fmt(f)
    }
}

// === impl Target ===

impl Target {
    /// Its host as a name: an IPv6 address without brackets.
    pub(super) fn host_name(&self) -> &str {
        let host = self.origin.host().unwrap_or_default();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    fn port(&self) -> u16 {
        let default = if self.is_https() { 443 } else { 80 };
        self.origin.port_u16().unwrap_or(default)
    }

    /// Where it is, when that takes no DNS. `localhost` never does (RFC 6761 section 6.3).
    fn fixed_sockets(&self) -> Option<SmallVec<[SocketAddr; 2]>> {
        let name = self.host_name();
        let at = |ip| SocketAddr::new(ip, self.port());
        if let Ok(ip) = name.parse::<IpAddr>() {
            return Some([at(ip)].into_iter().collect());
        }
        let local = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let is_local = name.trim_end_matches('.').eq_ignore_ascii_case("localhost");
        is_local.then(|| local.map(at).into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics::{Counter, Gauge};

    #[test]
    fn every_address_that_is_named_is_used() {
        let target = |i| Target::parse(&format!("http://127.0.0.1:{i}")).expect("a target");
        let settings = ClusterSettings {
            name: "vendor".into(),
            targets: (1..=100).map(target).collect(),
            timeouts: Timeouts::default(),
            pool_size: 1,
            http2: false,
            tls: ClientTls::default(),
            sockets: Sockets::new(1),
        };
        let noop = Gauge::noop;
        let metrics = AddressMetrics { up: noop(), ejected: noop(), ejections: Counter::noop() };
        let cluster = Cluster::new(settings, metrics, &mut None).expect("a cluster");
        assert_eq!(cluster.group.load().addresses.len(), 100);
    }
}
