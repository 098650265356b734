//! Certificates and keys from PEM files, and the choice of the certificate that a client sees. Opens no connection.

pub mod server;

pub use paceway_limit::tls::{
    KeyPair, ListedCertificates, Stamp, TlsError, certificates, client, flaw,
};
