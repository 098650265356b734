//! The configuration file of a running gateway: reads it again, and hashes its text.

use super::ReloadError;
use crate::config::{Config, ConfigError};
use sha2::{Digest, Sha256};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// The digits of a hash that are shown: 64 bits tell the files of a fleet apart.
const DIGITS: usize = 16;

/// The place of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile(PathBuf);

/// A configuration file that was read without a mistake.
#[derive(Debug)]
pub struct ReadFile {
    /// The place of the file; `None` for a configuration that a program made, which cannot be read again.
    file: Option<ConfigFile>,
    /// The first 16 digits of the SHA-256 of its text, as `sha256sum FILE` prints them. Values of variables and secrets are
    /// not part of it.
    pub hash: String,
    /// Its settings, with all variables and secrets filled in.
    pub config: Config,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Names the file at `path`.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Reads and checks the file.
    ///
    /// # Errors
    ///
    /// All mistakes at once, each with its line and column.
    pub fn read(&self) -> Result<ReadFile, ConfigError> {
        let text = Config::text(&self.0)?;
        let config = Config::of_file(&self.0, &text)?;
        Ok(ReadFile { file: Some(self.clone()), hash: hash(&text), config })
    }
}

// === impl ReadFile ===

impl ReadFile {
    /// Takes a configuration that no file has.
    pub fn without_file(config: Config) -> Self {
        Self { file: None, hash: hash(""), config }
    }

    /// Reads the same file again.
    pub(super) fn again(&self) -> Result<Arc<Self>, ReloadError> {
        let file = self.file.as_ref().ok_or(ReloadError::NoFile)?;
        Ok(Arc::new(file.read()?))
    }
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    digits[..DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_one_of_sha256sum() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea");
    }
}
