//! Holds how the certificate of an https upstream is checked, and by which names. Makes no connection.

use super::target::Target;
use crate::tls::client::{ClientTls, Connector, TrustError};
use rustls::{RootCertStore, pki_types::ServerName};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// The protocols that the gateway offers by ALPN, the preferred one first (RFC 7301).
const HTTP_2: &[&[u8]] = &[b"h2", b"http/1.1"];
const HTTP_1: &[&[u8]] = &[b"http/1.1"];

/// The TLS side of one upstream, made once when the configuration is loaded and shared by all workers.
pub(super) struct UpstreamTls {
    connector: Connector,
    /// The name that the certificate must have, by index of the target: `api.example` for `https://api.example/v2`.
    names: Vec<ServerName<'static>>,
}

// === impl UpstreamTls ===

impl UpstreamTls {
    pub(super) fn new(
        tls: &ClientTls,
        http2: bool,
        targets: &[Target],
        roots: &mut Option<Arc<RootCertStore>>,
    ) -> Result<Self, TrustError> {
        let names = targets.iter().map(|target| tls.name_of(target.host_name()));
        let names = names.collect::<Result<_, _>>()?;
        let protocols = if http2 { HTTP_2 } else { HTTP_1 };
        Ok(Self { connector: Connector::new(tls, protocols, roots)?, names })
    }

    /// The connector for a connection that begins now; it has the client certificate that is in its file now.
    pub(super) fn connector(&self, upstream: &str) -> TlsConnector {
        self.connector.current(upstream)
    }

    pub(super) fn name(&self, target: usize) -> ServerName<'static> {
        self.names[target].clone()
    }
}
