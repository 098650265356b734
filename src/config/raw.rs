//! Makes a configuration from the tree of a file. Unknown keys are mistakes, all mistakes are found at once, and each has its
//! line and column.

mod admin;
mod certificates;
mod clients;
mod descriptors;
mod headers;
mod limiters;
mod limits_from;
mod observability;
mod rates;
mod route_conflicts;
mod route_paths;
mod routes;
mod rule_keys;
mod rules;
mod services;
mod throttle;
mod turns;
mod upstreams;

use super::{
    document::Document,
    foreign,
    keys::{Choice, ROOT, STORE},
    limiter::FailurePolicy,
    lookalikes,
    mistake::{ConfigError, Mistake},
    reader::{ConfigReader, ConfigSection, Field, MAX_TIMEOUT, positive, span},
    services::{Service, Services},
    settings::{Config, Route, StoreConfig},
    yaml::{self, Outside, YamlValue},
};
use crate::store::{OnLoss, redis::RedisUrl};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
    thread,
    time::Duration,
};

/// Reads the text of a configuration.
///
/// # Errors
///
/// All mistakes, in the order of the file.
pub(super) fn read(text: &str, file: &str, outside: &Outside<'_>) -> Result<Config, ConfigError> {
    let checked = check_text(text, file, outside);
    let Err(error) = &checked else { return checked };
    if let Some(mistake) = foreign::other_format(text) {
        return Err(ConfigError::new(file, vec![mistake]));
    }
    // Another reading shows which mistakes come from characters that only look like those of YAML.
    let Some(plain) = lookalikes::replace_all(text) else { return checked };
    let others = check_text(&plain, file, outside).err().map_or(Vec::new(), |error| error.mistakes);
    Err(ConfigError::new(file, lookalikes::name_causes(text, &error.mistakes, &others)))
}

fn check_text(text: &str, file: &str, outside: &Outside<'_>) -> Result<Config, ConfigError> {
    let mut mistakes = Vec::new();
    match yaml::read(text, outside, &mut mistakes) {
        Ok(root) => {
            let directory = outside.directory.to_owned();
            let (file, is_offline) = (file.to_owned(), outside.unread.is_some());
            check_all(Document { root, directory, file, is_offline }, mistakes)
        }
        Err(mistake) => {
            mistakes.push(mistake);
            Err(ConfigError::new(file, mistakes))
        }
    }
}

/// Reads the tree of a configuration.
///
/// # Errors
///
/// As [`read`].
pub(super) fn check(document: Document) -> Result<Config, ConfigError> {
    check_all(document, Vec::new())
}

fn check_all(document: Document, mistakes: Vec<Mistake>) -> Result<Config, ConfigError> {
    let directory = document.directory.clone();
    let (clear_secrets, flaws, unheld) = (Vec::new(), Vec::new(), Vec::new());
    let is_offline = document.is_offline;
    let (has_others, missing) = (false, Vec::new());
    let mut reader = ConfigReader {
        mistakes,
        directory,
        is_offline,
        clear_secrets,
        flaws,
        unheld,
        has_others,
        missing,
    };
    match reader.config(&document) {
        Some(config) if reader.mistakes.is_empty() => Ok(config),
        _ => Err(ConfigError::new(&document.file, reader.mistakes)),
    }
}

