//! Certificates and keys from PEM files, certificates that we sign, and the choice of the one that a client sees. Opens no
//! connection.

mod authority;
mod hosts;
mod issuer;
pub mod server;

pub use authority::{Authority, NewAuthority, SigningError};
pub use hosts::{HostCertificates, HostError};
pub use paceway_limit::tls::{
    KeyPair, ListedCertificates, Stamp, TlsError, certificates, client, flaw,
};
