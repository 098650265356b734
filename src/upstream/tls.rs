//! The TLS side of an https upstream, shared by all workers: how it is checked, and by which names.

use super::{ClientTls, Target, TrustError};
use crate::tls::client::Connector;
use rustls::{RootCertStore, pki_types::ServerName};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// What is spoken inside, best first (RFC 7301).
const HTTP_2: &[&[u8]] = &[b"h2", b"http/1.1"];
const HTTP_1: &[&[u8]] = &[b"http/1.1"];

/// The TLS side of an upstream, shared by all workers.
pub(super) struct UpstreamTls {
    connector: Connector,
    /// The name that its certificate must have, by index of the target.
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

    /// For a connection that begins now.
    pub(super) fn connector(&self, upstream: &str) -> TlsConnector {
        self.connector.current(upstream)
    }

    pub(super) fn name(&self, target: usize) -> ServerName<'static> {
        self.names[target].clone()
    }
}
