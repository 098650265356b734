//! Reads the settings for clients: trusted proxies, time-outs, the size of requests, and the names that no log shows.

use crate::{
    config::{
        http::{ClientLimits, Limits},
        keys::LIMITER,
        reader::{ConfigReader, ConfigSection, Field},
        unit::{self, Bytes},
        yaml::YamlValue,
    },
    path::Paths,
};
use ipnet::{IpNet, Ipv4Net};
use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
};

const DNS_PORT: u16 = 53;

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
            YamlValue::Map(entries) => entries.iter().any(|own| LIMITER.has(&own.key.name)),
            YamlValue::List(_) | YamlValue::Broken => false,
        };
        if entries.iter().any(|own| is_quota(&own.node.value)) {
            self.note_at(&field, "holds quotas, which belong under `limiters`; did you mean that?");
            root.meant.push(("limiters", field.node));
        }
    }

    pub(super) fn networks(&mut self, root: &ConfigSection<'_>) -> Vec<IpNet> {
        self.read_list(root, "trusted_proxies", |reader, item| reader.scalar(item, network))
    }

    /// Reads `proxy_protocol`. Without trusted proxies no client could connect, so that is a mistake.
    pub(super) fn proxy_protocol(&mut self, root: &ConfigSection<'_>) -> bool {
        let is_on = self.read_or_default(root, "proxy_protocol");
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
        let section = self.section_or_empty(root, "client");
        let mut most = |key| NonZeroUsize::new(self.read_or_default(&section, key));
        let max_connections = most("max_connections");
        let max_connections_per_address = most("max_connections_per_address");
        ClientLimits {
            header_timeout: self.read_or_default(&section, "header_timeout"),
            idle_timeout: self.read_or_default(&section, "idle_timeout"),
            body_timeout: self.read_or_default(&section, "body_timeout"),
            max_connections,
            max_connections_per_address,
        }
    }

    pub(super) fn limits(&mut self, root: &ConfigSection<'_>) -> Limits {
        // Quotas under `limits` are a mistake that is noted already.
        let has_quotas = root.meant.iter().any(|(meant, _)| *meant == "limiters");
        let section = if has_quotas {
            root.empty_at("limits")
        } else {
            self.section_or_empty(root, "limits")
        };
        self.limits_in(&section)
    }

    fn limits_in(&mut self, section: &ConfigSection<'_>) -> Limits {
        let header_bytes = self.read_or_default(section, "header_bytes");
        // The request line is a part of what `header_bytes` bounds.
        let uri = self.read(section, "uri").unwrap_or_else(|| {
            let most: usize = self.read_or_default(&ConfigSection::empty(section.keys), "uri");
            most.min(header_bytes / 2)
        });
        if uri >= header_bytes
            && let Some(field) = section.get("uri")
        {
            let most = Bytes::from(header_bytes);
            let reason = format!("must be below `header_bytes`, which is {most} and counts it too");
            self.note_at(&field, reason);
        }
        Limits {
            header_bytes,
            headers: self.read_or_default(section, "headers"),
            body: self.read_by_or_default(section, "body", body),
            uri,
            json_body: self.read_or_default(section, "json_body"),
            retry_bodies: self.read_or_default(section, "retry_bodies"),
        }
    }

    /// Reads `paths`: how the upstreams read paths, as far as the user knows.
    pub(super) fn paths(&mut self, root: &ConfigSection<'_>) -> Paths {
        let section = self.section_or_empty(root, "paths");
        let slash = self.read(&section, "encoded_slash");
        let folds = self.read(&section, "fold_case");
        let dots = self.read(&section, "trailing_dots");
        Paths::new(
            slash.map(|slash: &str| slash == "separator"),
            folds,
            dots.map(|dots: &str| dots == "strip"),
        )
    }

    /// Reads the names under `redact`, in small letters, in which they are compared.
    pub(super) fn redact(&mut self, root: &ConfigSection<'_>) -> Vec<String> {
        let name = |text: &str| {
            let good = |c: char| !c.is_control() && !c.is_whitespace() && !"&=,".contains(c);
            let is_name = (1..=128).contains(&text.len()) && text.chars().all(good);
            let reason = "is no name of a query parameter or a header";
            is_name.then(|| text.to_ascii_lowercase()).ok_or(reason)
        };
        self.read_list(root, "redact", |reader, item| reader.scalar(item, name))
    }

    pub(super) fn resolver(&mut self, root: &ConfigSection<'_>) -> Vec<SocketAddr> {
        self.read_list(root, "resolver", |reader, item| reader.scalar(item, name_server))
    }
}

#[cfg(test)]
impl Default for Limits {
    fn default() -> Self {
        let nothing = ConfigSection::empty(&crate::config::keys::LIMITS);
        ConfigReader::default().limits_in(&nothing)
    }
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
