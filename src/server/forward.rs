//! The forward proxy's side of a connection, until its requests take the way of all others: `CONNECT`, the certificate for a
//! host, and tunnels to hosts of no upstream. Forwards no request.

mod asked;
mod tunnel;

pub(super) use tunnel::BlindTunnel;

use super::{
    acceptor::say,
    context::ConnectionContext,
    edge::serialized,
    error::ServerError,
    handshake::{Handshake, Opened, detect},
    proxy_protocol::ClientAddress,
    transport::Transport,
};
use crate::{
    answer::Failure,
    config::{Config, HostPattern},
    metrics::{self, Protocol, Refusal},
    plan::Plan,
    proxy::ForwardConnection,
    tls::{Authority, HostCertificates, client::Chain, server},
    upstream::{
        DirectConnection, DirectError, DirectRoute, HostPools, HostSettings, OffLimits, Sockets,
        UpstreamError, UrlOrigin,
    },
};
use ::metrics::Gauge;
use rustls::{RootCertStore, pki_types::ServerName};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_rustls::TlsAcceptor;

/// The answer to a CONNECT; what follows it belongs to the tunnel (RFC 9110 section 9.3.6).
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";
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
    /// A request or a CONNECT has come to one of the doors.
    is_used: Arc<AtomicBool>,
    direct: DirectRoute,
}

enum DoorHosts {
    Upstreams,
    Any { only: Vec<String>, pools: Arc<HostPools> },
}

/// The decision about a CONNECT.
enum Consent {
    /// The gateway answers as the host.
    Open,
    /// A tunnel, which may lead to this machine if the host was named.
    Tunnel { may_be_local: bool },
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

    /// Becomes true when a request or a CONNECT comes.
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
    /// Begins a connection: one with requests, or a tunnel. Sets no time-out.
    ///
    /// # Errors
    ///
    /// The reason to count; `None` for a client that left, or whose refusal is counted already.
    pub(super) async fn accept(
        &self,
        context: &ConnectionContext,
        mut tcp: TcpStream,
        remote: SocketAddr,
    ) -> Result<Opened, Option<Refusal>> {
        let (protocol, mut early) = detect(&mut tcp).await.map_err(|_| None)?;
        self.is_used.store(true, Relaxed);
        let ip = remote.ip();
        if !asked::is_connect(&mut tcp, &mut early).await.map_err(|_| None)? {
            let transport = Transport::Plain(tcp);
            let address = ClientAddress { ip, port: context.port };
            let forward = Some(self.connection(None));
            return Ok(Handshake {
                transport,
                early,
                protocol,
                address,
                is_anonymous: false,
                forward,
            }
            .into());
        }
        let plan = context.plan();
        let asked = asked::read(&mut tcp, early, &plan.config.limits).await.map_err(|_| None)?;
        let consent = asked.and_then(|origin| Ok((self.consent(&plan, &origin)?, origin)));
        let resolver = plan.config.resolver.clone();
        drop(plan);
        let tunnelled = match consent {
            Err(failure) => Err(failure),
            Ok((Consent::Open, origin)) => {
                tcp.write_all(ESTABLISHED).await.map_err(|_| None)?;
                return self.open(tcp, ip, origin).await;
            }
            Ok((Consent::Tunnel { may_be_local }, origin)) => {
                self.tunnel(&origin, may_be_local, &resolver).await
            }
        };
        match tunnelled {
            Ok(upstream) => {
                tcp.write_all(ESTABLISHED).await.map_err(|_| None)?;
                Ok(Opened::Tunnel(BlindTunnel { client: tcp, upstream }))
            }
            Err(failure) => {
                let response = failure.response();
                context.proxy.load().unparsed(ip.to_canonical(), response.status());
                say(tcp, &serialized(&response, None)).await;
                Err(None)
            }
        }
    }

