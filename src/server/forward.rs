//! The forward proxy's side of a connection, until its requests take the way of all others: `CONNECT`, the certificate for a
//! host, and tunnels to hosts of no upstream. Forwards no request.

mod asked;
mod consent;
mod steps;
mod tunnel;

pub(super) use steps::{AskedTunnel, GrantedTunnel};
pub(super) use tunnel::BlindTunnel;

use super::{
    context::ConnectionContext,
    error::ServerError,
    handshake::{ArrivedClient, Handshake, Opened, detect},
    transport::Transport,
};
use crate::{
    config::Config,
    metrics::{self, Refusal},
    proxy::ForwardConnection,
    tls::{Authority, HostCertificates, server},
    upstream::{DirectRoute, HostPools, HostSettings, OffLimits, Sockets, UrlOrigin},
};
use ::metrics::Gauge;
use rustls::RootCertStore;
use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The first byte of a TLS handshake (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// The forward proxy of a process.
pub(crate) struct ForwardSettings {
    certificates: Arc<HostCertificates>,
    hosts: ForwardHosts,
    is_used: Arc<AtomicBool>,
    /// The end of the authority as a metric, which lasts as long as this handle.
    _expiry: Option<Gauge>,
}

/// The hosts whose requests the forward proxy takes.
pub(crate) enum ForwardHosts {
    /// Those of upstreams; tunnels lead to those that the configuration allows.
    Upstreams,
    /// All of them, or those with these names; tunnels lead to the others. Certificates are checked with `roots`.
    Any { only: Vec<String>, roots: Arc<RootCertStore> },
}

/// The forward proxy as one worker serves it.
pub(super) struct ForwardDoor {
    certificates: Arc<HostCertificates>,
    hosts: DoorHosts,
    /// A request has come to one of the doors, or a CONNECT to a host for which the gateway answers.
    is_used: Arc<AtomicBool>,
    direct: DirectRoute,
}

enum DoorHosts {
    Upstreams,
    Any { only: Vec<String>, pools: Arc<HostPools> },
}

// === impl ForwardSettings ===

impl ForwardSettings {
    /// Reads the authority of the forward proxy that a configuration has.
    ///
    /// # Errors
    ///
    /// [`ServerError::Tls`] names the file that cannot be used.
    pub(super) fn of(config: &Config) -> Result<Option<Self>, ServerError> {
        let Some(forward) = &config.forward else { return Ok(None) };
        let authority = Authority::load(&forward.ca).map_err(ServerError::Tls)?;
        let _expiry = server::expiry(&forward.ca).map(|end| {
            let gauge = metrics::CERTIFICATES.level(&[&forward.ca.cert.display().to_string()]);
            gauge.set(end as f64);
            gauge
        });
        let own = Self::new(authority, ForwardHosts::Upstreams);
        Ok(Some(Self { _expiry, ..own }))
    }

    pub(crate) fn new(authority: Authority, hosts: ForwardHosts) -> Self {
        let certificates = Arc::new(HostCertificates::new(authority));
        Self { certificates, hosts, is_used: Arc::default(), _expiry: None }
    }

    /// Becomes true when a request comes, or a CONNECT to a host for which the gateway answers.
    pub(crate) fn is_used(&self) -> Arc<AtomicBool> {
        self.is_used.clone()
    }

    /// Makes the part of one worker. `own` are the listeners of this process.
    pub(super) fn door(
        &self,
        config: &Config,
        sockets: &Arc<Sockets>,
        own: &[SocketAddr],
    ) -> ForwardDoor {
        let off_limits = OffLimits::new(own.iter().copied());
        let hosts = match &self.hosts {
            ForwardHosts::Upstreams => DoorHosts::Upstreams,
            ForwardHosts::Any { only, roots } => {
                let upstream = &config.upstreams[0];
                let pools = HostPools::new(HostSettings {
                    name: upstream.name.clone(),
                    timeouts: upstream.timeouts,
                    pool_size: upstream.pool_size,
                    roots: roots.clone(),
                    sockets: sockets.clone(),
                    resolver: config.resolver.clone(),
                    off_limits: off_limits.clone(),
                    metrics: metrics::addresses(&upstream.name),
                });
                DoorHosts::Any { only: only.clone(), pools: Arc::new(pools) }
            }
        };
        let direct = DirectRoute { sockets: sockets.clone(), off_limits };
        let (certificates, is_used) = (self.certificates.clone(), self.is_used.clone());
        ForwardDoor { certificates, hosts, is_used, direct }
    }
}

impl fmt::Debug for ForwardSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardSettings").finish_non_exhaustive()
    }
}

// === impl ForwardDoor ===

impl ForwardDoor {
    /// Begins a connection: one with requests, or a CONNECT, of which it reads the head. Sets no time-out.
    ///
    /// # Errors
    ///
    /// `None`, for a client that left.
    pub(super) async fn accept(
        self: &Arc<Self>,
        context: &ConnectionContext,
        mut client: ArrivedClient,
    ) -> Result<Opened, Option<Refusal>> {
        let (protocol, mut early) = detect(&mut client.tcp).await.map_err(|_| None)?;
        if !asked::is_connect(&mut client.tcp, &mut early).await.map_err(|_| None)? {
            self.note_use();
            let ArrivedClient { tcp, address, is_anonymous } = client;
            let (transport, forward) = (Transport::Plain(tcp), Some(self.connection(None)));
            return Ok(
                Handshake { transport, early, protocol, address, is_anonymous, forward }.into()
            );
        }
        let limits = context.plan().config.limits;
        let asked = asked::read(&mut client.tcp, early, &limits).await.map_err(|_| None)?;
        Ok(Opened::Asked(Box::new(AskedTunnel { door: self.clone(), client, asked })))
    }

    fn note_use(&self) {
        self.is_used.store(true, Relaxed);
    }

    fn connection(&self, tunnel: Option<UrlOrigin>) -> ForwardConnection {
        let pools = match &self.hosts {
            DoorHosts::Upstreams => None,
            DoorHosts::Any { pools, .. } => Some(pools.clone()),
        };
        ForwardConnection { tunnel, pools }
    }
}
