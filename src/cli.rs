//! The commands and their exit codes: 0, 1 for a failure, 2 for a usage or configuration error.

mod accounts;
mod admin_client;
mod ca;
mod change;
mod check;
mod config_file;
mod demo;
mod estimate;
mod exec;
mod explain;
mod flags;
mod health;
mod init;
mod log;
mod man;
mod reload;
mod replay;
mod run;
mod status;
mod table;
mod top;

use crate::{
    config::{self, Config},
    log::LogStream,
};
use accounts::AccountArgs;
use admin_client::AdminArgs;
use ca::CaArgs;
use change::{ChangeArgs, KeyArgs};
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use estimate::EstimateArgs;
use exec::ExecArgs;
use explain::ExplainArgs;
use run::RunArgs;
use serde_json::{Value, json};
use std::{
    io::Write,
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
    /// Run the gateway, with a configuration or without one: `run --upstream URL --limit 5/s`.
    Run(Box<RunArgs>),
    /// Print the tested configuration of a vendor, or list the vendors.
    Init {
        /// The vendor, such as `github`.
        vendor: Option<String>,
    },
    /// Run a command, and pace the calls that it and its children make over HTTP and HTTPS.
    Exec(ExecArgs),
    /// Make an authority for the forward proxy: a certificate that clients trust, and its key.
    Ca(CaArgs),
    /// Check configurations: print all mistakes, or a summary of each.
    Check {
        /// The configurations; `-` is stdin.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Read no environment variable and no other file: placeholders stand for them.
        #[arg(long)]
        offline: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show which route, limiters and upstream a request gets, and why.
    Explain(ExplainArgs),
    /// Decide a recorded access log under a configuration, and show what would have happened.
    Replay {
        /// The configuration; `-` is stdin.
        file: PathBuf,
        /// The log: the gateway's JSON lines, or nginx's combined format; `-` is stdin.
        #[arg(long, value_name = "FILE")]
        log: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
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
    Health(AdminArgs),
    /// Show the limiters, the store and the configuration of a running gateway.
    Status(AdminArgs),
    /// Show the limiters and keys that wait or use most, refreshed every 2 s on a terminal.
    Top {
        /// The order of the rows.
        #[arg(long, value_enum, default_value = "waiting")]
        sort: top::TopOrder,
        /// The most rows.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        /// Print once.
        #[arg(long)]
        once: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Show when a number of calls would be sent, without sending or charging any.
    Estimate(EstimateArgs),
    /// Make a running gateway read its configuration again.
    Reload(AdminArgs),
    /// Pause a limiter on all gateways: it grants nothing until the end.
    Pause {
        /// The limiter.
        name: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// End the pause, or another change, of a limiter on all gateways; `limiting` is the global switch.
    Resume {
        /// The limiter.
        name: String,
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Set the rate or the mode of a limiter on all gateways, or `limiting=off`.
    Set {
        /// A limiter, then `rate=2/s`, `mode=observe` or both; or `limiting=off` alone.
        #[arg(required = true, value_name = "NAME SETTING")]
        words: Vec<String>,
        #[command(flatten)]
        key: KeyArgs,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Park an account of an upstream on all gateways: no call is sent with it until the end.
    Park {
        #[command(flatten)]
        account: AccountArgs,
        /// How long, such as 30s or 1h, at most a day. By default the `park_for` of the upstream.
        #[arg(long = "for", value_name = "TIME")]
        time: Option<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Let an account of an upstream that is parked be used again, on all gateways.
    Unpark {
        #[command(flatten)]
        account: AccountArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Print a script with the completions of a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page.
    Man,
}

const USAGE: u8 = 2;

/// Reads the arguments of the process, runs the command that they name, and returns its exit code.
pub fn main() -> ExitCode {
    // `parse` itself ends the process for `--help` (exit code 0) and for usage errors (2).
    let command = Args::parse().command;
    let json = command.prints_json();
    let done = match command {
        Command::Run(args) => run::run(*args),
        Command::Init { vendor } => init::init(vendor.as_deref()),
        Command::Exec(args) => exec::exec(&args),
        Command::Ca(args) => ca::ca(&args),
        Command::Check { files, offline, json } => check::check(&files, offline, json),
        Command::Explain(args) => explain::explain(&args),
        Command::Replay { file, log, json } => replay::replay(&file, &log, json),
        Command::Schema => print(config::SCHEMA.trim_end()),
        Command::Demo { port, admin_port, vendor_port } => {
            demo::demo(port, admin_port, vendor_port)
        }
        Command::Health(args) => health::health(&args),
        Command::Status(args) => status::status(&args),
        Command::Top { sort, limit, once, admin } => top::top(&admin, sort, limit, once),
        Command::Estimate(args) => estimate::estimate(&args),
        Command::Reload(args) => reload::reload(&args),
        Command::Pause { name, change } => change::pause(&name, &change),
        Command::Resume { name, key, admin } => change::resume(&name, &key, &admin),
        Command::Set { words, key, change } => change::set(&words, &key, &change),
        Command::Park { account, time, admin } => accounts::park(&account, time.as_deref(), &admin),
        Command::Unpark { account, admin } => accounts::unpark(&account, &admin),
        Command::Completions { shell } => man::completions(shell),
        Command::Man => man::man(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                if json {
                    let reason = failure.message.trim_start_matches("error: ");
                    // If stdout is closed, stderr has the reason.
                    let _ = print_json(&json!({ "error": reason }));
                }
                // The message follows the lines that the log has yet to write.
                LogStream::Stderr.say(&failure.message, log::LAST_LINES);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// The message that a failed command prints on stderr, and its exit code. The message is empty if the command has printed
/// all as JSON.
struct CommandError {
    code: u8,
    message: String,
}

// === impl Command ===

impl Command {
    /// Whether the command prints JSON, also about a failure.
    fn prints_json(&self) -> bool {
        match self {
            Self::Check { json, .. } | Self::Replay { json, .. } => *json,
            Self::Explain(args) => args.json,
            // It has a page of its own for a gateway that does not answer.
            Self::Health(_) => false,
            Self::Status(admin) | Self::Reload(admin) => admin.json,
            Self::Top { admin, .. } | Self::Resume { admin, .. } => admin.json,
            Self::Park { admin, .. } | Self::Unpark { admin, .. } => admin.json,
            Self::Estimate(args) => args.prints_json(),
            Self::Pause { change, .. } | Self::Set { change, .. } => change.prints_json(),
            Self::Run(_) | Self::Init { .. } | Self::Schema | Self::Demo { .. } | Self::Man => {
                false
            }
            Self::Completions { .. } | Self::Exec(_) | Self::Ca(_) => false,
        }
    }
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
    config_file::load(file).map_err(CommandError::usage)
}

fn print_json(value: &Value) -> Result<(), CommandError> {
    print(&format!("{value:#}"))
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
