//! The certificate of the servers with TLS: an ECDSA key on P-256, as public authorities sign most of them.

use crate::{machine::line_of, stage::path};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The files of a certificate that openssl has signed with its own key.
#[derive(Debug)]
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
    /// The chain and the key in one file, as haproxy reads them.
    pub both: PathBuf,
}

// === impl Certificate ===

impl Certificate {
    /// Returns the certificate in `dir`, and makes it if there is none.
    pub fn of(dir: &Path) -> io::Result<Self> {
        let file = |name| dir.join(name);
        let made = Self { chain: file("cert.pem"), key: file("key.pem"), both: file("both.pem") };
        if made.both.is_file() {
            return Ok(made);
        }
        let (chain, key) = (path(&made.chain), path(&made.key));
        let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost";
        let files = ["-keyout", &key, "-out", &chain];
        let said = line_of("openssl", &words.split(' ').chain(files).collect::<Vec<_>>());
        let read = |file: &Path| {
            fs::read_to_string(file)
                .map_err(|error| io::Error::other(format!("openssl: {said}: {error}")))
        };
        fs::write(&made.both, read(&made.chain)? + &read(&made.key)?)?;
        Ok(made)
    }
}