    /// Decides a CONNECT.
    fn consent(&self, plan: &Plan, origin: &UrlOrigin) -> Result<Consent, Failure> {
        let (host, port) = (&origin.host, origin.port);
        let consent = match &self.hosts {
            DoorHosts::Any { only, .. }
                if only.is_empty() || only.iter().any(|own| **own == **host) =>
            {
                Consent::Open
            }
            DoorHosts::Any { .. } => Consent::Tunnel { may_be_local: true },
            DoorHosts::Upstreams => {
                let forward = plan.forward.as_ref();
                let allow = plan.config.forward.iter().flat_map(|own| &own.allow);
                let mut patterns = allow.filter(|pattern| pattern.takes(origin)).peekable();
                if forward.is_some_and(|routes| routes.has_host(origin)) {
                    Consent::Open
                } else if patterns.peek().is_some() {
                    Consent::Tunnel { may_be_local: patterns.any(HostPattern::is_exact) }
                } else {
                    let why = format!("no upstream of this gateway is at {host}:{port}");
                    return Err(Failure::Forbidden(why.into()));
                }
            }
        };
        if ServerName::try_from(&**host).is_err() {
            return Err(Failure::Malformed(
                "CONNECT names no host that a certificate can have".into(),
            ));
        }
        Ok(consent)
    }

    /// Answers as the host of a tunnel: over TLS with a certificate for it, or in clear text, as the client begins.
    async fn open(
        &self,
        mut tcp: TcpStream,
        ip: IpAddr,
        origin: UrlOrigin,
    ) -> Result<Opened, Option<Refusal>> {
        let mut first = [0; 1];
        if tcp.peek(&mut first).await.map_err(|_| None)? == 0 {
            return Err(None);
        }
        let address = ClientAddress { ip, port: origin.port };
        let origin = origin.with_scheme(first[0] == TLS_HANDSHAKE);
        let (transport, early, protocol) = if origin.is_https {
            let config = self.certificates.config(&origin.host).map_err(|error| {
                tracing::warn!(host = origin.host, error = %Chain(&error), "no certificate for the host");
                Some(Refusal::Tls)
            })?;
            let accepted = Box::pin(TlsAcceptor::from(config).accept(tcp)).await;
            let tls = Box::new(accepted.map_err(|error| {
                tracing::debug!(host = origin.host, %error, "a client of the forward proxy does not trust its authority");
                Some(Refusal::Tls)
            })?);
            let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let protocol = if is_h2 { Protocol::Http2 } else { Protocol::Http1 };
            (Transport::Tls(tls), Vec::new(), protocol)
        } else {
            let (protocol, early) = detect(&mut tcp).await.map_err(|_| None)?;
            (Transport::Plain(tcp), early, protocol)
        };
        let forward = Some(self.connection(Some(origin)));
        Ok(Handshake { transport, early, protocol, address, is_anonymous: false, forward }.into())
    }

    /// Opens the other side of a tunnel.
    async fn tunnel(
        &self,
        origin: &UrlOrigin,
        may_be_local: bool,
        resolver: &[SocketAddr],
    ) -> Result<DirectConnection, Failure> {
        self.direct.connect(origin, may_be_local, resolver).await.map_err(|error| {
            tracing::debug!(host = origin.host, port = origin.port, error = %Chain(&error), "no tunnel");
            match error {
                DirectError::OffLimits(_) | DirectError::Loopback => {
                    Failure::Forbidden(error.to_string().into())
                }
                DirectError::Timeout => Failure::Upstream(UpstreamError::ConnectTimeout),
                error => Failure::Upstream(UpstreamError::Connect(error.into())),
            }
        })
    }

    fn connection(&self, tunnel: Option<UrlOrigin>) -> ForwardConnection {
        let pools = match &self.hosts {
            DoorHosts::Upstreams => None,
            DoorHosts::Any { pools, .. } => Some(pools.clone()),
        };
        ForwardConnection { tunnel, pools }
    }
}
