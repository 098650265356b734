//! Starts the log: events for operators on stderr, access lines on stdout, in the forms of the configuration.
//! `PACEWAY_LOG` chooses the events that are written.

mod access_text;

use super::CommandError;
use crate::{
    config::{AccessLog, EventFormat},
    log::{LogStream, flush},
    suggest::suggest,
};
use access_text::AccessText;
use anyhow::Context;
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    env,
    io::{self, IsTerminal},
    panic,
    time::Duration,
};
use tracing::{Level, level_filters::LevelFilter, subscriber};
use tracing_subscriber::{Layer, Registry, filter::Targets, fmt, layer::SubscriberExt};

const ACCESS: &str = "paceway::access";
/// The target of our own events. Events of dependencies are written only if `PACEWAY_LOG` names their target, because a
/// client can make some dependencies write a line for each frame that it sends.
const OWN: &str = "paceway";
/// The environment variable with the level of events, as in `PACEWAY_LOG=debug`.
const VARIABLE: &str = "PACEWAY_LOG";
const LEVELS: [(&str, LevelFilter); 7] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("warning", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];
/// The time that the log gets at the end of the process to write its last lines; its reader may have stalled.
pub(super) const LAST_LINES: Duration = Duration::from_secs(1);

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// Waits on drop until the last lines are written, for [`LAST_LINES`] at most.
pub(super) struct Flush;

/// Starts logging. The first value is whether access lines are written.
///
/// # Errors
///
/// A usage error if `PACEWAY_LOG` is not understood, or an error of the system that gives no thread or file descriptor.
pub(super) fn start(
    access: Option<AccessLog>,
    format: Option<EventFormat>,
) -> Result<(bool, Flush), CommandError> {
    let access = access.unwrap_or(if io::stdout().is_terminal() {
        AccessLog::Text
    } else {
        AccessLog::Json
    });
    Ok((access != AccessLog::Off, start_from("info", access, format)?))
}

/// Starts logging beside a command of the user: warnings and errors alone, and no access lines.
///
/// # Errors
///
/// As [`start`].
pub(super) fn start_quietly() -> Result<Flush, CommandError> {
    start_from("warn", AccessLog::Off, Some(EventFormat::Text))
}

/// Starts logging, with the events from this level on unless `PACEWAY_LOG` chooses others.
fn start_from(
    level: &str,
    access: AccessLog,
    format: Option<EventFormat>,
) -> Result<Flush, CommandError> {
    let events = match env::var(VARIABLE) {
        Ok(text) => targets(&text).map_err(CommandError::usage)?,
        Err(env::VarError::NotPresent) => targets(level).map_err(CommandError::usage)?,
        Err(error) => return Err(CommandError::usage(format!("error: {VARIABLE}: {error}"))),
    };
    // No request and no signal may wait for the reader of a log: lines beyond the bound of a sink are dropped.
    let [stdout, stderr] = [LogStream::Stdout.sink(), LogStream::Stderr.sink()];
    let (stdout, stderr) = (stdout.context("cannot log")?, stderr.context("cannot log")?);
    let layer = fmt::layer().with_target(false).with_writer(move || stdout);
    let lines = Targets::new().with_target(ACCESS, Level::INFO);
    let lines: Option<Boxed> = match access {
        AccessLog::Off => None,
        AccessLog::Text => Some(layer.event_format(AccessText).with_filter(lines).boxed()),
        AccessLog::Json => {
            let layer = layer.json().flatten_event(true).with_level(false);
            Some(layer.with_current_span(false).with_filter(lines).boxed())
        }
    };
    let terminal = io::stderr().is_terminal();
    let layer = fmt::layer().with_target(false).with_ansi(terminal).with_writer(move || stderr);
    let otherwise = if terminal { EventFormat::Text } else { EventFormat::Json };
    let events: Boxed = match format.unwrap_or(otherwise) {
        EventFormat::Text => layer.with_filter(events).boxed(),
        EventFormat::Json => {
            layer.json().flatten_event(true).with_current_span(false).with_filter(events).boxed()
        }
    };
    // This fails only in a process that embeds the gateway and has a subscriber already, which then stays.
    let layers: Vec<Boxed> = lines.into_iter().chain([events]).collect();
    let _ = subscriber::set_global_default(Registry::default().with(layers));
    panic::set_hook(Box::new(|panic| {
        let backtrace = Backtrace::capture();
        let is_captured = backtrace.status() == BacktraceStatus::Captured;
        let backtrace = is_captured.then(|| tracing::field::display(backtrace));
        tracing::error!(%panic, backtrace, "a panic; this is a bug");
    }));
    Ok(Flush)
}

