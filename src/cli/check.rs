//! `paceway check`: all that is wrong with a file, or one line.

use super::{Failure, load, print};
use std::path::Path;

pub(super) fn check(file: &Path) -> Result<(), Failure> {
    let config = load(file)?;
    print(&format!("{}: ok: {}", file.display(), config.summary()))
}
