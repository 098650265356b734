//! The configuration: checked, typed, immutable. [`Config::load`] is the only door; nothing behind it
//! checks again.

mod http;
mod limiter;
mod quotes;
mod raw;
mod reader;
mod unit;
mod warnings;
mod yaml;

pub use http::{ClientLimits, Limits, ServerTls};
pub use limiter::{Charge, Limiter, Mode, OnFailure, Scope};
pub use unit::Rate;

use crate::{
    key::Cost,
    path::{Paths, Suffix},
    store::redis::RedisUrl,
    upstream::{ClientTls, Target, Timeouts, headers::Rules},
};
use ::http::Method;
use ipnet::IpNet;
use std::{fmt, io, net::SocketAddr, num::NonZeroUsize, path::Path, time::Duration};

/// The JSON Schema of the file, for editors.
pub const SCHEMA: &str = include_str!("config/schema.json");

/// Everything the file says, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Data plane.
    pub listen: SocketAddr,
    /// Metrics, health, state.
    pub admin: SocketAddr,
    /// Threads of the data plane.
    pub workers: NonZeroUsize,
    /// `None`: decided by whether the output is a terminal.
    pub access_log: Option<AccessLog>,
    /// How long running and waiting requests may take to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Certificates for the data plane; `None`: clear text.
    pub tls: Option<ServerTls>,
    /// Whose X-Forwarded-For is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Connections of trusted proxies begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// What clients may take their time for.
    pub client: ClientLimits,
    /// How large a request may be.
    pub limits: Limits,
    /// How the upstreams read paths, as far as it is known.
    pub paths: Paths,
    /// Names of query parameters and headers whose values no log shows, besides those that never are.
    pub redact: Vec<String>,
    /// DNS servers that names of upstreams are asked of; empty: the system's.
    pub resolver: Vec<SocketAddr>,
    /// Where limiters keep their state.
    pub store: Store,
    /// False forwards everything unlimited.
    pub limiting: bool,
    /// At least one; referred to by index.
    pub upstreams: Vec<Upstream>,
    /// Referred to by index.
    pub limiters: Vec<Limiter>,
    /// At least one; referred to by index.
    pub routes: Vec<Route>,
    /// Keys of headers that look secret and stand in the file in clear text.
    clear_secrets: Vec<String>,
    /// Names of routes that limiters of rates bind, and that say nothing of how long their requests may wait.
    unheld: Vec<String>,
}

/// How an access line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLog {
    /// Not at all.
    Off,
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Where limiters keep their state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    /// In this process.
    Memory,
    /// On a Redis server.
    Redis {
        /// Which.
        url: RedisUrl,
        /// First part of every key.
        prefix: String,
        /// Bounds one decision.
        timeout: Duration,
        /// Without the store at least so many gateways share each rule, whatever number the store reported.
        gateways: i64,
        /// What limiters do while it gives no decisions, unless they say it.
        on_failure: OnFailure,
    },
}

/// A throttled API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Name in metrics and logs.
    pub name: String,
    /// Where it is: at least one.
    pub targets: Vec<Target>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// Idle connections that one gateway keeps to it.
    pub pool_size: usize,
    /// It is spoken to in HTTP/2.
    pub http2: bool,
    /// How an https upstream is checked, and what it is shown.
    pub tls: ClientTls,
    /// It gets the client's `Host` in place of its own.
    pub preserve_host: bool,
    /// It gets `Forwarded` (RFC 7239) beside the X-Forwarded fields.
    pub forwarded: bool,
    /// What changes in headers on the way to it and back.
    pub headers: Rules,
    /// Charged for every call to it.
    pub limiters: Vec<Charge>,
}

