//! The configuration file of a running gateway: reads it again, and hashes its text.

use super::ReloadError;
use crate::config::{Config, ConfigError};
use sha2::{Digest, Sha256};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The digits of a hash that are shown: 64 bits tell the files of a fleet apart.
const DIGITS: usize = 16;

/// The most files of `${file:PATH}` that are watched for a change.
const MOST: usize = 1000;

/// The place of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFile(PathBuf);

/// A hash of the content of a configuration file, and of all files that its text names as `${file:PATH}`.
pub(super) type Fingerprint = [u8; 32];

/// A configuration file that was read without a mistake.
#[derive(Debug)]
pub struct ReadFile {
    /// The place of the file; `None` for a configuration that a program made, which cannot be read again.
    file: Option<ConfigFile>,
    /// The first 16 digits of the SHA-256 of its text, as `sha256sum FILE` prints them. Values of variables and secrets are
    /// not part of it.
    pub hash: String,
    /// The fingerprint of the files before they were read.
    pub(super) fingerprint: Option<Fingerprint>,
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
        let fingerprint = Some(self.fingerprint());
        let text = Config::text(&self.0)?;
        let config = Config::of_file(&self.0, &text)?;
        Ok(ReadFile { file: Some(self.clone()), hash: hash(&text), fingerprint, config })
    }

    /// Reads the content of the file and of the files that it names. A content tells what a time of change does not: a link
    /// that was swapped, and a file that was copied with its times. Pipes are not read, because each byte of one can be read
    /// only once.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let content = |file: &Path| match file.metadata() {
            Ok(found) if found.is_file() => fs::read(file).ok(),
            _ => None,
        };
        let text = content(&self.0);
        let named = text.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        let directory = self.0.parent().unwrap_or_else(|| Path::new("."));
        let paths = named.split("${file:").skip(1).filter_map(|rest| rest.split_once('}'));
        let secrets = paths.take(MOST).map(|(path, _)| content(&directory.join(path)));
        let mut all = Sha256::new();
        for part in [text.clone()].into_iter().chain(secrets) {
            // Each part has a hash of its own, so that no content can look like two.
            all.update([u8::from(part.is_some())]);
            all.update(Sha256::digest(part.unwrap_or_default()));
        }
        all.finalize().into()
    }
}

// === impl ReadFile ===

impl ReadFile {
    /// Takes a configuration that no file has.
    pub fn without_file(config: Config) -> Self {
        Self { file: None, hash: hash(""), fingerprint: None, config }
    }

    /// Takes a configuration with its text, which no file has.
    pub fn of_text(text: &str, config: Config) -> Self {
        Self { hash: hash(text), ..Self::without_file(config) }
    }

    /// The fingerprint of the same files as they are now.
    pub(super) fn now(&self) -> Option<Fingerprint> {
        self.file.as_ref().map(ConfigFile::fingerprint)
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
    fn a_fingerprint_changes_with_the_content_alone() {
        let directory = tempfile::tempdir().unwrap();
        let [file, secret, other] =
            ["a.yaml", "secret", "b.yaml"].map(|name| directory.path().join(name));
        fs::write(&file, "key: ${file:secret}").unwrap();
        let config = ConfigFile::new(&file);
        let mut seen = vec![config.fingerprint()];
        fs::write(&secret, "one").unwrap();
        seen.push(config.fingerprint());
        fs::write(&secret, "two").unwrap();
        seen.push(config.fingerprint());
        fs::write(&other, "key: ${file:secret} ").unwrap();
        fs::remove_file(&file).unwrap();
        seen.push(config.fingerprint());
        std::os::unix::fs::symlink(&other, &file).unwrap();
        seen.push(config.fingerprint());
        let different: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(different.len(), 5);
        // Written again with the same content.
        fs::write(&other, "key: ${file:secret} ").unwrap();
        assert_eq!(config.fingerprint(), seen[4]);
    }

    #[test]
    fn the_hash_is_the_one_of_sha256sum() {
        assert_eq!(hash("abc"), "ba7816bf8f01cfea");
    }
}
