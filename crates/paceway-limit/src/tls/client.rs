//! How a server that we connect to is checked and what it is shown. Files that change are read again; connections that
//! are open stay as they are.

use super::{KeyPair, Stamp, TlsError, certificates};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore, crypto::aws_lc_rs, pki_types::InvalidDnsNameError,
    pki_types::ServerName,
};
use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// How often connections look whether the files have changed.
const LOOK: Duration = Duration::from_secs(2);

/// How a server is checked, and what it is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Authorities in PEM; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// What we are, for servers that ask.
    pub client_cert: Option<KeyPair>,
    /// The name that its certificate must have; `None`: the host of its URL.
    pub server_name: Option<String>,
}

/// Why a server cannot be spoken to over TLS at all.
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
    #[error(
        "cannot read the system's certificate authorities, which TLS needs where no `ca` is named"
    )]
    Roots(#[source] io::Error),
    /// A bug.
    #[error("cannot set up TLS")]
    Setup(#[source] rustls::Error),
}

/// What makes connections as [`ClientTls`] says.
pub struct Connector {
    tls: ClientTls,
    /// What is spoken inside, best first (RFC 7301).
    protocols: &'static [&'static [u8]],
    /// The system's; empty where `ca` names others.
    roots: Arc<RootCertStore>,
    current: Mutex<Current>,
}

struct Current {
    connector: TlsConnector,
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
}

/// An error with all that led to it, in one line.
pub struct Chain<'a>(pub &'a dyn Error);

// === impl ClientTls ===

impl ClientTls {
    /// The name that the certificate of `host` must have.
    ///
    /// # Errors
    ///
    /// [`TrustError::Name`].
    pub fn name_of(&self, host: &str) -> Result<ServerName<'static>, TrustError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let parsed = ServerName::try_from(name.to_owned());
        parsed.map_err(|source| TrustError::Name { name: name.to_owned(), source })
    }
}

// === impl Connector ===

impl Connector {
    /// `roots` are the system's authorities, which are read once for all who need them.
    ///
    /// # Errors
    ///
    /// [`TrustError`].
    pub fn new(
        tls: &ClientTls,
        protocols: &'static [&'static [u8]],
        roots: &mut Option<Arc<RootCertStore>>,
    ) -> Result<Self, TrustError> {
        let roots = match (&tls.ca, &*roots) {
            (Some(_), _) => Arc::new(RootCertStore::empty()),
            (None, Some(roots)) => roots.clone(),
            (None, None) => roots.insert(Arc::new(system_roots()?)).clone(),
        };
        let stamps = stamps(tls);
        let connector = connector(tls, protocols, &roots)?;
        let current = Mutex::new(Current { connector, stamps, looked: Instant::now() });
        Ok(Self { tls: tls.clone(), protocols, roots, current })
    }

    /// For a connection to `whom` that begins now.
    pub fn current(&self, whom: &str) -> TlsConnector {
        let mut current = self.current.lock();
        if current.stamps.is_empty() || current.looked.elapsed() < LOOK {
            return current.connector.clone();
        }
        current.looked = Instant::now();
        let stamps = stamps(&self.tls);
        if stamps != current.stamps {
            // Once a change, whatever comes of it.
            current.stamps = stamps;
            match connector(&self.tls, self.protocols, &self.roots) {
                Ok(connector) => {
                    current.connector = connector;
                    tracing::info!(to = whom, "the certificates for it have changed");
                }
                Err(error) => tracing::warn!(
                    to = whom,
                    error = %Chain(&error),
                    "the certificates for it have changed and cannot be used: the old ones stay"
                ),
            }
        }
        current.connector.clone()
    }
}

// === impl Chain ===

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.0, f)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

fn stamps(tls: &ClientTls) -> Vec<Option<Stamp>> {
    let pair = tls.client_cert.iter().flat_map(|pair| [&pair.cert, &pair.key]);
    tls.ca.iter().chain(pair).map(|file| Stamp::of(file)).collect()
}

fn connector(
    tls: &ClientTls,
    protocols: &[&[u8]],
    system: &Arc<RootCertStore>,
) -> Result<TlsConnector, TrustError> {
    let roots = match &tls.ca {
        None => system.clone(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
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
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
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
