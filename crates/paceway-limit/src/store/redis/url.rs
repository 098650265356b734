//! The URL of a store: its servers, the login and the database. Connects nowhere, and quotes nothing that may be secret.

mod read;

use super::tls::{self, Settings};
use read::{
    UrlOption, decode, no_scheme, read_database, read_endpoints, read_kind, read_login,
    read_options, read_sentinel_login, the_only, unknown_option,
};
use std::{fmt, path::PathBuf};

/// A Redis URL and the settings of its connections, such as `rediss://:password@host:6380/2`. Its `Debug` hides passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    pub(super) servers: Box<Servers>,
    pub(super) login: Login,
    pub(super) database: Option<u8>,
    /// The settings for TLS; `None` for a connection in clear text.
    pub(super) tls: Option<Box<Settings>>,
    /// Whether the decision script is a library of functions, on servers that keep such.
    pub(super) uses_functions: bool,
}

/// The servers that a URL names. Each kind has another way to the server that has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Servers {
    One(Endpoint),
    Sentinels {
        endpoints: Vec<Endpoint>,
        master: String,
        login: Login,
    },
    /// Some nodes of a Redis Cluster; any of them names all the others.
    Cluster(Vec<Endpoint>),
}

/// The address at which a server listens, as the operator or another server has written it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Endpoint {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// The user and the password for `AUTH`; without a user the password is that of the default user.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Sentinel,
    Cluster,
}

// === impl RedisUrl ===

impl RedisUrl {
    /// Reads one of these URLs:
    ///
    /// - `redis://[[user]:password@]host[:port][/database]`
    /// - `unix:/path[?database=N]` or `unix://[[user]:password@]/path[?database=N]`
    /// - `redis-sentinel://[[user]:password@]host[:port][,...]/master[/database][?sentinel_user=...&sentinel_password=...]`
    /// - `redis-cluster://[[user]:password@]host[:port][,...]`
    ///
    /// and `rediss://`, `rediss-sentinel://` and `rediss-cluster://`, which are the same over TLS.
    ///
    /// # Errors
    ///
    /// A sentence about the first mistake in the URL. It quotes no part that may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.contains(char::is_whitespace) || url.contains(char::is_control) {
            return Err("it holds a space; write `%20` for one in a password".into());
        }
        let (url, options) = match url.split_once('?') {
            Some((url, options)) => (url, read_options(options)?),
            None => (url, Vec::new()),
        };
        if let Some(rest) = url.strip_prefix("unix:") {
            return Self::unix(rest, options);
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| no_scheme(url))?;
        let is_tls = scheme.starts_with("rediss");
        let kind = read_kind(scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err("write `%2F` for `/` in a user or password".into());
        }
        let (login, hosts) = read_login(authority)?;
        let endpoints = read_endpoints(hosts, kind)?;
        let mut url = Self {
            servers: Box::new(Servers::Cluster(Vec::new())),
            login,
            database: None,
            tls: if is_tls { Some(tls::settings(scheme)?) } else { None },
            uses_functions: true,
        };
        let servers = match kind {
            Kind::One => {
                url.database = read_database(path)?;
                Servers::One(the_only(endpoints)?)
            }
            Kind::Cluster if !matches!(path, "" | "0") => {
                return Err(
                    "a Redis Cluster has no databases but 0; end the URL after its hosts".into()
                );
            }
            Kind::Cluster => Servers::Cluster(endpoints),
            Kind::Sentinel => {
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err("after the hosts, write the name that the Sentinels have for the master, as in \
                                `redis-sentinel://host:26379/mymaster`"
                        .into());
                }
                url.database = read_database(database)?;
                let (login, master) = (read_sentinel_login(options)?, decode(master)?);
                *url.servers = Servers::Sentinels { endpoints, master, login };
                return Ok(url);
            }
        };
        *url.servers = servers;
        match options.first() {
            Some(option) => Err(unknown_option(option.name)),
            None => Ok(url),
        }
    }

    fn unix(rest: &str, options: Vec<UrlOption<'_>>) -> Result<Self, String> {
        let (login, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let start = rest.find('/').unwrap_or(rest.len());
                let (authority, path) = rest.split_at(start);
                match authority {
                    "" => (Login::default(), path),
                    _ => {
                        let (login, host) = read_login(authority)?;
                        if !host.is_empty() {
                            return Err(
                                "a path begins with `/`, as in `unix:/run/redis.sock`".into()
                            );
                        }
                        (login, path)
                    }
                }
            }
            None => (Login::default(), rest),
        };
        if !path.starts_with('/') || path.ends_with('/') {
            return Err("it names no socket, as in `unix:/run/redis.sock`".into());
        }
        let mut database = None;
        for UrlOption { name, value } in options {
            match name {
                "database" | "db" => database = read_database(&value)?,
                _ => return Err(unknown_option(name)),
            }
        }
        let servers = Box::new(Servers::One(Endpoint::Unix(decode(path)?.into())));
        Ok(Self { servers, login, database, tls: None, uses_functions: true })
    }

    /// Whether the URL names a Redis Cluster, where the keys of one call need one hash tag.
    pub fn is_cluster(&self) -> bool {
        matches!(*self.servers, Servers::Cluster(_))
    }

    /// Whether connections to the servers of the URL use TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The servers that the URL names.
    pub(super) fn endpoints(&self) -> &[Endpoint] {
        match &*self.servers {
            Servers::One(endpoint) => std::slice::from_ref(endpoint),
            Servers::Sentinels { endpoints, .. } | Servers::Cluster(endpoints) => endpoints,
        }
    }

    /// The hosts of these servers.
    pub fn hosts(&self) -> Vec<&str> {
        let hosts = self.endpoints().iter().filter_map(|endpoint| match endpoint {
            Endpoint::Tcp { host, .. } => Some(host.as_str()),
            Endpoint::Unix(_) => None,
        });
        hosts.collect()
    }

    /// Returns the URL with other settings for TLS; a URL of clear text stays as it is.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(self, tls: Settings) -> Self {
        let tls = self.tls.is_some().then(|| Box::new(tls));
        Self { tls, ..self }
    }

    /// Returns the URL of a store whose servers keep no functions: they are sent the decision script, which costs them more.
    #[must_use]
    pub fn without_functions(self) -> Self {
        Self { uses_functions: false, ..self }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisUrl").field(&self.servers).finish_non_exhaustive()
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |endpoints: &[Endpoint]| {
            endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        match &*self.servers {
            Servers::One(endpoint) => write!(f, "{endpoint}"),
            Servers::Sentinels { endpoints, master, .. } => {
                write!(f, "{master}, by the Sentinels at {}", list(endpoints))
            }
            Servers::Cluster(endpoints) => write!(f, "the Cluster of {}", list(endpoints)),
        }
    }
}

// === impl Endpoint ===

impl Endpoint {
    pub(super) fn tcp(host: &str, port: u16) -> Self {
        Self::Tcp { host: host.to_owned(), port }
    }

    /// Reads `host:port` in a reply of the server at `asked`, which may leave out the host if it means its own.
    pub(super) fn told(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Self::at(host, port.parse().ok()?, asked)
    }

    /// Reads an address whose host and port a reply has in two values; `None` if the server does not know its host.
    pub(super) fn at(host: &str, port: u16, asked: &Self) -> Option<Self> {
        match (host.trim_matches(['[', ']']), asked) {
            ("?", _) | ("", Self::Unix(_)) => None,
            ("", Self::Tcp { host, .. }) => Some(Self::tcp(host, port)),
            (host, _) => Some(Self::tcp(host, port)),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

// === impl Login ===

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests;