/// What happens to requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Name in metrics and logs.
    pub name: String,
    /// What the path ends in.
    pub suffix: Suffix,
    /// Empty: all.
    pub methods: Vec<Method>,
    /// In lower case, without port; `None`: all.
    pub host: Option<String>,
    /// Index into [`Config::upstreams`].
    pub upstream: usize,
    /// The route's own, then its upstream's; each limiter once, at the cost that the route names.
    pub limiters: Vec<Charge>,
    /// How long a request waits for its slot when it does not say.
    pub max_wait: Duration,
    /// How long it waits at most when it does.
    pub max_wait_cap: Duration,
    /// Requests that wait at one time in this gateway.
    pub max_waiting: usize,
    /// What changes in headers, after what its upstream changes.
    pub headers: Rules,
}

/// A line and a column, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where; `None` for the file as a whole.
    pub place: Option<Place>,
    /// The key, as `routes[0].suffix`.
    pub path: String,
    /// What is wrong and what to do.
    pub reason: String,
}

/// Everything that is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// As it was named.
    pub file: String,
    /// At least one, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

// === impl Config ===

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// All mistakes at once, each with its place.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError {
            file: file.clone(),
            mistakes: vec![Mistake {
                place: None,
                path: String::new(),
                reason: format!("cannot be read: {}", unreadable(&error)),
            }],
        })?;
        let directory = path.parent().unwrap_or_else(|| Path::new("."));
        Self::parse(&text, &file, directory, &|name| std::env::var(name).ok())
    }

    /// Checks a text; `directory` and `variable` are where `${...}` comes from.
    ///
    /// # Errors
    ///
    /// All mistakes at once, each with its place.
    pub fn parse(
        text: &str,
        file: &str,
        directory: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        raw::read(text, &yaml::Outside { directory, variable }).map_err(|mut mistakes| {
            mistakes.sort_by_key(|mistake| mistake.place);
            ConfigError { file: file.to_owned(), mistakes }
        })
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let store = match &self.store {
            Store::Memory => "memory".to_owned(),
            Store::Redis { url, .. } => format!("redis at {url}"),
        };
        format!(
            "{}, {}, {}; store: {store}; listening on {}, admin on {}",
            count(self.routes.len(), "route"),
            count(self.limiters.len(), "limiter"),
            count(self.upstreams.len(), "upstream"),
            self.listen,
            self.admin,
        )
    }
}

// === impl Route ===

impl Route {
    /// Whether all that limits `other` limits this one, and at no smaller cost.
    pub fn covers(&self, other: &Self) -> bool {
        let costs_as_much = |own: &Charge, theirs: &Charge| match (&own.cost, &theirs.cost) {
            (Cost::Fixed(own), Cost::Fixed(theirs)) => own >= theirs,
            (own, theirs) => own == theirs,
        };
        other.limiters.iter().all(|theirs| {
            let own = self.limiters.iter().find(|own| own.limiter == theirs.limiter);
            own.is_some_and(|own| costs_as_much(own, theirs))
        })
    }
}

/// Why a file cannot be read, and what to look at.
fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => match std::env::current_dir() {
            Ok(here) => {
                format!("there is no such file; a relative path starts at {}", here.display())
            }
            Err(_) => "there is no such file".into(),
        },
        io::ErrorKind::PermissionDenied => "this process may not read it".into(),
        io::ErrorKind::IsADirectory => "it is a directory".into(),
        io::ErrorKind::InvalidData => "it is not text in UTF-8".into(),
        _ => error.to_string(),
    }
}

// === impl Mistake ===

impl Mistake {
    fn new(place: Place, path: &str, reason: impl Into<String>) -> Self {
        Self { place: Some(place), path: path.to_owned(), reason: reason.into() }
    }
}

// === impl ConfigError ===

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().enumerate() {
            let newline = if i == 0 { "" } else { "\n" };
            write!(f, "{newline}{}", self.file)?;
            if let Some(Place { line, column }) = mistake.place {
                write!(f, ":{line}:{column}")?;
            }
            if !mistake.path.is_empty() {
                write!(f, ": {}", mistake.path)?;
            }
            write!(f, ": {}", mistake.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
