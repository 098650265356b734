//! Reads `upstream` and `upstreams`, and the limiters that upstreams and routes name.

use super::names::LimiterName;
use crate::{
    algorithm::Rule,
    config::{
        keys::{CHARGE, RESERVED_COST, UPSTREAM},
        limiter::{Charge, LimiterConfig},
        reader::{ConfigReader, ConfigSection, Field, join},
        settings::Upstream,
        unit,
        yaml::{self, YamlEntry, YamlNode, YamlValue},
    },
    key::{Cost, Reserve, ReservedCost, Sum, TrueCost, fixed_cost},
    throttle::Condition,
    upstream::{HealthCheck, Target, Timeouts, Via, headers::Edits},
};
use http::{HeaderValue, header::ACCEPT_ENCODING, uri::PathAndQuery};
use std::sync::Arc;

impl ConfigReader {
    pub(super) fn upstreams(
        &mut self,
        root: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
    ) -> Vec<Upstream> {
        let (short, long) = (root.get("upstream"), root.get("upstreams"));
        match (short, long) {
            (Some(short), None) => {
                if let YamlValue::List(_) | YamlValue::Map(_) = short.node.value {
                    let reason = "must be a URL; more than that is written `upstreams: { NAME: { url: ... } }`";
                    self.note_at(&short, reason);
                    return Vec::new();
                }
                let target = self.scalar(&short, Target::parse).map(|target| vec![target]);
                let nothing = ConfigSection::empty(&UPSTREAM);
                let read = |targets| self.upstream_of("default", targets, &nothing, limiters);
                target.map(read).into_iter().collect()
            }
            (None, Some(long)) => {
                if let YamlValue::List(_) | YamlValue::Scalar(_) = long.node.value {
                    let reason = "must be a map of `NAME: URL` lines, as in `upstreams: { default: https://api.example }`; \
                                  more than a URL is `NAME: { url: ... }`";
                    self.note_at(&long, reason);
                }
                let YamlValue::Map(_) = long.node.value else { return Vec::new() };
                let Some(section) = self.map(&long) else { return Vec::new() };
                if section.entries.is_empty() {
                    self.note_at(&long, "names no upstream");
                }
                let named = section.entries.iter();
                named
                    .map(|own| self.upstream(&section.path, &own.key, &own.node, limiters))
                    .collect()
            }
            (Some(_), Some(long)) => {
                let reason = "cannot be combined with `upstream`, its short form; keep one of them";
                self.note_at(&long, reason);
                Vec::new()
            }
            (None, None) => {
                let reason = "is missing: where requests go, as in `upstream: https://api.example`";
                self.note(root.place, "upstream", reason);
                Vec::new()
            }
        }
    }

    fn upstream(
        &mut self,
        path: &str,
        key: &yaml::Key,
        node: &YamlNode,
        limiters: &[LimiterConfig],
    ) -> Upstream {
        let field = Field { path: join(path, &key.name), node };
        self.name(&field.path, key);
        let mut section = None;
        let targets = if let YamlValue::Scalar(_) | YamlValue::Broken = node.value {
            self.scalar(&field, Target::parse).into_iter().collect()
        } else {
            section = self.section(&field, &UPSTREAM);
            section.as_ref().map_or(Vec::new(), |section| self.targets(section))
        };
        let section = section.unwrap_or_else(|| ConfigSection::empty(&UPSTREAM));
        self.upstream_of(&key.name, targets, &section, limiters)
    }

    /// Reads all of an upstream but its addresses. After a mistake it has no `targets`.
    fn upstream_of(
        &mut self,
        name: &str,
        targets: Vec<Target>,
        section: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
    ) -> Upstream {
        let (limiters_of_all, missing) = self.charges(section, limiters);
        let mut upstream = Upstream {
            name: name.to_owned(),
            tls: self.client_tls(section, &targets),
            timeouts: Timeouts {
                connect: self.read_or_default(section, "connect_timeout"),
                response: self.read_or_default(section, "response_timeout"),
                idle: self.read_or_default(section, "idle_timeout"),
            },
            pool_size: self.read_or_default(section, "pool_size"),
            http2: self.read_or_default(section, "http2"),
            health: self.health(section),
            via: self.via(section),
            preserve_host: self.read_or_default(section, "preserve_host"),
            forwarded: self.read_or_default(section, "forwarded"),
            headers: self.header_rules(section, &targets),
            limiters: limiters_of_all,
            missing,
            throttle: self.throttle(section, limiters),
            accounts: self.accounts(section),
            revalidate: self.kept_memory(section),
            answers: self.read_or_default(section, "answers"),
            targets: if targets.is_empty() { vec![Target::default()] } else { targets },
        };
        let parks = upstream.accounts.iter().flat_map(|accounts| &accounts.park.when);
        if upstream.throttle.rules.when.iter().chain(parks).any(Condition::reads_body) {
            refuse_compression(&mut upstream.headers.request);
        }
        upstream
    }

