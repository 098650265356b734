//! Makes a connection to an address, its TLS handshake included. Speaks no HTTP and keeps no connection.

use super::{
    balance::Address,
    cluster::{Cluster, ClusterSettings},
    error::UpstreamError,
    stream::UpstreamStream,
    via::{ViaCause, ViaError},
};
use parking_lot::Mutex;
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use std::{io, net::SocketAddr, time::Duration};
use tokio::net::TcpStream;

/// The kernel probes an upstream that has sent nothing for 60 s, so that a host that lost its power is noticed.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The reason why a connection to an address could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("cannot connect to {0}")]
    Tcp(SocketAddr, #[source] io::Error),
    #[error("no TLS with {0}")]
    Tls(String, #[source] io::Error),
    #[error(transparent)]
    Via(ViaError),
    #[error("no HTTP with {0}")]
    Http(String, #[source] hyper::Error),
    #[error("as many connections are open as the limit of open files allows")]
    TooMany,
}

/// The step that an attempt to connect has reached, so that a time-out can say which one was slow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum OpenStep {
    /// The address, which is that of the proxy if there is one, has accepted no connection.
    #[default]
    Tcp,
    /// The proxy has accepted a connection.
    Proxy,
    /// The TLS handshake with the upstream has begun.
    Tls,
}

/// The step of an attempt that is under way.
pub(super) type OpenProgress = Mutex<OpenStep>;

// === impl OpenError ===

impl OpenError {
    /// Whether the process or the system has no file descriptor left, so that no other address would help.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Self::TooMany) || self.of_tcp().is_some_and(is_out_of_files)
    }

    /// The error of TCP, to the address or to the proxy; `None` if a later step failed.
    pub(super) fn of_tcp(&self) -> Option<&io::Error> {
        match self {
            Self::Tcp(_, error) => Some(error),
            Self::Via(error) => error.of_tcp(),
            Self::Tls(..) | Self::Http(..) | Self::TooMany => None,
        }
    }
}

impl From<OpenError> for UpstreamError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Via(error) => Self::Via(error),
            error => Self::Connect(error.into()),
        }
    }
}

/// Connects to `address`, and returns true with the stream if HTTP/2 is to be spoken on it. Notes each step in `progress`.
pub(super) async fn open(
    cluster: &Cluster,
    address: &Address,
    progress: &OpenProgress,
) -> Result<(UpstreamStream, bool), OpenError> {
    let settings = &cluster.settings;
    let (mut stream, socket) =
        tcp(address).await.map_err(|error| match (&settings.via, error) {
            (Some(via), OpenError::Tcp(_, error)) if !is_out_of_files(&error) => {
                OpenError::Via(via.error(ViaCause::Unconnected(error)))
            }
            (_, error) => error,
        })?;
    if let Some(via) = &settings.via {
        *progress.lock() = OpenStep::Proxy;
        let target = &settings.targets[address.target];
        via.open(&mut stream, target, settings.http2).await.map_err(OpenError::Via)?;
    }
    let http2 = settings.http2;
    let Some(tls) = &cluster.tls else { return Ok((UpstreamStream::plain(stream), http2)) };
    *progress.lock() = OpenStep::Tls;
    let connector = tls.connector(&settings.name);
    let stream = connector.connect(tls.name(address.target), stream).await;
    let stream = stream
        .map_err(|error| OpenError::Tls(other_end(settings, address.target, socket), error))?;
    let chosen = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((UpstreamStream::tls(stream), http2 && chosen))
}

fn is_out_of_files(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|no| Some(no.raw_os_error()) == error.raw_os_error())
}

/// The name of the side that TLS and HTTP are spoken with, for the log. The address is that of the proxy if there is one.
pub(super) fn other_end(settings: &ClusterSettings, target: usize, socket: SocketAddr) -> String {
    match &settings.via {
        None => socket.to_string(),
        Some(via) => {
            let host = String::from_utf8_lossy(settings.targets[target].host.as_bytes());
            format!("{host} through the proxy {}", via.host_and_port())
        }
    }
}

/// The error of an attempt that took too long at this step.
pub(super) fn late(cluster: &Cluster, step: OpenStep) -> UpstreamError {
    match (&cluster.settings.via, step) {
        (_, OpenStep::Tls) => UpstreamError::TlsTimeout,
        (None, _) => UpstreamError::ConnectTimeout,
        (Some(via), OpenStep::Tcp) => UpstreamError::Via(via.error(ViaCause::ConnectTimeout)),
        (Some(via), OpenStep::Proxy) => UpstreamError::Via(via.error(ViaCause::AnswerTimeout)),
    }
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
