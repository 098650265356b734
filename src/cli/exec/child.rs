//! Runs a command to its end: with our standard streams, our signals, and its own exit code as ours.

use super::environment::CommandEnvironment;
use crate::cli::CommandError;
use anyhow::Context;
use rustix::{
    process::{Pid, Resource, Rlimit, Signal, getpgrp, getrlimit, kill_process, setrlimit},
    termios::tcgetpgrp,
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
};
use tokio::{
    process::{Child, Command},
    runtime,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

/// The exit codes of shells for a command that cannot be run, and for one that is not found.
const NOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The exit code for a signal is above this by the signal's number.
const SIGNALLED: i32 = 128;

/// The signals that the command gets, too.
const PASSED_ON: [Signal; 6] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// Those that a terminal sends to all of its programs by itself.
const OF_TERMINAL: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// The limit of open files as a command inherits it.
pub(super) struct DescriptorLimit(Rlimit);

// === impl DescriptorLimit ===

impl DescriptorLimit {
    pub(super) fn current() -> Self {
        Self(getrlimit(Resource::Nofile))
    }

    /// Calls `spawn` under this limit. The gateway has a higher one, which programs that use `select` must not have.
    fn during<T>(&self, spawn: impl FnOnce() -> T) -> T {
        let raised = getrlimit(Resource::Nofile);
        // A limit that cannot be changed stays for both.
        let _ = setrlimit(Resource::Nofile, self.0);
        let spawned = spawn();
        let _ = setrlimit(Resource::Nofile, raised);
        spawned
    }
}

/// Runs the command, and returns its exit code: 128 and the number of the signal that ended it.
///
/// `environment` is made when a signal no longer ends this process, which would leave its files in place.
///
/// # Errors
///
/// 127 for a command that is not found, 126 for one that cannot be run.
pub(super) fn run_to_end(
    command: &[OsString],
    environment: impl FnOnce() -> Result<CommandEnvironment, CommandError>,
    descriptors: &DescriptorLimit,
) -> Result<u8, CommandError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot wait for the command")?.block_on(async {
        // Before the command begins, so that none is lost.
        let signals = signals().context("cannot listen to signals")?;
        let environment = environment()?;
        let (program, arguments) = command.split_first().context("there is no command")?;
        let mut own = Command::new(program);
        environment.set(own.args(arguments));
        let child = descriptors.during(|| own.spawn()).map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUN };
            let program = program.to_string_lossy();
            CommandError { code, message: format!("error: cannot run `{program}`: {error}") }
        })?;
        let status = wait(child, signals).await.context("cannot wait for the command")?;
        Ok(code(status))
    })
}

/// Catches the signals for the command.
fn signals() -> io::Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(16);
    let is_terminal = is_in_foreground();
    let ignored = ignored_signals();
    // A signal that is ignored, as by `nohup`, stays so for the command.
    for own in PASSED_ON.into_iter().filter(|own| ignored >> (own.as_raw() - 1) & 1 == 0) {
        let mut caught = signal(SignalKind::from_raw(own.as_raw()))?;
        let is_passed_on = !(is_terminal && OF_TERMINAL.contains(&own));
        let sender = sender.clone();
        tokio::spawn(async move {
            while caught.recv().await.is_some() {
                if is_passed_on && sender.send(own).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(receiver)
}

/// Whether a terminal sends its signals to this process, and so to the command. The standard input may be something else.
fn is_in_foreground() -> bool {
    let group = File::open("/dev/tty").ok().and_then(|terminal| tcgetpgrp(terminal).ok());
    group == Some(getpgrp())
}

/// The signals that this process was started without, one bit each; none where the system does not say it.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

/// Waits for the end of the command, and passes signals on to it.
async fn wait(mut child: Child, mut signals: mpsc::Receiver<Signal>) -> io::Result<ExitStatus> {
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    loop {
        tokio::select! {
            ended = child.wait() => return ended,
            Some(signal) = signals.recv() => {
                if let Some(pid) = pid {
                    // It has not been waited for, so that the number is still its own.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let signalled = status.signal().map(|signal| SIGNALLED + signal);
    let code = status.code().or(signalled).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
