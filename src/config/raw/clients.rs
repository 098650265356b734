//! How clients are served: whose word is believed, their time-outs, the size of their requests, what no log shows.

use super::{CLIENT, LIMITER, LIMITS, MAX_TIMEOUT, PATHS};
use crate::{
    config::{
        ClientLimits, Limits,
        reader::{Field, Reader, Section, at_most, bytes, span},
        unit::{self, Bytes},
        yaml::Value,
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

impl Reader {
    /// Quotas under `limits` are meant for `limiters`, which is said once and read on with.
    pub(super) fn find_misplaced_quotas(&mut self, root: &mut Section<'_>) {
        let Some(field) = root.get("limits").filter(|_| root.get("limiters").is_none()) else {
            return;
        };
        let Value::Map(entries) = &field.node.value else { return };
        let is_quota = |value: &Value| match value {
            Value::Scalar(scalar) => unit::rate(&scalar.text).is_ok(),
            Value::Map(entries) => {
                entries.iter().any(|(key, _)| LIMITER.now.contains(&key.name.as_str()))
            }
            Value::List(_) | Value::Broken => false,
        };
        if entries.iter().any(|(_, node)| is_quota(&node.value)) {
            self.note_at(&field, "holds quotas, which stand under `limiters`; did you mean that?");
            root.meant.push(("limiters", field.node));
        }
    }

    pub(super) fn networks(&mut self, root: &Section<'_>) -> Vec<IpNet> {
        self.items(root, "trusted_proxies", usize::MAX, network)
    }

    /// Nobody could make a connection if nobody may speak it.
    pub(super) fn proxy_protocol(&mut self, root: &Section<'_>) -> bool {
        let is_on = self.switch(root, "proxy_protocol");
        let is_empty = |field: Field<'_>| match &field.node.value {
            Value::List(items) => items.is_empty(),
            _ => false,
        };
        if is_on
            && let Some(field) = root.get("proxy_protocol")
            && root.get("trusted_proxies").is_none_or(is_empty)
        {
            let reason = "is on, and nobody may speak it; name the proxies before the gateway, as in \
                          `trusted_proxies: [10.0.0.0/8]`";
            self.note_at(&field, reason);
        }
        is_on
    }

    pub(super) fn client(&mut self, root: &Section<'_>) -> ClientLimits {
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
        client
    }

    pub(super) fn limits(&mut self, root: &Section<'_>) -> Limits {
        let mut limits = Limits::default();
        // Said already: they are quotas.
        let quotas = root.meant.iter().any(|(meant, _)| *meant == "limiters");
        let Some(field) = root.get("limits").filter(|_| !quotas) else { return limits };
        let Some(section) = self.section(&field, &LIMITS) else { return limits };
        limits.header_bytes = self.get(&section, "header_bytes", limits.header_bytes, |text| {
            bytes(text, 1 << 10, 1 << 20)
        });
        limits.headers = self.get(&section, "headers", limits.headers, headers);
        limits.body = self.get(&section, "body", None, body);
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

    /// What the upstreams are known to make of a path.
    pub(super) fn paths(&mut self, root: &Section<'_>) -> Paths {
        let Some(field) = root.get("paths") else { return Paths::default() };
        let Some(section) = self.section(&field, &PATHS) else { return Paths::default() };
        let slashes = [("separator", true), ("data", false)];
        let separates = self.one_of(&section, "encoded_slash", &slashes);
        let folds = self.one_of(&section, "fold_case", &[("on", true), ("off", false)]);
        let strips = self.one_of(&section, "trailing_dots", &[("strip", true), ("keep", false)]);
        Paths::new(separates, folds, strips)
    }

    /// In lower case, as they are compared.
    pub(super) fn redact(&mut self, root: &Section<'_>) -> Vec<String> {
        self.items(root, "redact", MAX_NAMES, |text| {
            let good = |c: char| !c.is_control() && !c.is_whitespace() && !"&=,".contains(c);
            match (1..=128).contains(&text.len()) && text.chars().all(good) {
                true => Ok(text.to_ascii_lowercase()),
                false => Err("is no name of a query parameter or a header"),
            }
        })
    }

    pub(super) fn resolver(&mut self, root: &Section<'_>) -> Vec<SocketAddr> {
        self.items(root, "resolver", MAX_SERVERS, name_server)
    }

    /// A list of values, none twice.
    fn items<T: PartialEq, E: std::fmt::Display>(
        &mut self,
        section: &Section<'_>,
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

/// A bare address is a server at the port of DNS.
fn name_server(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, DNS_PORT)),
        Err(_) => text.parse::<SocketAddr>(),
    };
    match address {
        Ok(address) if address.port() == 0 => {
            Err("names the port 0, which nobody listens on".into())
        }
        Ok(address) => Ok(address),
        Err(_) => {
            Err("is no address; write IP or IP:PORT, as in 10.0.0.2 or \"[fd00::1]:53\"".into())
        }
    }
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
