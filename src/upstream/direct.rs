//! Connects to a host that is no upstream, for a tunnel whose octets the gateway does not read. Speaks neither TLS nor HTTP.

use super::{
    names::lookup,
    off_limits::{OffLimits, OffLimitsError, is_of_this_host},
    origin::UrlOrigin,
    sockets::{Socket, Sockets},
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

/// How tunnels to other hosts are opened.
#[derive(Debug, Clone)]
pub struct DirectRoute {
    /// The bound of open connections, shared with the upstreams.
    pub sockets: Arc<Sockets>,
    /// The addresses that no tunnel leads to.
    pub off_limits: OffLimits,
}

/// The part of the configuration that decides about one tunnel.
#[derive(Debug, Clone, Copy)]
pub struct DirectTerms<'c> {
    /// Whether the host may be this machine: only one that the configuration names may.
    pub may_be_local: bool,
    /// The DNS servers; those of the system if empty.
    pub resolver: &'c [SocketAddr],
    /// The time that a name and a connection may take together.
    pub limit: Duration,
}

/// A connection for a tunnel. It takes the place of one to an upstream.
pub struct DirectConnection {
    /// The connection.
    pub stream: TcpStream,
    _socket: Socket,
}

/// Why a tunnel was not opened.
#[derive(Debug, thiserror::Error)]
pub enum DirectError {
    /// No address of the host may be reached.
    #[error(transparent)]
    OffLimits(#[from] OffLimitsError),
    /// The host is, or resolves to, this machine, and no entry of the allow list names it.
    #[error(
        "the host is this machine, which a tunnel reaches only if `allow` names it without a `*`"
    )]
    Loopback,
    /// The name has no address.
    #[error("the name of the host is not found")]
    Name(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No address accepted a connection.
    #[error("the host cannot be reached")]
    Connect(#[source] io::Error),
    /// The time is over.
    #[error("the host did not accept a connection in time")]
    Timeout,
    /// As many connections are open as may be.
    #[error("as many connections are open as the limit of open files allows")]
    TooMany,
}

// === impl DirectRoute ===

impl DirectRoute {
    /// Opens a connection to a host.
    ///
    /// # Errors
    ///
    /// [`DirectError`], of the last address that was tried.
    pub async fn connect(
        &self,
        origin: &UrlOrigin,
        terms: DirectTerms<'_>,
    ) -> Result<DirectConnection, DirectError> {
        let connect = self.connect_to_first(origin, terms);
        timeout(terms.limit, connect).await.unwrap_or(Err(DirectError::Timeout))
    }

    async fn connect_to_first(
        &self,
        origin: &UrlOrigin,
        terms: DirectTerms<'_>,
    ) -> Result<DirectConnection, DirectError> {
        let mut last = DirectError::Timeout;
        for ip in addresses(&origin.host, terms.resolver).await? {
            let address = SocketAddr::new(ip, origin.port);
            if self.off_limits.has(address) {
                last = OffLimitsError(address).into();
            } else if !terms.may_be_local && is_of_this_host(ip) {
                last = DirectError::Loopback;
            } else {
                let socket = self.sockets.take().await.ok_or(DirectError::TooMany)?;
                match TcpStream::connect(address).await {
                    Ok(stream) => {
                        let _ = stream.set_nodelay(true);
                        super::connect::keep_alive(&stream);
                        return Ok(DirectConnection { stream, _socket: socket });
                    }
                    Err(error) => last = DirectError::Connect(error),
                }
            }
        }
        Err(last)
    }
}

async fn addresses(host: &str, resolver: &[SocketAddr]) -> Result<Vec<IpAddr>, DirectError> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![ip]);
    }
    // No server is asked for it (RFC 6761 section 6.3).
    if host == "localhost" || host.ends_with(".localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    lookup(host, resolver).await.map_err(DirectError::Name)
}