impl ConfigReader {
    fn config(&mut self, document: &Document) -> Option<Config> {
        let root = Field { path: String::new(), node: &document.root };
        let mut root = self.section(&root, &ROOT)?;
        self.find_misplaced_quotas(&mut root);
        let listen = self.get(&root, "listen", (Ipv4Addr::LOCALHOST, 8080).into(), address);
        let admin = self.admin(&root);
        self.find_shared_address(&root, listen, admin.listen);
        let services = self.services(&root, [("listen", listen), ("admin", admin.listen)]);
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let on_or_off = [("on", true), ("off", false)];
        let drain_timeout = Duration::from_secs(30);
        let store = self.store(&root);
        let limits_from = self.limits_from(&root);
        self.has_others = root.get("limits_from").is_some();
        let mut limiters = self.limiters(&root, &store);
        let upstreams = self.upstreams(&root, &limiters);
        let paths = self.paths(&root);
        let mut routes = self.routes(&root, &limiters, &upstreams, &paths);
        let descriptors = self.descriptors(&root, &services, &limiters, &mut routes);
        self.find_named_decisions(&root, &services, &routes);
        turns::find_turns(&mut limiters, &routes);
        let (access_log, logs_user_agent) = self.access_log(&root);
        let mut config = Config {
            listen,
            admin,
            services,
            descriptors,
            workers: self.get(&root, "workers", cores, workers),
            access_log,
            logs_user_agent,
            log: self.log(&root),
            tracing: self.tracing(&root),
            drain_timeout: self.get(&root, "drain_timeout", drain_timeout, |text| {
                span(text, Duration::ZERO, MAX_TIMEOUT)
            }),
            watch: self.one_of(&root, "watch", &on_or_off).unwrap_or(true),
            shutdown_delay: self.get(&root, "shutdown_delay", Duration::ZERO, |text| {
                span(text, Duration::ZERO, MAX_TIMEOUT)
            }),
            tls: self.server_tls(&root),
            trusted_proxies: self.networks(&root),
            proxy_protocol: self.proxy_protocol(&root),
            client: self.client(&root),
            limits: self.limits(&root),
            paths: match routes.iter().any(|route| route.path.template().is_some()) {
                true => paths.with_dot_segments(),
                false => paths,
            },
            redact: self.redact(&root),
            resolver: self.resolver(&root),
            store,
            limiting: self.one_of(&root, "limiting", &on_or_off).unwrap_or(true),
            upstreams,
            limiters,
            limits_from,
            missing: std::mem::take(&mut self.missing),
            routes,
            document: Arc::new(document.clone().without_tokens()),
            clear_secrets: std::mem::take(&mut self.clear_secrets),
            flaws: std::mem::take(&mut self.flaws),
            unheld: std::mem::take(&mut self.unheld),
        };
        config.route_decisions();
        config.group_limiters();
        Some(config)
    }

    /// Refuses a route or a descriptor with the name under which decisions of programs are counted.
    fn find_named_decisions(
        &mut self,
        root: &ConfigSection<'_>,
        services: &Services,
        routes: &[Route],
    ) {
        let name = Service::Decisions.name();
        let is_taken = routes.iter().any(|route| route.name == name);
        if let (Some(field), true, true) =
            (root.get("services"), services.decisions.is_some(), is_taken)
        {
            let why = format!(
                "the name `{name}` of a route or descriptor is that of the decisions; give it another one"
            );
            self.note_at(&field, why);
        }
    }

    fn find_shared_address(
        &mut self,
        root: &ConfigSection<'_>,
        listen: SocketAddr,
        admin: SocketAddr,
    ) {
        if listen == admin && listen.port() != 0 {
            let field = root.get("admin").or(root.get("listen"));
            let place = field.map_or(root.place, |field| field.node.place);
            self.note(place, "admin", "the same address as `listen`; the admin side needs its own");
        }
    }

    fn store(&mut self, root: &ConfigSection<'_>) -> StoreConfig {
        let Some(field) = root.get("store") else { return StoreConfig::Memory };
        if let YamlValue::Scalar(scalar) = &field.node.value {
            return match scalar.text.as_str() {
                "memory" => StoreConfig::Memory,
                _ => self.redis(&field, None),
            };
        }
        let Some(section) = self.section(&field, &STORE) else { return StoreConfig::Memory };
        let Some(url) = section.get("url") else {
            self.note(section.place, "store.url", "is missing; or write `store: memory`");
            return StoreConfig::Memory;
        };
        self.redis(&url, Some(&section))
    }

    /// Reads `on_failure` of the store or of a limiter.
    fn on_failure(&mut self, section: &ConfigSection<'_>) -> Option<FailurePolicy> {
        self.one_of(section, "on_failure", FailurePolicy::CHOICES)
    }

