//! Reads certificates and keys from PEM files, and notices when the files change. Opens no connection.

pub mod client;
mod listed;

pub use listed::{ListedCertificates, flaw};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The files of a certificate with its chain and of its key. Both may be the same file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// The file of the certificates in PEM: the server's or client's own one first, then its issuers.
    pub cert: PathBuf,
    /// The file of the private key in PEM: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// The device, inode, size and time of change of a file. Two contents of a file have different stamps, even if the file is a
/// symbolic link that was swapped, which is how Kubernetes updates a secret.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp(u64, u64, u64, i64, i64);

/// A file that holds no usable certificate or key.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct TlsError {
    /// The path as the configuration names it.
    pub file: PathBuf,
    /// The reason, in words that follow the path, for example `holds no private key in PEM`.
    pub reason: String,
}

// === impl KeyPair ===

impl KeyPair {
    /// Reads the certificates and the key.
    ///
    /// # Errors
    ///
    /// [`TlsError`] names the file that cannot be read, or holds no certificate or key. It never quotes the content.
    pub fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let certificates = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        Ok((certificates, key.map_err(|error| failed(&self.key, &error, "private key"))?))
    }
}

// === impl Stamp ===

impl Stamp {
    /// Returns the stamp of a file; `None` if it does not exist or its metadata cannot be read.
    pub fn of(file: &Path) -> Option<Self> {
        let seen = fs::metadata(file).ok()?;
        Some(Self(seen.dev(), seen.ino(), seen.size(), seen.mtime(), seen.mtime_nsec()))
    }
}

/// Reads the certificates of a PEM file, at least one.
///
/// # Errors
///
/// [`TlsError`] if the file cannot be read, or holds no certificate.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(failed(file, &pem::Error::NoItemsFound, "certificate")),
        Err(error) => Err(failed(file, &error, "certificate")),
    }
}

fn failed(file: &Path, error: &pem::Error, what: &str) -> TlsError {
    let reason = match error {
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        pem::Error::NoItemsFound => format!("holds no {what} in PEM"),
        _ => format!("holds a {what} that is no PEM"),
    };
    TlsError { file: file.to_owned(), reason }
}
