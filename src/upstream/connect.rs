//! Makes a connection to an address, its TLS handshake included. Speaks no HTTP and keeps no connection.

use super::{
    balance::Address, cluster::Cluster, error::UpstreamError, stream::UpstreamStream, via::ViaError,
};
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::{net::TcpStream, time::timeout};

/// The kernel probes an upstream that has sent nothing for 60 s, so that a host that lost its power is noticed.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The reason why a connection to an address could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("cannot connect to {0}")]
    Tcp(SocketAddr, #[source] io::Error),
    #[error("no TLS with {0}")]
    Tls(SocketAddr, #[source] io::Error),
    #[error("no tunnel through the proxy {0}")]
    Via(SocketAddr, #[source] ViaError),
    #[error("no HTTP with {0}")]
    Http(SocketAddr, #[source] hyper::Error),
    #[error("as many connections are open as the limit of open files allows")]
    TooMany,
}

/// The address of a proxy, for the log.
#[derive(Debug, thiserror::Error)]
#[error("the proxy is {0}")]
struct ProxyAddress(SocketAddr);

// === impl OpenError ===

impl OpenError {
    /// Whether the process or the system has no file descriptor left, so that no other address would help.
    pub(super) fn is_own(&self) -> bool {
        match self {
            Self::TooMany => true,
            Self::Tcp(_, error) => [Errno::MFILE, Errno::NFILE]
                .iter()
                .any(|no| Some(no.raw_os_error()) == error.raw_os_error()),
            Self::Via(..) | Self::Tls(..) | Self::Http(..) => false,
        }
    }
}

impl From<OpenError> for UpstreamError {
    fn from(error: OpenError) -> Self {
        match &error {
            OpenError::Via(proxy, why) => {
                Self::Via { what: why.to_string(), source: ProxyAddress(*proxy).into() }
            }
            _ => Self::Connect(error.into()),
        }
    }
}

/// Connects to `address`, and returns true with the stream if HTTP/2 is to be spoken on it. `in_handshake` becomes true
/// once TCP is connected, so that a time-out can say which of the two was slow.
pub(super) async fn open(
    cluster: &Cluster,
    address: &Address,
    in_handshake: &AtomicBool,
) -> Result<(UpstreamStream, bool), OpenError> {
    let (mut stream, socket) = tcp(address).await?;
    if let Some(via) = &cluster.settings.via {
        let target = &cluster.settings.targets[address.target];
        // Before the time-out of the whole is over, so that the proxy is named as its cause.
        let limit = cluster.settings.timeouts.connect.mul_f64(0.9);
        let opened = timeout(limit, via.open(&mut stream, target)).await;
        opened.unwrap_or(Err(ViaError::Timeout)).map_err(|error| OpenError::Via(socket, error))?;
    }
    let http2 = cluster.settings.http2;
    let Some(tls) = &cluster.tls else { return Ok((UpstreamStream::plain(stream), http2)) };
    in_handshake.store(true, Relaxed);
    let connector = tls.connector(&cluster.settings.name);
    let stream = connector.connect(tls.name(address.target), stream).await;
    let stream = stream.map_err(|error| OpenError::Tls(socket, error))?;
    let chosen = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((UpstreamStream::tls(stream), http2 && chosen))
}

/// Has the kernel probe the other end of a connection.
pub(super) fn keep_alive(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}

async fn tcp(address: &Address) -> Result<(TcpStream, SocketAddr), OpenError> {
    let mut sockets = address.sockets.iter();
    loop {
        // An address has at least one socket address.
        let Some(socket) = sockets.next() else {
            let none = SocketAddr::from(([0, 0, 0, 0], 0));
            return Err(OpenError::Tcp(none, io::ErrorKind::AddrNotAvailable.into()));
        };
        match TcpStream::connect(socket).await {
            Ok(stream) => {
                // Requests are written whole, so waiting for more bytes would only delay them.
                let _ = stream.set_nodelay(true);
                keep_alive(&stream);
                return Ok((stream, *socket));
            }
            Err(error) if sockets.len() == 0 => return Err(OpenError::Tcp(*socket, error)),
            Err(_) => {}
        }
    }
}
