//! Sockets: those that listen, and where those to upstreams lead.

use super::ServerError;
use crate::{
    config::{self, Config},
    metrics,
    upstream::{Cluster, ClusterSettings, Sockets},
};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};

const BACKLOG: i32 = 4096;
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Listens; `shared` lets other sockets of this process listen on the same port.
pub(super) fn listen(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = bind(address, shared)?;
    // Connections take it over: a client that is gone without a word is noticed.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE))?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Fails when somebody listens on `address`, sharing it or not. Listens itself at no time.
pub(super) fn ensure_free(address: SocketAddr) -> io::Result<()> {
    bind(address, false).map(drop)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The upstreams, as all workers share them, with at most `most` connections together; the system's authorities are read
/// only where one needs them.
pub(super) fn clusters(config: &Config, most: usize) -> Result<Vec<Arc<Cluster>>, ServerError> {
    let (mut roots, sockets) = (None, Sockets::new(most));
    let cluster = |upstream: &config::Upstream| {
        let settings = ClusterSettings {
            name: upstream.name.clone(),
            targets: upstream.targets.clone(),
            timeouts: upstream.timeouts,
            pool_size: upstream.pool_size,
            http2: upstream.http2,
            tls: upstream.tls.clone(),
            sockets: sockets.clone(),
        };
        Cluster::new(settings, metrics::addresses(&upstream.name), &mut roots)
            .map_err(|source| ServerError::Upstream { name: upstream.name.clone(), source })
    };
    config.upstreams.iter().map(cluster).collect()
}
