//! Certificates and keys, read from PEM files, and which of them a client is shown. Opens no connection.

pub mod server;

pub use paceway_limit::tls::{KeyPair, Stamp, TlsError, certificates, client};
