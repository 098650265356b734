//! Sockets: those that listen, and the connector that reaches upstreams.

use super::ServerError;
use crate::{config::Config, upstream::Target};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
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

/// Connects to upstreams; the system's authorities are read only where an upstream needs them.
pub(super) fn connector(config: &Config) -> Result<HttpsConnector<HttpConnector>, ServerError> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE));
    let builder = hyper_rustls::HttpsConnectorBuilder::new();
    let builder =
        if config.upstreams.iter().any(|upstream| upstream.targets.iter().any(Target::is_https)) {
            builder.with_native_roots().map_err(ServerError::Roots)?
        } else {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let tls = rustls::ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| ServerError::System(error.into()))?
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
            builder.with_tls_config(tls)
        };
    Ok(builder.https_or_http().enable_http1().wrap_connector(http))
}
