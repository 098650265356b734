//! The commands and their exit codes: 0, 1 for a failure, 2 for a usage or configuration error.

mod check;
mod demo;
mod explain;
mod health;
mod log;
mod run;

use crate::{
    config::{self, Config},
    log::LogStream,
};
use clap::{Parser, Subcommand};
use std::{
    io::Write,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Paces calls to APIs that throttle you.
#[derive(Debug, Parser)]
#[command(name = "paceway", version, about, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway.
    Run {
        /// The configuration [default: paceway.yaml, then config/paceway.yaml].
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Check a configuration: print all its mistakes, or a summary.
    Check {
        /// The configuration.
        file: PathBuf,
    },
    /// Show which route, limiters and upstream a request gets, and why.
    Explain {
        /// The configuration.
        file: PathBuf,
        /// The method of the request: GET, POST, ...
        method: String,
        /// A path, or a whole URL.
        url: String,
        /// A header of the request: 'Name: value'.
        #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
        headers: Vec<String>,
        /// The address that the connection comes from: the caller's, or a proxy's.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
        client_ip: IpAddr,
    },
    /// Print the JSON Schema of the configuration.
    Schema,
    /// Start a pretend vendor that throttles, and a gateway in front of it, to try things out.
    Demo {
        /// The gateway's port; 0 takes any.
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// The admin side's port; 0 takes any.
        #[arg(long, default_value_t = 9090)]
        admin_port: u16,
        /// The vendor's port; 0 takes any.
        #[arg(long, default_value_t = 8081)]
        vendor_port: u16,
    },
    /// Ask a running gateway whether it is ready; for container health checks.
    Health {
        /// Its admin address.
        #[arg(long, default_value = "127.0.0.1:9090")]
        admin: SocketAddr,
    },
}

const USAGE: u8 = 2;

/// Reads the arguments of the process, runs the command that they name, and returns its exit code.
pub fn main() -> ExitCode {
    // `parse` itself ends the process for `--help` (exit code 0) and for usage errors (2).
    let done = match Args::parse().command {
        Command::Run { config } => run::run(config.as_deref()),
        Command::Check { file } => check::check(&file),
        Command::Explain { file, method, url, headers, client_ip } => {
            explain::explain(&file, &method, &url, &headers, client_ip)
        }
        Command::Schema => print(config::SCHEMA.trim_end()),
        Command::Demo { port, admin_port, vendor_port } => {
            demo::demo(port, admin_port, vendor_port)
        }
        Command::Health { admin } => health::health(admin),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // The message follows the lines that the log has yet to write.
            LogStream::Stderr.say(&failure.message, log::LAST_LINES);
            ExitCode::from(failure.code)
        }
    }
}

/// The message that a failed command prints on stderr, and its exit code.
struct CommandError {
    code: u8,
    message: String,
}

// === impl CommandError ===

impl CommandError {
    /// An error that the user can correct in the arguments or the configuration: exit code 2.
    fn usage(message: impl ToString) -> Self {
        Self { code: USAGE, message: message.to_string() }
    }
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self { code: 1, message: format!("error: {error:#}") }
    }
}

fn load(file: &Path) -> Result<Config, CommandError> {
    Config::load(file).map_err(CommandError::usage)
}

/// Prints a line on stdout. A reader that closed the pipe early (`| head`) is no error.
fn print(line: &str) -> Result<(), CommandError> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write").into())
        }
        _ => Ok(()),
    }
}
