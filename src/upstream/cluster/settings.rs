//! Names what the configuration says of an upstream. Decides nothing.

use crate::{
    tls::client::ClientTls,
    upstream::{
        health::HealthCheck,
        off_limits::{OffLimits, OffLimitsError},
        sockets::Sockets,
        target::Target,
        via::Via,
    },
};
use metrics::{Counter, Gauge};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// The part of the configuration that decides how an upstream is connected to.
#[derive(Debug, Clone)]
pub struct ClusterSettings {
    /// The name of the upstream in metrics and log lines, as the configuration gives it.
    pub name: String,
    /// The URLs of the upstream: at least one, all with the same scheme and base path.
    pub targets: Vec<Target>,
    /// The time that connecting and answering may take, and how long an idle connection is kept.
    pub timeouts: Timeouts,
    /// The most idle connections that all workers together keep to it; 0 keeps none.
    pub pool_size: usize,
    /// Whether HTTP/2 is used: offered by ALPN with TLS, and without asking (prior knowledge) in clear text.
    pub http2: bool,
    /// How the certificate of an https upstream is checked, and the client certificate that it is shown.
    pub tls: ClientTls,
    /// The bound of open connections, shared by all workers and upstreams.
    pub sockets: Arc<Sockets>,
    /// How its addresses are checked; `None` leaves that to requests.
    pub health: Option<HealthCheck>,
    /// The proxy through which it is reached.
    pub via: Option<Via>,
    /// The addresses that it may not have; `None` for an upstream of the configuration, which may have any.
    pub off_limits: Option<OffLimits>,
}

/// The time that an upstream may take for each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to be made, its TLS handshake included.
    pub connect: Duration,
    /// For the head of the response, counted from the slot, or from the last piece of the request's body that the
    /// upstream took.
    pub response: Duration,
    /// A connection that no request has used for this long is closed.
    pub idle: Duration,
}

/// The metrics of an upstream's addresses.
#[derive(Clone)]
pub struct AddressMetrics {
    /// The number of addresses that requests are sent to now.
    pub up: Gauge,
    /// The number of addresses that get no requests now: they are ejected, or their health checks fail.
    pub ejected: Gauge,
    /// Counts each ejection of an address.
    pub ejections: Counter,
    /// Counts each health check that passed.
    pub checks_passed: Counter,
    /// Counts each health check that failed.
    pub checks_failed: Counter,
}

// === impl ClusterSettings ===

impl ClusterSettings {
    /// The place that connections for a target are made to, by the index of the target: the proxy, if there is one.
    pub(in crate::upstream) fn next_hop(&self, target: usize) -> &Target {
        self.via.as_ref().map_or(&self.targets[target], |via| &via.proxy)
    }

    /// Removes the addresses that the upstream may not have. Returns the error if none is left because of that.
    pub(in crate::upstream) fn remove_off_limits<S>(
        &self,
        sockets: &mut S,
    ) -> Option<OffLimitsError>
    where
        S: Extend<SocketAddr> + Default + IntoIterator<Item = SocketAddr> + AsRef<[SocketAddr]>,
    {
        let (off_limits, first) = (self.off_limits.as_ref()?, *sockets.as_ref().first()?);
        let mut kept = S::default();
        kept.extend(std::mem::take(sockets).into_iter().filter(|own| !off_limits.has(*own)));
        *sockets = kept;
        sockets.as_ref().is_empty().then_some(OffLimitsError(first))
    }
}