    /// Reads `via`. The URL may hold a password, so no message quotes it.
    fn via(&mut self, section: &ConfigSection<'_>) -> Option<Via> {
        let field = section.get("via")?;
        let Some(scalar) = field.scalar() else {
            self.note_at(&field, "must be a single value, as in `via: http://proxy.corp:3128`");
            return None;
        };
        match scalar.read(Via::parse) {
            Ok(via) => {
                if via.has_credentials() && !scalar.is_from_outside() {
                    self.clear_secrets.push(field.path);
                }
                Some(via)
            }
            Err(reason) => {
                let reason = scalar.said(&field.path, &reason);
                self.note_at(&field, format!("is not the URL of a proxy: {reason}"));
                None
            }
        }
    }

    /// Reads `health`.
    fn health(&mut self, section: &ConfigSection<'_>) -> Option<HealthCheck> {
        let section = self.section_at(section, "health")?;
        let path = self.require_by(&section, "path", ", as in `path: /healthz`", |text| {
            let path = text.parse::<PathAndQuery>().ok().filter(|_| text.starts_with('/'));
            path.ok_or("is no path, as in /healthz")
        });
        let every = self.read_or_default(&section, "every");
        let healthy = self.read_or_default(&section, "healthy");
        let unhealthy = self.read_or_default(&section, "unhealthy");
        Some(HealthCheck { path: path?, every, healthy, unhealthy })
    }

    /// Reads `url` or `urls`. Returns an empty list after a mistake.
    fn targets(&mut self, section: &ConfigSection<'_>) -> Vec<Target> {
        let (one, several) = (section.get("url"), section.get("urls"));
        match (one, several) {
            (Some(url), None) => {
                if let YamlValue::List(_) = url.node.value {
                    self.note_at(&url, "must be a single value; a list is written `urls`");
                    return Vec::new();
                }
                self.scalar(&url, Target::parse).into_iter().collect()
            }
            (None, Some(urls)) => self.addresses_of(&urls),
            (Some(_), Some(urls)) => {
                self.note_at(&urls, "cannot be combined with `url`; keep one of them");
                Vec::new()
            }
            (None, None) => {
                self.required(section, "url", "");
                Vec::new()
            }
        }
    }

    /// Reads the addresses of one API. They may differ in host and port, and not in scheme or base path.
    fn addresses_of(&mut self, field: &Field<'_>) -> Vec<Target> {
        let Some(items) = self.list(field) else { return Vec::new() };
        if let Some([least, most]) = UPSTREAM.bounds_without("urls", items.len()) {
            self.note_at(field, format!("must hold {least} to {most} URLs"));
        }
        let mut targets: Vec<Target> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let Some(target) = self.scalar(&item, Target::parse) else { continue };
            let first = targets.first().unwrap_or(&target);
            if first.is_https() != target.is_https() {
                self.note_at(
                    &item,
                    "has another scheme than the first; all are http:// or all https://",
                );
            } else if first.base != target.base {
                self.note_at(
                    &item,
                    "has another base path than the first; they are addresses of one API",
                );
            } else if targets.iter().any(|other| address(other) == address(&target)) {
                self.note_at(&item, "named twice");
            } else {
                targets.push(target);
            }
        }
        targets
    }

    /// Reads the limiters that a section names, each of which may occur once. The second list has the names that only
    /// `limits_from` can add.
    pub(super) fn charges(
        &mut self,
        section: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
    ) -> (Vec<Charge>, Vec<String>) {
        let (mut charges, mut missing): (Vec<Charge>, Vec<String>) = Default::default();
        let Some(field) = section.get("limiters") else { return (charges, missing) };
        if let YamlValue::Map(_) = field.node.value {
            self.note_at(&field, "must be a list, as in `[a, { limiter: b, cost: 5 }]`");
            return (charges, missing);
        }
        let Some(items) = self.list(&field) else { return (charges, missing) };
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let Some((named, cost)) = self.charge(&item, limiters) else { continue };
            let is_second = match &named {
                LimiterName::Known(limiter) => charges.iter().any(|own| own.limiter == *limiter),
                LimiterName::Missing(name) => missing.contains(name),
            };
            if is_second {
                self.note_at(&item, "named twice; a request is charged once per limiter");
                continue;
            }
            match named {
                LimiterName::Known(limiter) => charges.push(Charge { limiter, cost }),
                LimiterName::Missing(name) => missing.push(name),
            }
        }
        (charges, missing)
    }

    /// Reads an entry under `limiters` of a route or upstream: a name, or a map with a cost.
    fn charge(
        &mut self,
        item: &Field<'_>,
        limiters: &[LimiterConfig],
    ) -> Option<(LimiterName, Cost)> {
        let is_no_rate = |name: &str| {
            let reason = "is a rate; write it under `limiters:` at the top, as in `NAME: 5/s`, and its name here";
            unit::rate(name).map_or(Ok(()), |_| Err(reason.to_owned()))
        };
        let YamlValue::Map(entries) = &item.node.value else {
            return Some((self.limiter_named(item, limiters, is_no_rate)?, Cost::ONE));
        };
        if let [YamlEntry { key, node }] = &**entries
            && limiters.iter().any(|limiter| limiter.name == key.name)
            && !CHARGE.has(&key.name)
        {
            let cost = match &node.value {
                YamlValue::Scalar(scalar) if scalar.written.parse::<u32>().is_ok() => {
                    &scalar.written
                }
                _ => "5",
            };
            let reason = format!("a cost is written `{{ limiter: {}, cost: {cost} }}`", key.name);
            self.note_at(item, reason);
            return None;
        }
        let section = self.section(item, &CHARGE)?;
        let cost = section.get("cost").map(|field| (self.cost(&field), field));
        let name =
            self.required(&section, "limiter", ": the name of the limiter that is charged")?;
        let found = self.limiter_named(&name, limiters, is_no_rate)?;
        let Some((cost, field)) = cost else { return Some((found, Cost::ONE)) };
        let cost = cost?;
        if let LimiterName::Known(found) = found
            && let Some(reason) = never(&cost, &limiters[found])
        {
            self.note_at(&field, reason);
        }
        Some((found, cost))
    }
}

