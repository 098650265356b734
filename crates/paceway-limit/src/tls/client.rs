//! The client side of TLS: checks the certificates of upstreams and stores, and shows them ours. Files that change are read
//! again; connections that are open stay as they are.

use super::{KeyPair, ListedCertificates, Stamp, TlsError, certificates, listed::ListedServers};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, Error, RootCertStore,
    client::WebPkiServerVerifier,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName},
};
use std::{
    error::Error as StdError,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// A new connection checks whether the files have changed if the last check was 2 s ago.
const LOOK: Duration = Duration::from_secs(2);

/// The TLS settings of an upstream or a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// The file of the authorities in PEM that a server's certificate may come from; `None` for the system's authorities.
    pub ca: Option<PathBuf>,
    /// The certificate of this client, for servers that ask for one (mutual TLS).
    pub client_cert: Option<KeyPair>,
    /// The name that the server's certificate must have; `None` for the host of its URL.
    pub server_name: Option<String>,
}

/// An error that makes every TLS connection to a server impossible, found before the first one.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file holds no usable certificate or key.
    #[error(transparent)]
    File(#[from] TlsError),
    /// The certificate and the key do not belong together, or their kind is unknown.
    #[error("{file}: cannot be used")]
    Unusable {
        /// The path as the configuration names it.
        file: String,
        /// The error of the TLS library.
        source: Error,
    },
    /// The name that the certificate must have is neither a DNS name nor an IP address.
    #[error("`{name}` is no name that a certificate can have")]
    Name {
        /// The name as configured, or the host of the URL.
        name: String,
        /// The error of the parser.
        source: InvalidDnsNameError,
    },
    /// The configuration names no authorities, and the system has none that can be read.
    #[error(
        "cannot read the system's certificate authorities, which TLS needs where no `ca` is named"
    )]
    Roots(#[source] io::Error),
    /// The TLS library refused its own defaults, which only a bug causes.
    #[error("cannot set up TLS")]
    Setup(#[source] Error),
}

/// Makes the TLS connections to one server, with the settings of [`ClientTls`].
pub struct Connector {
    tls: ClientTls,
    /// The protocols that are offered inside TLS, the preferred one first (ALPN, RFC 7301).
    protocols: &'static [&'static [u8]],
    /// The system's authorities; empty if `ca` names others.
    roots: Arc<RootCertStore>,
    current: Mutex<CurrentConnector>,
}

struct CurrentConnector {
    connector: TlsConnector,
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
}

/// Displays an error and its chain of causes in one line, with `: ` between them.
pub struct Chain<'a>(pub &'a dyn StdError);

// === impl ClientTls ===

impl ClientTls {
    /// Returns the name that the certificate of `host` must have.
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
    /// Reads the files. `roots` are the system's authorities, which are read when the first connector needs them, and kept
    /// for the others.
    ///
    /// # Errors
    ///
    /// [`TrustError`] if a file, or the system's authorities, cannot be used.
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
        let current = Mutex::new(CurrentConnector { connector, stamps, looked: Instant::now() });
        Ok(Self { tls: tls.clone(), protocols, roots, current })
    }

    /// Returns the connector for a connection to `whom` that begins now. Reads the files again if they have changed; if the
    /// new ones cannot be used, logs that and keeps the old ones.
    pub fn current(&self, whom: &str) -> TlsConnector {
        let mut current = self.current.lock();
        if current.stamps.is_empty() || current.looked.elapsed() < LOOK {
            return current.connector.clone();
        }
        current.looked = Instant::now();
        let stamps = stamps(&self.tls);
        if stamps != current.stamps {
            // Each change is tried once, so that a file that cannot be used is logged once.
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
    let provider = Arc::new(aws_lc_rs::default_provider());
    // The versions are TLS 1.2 and 1.3.
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(TrustError::Setup)?;
    let builder = match &tls.ca {
        None => builder.with_root_certificates(system.clone()),
        Some(file) => {
            let all = certificates(file)?;
            let (listed, mut roots) = (ListedCertificates::of(&all), RootCertStore::empty());
            for certificate in all {
                roots.add(certificate).map_err(|source| unusable(file, source))?;
            }
            let others =
                WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build();
            let others =
                others.map_err(|error| unusable(file, Error::General(error.to_string())))?;
            let verifier = Arc::new(ListedServers { listed, others });
            // It does all that the library's own does, and takes a listed certificate itself.
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
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

fn unusable(file: &Path, source: Error) -> TrustError {
    TrustError::Unusable { file: file.display().to_string(), source }
}

/// The certificates of the system's authorities, as far as they can be read.
pub fn system_certificates() -> Vec<CertificateDer<'static>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of the system's certificate authorities cannot be read");
    }
    found.certs
}

fn system_roots() -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system_certificates());
    if roots.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, "there are none");
        return Err(TrustError::Roots(error));
    }
    Ok(roots)
}
