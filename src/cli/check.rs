//! `paceway check`: all that is wrong with a file, or one line.

use super::{Failure, load, print};
use std::{io::Write, path::Path};

pub(super) fn check(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    for warning in config.warnings() {
        // Nothing is left to say it to when stderr is gone.
        let _ = writeln!(std::io::stderr(), "{}: warning: {warning}", file.display());
    }
    print(&format!("{}: ok: {}", file.display(), config.summary()))
}
