//! Reads the settings for clients: trusted proxies, time-outs, the size of requests, and the names that no log shows.

use crate::{
    config::{
        http::{ClientLimits, Limits},
        keys::{CLIENT, LIMITER, LIMITS, PATHS},
        reader::{ConfigReader, ConfigSection, Field, MAX_TIMEOUT, at_most, bytes, span},
        unit::{self, Bytes},
        yaml::YamlValue,
    },
    path::Paths,
};
use ipnet::{IpNet, Ipv4Net};
use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    time::Duration,
};

const MILLISECOND: Duration = Duration::from_millis(1);
const MAX_CONNECTIONS: u64 = 10_000_000;
const MAX_NAMES: usize = 100;
const MAX_SERVERS: usize = 8;
const DNS_PORT: u16 = 53;

/// The most memory for bodies that are kept for retries.
const MAX_RETRY_BODIES: usize = 1 << 36;

impl ConfigReader {
    /// Recognises quotas under `limits`, which belong under `limiters`. It notes one mistake, and the reading continues as if
    /// they were there.
    pub(super) fn find_misplaced_quotas(&mut self, root: &mut ConfigSection<'_>) {
        let Some(field) = root.get("limits").filter(|_| root.get("limiters").is_none()) else {
            return;
        };
        let YamlValue::Map(entries) = &field.node.value else { return };
        let is_quota = |value: &YamlValue| match value {
            YamlValue::Scalar(scalar) => unit::rate(&scalar.text).is_ok(),
            YamlValue::Map(entries) => entries.iter().any(|(key, _)| LIMITER.has(&key.name)),
            YamlValue::List(_) | YamlValue::Broken => false,
        };
        if entries.iter().any(|(_, node)| is_quota(&node.value)) {
            self.note_at(&field, "holds quotas, which belong under `limiters`; did you mean that?");
            root.meant.push(("limiters", field.node));
        }
    }

    pub(super) fn networks(&mut self, root: &ConfigSection<'_>) -> Vec<IpNet> {
        self.items(root, "trusted_proxies", usize::MAX, network)
    }

