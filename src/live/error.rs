//! Why a configuration cannot take effect.

use crate::{config::ConfigError, tls::TlsError, upstream::TrustError};

/// Why a configuration cannot take effect. The one in use stays.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file has mistakes. The text is the one that `paceway check` prints.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An upstream with `https://` cannot be reached over TLS as configured.
    #[error(transparent)]
    Upstream(#[from] UnusableUpstream),
    /// The certificates that clients shall see cannot be read or used.
    #[error("the certificates for clients cannot be used: {0}")]
    Tls(#[from] TlsError),
    /// A program made the configuration, as `paceway demo` does.
    #[error("this gateway has no configuration file")]
    NoFile,
}

/// An upstream with `https://` whose certificates or host name cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the upstream `{name}` cannot be used: {source}")]
pub struct UnusableUpstream {
    /// The name of the upstream in the configuration.
    pub name: String,
    /// The error about its certificates or its host name.
    pub source: TrustError,
}
