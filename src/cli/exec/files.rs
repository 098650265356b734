//! The files that a command needs: the authorities that it trusts (those of the system, and the one of its gateway), and a
//! script for Node. No file holds a key.

use super::environment::AUTHORITIES;
use crate::{
    cli::CommandError,
    tls::{certificates, client},
};
use anyhow::Context;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use rustls::pki_types::CertificateDer;
use std::{
    env,
    fs::{self, DirBuilder},
    hash::{BuildHasher, RandomState},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
};

/// The script by which Node before version 24.5 uses the proxy.
const NODE: &str = include_str!("node.cjs");

/// Files in a directory that only its owner can read. All are removed on drop.
pub(super) struct CommandFiles {
    directory: PathBuf,
    /// Certificates in PEM.
    pub(super) authorities: PathBuf,
    /// A script that Node loads first.
    pub(super) node: PathBuf,
}

// === impl CommandFiles ===

impl CommandFiles {
    /// Writes the script, and the authorities in `all`.
    pub(super) fn write(all: &[CertificateDer<'_>]) -> Result<Self, CommandError> {
        let text: String = all.iter().map(pem).collect();
        // The name is only to be another one for each command: a directory that exists is not used.
        let name = RandomState::new().hash_one(process::id());
        let directory = env::temp_dir().join(format!("paceway-{name:016x}"));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.with_context(|| format!("cannot make the directory {}", directory.display()))?;
        let (authorities, node) = (directory.join("ca.pem"), directory.join("node.cjs"));
        let files = Self { directory, authorities, node };
        for (file, text) in [(&files.authorities, text.as_str()), (&files.node, NODE)] {
            fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(files)
    }
}

impl Drop for CommandFiles {
    fn drop(&mut self) {
        // If they cannot be removed, a certificate stays that no program trusts any more.
        let _ = fs::remove_file(&self.authorities);
        let _ = fs::remove_file(&self.node);
        let _ = fs::remove_dir(&self.directory);
    }
}

/// The authorities that the command would trust by its environment: those of the system, or of `SSL_CERT_FILE` in their
/// place, and those of files for some programs.
pub(super) fn inherited_authorities() -> Vec<CertificateDer<'static>> {
    let mut all = client::system_certificates();
    let named =
        AUTHORITIES.iter().filter_map(|name| certificates(Path::new(&env::var_os(name)?)).ok());
    for certificate in named.flatten() {
        if !all.contains(&certificate) {
            all.push(certificate);
        }
    }
    all
}

/// A certificate in PEM, with lines of 64 letters (RFC 7468 section 2).
fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = BASE64.encode(certificate);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        out.extend(line.iter().map(|byte| char::from(*byte)));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}
