//! Reads `routes`, and checks that no two of them match the same requests.

use super::{
    names::find,
    route_conflicts::{ReadRoute, add_head},
    route_paths::parameters,
    upstreams::refuse_compression,
};
use crate::{
    config::{
        keys::{Kind, ROUTE},
        limiter::{Charge, LimiterConfig, Mode},
        reader::{ConfigReader, ConfigSection, Field, join},
        settings::{Route, Upstream},
        unit::{self, Rate},
        value::Value,
        yaml::YamlValue,
    },
    path::Paths,
};
use http::Method;
use std::time::Duration;

const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"];
const MAX_PERCENT: u64 = 10_000;
/// The most costs of a route that are parts of the request, each of which can be 0. A route has a policy for each choice of
/// limiters that are left.
const MAX_ZEROES: usize = 6;

/// The value of `max_wait` as written.
#[derive(Clone, Copy)]
enum WaitBudget {
    Span(Duration),
    /// A percentage of one period of the route's tightest limiter.
    Percent(u64),
}

/// The limiters that a request is charged to, among all `limiters`.
pub(super) struct Charged<'a> {
    pub(super) charges: &'a [Charge],
    /// Whether more are charged, which are not there yet. They may have the rate that a percentage is of.
    pub(super) is_incomplete: bool,
    pub(super) limiters: &'a [LimiterConfig],
}

impl Charged<'_> {
    /// Whether one of the limiters has a rate and holds requests.
    fn is_paced(&self) -> bool {
        self.charges.iter().any(|charge| {
            let limiter = &self.limiters[charge.limiter];
            limiter.mode == Mode::Enforce && !limiter.rates.is_empty()
        })
    }
}

impl ConfigReader {
    pub(super) fn routes(
        &mut self,
        root: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
        upstreams: &[Upstream],
        paths: &Paths,
    ) -> Vec<Route> {
        let tells_quota = self.tells_quota(root).unwrap_or(false);
        let Some(field) = root.get("routes") else {
            let reason = "is missing, and without routes every request is answered 404; \
                          `- { suffix: \"*\" }` passes all";
            self.note(root.place, "routes", reason);
            return Vec::new();
        };
        if let YamlValue::Map(_) = field.node.value {
            let reason = "must be a list, each route after a `-`, as in \
                          `- { suffix: /search, limiters: [search] }`";
            self.note_at(&field, reason);
            return Vec::new();
        }
        let Some(items) = self.list(&field) else { return Vec::new() };
        if items.is_empty() {
            self.note_at(&field, "is empty; `- { suffix: \"*\" }` passes all");
        }
        let mut routes: Vec<ReadRoute<'_>> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let route = self.route(&item, limiters, upstreams, paths, tells_quota);
            let Some(route) = route else { continue };
            self.check_against(&routes, &route, &item, paths);
            routes.push(ReadRoute { route, field: item });
        }
        self.check_crossings(&routes);
        let mut routes: Vec<_> = routes.into_iter().map(|own| own.route).collect();
        add_head(&mut routes);
        routes
    }

    fn route(
        &mut self,
        field: &Field<'_>,
        limiters: &[LimiterConfig],
        upstreams: &[Upstream],
        paths: &Paths,
        tells_quota: bool,
    ) -> Option<Route> {
        let section = self.section(field, &ROUTE)?;
        let (written, rule) = self.path_rule(&section, paths);
        let name = self.read_by(&section, "name", route_name).unwrap_or(written);
        let methods = self.methods(&section);
        let host = self.read_by(&section, "host", host);
        let upstream = self.named_upstream(&section, upstreams);
        let (mut used, mut missing) = self.charges(&section, limiters);
        if let Some(rule) = &rule {
            self.check_parameters(&section, rule, &used, limiters);
        }
        if let Some(upstream) = upstream.map(|upstream| &upstreams[upstream]) {
            add_limiters_of(upstream, &mut used, &mut missing);
            self.find_keys_of_accounts(&section, &used, limiters, upstream);
        }
        let charged = Charged { charges: &used, is_incomplete: !missing.is_empty(), limiters };
        let max_wait = self.wait(&section, "max_wait", &charged).unwrap_or_default();
        let max_wait_cap = self.wait(&section, "max_wait_cap", &charged).unwrap_or(max_wait);
        if max_wait_cap < max_wait
            && let Some(field) = section.get("max_wait_cap")
        {
            self.note_at(&field, "is below max_wait; no request may wait longer than the cap");
        }
        self.note_unheld(&section, &name, &charged);
        let targets = upstream.map_or(&[][..], |upstream| &upstreams[upstream].targets);
        let mut headers = self.header_rules(&section, targets);
        if used.iter().any(|charge| charge.cost.reads_answer()) {
            refuse_compression(&mut headers.request);
        }
        self.check_zeroes(&section, &used);
        let captures = used.iter().any(|charge| parameters(charge, limiters).next().is_some());
        Some(Route {
            name,
            path: rule?,
            captures,
            methods,
            host,
            upstream: upstream?,
            limiters: used,
            key: None,
            missing,
            priority: self.priority(&section),
            max_wait,
            max_wait_cap,
            max_waiting: self.read_or_default(&section, "max_waiting"),
            headers,
            tells_quota: self.tells_quota(&section).unwrap_or(tells_quota),
            share: self.share(&section),
            revalidate: self.revalidate(&section, &upstreams[upstream?]),
            answers: self.read(&section, "answers").unwrap_or(upstreams[upstream?].answers),
        })
    }

    /// Notes a route that is paced, and does not say how long its requests wait.
    fn note_unheld(&mut self, section: &ConfigSection<'_>, name: &str, charged: &Charged<'_>) {
        let says_wait = ["max_wait", "max_wait_cap"].iter().any(|key| section.get(key).is_some());
        if !says_wait && charged.is_paced() {
            self.unheld.push(name.to_owned());
        }
    }

    /// Reads `upstream` of a route: the index of one, which only a file with several has to name.
    fn named_upstream(
        &mut self,
        section: &ConfigSection<'_>,
        upstreams: &[Upstream],
    ) -> Option<usize> {
        match section.get("upstream") {
            // The mistake is noted already that no upstream is defined.
            _ if upstreams.is_empty() => None,
            Some(field) => self.scalar(&field, |name| {
                find(name, "upstream", upstreams, |upstream| &upstream.name)
            }),
            None if upstreams.len() > 1 => {
                let names: Vec<_> = upstreams.iter().map(|u| u.name.as_str()).collect();
                let reason = format!("is missing; there is more than one: {}", names.join(", "));
                self.note(section.place, &join(&section.path, "upstream"), reason);
                None
            }
            None => Some(0),
        }
    }

    /// Notes a mistake if too many costs of a route can be 0.
    fn check_zeroes(&mut self, section: &ConfigSection<'_>, charges: &[Charge]) {
        let may_be_zero = |charge: &&Charge| charge.cost.may_be_zero();
        if charges.iter().filter(may_be_zero).count() > MAX_ZEROES
            && let Some(field) = section.get("limiters")
        {
            let cure = "a number makes one greater, as in `1 + {query.n}`";
            let reason = format!("has more than {MAX_ZEROES} costs that can be 0; {cure}");
            self.note_at(&field, &reason);
        }
    }

    /// Reads `ratelimit_headers` of a route or of the whole file: whether every answer has them.
    fn tells_quota(&mut self, section: &ConfigSection<'_>) -> Option<bool> {
        self.read(section, "ratelimit_headers").map(|answers: &str| answers == "all")
    }

    /// Reads a time to wait; `None` if it is missing, or after a mistake.
    pub(super) fn wait(
        &mut self,
        section: &ConfigSection<'_>,
        key: &str,
        charged: &Charged<'_>,
    ) -> Option<Duration> {
        let field = section.get(key)?;
        let kind = section.keys.kind_of(key);
        let percent = match self.scalar(&field, |text| wait(text, kind))? {
            WaitBudget::Span(span) => return Some(span),
            WaitBudget::Percent(percent) => percent,
        };
        let used = || charged.charges.iter().map(|charge| &charged.limiters[charge.limiter]);
        let Some(rate) = tightest(used()) else {
            // A limiter with a mistake has no rate either.
            if !charged.is_incomplete && used().all(|limiter| !limiter.algorithms.is_empty()) {
                let reason = "is a percentage of a limiter's period, and no limiter with a rate is \
                              enforced here; write a duration";
                self.note_at(&field, reason);
            }
            return None;
        };
        let Kind::Duration { most, .. } = kind else { return None };
        let micros = rate.period.as_micros() * u128::from(percent) / 100;
        Some(u64::try_from(micros).map_or(*most, Duration::from_micros).min(*most))
    }

    fn methods(&mut self, section: &ConfigSection<'_>) -> Vec<Method> {
        if let Some(field) = section.get("methods")
            && matches!(&field.node.value, YamlValue::List(items) if items.is_empty())
        {
            self.note_at(&field, "is empty; leave it out for all methods");
        }
        let read = |text: &str| {
            if METHODS.iter().any(|known| known.eq_ignore_ascii_case(text) && *known != text) {
                return Err(format!("must be written in capitals: `{}`", text.to_uppercase()));
            }
            Method::from_bytes(text.as_bytes()).map_err(|_| "is no method".to_owned())
        };
        self.read_list(section, "methods", |reader, item| reader.scalar(item, read))
    }
}

