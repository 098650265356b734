//! A connection to an address, TLS included. Speaks no HTTP and keeps nothing.

use super::{Cluster, balance::Address, stream::UpstreamStream};
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::net::TcpStream;

/// A peer that is silent for so long is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("cannot connect to {0}")]
    Tcp(SocketAddr, #[source] io::Error),
    #[error("no TLS with {0}")]
    Tls(SocketAddr, #[source] io::Error),
    #[error("no HTTP with {0}")]
    Http(SocketAddr, #[source] hyper::Error),
    #[error("as many connections are open as the limit of open files allows")]
    TooMany,
}

// === impl OpenError ===

impl OpenError {
    /// Whether this process, or its system, has no file descriptor left: no address would do.
    pub(super) fn is_own(&self) -> bool {
        match self {
            Self::TooMany => true,
            Self::Tcp(_, error) => [Errno::MFILE, Errno::NFILE]
                .iter()
                .any(|no| Some(no.raw_os_error()) == error.raw_os_error()),
            Self::Tls(..) | Self::Http(..) => false,
        }
    }
}

/// Connects; true when HTTP/2 is to be spoken. `in_handshake` becomes true when only TLS is left to do.
pub(super) async fn open(
    cluster: &Cluster,
    address: &Address,
    in_handshake: &AtomicBool,
) -> Result<(UpstreamStream, bool), OpenError> {
    let (stream, socket) = tcp(address).await?;
    let http2 = cluster.settings.http2;
    let Some(trust) = &cluster.trust else { return Ok((UpstreamStream::plain(stream), http2)) };
    in_handshake.store(true, Relaxed);
    let connector = trust.connector(&cluster.settings.name);
    let stream = connector.connect(trust.name(address.target), stream).await;
    let stream = stream.map_err(|error| OpenError::Tls(socket, error))?;
    let chosen = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((UpstreamStream::tls(stream), http2 && chosen))
}

async fn tcp(address: &Address) -> Result<(TcpStream, SocketAddr), OpenError> {
    let mut sockets = address.sockets.iter();
    loop {
        // There is at least one.
        let Some(socket) = sockets.next() else {
            let none = SocketAddr::from(([0, 0, 0, 0], 0));
            return Err(OpenError::Tcp(none, io::ErrorKind::AddrNotAvailable.into()));
        };
        match TcpStream::connect(socket).await {
            Ok(stream) => {
                // Requests are written whole: nothing follows that could be waited for.
                let _ = stream.set_nodelay(true);
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                return Ok((stream, *socket));
            }
            Err(error) if sockets.len() == 0 => return Err(OpenError::Tcp(*socket, error)),
            Err(_) => {}
        }
    }
}
