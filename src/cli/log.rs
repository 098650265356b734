//! Logs: events for operators on stderr, access lines on stdout; text on a terminal, JSON otherwise.

use crate::config::AccessLog;
use std::io::{self, IsTerminal};
use tracing::{Level, Metadata, level_filters::LevelFilter, subscriber};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::{EnvFilter, Layer, Registry, filter::FilterFn, fmt, layer::SubscriberExt};

const ACCESS: &str = "paceway::access";
/// Sets the level of events, as in `PACEWAY_LOG=debug`.
const VARIABLE: &str = "PACEWAY_LOG";

type Boxed = Box<dyn Layer<Registry> + Send + Sync>;

/// Starts logging; says whether access lines are written. What is not yet written when the guard goes is written
/// then.
pub(super) fn start(access: Option<AccessLog>) -> (bool, WorkerGuard) {
    let access = access.unwrap_or(match io::stdout().is_terminal() {
        true => AccessLog::Text,
        false => AccessLog::Json,
    });
    // Access lines must not hold requests up when their reader is slow: beyond its buffer they are dropped.
    let (stdout, guard) = tracing_appender::non_blocking(io::stdout());
    let is_access = |metadata: &Metadata<'_>| metadata.target() == ACCESS;
    let layer = fmt::layer().with_target(false).with_writer(stdout);
    let lines: Option<Boxed> = match access {
        AccessLog::Off => None,
        AccessLog::Text => {
            let layer = layer.with_ansi(io::stdout().is_terminal());
            Some(layer.with_level(false).with_filter(FilterFn::new(is_access)).boxed())
        }
        AccessLog::Json => {
            let layer = layer.json().flatten_event(true).with_level(false);
            Some(layer.with_current_span(false).with_filter(FilterFn::new(is_access)).boxed())
        }
    };
    let terminal = io::stderr().is_terminal();
    let layer = fmt::layer().with_target(false).with_ansi(terminal).with_writer(io::stderr);
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::from_level(Level::INFO).into())
        .with_env_var(VARIABLE)
        .from_env_lossy();
    let mut filter = filter;
    // It reports in its own words what we report in ours; access lines go to stdout.
    for quiet in ["hickory=off", "paceway::access=off"] {
        if let Ok(directive) = quiet.parse() {
            filter = filter.add_directive(directive);
        }
    }
    let events: Boxed = match terminal {
        true => layer.with_filter(filter).boxed(),
        false => {
            layer.json().flatten_event(true).with_current_span(false).with_filter(filter).boxed()
        }
    };
    // A second subscriber only in a process that embeds us and logs already.
    let layers: Vec<Boxed> = lines.into_iter().chain([events]).collect();
    let _ = subscriber::set_global_default(Registry::default().with(layers));
    (access != AccessLog::Off, guard)
}
