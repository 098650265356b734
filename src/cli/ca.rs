//! `paceway ca`: makes an authority for the forward proxy. Replaces no file.

use super::{CommandError, print};
use crate::tls::NewAuthority;
use anyhow::Context;
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

#[derive(Debug, clap::Args)]
pub(super) struct CaArgs {
    /// The file for the certificate, which clients have to trust.
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// The file for the private key, which only its owner can read.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// How long the authority is valid.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

pub(super) fn ca(args: &CaArgs) -> Result<(), CommandError> {
    let CaArgs { cert, key, days } = args;
    for file in [cert, key] {
        if file.symlink_metadata().is_ok() {
            return Err(exists_error(file));
        }
    }
    let new = NewAuthority::make(*days).context("cannot make an authority")?;
    write(key, &new.key, 0o600)?;
    if let Err(error) = write(cert, &new.certificate, 0o644) {
        // A key without its certificate is of no use. If it cannot be removed, it stays.
        let _ = fs::remove_file(key);
        return Err(error);
    }
    print(&format!(
        "{}: valid for {days} days; clients of the forward proxy have to trust it\n{}: keep it secret; the gateway needs it",
        cert.display(),
        key.display()
    ))
}

/// Writes a new file.
fn write(file: &Path, text: &str, mode: u32) -> Result<(), CommandError> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(mode).open(file);
    let written = opened.and_then(|mut open| open.write_all(text.as_bytes()));
    match written {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists_error(file)),
        written => Ok(written.with_context(|| format!("cannot write {}", file.display()))?),
    }
}

fn exists_error(file: &Path) -> CommandError {
    let file = file.display();
    CommandError::usage(format!(
        "error: {file} exists, and is not replaced; name another file, or remove it first"
    ))
}
