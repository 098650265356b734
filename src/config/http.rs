//! How clients are served: their connections' time-outs, the size of their requests, our certificates.

use crate::tls::KeyPair;
use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

/// What clients may take their time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    /// From the first byte of a request to the end of its headers; TLS and PROXY headers likewise.
    pub header_timeout: Duration,
    /// Between two requests.
    pub idle_timeout: Duration,
    /// Between two pieces of a body, sent or taken.
    pub body_timeout: Duration,
    /// Connections at one time; `None`: any number.
    pub max_connections: Option<NonZeroUsize>,
}

/// How large a request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Request line and headers, bytes.
    pub header_bytes: usize,
    /// Number of headers.
    pub headers: usize,
    /// Bytes of a body; `None`: any number.
    pub body: Option<u64>,
    /// Bytes of a request target.
    pub uri: usize,
}

/// Certificates for the data plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// At least one; the first is shown to clients that name no host, or none of theirs.
    pub certificates: Vec<KeyPair>,
    /// Clients must show a certificate of one of these authorities.
    pub client_ca: Option<PathBuf>,
}

// === impl ClientLimits ===

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            max_connections: None,
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self { header_bytes: 32 << 10, headers: 100, body: None, uri: 8 << 10 }
    }
}
