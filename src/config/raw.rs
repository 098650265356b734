//! The file as written, checked against the contract: unknown keys are mistakes, all mistakes are found at
//! once, and each knows its place.

mod keys;
mod limiters;
mod routes;
mod rules;
mod upstreams;

pub(super) use keys::{CHARGE, LIMITER, ROOT, ROUTE, STORE, UPSTREAM};

use super::{
    AccessLog, Client, Config, Limits, Mistake, Store,
    reader::{Field, Reader, Section, positive, span},
    unit,
    yaml::{self, Node, Outside, Value},
};
use crate::store::redis::RedisUrl;
use ipnet::{IpNet, Ipv4Net};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
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
    let mut reader = Reader { mistakes };
    match reader.config(&root) {
        Some(config) if reader.mistakes.is_empty() => Ok(config),
        _ => Err(reader.mistakes),
    }
}

impl Reader {
    fn config(&mut self, root: &Node) -> Option<Config> {
        let root = self.section(&Field { path: String::new(), node: root }, &ROOT)?;
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listen = self.get(&root, "listen", local(8080), address);
        let admin = self.get(&root, "admin", local(9090), address);
        if listen == admin && listen.port() != 0 {
            let field = root.get("admin").or(root.get("listen"));
            let place = field.map_or(root.place, |field| field.node.place);
            self.note(place, "admin", "the same address as `listen`; the admin side needs its own");
        }
        let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let logs = [("off", AccessLog::Off), ("text", AccessLog::Text), ("json", AccessLog::Json)];
        let drain_timeout = Duration::from_secs(30);
        let limiters = self.limiters(&root);
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
            tls: None,
            trusted_proxies: self.networks(&root),
            proxy_protocol: false,
            client: Client::default(),
            limits: Limits::default(),
            redact: Vec::new(),
            store: self.store(&root),
            limiting: self
                .one_of(&root, "limiting", &[("on", true), ("off", false)])
                .unwrap_or(true),
            upstreams,
            limiters,
            routes,
        };
        group(&mut config);
        Some(config)
    }

    fn networks(&mut self, root: &Section<'_>) -> Vec<IpNet> {
        let Some(field) = root.get("trusted_proxies") else { return Vec::new() };
        let items = self.list(&field).unwrap_or_default().iter().enumerate();
        items.filter_map(|(i, node)| self.scalar(&field.item(i, node), network)).collect()
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

    /// The URL may hold a password, so no error quotes it.
    fn redis(&mut self, url: &Field<'_>, section: Option<&Section<'_>>) -> Store {
        let (mut prefix, mut timeout) = ("paceway".to_owned(), Duration::from_millis(50));
        if let Some(section) = section {
            prefix = self.get(section, "prefix", prefix, key_prefix);
            timeout = self.get(section, "timeout", timeout, |text| {
                span(text, Duration::from_millis(1), Duration::from_secs(60))
            });
        }
        let Some(scalar) = url.scalar() else {
            self.note_at(url, "must be a single value");
            return Store::Memory;
        };
        match RedisUrl::parse(&scalar.text) {
            Ok(url) => Store::Redis { url, prefix, timeout },
            Err(reason) => {
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

/// A bare address is a network of its own; an IPv4 network in IPv6 form is meant as IPv4, as addresses are.
fn network(text: &str) -> Result<IpNet, String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let wanted = "is no network; write ADDRESS/BITS, as in 10.0.0.0/8 or fd00::/8, or an address";
    let address: IpAddr = address.parse().map_err(|_| wanted)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = match bits {
        None => most,
        Some(bits) => unit::whole(bits)
            .ok()
            .and_then(|bits| u8::try_from(bits).ok())
            .filter(|bits| *bits <= most)
            .ok_or_else(|| format!("is no network: 0 to {most} bits may stand behind the `/`"))?,
    };
    let net = IpNet::new(address, bits).map_err(|_| wanted)?;
    if net.trunc() != net {
        return Err(format!(
            "has more address than its {bits} bits; did you mean `{}`?",
            net.trunc()
        ));
    }
    let mapped = match address.to_canonical() {
        IpAddr::V4(v4) if bits >= 96 && address.is_ipv6() => Ipv4Net::new(v4, bits - 96).ok(),
        _ => None,
    };
    Ok(mapped.map_or(net, IpNet::V4))
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