    /// Reads `proxy_protocol`. Without trusted proxies no client could connect, so that is a mistake.
    pub(super) fn proxy_protocol(&mut self, root: &ConfigSection<'_>) -> bool {
        let is_on = self.switch(root, "proxy_protocol");
        let is_empty = |field: Field<'_>| match &field.node.value {
            YamlValue::List(items) => items.is_empty(),
            _ => false,
        };
        if is_on
            && let Some(field) = root.get("proxy_protocol")
            && root.get("trusted_proxies").is_none_or(is_empty)
        {
            let reason = "is on, and no proxy may use it; name the proxies before the gateway, as in \
                          `trusted_proxies: [10.0.0.0/8]`";
            self.note_at(&field, reason);
        }
        is_on
    }

    pub(super) fn client(&mut self, root: &ConfigSection<'_>) -> ClientLimits {
        let mut client = ClientLimits::default();
        let Some(field) = root.get("client") else { return client };
        let Some(section) = self.section(&field, &CLIENT) else { return client };
        let limit = |text: &str| span(text, MILLISECOND, MAX_TIMEOUT);
        for (key, timeout) in [
            ("header_timeout", &mut client.header_timeout),
            ("idle_timeout", &mut client.idle_timeout),
            ("body_timeout", &mut client.body_timeout),
        ] {
            *timeout = self.get(&section, key, *timeout, limit);
        }
        let most = self.get(&section, "max_connections", 0, |text| at_most(text, MAX_CONNECTIONS));
        client.max_connections = usize::try_from(most).ok().and_then(NonZeroUsize::new);
        let key = "max_connections_per_address";
        let most = self.get(&section, key, 0, |text| at_most(text, MAX_CONNECTIONS));
        client.max_connections_per_address = usize::try_from(most).ok().and_then(NonZeroUsize::new);
        client
    }

    pub(super) fn limits(&mut self, root: &ConfigSection<'_>) -> Limits {
        let mut limits = Limits::default();
        // Quotas under `limits` are a mistake that is noted already.
        let quotas = root.meant.iter().any(|(meant, _)| *meant == "limiters");
        let Some(field) = root.get("limits").filter(|_| !quotas) else { return limits };
        let Some(section) = self.section(&field, &LIMITS) else { return limits };
        limits.header_bytes = self.get(&section, "header_bytes", limits.header_bytes, |text| {
            bytes(text, 1 << 10, 1 << 20)
        });
        limits.headers = self.get(&section, "headers", limits.headers, headers);
        limits.body = self.get(&section, "body", None, body);
        limits.retry_bodies = self.get(&section, "retry_bodies", limits.retry_bodies, |text| {
            bytes(text, 0, MAX_RETRY_BODIES)
        });
        // The request line is a part of what `header_bytes` bounds.
        let default = limits.uri.min(limits.header_bytes / 2);
        limits.uri = self.get(&section, "uri", default, |text| bytes(text, 64, 64_000));
        if limits.uri >= limits.header_bytes
            && let Some(field) = section.get("uri")
        {
            let most = Bytes::from(limits.header_bytes);
            let reason = format!("must be below `header_bytes`, which is {most} and counts it too");
            self.note_at(&field, reason);
        }
        limits
    }

    /// Reads `paths`: how the upstreams read paths, as far as the user knows.
    pub(super) fn paths(&mut self, root: &ConfigSection<'_>) -> Paths {
        let Some(field) = root.get("paths") else { return Paths::default() };
        let Some(section) = self.section(&field, &PATHS) else { return Paths::default() };
        let slashes = [("separator", true), ("data", false)];
        let separates = self.one_of(&section, "encoded_slash", &slashes);
        let folds = self.one_of(&section, "fold_case", &[("on", true), ("off", false)]);
        let strips = self.one_of(&section, "trailing_dots", &[("strip", true), ("keep", false)]);
        Paths::new(separates, folds, strips)
    }

    /// Reads the names under `redact`, in small letters, in which they are compared.
    pub(super) fn redact(&mut self, root: &ConfigSection<'_>) -> Vec<String> {
        self.items(root, "redact", MAX_NAMES, |text| {
            let good = |c: char| !c.is_control() && !c.is_whitespace() && !"&=,".contains(c);
            match (1..=128).contains(&text.len()) && text.chars().all(good) {
                true => Ok(text.to_ascii_lowercase()),
                false => Err("is no name of a query parameter or a header"),
            }
        })
    }

    pub(super) fn resolver(&mut self, root: &ConfigSection<'_>) -> Vec<SocketAddr> {
        self.items(root, "resolver", MAX_SERVERS, name_server)
    }

    /// Reads a list of at most `most` values, none of them twice.
    fn items<T: PartialEq, E: std::fmt::Display>(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        most: usize,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Vec<T> {
        let Some(field) = section.get(key) else { return Vec::new() };
        let items = self.list(&field).unwrap_or_default();
        if items.len() > most {
            self.note_at(&field, format!("must hold at most {most}"));
            return Vec::new();
        }
        let mut values = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let Some(value) = self.scalar(&item, &read) else { continue };
            match values.contains(&value) {
                true => self.note_at(&item, "named twice"),
                false => values.push(value),
            }
        }
        values
    }
}

fn headers(text: &str) -> Result<usize, String> {
    let number = crate::config::reader::positive(text, 1000)?;
    usize::try_from(number).map_err(|_| "is too large".into())
}

fn body(text: &str) -> Result<Option<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    match unit::size(text)? {
        0 => Err("would refuse every body; write `none` for any size".into()),
        size => Ok(Some(size)),
    }
}

/// Reads a DNS server: IP:PORT, or an IP alone for port 53.
fn name_server(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, DNS_PORT)),
        Err(_) => text.parse::<SocketAddr>(),
    };
    match address {
        Ok(address) if address.port() == 0 => {
            Err("names the port 0, on which no server listens".into())
        }
        Ok(address) => Ok(address),
        Err(_) => {
            Err("is no address; write IP or IP:PORT, as in 10.0.0.2 or \"[fd00::1]:53\"".into())
        }
    }
}

/// Reads a network. An address without bits is a network of one. An IPv4 network in IPv6 form (`::ffff:10.0.0.0/104`) becomes
/// one of IPv4, as the addresses of clients do.
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
            .ok_or_else(|| format!("is no network: write 0 to {most} bits after the `/`"))?,
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
