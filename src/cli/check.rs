//! `paceway check`: prints all mistakes of a configuration, or a summary of one line.

use super::{CommandError, load, print};
use std::{io::Write, path::Path};

pub(super) fn check(file: &Path) -> Result<(), CommandError> {
    let config = load(file)?;
    for warning in config.warnings() {
        // If stderr is closed, the error cannot be reported either.
        let _ = writeln!(std::io::stderr(), "{}: warning: {warning}", file.display());
    }
    print(&format!("{}: ok: {}", file.display(), config.summary()))
}