impl ConfigReader {
    /// Reads a cost: a sum of numbers and parts of a request, or a map of what is reserved and how it is settled.
    fn cost(&mut self, field: &Field<'_>) -> Option<Cost> {
        // `{header.x-cost}` without quotes is a map, too.
        let is_reserved = match &field.node.value {
            YamlValue::Map(entries) => {
                !matches!(&**entries, [YamlEntry { key, node }] if node.is_null() && !RESERVED_COST.has(&key.name))
            }
            _ => false,
        };
        if !is_reserved {
            return self.scalar(field, Cost::parse);
        }
        let section = self.section(field, &RESERVED_COST)?;
        let what = ": the permits that are reserved until the answer says the cost";
        let reserve = self.required(&section, "reserve", what);
        let reserve = reserve.and_then(|field| self.scalar(&field, reserve_of));
        let default = self.read_by(&section, "default", fixed_cost);
        let settle = self.read_by(&section, "settle", TrueCost::parse_answer).map(Arc::new);
        if reserve == Some(Reserve::Learned) && section.get("settle").is_none() {
            self.note_at(
                field,
                "needs `settle`: the reserve is learned from the costs that answers say",
            );
        }
        Some(Cost::Reserved(Box::new(ReservedCost { reserve: reserve?, default, settle })))
    }
}

fn reserve_of(text: &str) -> Result<Reserve, String> {
    if text == "learned" {
        Ok(Reserve::Learned)
    } else {
        Sum::parse_request(text).map(Reserve::Sum)
    }
}

/// Returns the host, in small letters, and the port of an upstream.
fn address(target: &Target) -> (String, u16) {
    let default = if target.is_https() { 443 } else { 80 };
    let host = target.origin.host().unwrap_or_default().to_ascii_lowercase();
    (host, target.origin.port_u16().unwrap_or(default))
}

/// Asks the upstream for answers that are not compressed, because a condition on a body reads it as it comes. Rules of the
/// user's own for `Accept-Encoding` stay.
pub(super) fn refuse_compression(request: &mut Edits) {
    let named = request.set.iter().chain(&request.add).map(|(name, _)| name);
    if !named.chain(&request.remove).any(|name| name == ACCEPT_ENCODING) {
        request.set.push((ACCEPT_ENCODING, HeaderValue::from_static("identity")));
    }
}

/// Returns the reason why a limiter can never grant a cost.
fn never(cost: &Cost, limiter: &LimiterConfig) -> Option<String> {
    if let [Rule::Permits(_)] = &*limiter.algorithms {
        let reason = "a concurrency limiter counts requests, each as one; leave the cost out";
        return (*cost != Cost::ONE).then(|| reason.into());
    }
    let most = limiter.least_capacity();
    let least = cost.least();
    (least > most).then(|| {
        let or_more = if cost.fixed().is_some() { "" } else { "at least " };
        let whom = if limiter.capacity() > most { " to some of its keys" } else { "" };
        format!(
            "a cost of {or_more}{least} is more than `{}` can ever give at once{whom}, which is {most}",
            limiter.name
        )
    })
}
