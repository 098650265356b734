//! Why a gateway cannot start, or has to stop. Each error keeps its source.

use crate::{
    live::{ReloadError, UnusableUpstream},
    store::redis::ConnectError,
    tls::TlsError,
    upstream::TrustError,
};
use std::{io, net::SocketAddr};

/// Why a gateway cannot start, or has to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process listens on the address, or this host does not have it.
    #[error("cannot listen on {address} (`{key}`)")]
    Listen {
        /// The address as configured.
        address: SocketAddr,
        /// The key of the configuration that names the address, such as `listen` or `admin`.
        key: &'static str,
        /// The error that the system returned.
        source: io::Error,
    },
    /// The store refuses this configuration: a wrong password, a missing right, an unusable setting.
    #[error("the store cannot be used")]
    Store(#[source] ConnectError),
    /// An upstream with `https://` cannot be reached over TLS as configured.
    #[error("the upstream `{name}` cannot be used")]
    Upstream {
        /// The name of the upstream in the configuration.
        name: String,
        /// The error about its certificates or its host name.
        source: TrustError,
    },
    /// A mounted proxy reads no database, so that it has no rule for limiters that are rows.
    #[error("`limits_from` is for the gateway's own process, and the file has no limiters {0}")]
    MissingLimiters(String),
    /// The certificates that clients shall see cannot be read or used.
    #[error("the certificates for clients cannot be used")]
    Tls(#[source] TlsError),
    /// The system refused a thread, a runtime, a signal handler or a socket option.
    #[error("cannot start")]
    System(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A worker ended without a signal, which only a bug causes.
    #[error("a worker ended; this is a bug")]
    Worker,
}

// === impl ServerError ===

impl From<UnusableUpstream> for ServerError {
    fn from(UnusableUpstream { name, source }: UnusableUpstream) -> Self {
        Self::Upstream { name, source }
    }
}

impl From<ReloadError> for ServerError {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Upstream(upstream) => upstream.into(),
            ReloadError::Tls(error) => Self::Tls(error),
            error @ (ReloadError::Config(_) | ReloadError::NoFile) => Self::System(error.into()),
        }
    }
}

/// Wraps an error of the system, for `map_err`.
pub(super) fn system(error: io::Error) -> ServerError {
    ServerError::System(error.into())
}
