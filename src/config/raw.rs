//! The file as written, checked against the contract: unknown keys are mistakes, all mistakes are found at
//! once, and each knows its place.

mod certificates;
mod clients;
mod headers;
mod http_keys;
mod keys;
mod limiters;
mod routes;
mod rules;
mod upstreams;

pub(super) use http_keys::{CERTIFICATE, CLIENT, EDITS, HEADERS, LIMITS, STORE_TLS, TLS, UPSTREAM};
pub(super) use keys::{CHARGE, LIMITER, ROOT, ROUTE, STORE};

use super::{
    AccessLog, Config, Mistake, OnFailure, Store,
    reader::{Field, Reader, Section, positive, span},
    yaml::{self, Node, Outside, Value},
};
use crate::store::redis::RedisUrl;
use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    thread,
    time::Duration,
};

const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Reads the text of a configuration.
pub(super) fn read(text: &str, outside: &Outside<'_>) -> Result<Config, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    let root = match yaml::read(text, outside, &mut mistakes) {
        Ok(root) => root,
        Err(mistake) => {
            mistakes.push(mistake);
            return Err(mistakes);
        }
    };
    let directory = outside.directory.to_owned();
    let mut reader = Reader { mistakes, directory, clear_secrets: Vec::new() };
    match reader.config(&root) {
        Some(config) if reader.mistakes.is_empty() => Ok(config),
        _ => Err(reader.mistakes),
    }
}

impl Reader {
    fn config(&mut self, root: &Node) -> Option<Config> {
        let mut root = self.section(&Field { path: String::new(), node: root }, &ROOT)?;
        self.find_misplaced_quotas(&mut root);
        let (listen, admin) = self.addresses(&root);
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let logs = [("off", AccessLog::Off), ("text", AccessLog::Text), ("json", AccessLog::Json)];
        let drain_timeout = Duration::from_secs(30);
        let store = self.store(&root);
        let limiters = self.limiters(&root, &store);
        let upstreams = self.upstreams(&root, &limiters);
        let routes = self.routes(&root, &limiters, &upstreams);
        let mut config = Config {
            listen,
            admin,
            workers: self.get(&root, "workers", cores, workers),
            access_log: self.one_of(&root, "access_log", &logs),
            drain_timeout: self.get(&root, "drain_timeout", drain_timeout, |text| {
                span(text, Duration::ZERO, MAX_TIMEOUT)
            }),
            tls: self.server_tls(&root),
            trusted_proxies: self.networks(&root),
            proxy_protocol: self.proxy_protocol(&root),
            client: self.client(&root),
            limits: self.limits(&root),
            redact: self.redact(&root),
            resolver: self.resolver(&root),
            store,
            limiting: self
                .one_of(&root, "limiting", &[("on", true), ("off", false)])
                .unwrap_or(true),
            upstreams,
            limiters,
            routes,
            clear_secrets: std::mem::take(&mut self.clear_secrets),
        };
        group(&mut config);
        Some(config)
    }

    fn addresses(&mut self, root: &Section<'_>) -> (SocketAddr, SocketAddr) {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listen = self.get(root, "listen", local(8080), address);
        let admin = self.get(root, "admin", local(9090), address);
        if listen == admin && listen.port() != 0 {
            let field = root.get("admin").or(root.get("listen"));
            let place = field.map_or(root.place, |field| field.node.place);
            self.note(place, "admin", "the same address as `listen`; the admin side needs its own");
        }
        (listen, admin)
    }

    fn store(&mut self, root: &Section<'_>) -> Store {
        let Some(field) = root.get("store") else { return Store::Memory };
        if let Value::Scalar(scalar) = &field.node.value {
            return match scalar.text.as_str() {
                "memory" => Store::Memory,
                _ => self.redis(&field, None),
            };
        }
        let Some(section) = self.section(&field, &STORE) else { return Store::Memory };
        let Some(url) = section.get("url") else {
            self.note(section.place, "store.url", "is missing; or write `store: memory`");
            return Store::Memory;
        };
        self.redis(&url, Some(&section))
    }

    /// Of the store, or of a limiter.
    fn on_failure(&mut self, section: &Section<'_>) -> Option<OnFailure> {
        self.one_of(section, "on_failure", &OnFailure::ALL.map(|all| (all.name(), all)))
    }

    /// The URL may hold a password, so no error quotes it.
    fn redis(&mut self, url: &Field<'_>, section: Option<&Section<'_>>) -> Store {
        let (mut prefix, mut timeout) = ("paceway".to_owned(), Duration::from_millis(50));
        let (mut gateways, mut on_failure) = (1, OnFailure::Share);
        if let Some(section) = section {
            prefix = self.get(section, "prefix", prefix, key_prefix);
            timeout = self.get(section, "timeout", timeout, |text| {
                span(text, Duration::from_millis(1), Duration::from_secs(60))
            });
            gateways = self.get(section, "gateways", gateways, gateway_count);
            on_failure = self.on_failure(section).unwrap_or(on_failure);
        }
        let Some(scalar) = url.scalar() else {
            self.note_at(url, "must be a single value");
            return Store::Memory;
        };
        let tls = section.and_then(|section| section.get("tls"));
        match RedisUrl::parse(&scalar.text) {
            Ok(url) => match tls {
                Some(tls) => {
                    let tls = self.store_tls(&tls, url.is_tls());
                    let url = url.with_tls(tls);
                    Store::Redis { url, prefix, timeout, gateways, on_failure }
                }
                None => Store::Redis { url, prefix, timeout, gateways, on_failure },
            },
            Err(reason) => {
                let reason = scalar.said(&reason);
                self.note_at(url, format!("is not a store URL: {reason}"));
                Store::Memory
            }
        }
    }
}

/// Names the groups of limiters that some route uses together after their first name in the alphabet; a
/// keyed limiter that is alone in its group spreads.
fn group(config: &mut Config) {
    let mut leader: Vec<usize> = (0..config.limiters.len()).collect();
    for route in &config.routes {
        let Some(first) = route.limiters.first() else { continue };
        for charge in &route.limiters {
            let (a, b) = (leader[first.limiter], leader[charge.limiter]);
            leader.iter_mut().filter(|l| **l == b).for_each(|l| *l = a);
        }
    }
    for (i, own) in leader.iter().enumerate() {
        let members = || leader.iter().zip(&config.limiters).filter(|(l, _)| *l == own);
        let name = members().map(|(_, limiter)| limiter.name.as_str()).min();
        let name = name.unwrap_or_default().to_owned();
        let alone = members().count() == 1;
        let limiter = &mut config.limiters[i];
        limiter.group = name;
        limiter.spread = alone && limiter.key.is_some();
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "is no address; write IP:PORT, as in 127.0.0.1:8080 or [::]:8080")
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
