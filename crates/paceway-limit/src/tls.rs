//! Certificates and keys, read from PEM files. Opens no connection.

pub mod client;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject as _};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A certificate with its chain, and its key. Both may be in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// Certificates in PEM, the own one first.
    pub cert: PathBuf,
    /// A private key in PEM: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Tells one content of a file from the next, also behind symbolic links that are swapped: device, inode, size, and when
/// it was changed.
#[derive(Debug, PartialEq, Eq)]
pub struct Stamp(u64, u64, u64, i64, i64);

/// Why a file makes no certificate or key.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", file.display())]
pub struct TlsError {
    /// As it was named.
    pub file: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

// === impl KeyPair ===

impl KeyPair {
    /// Reads both.
    ///
    /// # Errors
    ///
    /// The file that cannot be read or holds no certificate or key. Never quotes what is in it.
    pub fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let certificates = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        Ok((certificates, key.map_err(|error| failed(&self.key, &error, "private key"))?))
    }
}

// === impl Stamp ===

impl Stamp {
    /// `None` where no file can be seen.
    pub fn of(file: &Path) -> Option<Self> {
        let seen = fs::metadata(file).ok()?;
        Some(Self(seen.dev(), seen.ino(), seen.size(), seen.mtime(), seen.mtime_nsec()))
    }
}

/// The certificates of a PEM file, at least one.
///
/// # Errors
///
/// It cannot be read, or holds none.
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