fn wait(text: &str, kind: &Kind) -> Result<WaitBudget, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return Duration::read(text, kind).map(WaitBudget::Span);
    };
    match unit::whole(percent.trim_end())? {
        percent @ 1..=MAX_PERCENT => Ok(WaitBudget::Percent(percent)),
        _ => Err(format!("must be 1% to {MAX_PERCENT}%")),
    }
}

/// Returns the rate with the fewest permits a second. Among equal rates, the one with the shortest period counts.
fn tightest<'a>(limiters: impl Iterator<Item = &'a LimiterConfig>) -> Option<Rate> {
    let enforced = limiters.filter(|limiter| limiter.mode == Mode::Enforce);
    let rates = enforced.flat_map(|limiter| limiter.rates.iter().copied());
    rates.min_by(|a, b| {
        let pace = |one: &Rate, other: &Rate| u128::from(one.count) * other.period.as_micros();
        pace(a, b).cmp(&pace(b, a)).then(a.period.cmp(&b.period))
    })
}

/// Adds the limiters of its upstream to those of a route.
fn add_limiters_of(upstream: &Upstream, used: &mut Vec<Charge>, missing: &mut Vec<String>) {
    for charge in &upstream.limiters {
        if used.iter().all(|own| own.limiter != charge.limiter) {
            used.push(charge.clone());
        }
    }
    for name in upstream.missing.iter() {
        if !missing.contains(name) {
            missing.push(name.clone());
        }
    }
}

pub(super) fn route_name(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > 128 || text.chars().any(char::is_control) {
        return Err("must be 1 to 128 characters without control characters");
    }
    Ok(text.to_owned())
}

fn host(text: &str) -> Result<String, &'static str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    let port =
        text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    if text.is_empty() || !text.chars().all(good) || port {
        return Err("is no host name; write it without scheme and port");
    }
    // A request has an IPv6 address in brackets.
    Ok(if text.contains(':') && !text.starts_with('[') {
        format!("[{}]", text.to_ascii_lowercase())
    } else {
        text.to_ascii_lowercase()
    })
}
