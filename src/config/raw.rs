//! Makes a configuration from the tree of a file. Unknown keys are mistakes, all mistakes are found at once, and each has its
//! line and column.

mod accounts;
mod admin;
mod certificates;
mod clients;
mod descriptors;
mod floors;
mod forward;
mod headers;
mod key_rates;
mod limiters;
mod rows_from;
mod names;
mod observability;
mod rates;
mod reads;
mod route_conflicts;
mod route_paths;
mod routes;
mod rule_keys;
mod rules;
mod services;
mod throttle;
mod turns;
mod upstreams;

pub(super) use self::rules::Rule;
use self::services::TakenAddress;
use super::{
    document::Document,
    foreign,
    keys::ROOT,
    lookalikes,
    mistake::{ConfigError, Mistake},
    reader::{ConfigReader, ConfigSection, Field},
    services::{Service, Services},
    settings::{Config, Route, StoreConfig},
    yaml::{self, Outside, YamlValue},
};
use crate::store::redis::RedisUrl;
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, thread};

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
    let is_offline = document.is_offline;
    let mut reader = ConfigReader { mistakes, directory, is_offline, ..ConfigReader::default() };
    match reader.config(&document) {
        Some(mut config) if reader.mistakes.is_empty() => {
            config.route_decisions();
            config.group_limiters();
            Ok(config)
        }
        _ => Err(ConfigError::new(&document.file, reader.mistakes)),
    }
}

impl ConfigReader {
    fn config(&mut self, document: &Document) -> Option<Config> {
        let root = Field { path: String::new(), node: &document.root };
        let mut root = self.section(&root, &ROOT)?;
        self.find_misplaced_quotas(&mut root);
        let listen = self.read_or_default(&root, "listen");
        let admin = self.admin(&root);
        self.find_shared_address(&root, listen, admin.listen);
        let taken = [("listen", listen), ("admin", admin.listen)];
        let taken = taken.map(|(key, address)| TakenAddress { key, address });
        let services = self.services(&root, taken);
        let forward = self.forward(&root, &taken, &services);
        let store = self.store(&root);
        let limits_from = self.limits_from(&root);
        self.has_others = root.get("limits_from").is_some();
        let mut limiters = self.limiters(&root, &store);
        let mut upstreams = self.upstreams(&root, &limiters);
        let paths = self.paths(&root);
        let mut routes = self.routes(&root, &limiters, &upstreams, &paths);
        let descriptors = self.descriptors(&root, &services, &limiters, &mut routes);
        self.find_named_decisions(&root, &services, &routes);
        turns::find_turns(&mut limiters, &routes);
        accounts::add_upstreams(&mut upstreams);
        let (access_log, logs_user_agent) = self.access_log(&root);
        let has_templates = routes.iter().any(|route| route.path.template().is_some());
        Some(Config {
            listen,
            admin,
            services,
            forward,
            descriptors,
            workers: self.workers(&root),
            access_log,
            logs_user_agent,
            log: self.log(&root),
            tracing: self.tracing(&root),
            drain_timeout: self.read_or_default(&root, "drain_timeout"),
            watch: self.read_or_default(&root, "watch"),
            shutdown_delay: self.read_or_default(&root, "shutdown_delay"),
            tls: self.server_tls(&root),
            trusted_proxies: self.networks(&root),
            proxy_protocol: self.proxy_protocol(&root),
            client: self.client(&root),
            limits: self.limits(&root),
            paths: if has_templates { paths.with_dot_segments() } else { paths },
            redact: self.redact(&root),
            resolver: self.resolver(&root),
            store,
            limiting: self.read_or_default(&root, "limiting"),
            upstreams,
            limiters,
            limits_from,
            missing: std::mem::take(&mut self.missing),
            routes,
            document: Arc::new(document.clone().without_tokens()),
            clear_secrets: std::mem::take(&mut self.clear_secrets),
            flaws: std::mem::take(&mut self.flaws),
            unheld: std::mem::take(&mut self.unheld),
        })
    }

    /// Reads `workers`: one for each core if it is missing.
    fn workers(&mut self, root: &ConfigSection<'_>) -> NonZeroUsize {
        let written = self.read(root, "workers").and_then(NonZeroUsize::new);
        let cores = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        written.unwrap_or_else(cores)
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
                _ => self.redis(&field, &root.empty_at("store")),
            };
        }
        let Some(section) = self.section_at(root, "store") else { return StoreConfig::Memory };
        let Some(url) = section.get("url") else {
            self.note(section.place, "store.url", "is missing; or write `store: memory`");
            return StoreConfig::Memory;
        };
        self.redis(&url, &section)
    }

    /// Reads a Redis store. Its URL may hold a password, so no message quotes it.
    fn redis(&mut self, url: &Field<'_>, section: &ConfigSection<'_>) -> StoreConfig {
        let prefix = self.read_by_or_default(section, "prefix", key_prefix);
        let timeout = self.read_or_default(section, "timeout");
        let gateways = self.read_or_default(section, "gateways");
        let on_failure = self.read_or_default(section, "on_failure");
        let on_loss = self.read_or_default(section, "on_loss");
        let functions: &str = self.read_or_default(section, "functions");
        let Some(scalar) = url.scalar() else {
            self.note_at(url, "must be a single value");
            return StoreConfig::Memory;
        };
        match scalar.read(RedisUrl::parse) {
            Ok(mut url) => {
                if section.get("tls").is_some() {
                    let tls = self.store_tls(section, &url);
                    url = url.with_tls(tls);
                }
                if functions == "off" {
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

fn key_prefix(text: &str) -> Result<String, &'static str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) {
        return Err("must be 1 to 64 letters, digits and _ - . :");
    }
    Ok(text.to_owned())
}
