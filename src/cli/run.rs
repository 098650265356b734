//! `paceway run`: the gateway.

use super::{CommandError, log};
use crate::{live::ConfigFile, server::Server};
use std::path::{Path, PathBuf};

const DEFAULTS: [&str; 2] = ["paceway.yaml", "config/paceway.yaml"];

pub(super) fn run(file: Option<&Path>) -> Result<(), CommandError> {
    let file = match file {
        Some(file) => file.to_owned(),
        None => default_file()?,
    };
    let read = ConfigFile::new(&file).read().map_err(CommandError::usage)?;
    let (config, hash) = (&read.config, &read.hash);
    let (access_log, _flush) = log::start(config.access_log, config.log)?;
    tracing::info!(file = %file.display(), hash, config = config.summary(), "configuration loaded");
    for warning in config.warnings() {
        tracing::warn!(file = %file.display(), warning, "configuration");
    }
    let server = Server::bind_file(read, access_log).map_err(anyhow::Error::new)?;
    Ok(server.run().map_err(anyhow::Error::new)?)
}

fn default_file() -> Result<PathBuf, CommandError> {
    let found = DEFAULTS.iter().map(PathBuf::from).find(|file| file.exists());
    found.ok_or_else(|| {
        CommandError::usage(format!(
            "error: no configuration: neither {} is here; name one with --config FILE, or try `paceway demo`",
            DEFAULTS.join(" nor ")
        ))
    })
}