/// Reads a value of `PACEWAY_LOG`: a level for our own events, or `TARGET=LEVEL` for those of a module or dependency, several
/// of them separated by commas.
fn targets(text: &str) -> Result<Targets, String> {
    let mut targets = Targets::new().with_target(OWN, Level::INFO);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) = match part.split_once('=') {
            Some((target, level)) => (target.trim(), level.trim()),
            None => (OWN, part),
        };
        let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(level));
        let is_target = |c: char| c.is_ascii_alphanumeric() || "_:-".contains(c);
        let (Some((_, level)), true) = (found, !target.is_empty() && target.chars().all(is_target))
        else {
            let names = || LEVELS.iter().map(|(name, _)| *name);
            let hint = match found {
                Some(_) => "write a module before the `=`, as in `h2=warn`".to_owned(),
                None => suggest(level, names())
                    .unwrap_or_else(|| "levels are off, error, warn, info, debug and trace; those of another module are written `h2=warn`".into()),
            };
            return Err(format!("error: {VARIABLE}: `{part}` is not understood; {hint}"));
        };
        targets = targets.with_target(target, *level);
        // The modules of the package `paceway_limit`, such as `store`, are part of the gateway for its operator.
        if let Some(module) = target.strip_prefix("paceway::") {
            targets = targets.with_target(format!("paceway_limit::{module}"), *level);
        }
    }
    // Access lines are written to stdout, not with the events.
    Ok(targets.with_target(ACCESS, LevelFilter::OFF))
}

impl Drop for Flush {
    fn drop(&mut self) {
        flush(LAST_LINES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nothing("", "paceway::gateway", Level::INFO, true)]
    #[case::nothing("", "paceway::gateway", Level::DEBUG, false)]
    #[case::dependencies_are_silent("", "h2::codec", Level::ERROR, false)]
    #[case::ours_alone("debug", "h2::codec", Level::ERROR, false)]
    #[case::ours("debug", "paceway::gateway", Level::DEBUG, true)]
    #[case::in_capitals("WARN", "paceway::gateway", Level::INFO, false)]
    #[case::synonym("warning", "paceway::gateway", Level::WARN, true)]
    #[case::several(" debug , h2=warn", "h2::codec", Level::WARN, true)]
    #[case::one_module("paceway::store=debug", "paceway::store::failover", Level::DEBUG, true)]
    #[case::of_the_limiter(
        "paceway::store=debug",
        "paceway_limit::store::failover",
        Level::DEBUG,
        true
    )]
    #[case::the_limiter("debug", "paceway_limit::store::failover", Level::DEBUG, true)]
    #[case::the_others("paceway::store=debug", "paceway::gateway", Level::DEBUG, false)]
    #[case::access_lines("trace", ACCESS, Level::INFO, false)]
    fn a_filter_selects_events(
        #[case] text: &str,
        #[case] target: &str,
        #[case] level: Level,
        #[case] expected: bool,
    ) {
        let targets = targets(text).expect("understood");
        assert_eq!(targets.would_enable(target, &level), expected, "{targets}");
    }

    #[rstest]
    #[case::cut("inf", "`inf` is not understood; did you mean `info`?")]
    #[case::misspelt("h2=wran", "`h2=wran` is not understood; did you mean `warn`?")]
    #[case::module_alone("h2", "`h2` is not understood; levels are")]
    #[case::no_module("=warn", "`=warn` is not understood; write a module")]
    #[case::spans("paceway[request]=info", "`paceway[request]=info` is not understood")]
    #[case::one_of_several("info,verbose", "`verbose` is not understood; levels are")]
    fn a_typo_is_an_error_with_a_hint(#[case] text: &str, #[case] expected: &str) {
        let error = targets(text).expect_err("not understood");
        assert!(error.starts_with("error: PACEWAY_LOG: ") && error.contains(expected), "{error}");
    }
}
