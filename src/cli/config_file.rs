//! The configuration that a command is given: a file, or stdin for `-`.

use crate::config::{self, Config, ConfigError};
use std::{
    fs,
    io::{self, Read},
    path::Path,
};

/// The most bytes that are read from stdin.
const MOST: u64 = 64 << 20;

pub(super) fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The name of the file in messages, `stdin` for `-`.
pub(super) fn name(file: &Path) -> String {
    if is_stdin(file) { "stdin".into() } else { file.display().to_string() }
}

pub(super) fn text(file: &Path) -> Result<String, ConfigError> {
    let read = if is_stdin(file) { read_stdin() } else { fs::read(file) };
    let bytes = read.map_err(|error| config::unread(&name(file), &error))?;
    config::utf8(&name(file), bytes)
}

/// Reads and checks a configuration. With `-`, relative paths in it start at the current directory.
pub(super) fn load(file: &Path) -> Result<Config, ConfigError> {
    let directory = file.parent().unwrap_or_else(|| Path::new("."));
    Config::parse(&text(file)?, &name(file), directory, &|name| std::env::var(name).ok())
}

fn read_stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(io::Error::other("it is larger than 64MiB"));
    }
    Ok(bytes)
}
