//! How an https upstream is checked and what it is shown: the TLS side of connecting. Files that change are read
//! again; connections that are open stay as they are.

use super::{ClientTls, Target};
use crate::tls::{self, Stamp, TlsError};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::InvalidDnsNameError,
    pki_types::ServerName,
};
use std::{io, path::Path, sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// How often connections look whether the files have changed.
const LOOK: Duration = Duration::from_secs(2);

/// Why an https upstream cannot be spoken to at all.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file makes no certificate or key.
    #[error(transparent)]
    File(#[from] TlsError),
    /// Certificate and key are not each other's, or not of a known kind.
    #[error("{file}: cannot be used")]
    Unusable {
        /// As it was named.
        file: String,
        /// What TLS says.
        source: rustls::Error,
    },
    /// No certificate can bear it.
    #[error("`{name}` is no name that a certificate can have")]
    Name {
        /// As configured.
        name: String,
        /// What is wrong.
        source: InvalidDnsNameError,
    },
    /// Neither named nor the system's.
    #[error("cannot read the system's certificate authorities, which https upstreams need")]
    Roots(#[source] io::Error),
    /// A bug.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
}

/// The TLS side of an upstream, shared by all workers.
pub(super) struct Trust {
    tls: ClientTls,
    http2: bool,
    /// The system's; empty where `ca` names others.
    roots: Arc<RootCertStore>,
    /// The name that its certificate must have, by index of the target.
    names: Vec<ServerName<'static>>,
    current: Mutex<Current>,
}

struct Current {
    connector: TlsConnector,
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
}

// === impl Trust ===

impl Trust {
    pub(super) fn new(
        tls: &ClientTls,
        http2: bool,
        targets: &[Target],
        roots: &mut Option<Arc<RootCertStore>>,
    ) -> Result<Self, TrustError> {
        let roots = match (&tls.ca, &*roots) {
            (Some(_), _) => Arc::new(RootCertStore::empty()),
            (None, Some(roots)) => roots.clone(),
            (None, None) => roots.insert(Arc::new(system_roots()?)).clone(),
        };
        let name = |target: &Target| {
            let name = tls.server_name.as_deref().unwrap_or(target.host_name());
            let parsed = ServerName::try_from(name.to_owned());
            parsed.map_err(|source| TrustError::Name { name: name.to_owned(), source })
        };
        let names = targets.iter().map(name).collect::<Result<_, _>>()?;
        let stamps = stamps(tls);
        let connector = connector(tls, http2, &roots)?;
        let current = Mutex::new(Current { connector, stamps, looked: Instant::now() });
        Ok(Self { tls: tls.clone(), http2, roots, names, current })
    }

    /// For a connection that begins now.
    pub(super) fn connector(&self, upstream: &str) -> TlsConnector {
        let mut current = self.current.lock();
        if current.stamps.is_empty() || current.looked.elapsed() < LOOK {
            return current.connector.clone();
        }
        current.looked = Instant::now();
        let stamps = stamps(&self.tls);
        if stamps != current.stamps {
            // Once a change, whatever comes of it.
            current.stamps = stamps;
            match connector(&self.tls, self.http2, &self.roots) {
                Ok(connector) => {
                    current.connector = connector;
                    tracing::info!(upstream, "the certificates for it have changed");
                }
                Err(error) => tracing::warn!(
                    upstream,
                    error = %super::Chain(&error),
                    "the certificates for it have changed and cannot be used: the old ones stay"
                ),
            }
        }
        current.connector.clone()
    }

    pub(super) fn name(&self, target: usize) -> ServerName<'static> {
        self.names[target].clone()
    }
}

fn stamps(tls: &ClientTls) -> Vec<Option<Stamp>> {
    let pair = tls.client_cert.iter().flat_map(|pair| [&pair.cert, &pair.key]);
    tls.ca.iter().chain(pair).map(|file| Stamp::of(file)).collect()
}

fn connector(
    tls: &ClientTls,
    http2: bool,
    system: &Arc<RootCertStore>,
) -> Result<TlsConnector, TrustError> {
    let roots = match &tls.ca {
        None => system.clone(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in tls::certificates(file)? {
                roots.add(certificate).map_err(|source| unusable(file, source))?;
            }
            Arc::new(roots)
        }
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    // TLS 1.2 and 1.3: there is no other.
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TrustError::Setup)?
        .with_root_certificates(roots);
    let mut config = match &tls.client_cert {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (certificates, key) = pair.load()?;
            let config = builder.with_client_auth_cert(certificates, key);
            config.map_err(|source| unusable(&pair.cert, source))?
        }
    };
    config.alpn_protocols = match http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn unusable(file: &Path, source: rustls::Error) -> TrustError {
    TrustError::Unusable { file: file.display().to_string(), source }
}

fn system_roots() -> Result<RootCertStore, TrustError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificate authorities cannot be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, "there are none");
        return Err(TrustError::Roots(error));
    }
    Ok(roots)
}