    /// Reads `on_loss` of the store or of a limiter.
    fn on_loss(&mut self, section: &ConfigSection<'_>) -> Option<OnLoss> {
        self.one_of(section, "on_loss", OnLoss::CHOICES)
    }

    /// Reads a Redis store. Its URL may hold a password, so no message quotes it.
    fn redis(&mut self, url: &Field<'_>, section: Option<&ConfigSection<'_>>) -> StoreConfig {
        let (mut prefix, mut timeout) = ("paceway".to_owned(), Duration::from_millis(50));
        let (mut gateways, mut on_failure) = (1, FailurePolicy::Share);
        let (mut on_loss, mut uses_functions) = (OnLoss::Close, true);
        if let Some(section) = section {
            prefix = self.get(section, "prefix", prefix, key_prefix);
            timeout = self.get(section, "timeout", timeout, |text| {
                span(text, Duration::from_millis(1), Duration::from_secs(60))
            });
            gateways = self.get(section, "gateways", gateways, gateway_count);
            on_failure = self.on_failure(section).unwrap_or(on_failure);
            on_loss = self.on_loss(section).unwrap_or(on_loss);
            let functions = self.one_of(section, "functions", &[("auto", true), ("off", false)]);
            uses_functions = functions.unwrap_or(uses_functions);
        }
        let Some(scalar) = url.scalar() else {
            self.note_at(url, "must be a single value");
            return StoreConfig::Memory;
        };
        let tls = section.and_then(|section| section.get("tls"));
        match scalar.read(RedisUrl::parse) {
            Ok(mut url) => {
                if let Some(tls) = tls {
                    let tls = self.store_tls(&tls, &url);
                    url = url.with_tls(tls);
                }
                if !uses_functions {
                    url = url.without_functions();
                }
                StoreConfig::Redis { url, prefix, timeout, gateways, on_failure, on_loss }
            }
            Err(reason) => {
                let reason = foreign::add_hint(&scalar.written, reason);
                let reason = scalar.said(&url.path, &reason);
                self.note_at(url, format!("is not a store URL: {reason}"));
                StoreConfig::Memory
            }
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let port = port.parse::<u16>().ok();
        let all = |port| {
            format!(
                "names no IP; write `0.0.0.0:{port}` for all addresses of this machine, `127.0.0.1:{port}` for itself \
                 alone"
            )
        };
        match (host, port) {
            _ if text.parse::<Ipv6Addr>().is_ok() => {
                format!("names no port; write it as in `\"[{text}]:8080\"`")
            }
            ("" | "*", Some(port)) => all(port),
            ("localhost", Some(port)) => {
                format!("is no address, which has an IP in place of a name; write `127.0.0.1:{port}`")
            }
            ("::" | ":", Some(port)) => {
                format!("is no address; write IPv6 in brackets, and in quotes for YAML: `\"[::]:{port}\"`")
            }
            (_, None) if is_above_65535(text) => "has a port above 65535".into(),
            _ => match text.parse::<Ipv4Addr>() {
                Ok(ip) => format!("names no port; write it as in `{ip}:8080`"),
                Err(_) => "is no address; write IP:PORT, as in `127.0.0.1:8080`, or `\"[::]:8080\"` with its quotes"
                    .into(),
            },
        }
    })
}

fn is_above_65535(address: &str) -> bool {
    let port = address.rsplit_once(':').map_or(address, |(_, port)| port);
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_err()
}

fn gateway_count(text: &str) -> Result<i64, String> {
    i64::try_from(positive(text, 10_000)?).map_err(|_| "is too large".into())
}

fn workers(text: &str) -> Result<NonZeroUsize, String> {
    let workers = positive(text, 1024)?;
    usize::try_from(workers).ok().and_then(NonZeroUsize::new).ok_or_else(|| "is too large".into())
}

fn key_prefix(text: &str) -> Result<String, &'static str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) {
        return Err("must be 1 to 64 letters, digits and _ - . :");
    }
    Ok(text.to_owned())
}
