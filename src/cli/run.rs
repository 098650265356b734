//! `paceway run`: the gateway, with a file or with flags that stand for one.

mod flags;

use super::{CommandError, flags::NAME, log, print};
use crate::{
    live::{ConfigFile, ReadFile},
    server::Server,
};
use flags::GatewayFlags;
use std::path::PathBuf;

const DEFAULTS: [&str; 2] = ["paceway.yaml", "config/paceway.yaml"];

/// The arguments of `paceway run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// The configuration [default: paceway.yaml, then config/paceway.yaml].
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: GatewayFlags,
}

pub(super) fn run(args: RunArgs) -> Result<(), CommandError> {
    let RunArgs { config: file, flags: given } = args;
    let (read, file) = match (file, given.first()) {
        (Some(_), Some(flag)) => {
            return Err(CommandError::usage(format!(
                "error: `{flag}` stands for a part of a file, and `--config` names one: write it into the file, or leave out \
                 `--config`"
            )));
        }
        (None, Some(_)) => {
            let made = given.config()?;
            if given.print {
                return print(made.text.trim_end());
            }
            (ReadFile::of_text(&made.text, made.config), PathBuf::from(NAME))
        }
        (file, None) => {
            let file = match file {
                Some(file) => file,
                None => default_file()?,
            };
            (ConfigFile::new(&file).read().map_err(CommandError::usage)?, file)
        }
    };
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
            "error: no configuration: neither {} is here; name one with --config FILE, run without one (`paceway run \
             --upstream URL --limit 5/s`), begin with a recipe (`paceway init`), or try `paceway demo`",
            DEFAULTS.join(" nor ")
        ))
    })
}
