//! Decides what the gateway would do with a request, by the gateway's own functions, and writes it as text or as JSON.

use super::{
    TypedRequest,
    accounts::{self, ExplainedAccount},
    header_changes::changes,
    limiters::ExplainedLimiter,
    reads, throttle,
};
use crate::{
    algorithm::fair::Priority,
    answer::Failure,
    config::{Account, Charge, Config, Mode, Route, Upstream},
    json::JsonValues,
    key::{self, BodyParts, Parts},
    path::{PathRule, PathTemplate, Paths, Relation, Suffix},
    proxy::json_body,
    route::{Table, host_of},
    upstream::{Target, headers::remove_nominated},
};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header::HOST};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

/// The decision of the gateway about one request, with its reasons.
#[derive(Debug, Default, Serialize)]
pub(super) struct Explanation {
    pub(super) forwarded: bool,
    request: ExplainedRequest,
    /// The answer of the gateway itself, such as `405 method-not-allowed: ...`.
    refused: Option<String>,
    route: Option<ExplainedRoute>,
    /// The segments of the path that the route names, such as `channel`.
    path: BTreeMap<String, String>,
    upstream: Option<ExplainedUpstream>,
    /// The changes to headers, in their order.
    headers: Vec<String>,
    /// Whether limiters work at all: `limiting` of the configuration.
    limiting: bool,
    limiters: Vec<ExplainedLimiter>,
    /// The accounts that the request could take; none for an upstream without.
    accounts: Vec<ExplainedAccount>,
    /// The limiters that are not in the file, so that a row of `limits_from` has to add them.
    missing: Vec<String>,
    /// The longest wait for a slot; `None` if no limiter can hold the request.
    max_wait_ms: Option<f64>,
    /// How long the request waits, in a sentence; `None` without limiters.
    waits: Option<String>,
    /// How a read may cost nothing.
    reads: Vec<String>,
    /// The effects of a refusal by the upstream.
    throttle: Vec<String>,
    retries: Option<String>,
}

#[derive(Debug, Default, Serialize)]
struct ExplainedRequest {
    method: String,
    target: String,
    host: Option<String>,
    client_ip: String,
    /// The path in the form in which routes compare it.
    compared: String,
}

#[derive(Debug, Serialize)]
struct ExplainedRoute {
    name: String,
    /// Its place under `routes`, from 0.
    index: usize,
    why: String,
    /// The other routes whose suffix matches.
    not: Vec<PassedOver>,
}

/// A route whose suffix matches, and the reason why it was not taken.
#[derive(Debug, Serialize)]
struct PassedOver {
    name: String,
    index: usize,
    why: String,
}

#[derive(Debug, Serialize)]
struct ExplainedUpstream {
    name: String,
    url: String,
    /// The number of its addresses, of which `url` has the first.
    addresses: usize,
}

/// Lines for people, each with a name before it.
#[derive(Default)]
struct Lines(String);

// === impl Explanation ===

impl Explanation {
    pub(super) fn of(config: &Config, request: TypedRequest) -> Self {
        let mut explained = Self { limiting: config.limiting, ..Self::default() };
        explained.refused = explained.fill(config, request).err();
        explained
    }

    /// Fills in what the gateway would do.
    ///
    /// # Errors
    ///
    /// The answer of the gateway itself.
    fn fill(&mut self, config: &Config, request: TypedRequest) -> Result<(), String> {
        let TypedRequest { mut head, body, peer } = request;
        let refusal = refusal(config, head.clone());
        // A field that `Connection` names was meant for the gateway's connection; no key and no route sees it.
        remove_nominated(head.headers_mut());
        let (method, uri, headers) = (head.method(), head.uri(), head.headers());
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => headers.get(HOST).and_then(|host| host.to_str().ok()),
        }
        .map(host_of);
        let client_ip = key::client_ip(peer, headers, &config.trusted_proxies);
        let path = config.paths.normal(uri.path());
        self.request = ExplainedRequest {
            method: method.to_string(),
            target: uri.to_string(),
            host: host.map(str::to_owned),
            client_ip: client_ip.to_string(),
            compared: String::from_utf8_lossy(&path).into_owned(),
        };
        if let Some(refusal) = refusal {
            return Err(refusal);
        }
        let covers = |one: usize, other: usize| config.routes[one].covers(&config.routes[other]);
        let table = Table::new(&config.routes, config.paths);
        let found = table.find_covering(method, host, uri.path(), covers);
        let found = found.map_err(|ambiguous| format!("400, {ambiguous}"))?;
        let found =
            found.ok_or("404 no-route; add a route with suffix \"*\" to pass such requests")?;
        let route = &config.routes[found];
        let is_own = table.find(method, host, uri.path()) == Some(found);
        let passed = |other: &Route| passed_over(route, other, method, host, &path);
        self.route = Some(ExplainedRoute::of(config, found, is_own, passed));
        let upstream = &config.upstreams[route.upstream];
        self.upstream = Some(ExplainedUpstream::of(upstream, uri));
        self.headers = changes(upstream, route);
        let template = route.path.template().map(|template| &**template);
        let values = template.map(|own| path_values(own, uri.path(), &config.paths));
        self.path = values.unwrap_or_default();
        let values = body_values(config, route, headers, &body)?;
        let parts = Parts {
            client_ip,
            host,
            method,
            uri,
            headers,
            body: values.as_ref(),
            body_length: Some(body.len() as u64),
            paths: config.paths,
            template,
            descriptor: None,
            account: upstream.accounts.as_ref().and_then(accounts::first).map(Account::names),
        };
        let is_trusted = key::is_trusted(peer.to_canonical(), &config.trusted_proxies);
        let priority = route.priority.of(headers, is_trusted);
        let priority = priority.map_err(|why| Failure::BadRequest(why.into()).summary())?;
        self.explain_limiters(config, route, priority, &parts);
        Ok(())
    }

    fn explain_limiters(
        &mut self,
        config: &Config,
        route: &Route,
        priority: Priority,
        parts: &Parts<'_>,
    ) {
        let (upstream, headers) = (&config.upstreams[route.upstream], parts.headers);
        let charges = route.limiters.iter().filter(|_| config.limiting);
        let limiters = charges.map(|charge| {
            let of = if upstream.limiters.contains(charge) { "upstream" } else { "route" };
            ExplainedLimiter::of(config, charge, of, priority, parts)
        });
        self.limiters = limiters.collect();
        let accounts = upstream.accounts.iter().flat_map(|accounts| &accounts.all);
        let accounts = accounts.map(|own| ExplainedAccount::of(config, route, own, parts));
        self.accounts = accounts.collect();
        if config.limiting {
            self.missing = route.missing.clone();
        }
        self.forwarded = self.missing.is_empty()
            && self.limiters.iter().all(|limiter| limiter.refused.is_none());
        let wait = crate::proxy::budget(route.max_wait, route.max_wait_cap, headers);
        let enforces = |charge: &Charge| config.limiters[charge.limiter].mode == Mode::Enforce;
        if config.limiting && !route.limiters.is_empty() {
            let is_held = route.limiters.iter().any(enforces);
            self.max_wait_ms = is_held.then_some(wait.as_secs_f64() * 1e3);
            self.waits = Some(waits(is_held, wait, headers.contains_key("prefer")));
        }
        self.reads = reads::lines(route, parts.method, headers, wait);
        // A limiter that the request costs nothing is not asked, so its refusal does not pause it.
        let asked = self.limiters.iter().filter(|limiter| limiter.asked);
        let asked: Vec<_> = asked.map(|limiter| limiter.name.as_str()).collect();
        for (name, what) in throttle::lines(config, route, &asked, wait) {
            match name {
                "retries" => self.retries = Some(what),
                _ => self.throttle.push(what),
            }
        }
    }

    /// The lines for people.
    pub(super) fn text(&self) -> String {
        let mut lines = Lines::default();
        let ExplainedRequest { method, target, host, compared, .. } = &self.request;
        let host = host.as_ref().map_or_else(String::new, |host| format!(" (host {host})"));
        lines.add("request", &format!("{method} {target}{host}"));
        lines.add("compared", &format!("{compared} (the path in normal form)"));
        let Some(route) = &self.route else {
            let refused = self.refused.as_deref().unwrap_or_default();
            if refused.starts_with("404") || refused.starts_with("400,") {
                lines.add("route", &format!("none: {refused}"));
            } else {
                lines.add("refused", refused);
            }
            return lines.0;
        };
        lines.add("route", &format!("{} (routes[{}]): {}", route.name, route.index, route.why));
        for PassedOver { name, index, why } in &route.not {
            lines.add("", &format!("not {name} (routes[{index}]): {why}"));
        }
        if let Some(ExplainedUpstream { name, url, addresses }) = &self.upstream {
            let others = match addresses {
                1 => String::new(),
                addresses => format!(" (one of {addresses} addresses)"),
            };
            lines.add("upstream", &format!("{name}: {url}{others}"));
        }
        for change in &self.headers {
            lines.add("headers", change);
        }
        if let Some(refused) = &self.refused {
            lines.add("refused", refused);
            return lines.0;
        }
        self.write_limiters(&mut lines);
        for (i, account) in self.accounts.iter().enumerate() {
            lines.add(if i == 0 { "accounts" } else { "" }, &account.line());
        }
        if let Some(waits) = &self.waits {
            lines.add("waits", waits);
        }
        for (i, what) in self.reads.iter().enumerate() {
            lines.add(if i == 0 { "reads" } else { "" }, what);
        }
        for (i, what) in self.throttle.iter().enumerate() {
            lines.add(if i == 0 { "throttle" } else { "" }, what);
        }
        if let Some(retries) = &self.retries {
            lines.add("retries", retries);
        }
        lines.0
    }

    fn write_limiters(&self, lines: &mut Lines) {
        if !self.limiting {
            lines.add("limiters", "none work: `limiting: off`");
        } else if self.limiters.is_empty() && self.missing.is_empty() {
            lines.add("limiters", "none: forwarded at once");
        }
        for (name, value) in &self.path {
            lines.add("", &format!("{{path.{name}}} is {value}"));
        }
        for limiter in &self.limiters {
            let upstream = self.upstream.as_ref().map_or("", |upstream| &upstream.name);
            let from = match limiter.of {
                "upstream" => format!("of upstream {upstream}"),
                _ => "of the route".into(),
            };
            lines.add("limiter", &format!("{}, {from}", limiter.line()));
            lines.add("", &limiter.bucket());
            if let Some(what) = limiter.turn() {
                lines.add("", &what);
            }
            if let Some(what) = &limiter.without_store {
                lines.add("", what);
            }
        }
        for name in &self.missing {
            lines.add(
                "limiter",
                &format!("{name}: not in the file; 503 until limits_from has such a row"),
            );
        }
    }
}

// === impl Lines ===

impl Lines {
    fn add(&mut self, name: &str, what: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{name:<10} {what}");
    }
}

// === impl ExplainedRoute ===

impl ExplainedRoute {
    /// `is_own`: it is the route of the path itself, not only of another reading of it.
    fn of(
        config: &Config,
        index: usize,
        is_own: bool,
        passed: impl Fn(&Route) -> Option<String>,
    ) -> Self {
        let route = &config.routes[index];
        let several = "servers read this path in several ways; it has the limiters of all";
        let why = if is_own { why(route) } else { several.into() };
        let others = config.routes.iter().enumerate().filter(|(i, _)| is_own && *i != index);
        let not = others.filter_map(|(index, other)| {
            Some(PassedOver { name: other.name.clone(), index, why: passed(other)? })
        });
        Self { name: route.name.clone(), index, why, not: not.collect() }
    }
}

// === impl ExplainedUpstream ===

impl ExplainedUpstream {
    fn of(upstream: &Upstream, uri: &Uri) -> Self {
        let target = Target::uri_below(&upstream.targets[0].base, uri.path_and_query());
        let target = target.map_or_else(|| uri.path().to_owned(), |target| target.to_string());
        let origin = upstream.targets[0].origin.to_string();
        let url = format!("{}{target}", origin.trim_end_matches('/'));
        Self { name: upstream.name.clone(), url, addresses: upstream.targets.len() }
    }
}

/// The segments of a path that its template names.
fn path_values(template: &PathTemplate, path: &str, paths: &Paths) -> BTreeMap<String, String> {
    let values = template.names().iter().filter_map(|name| {
        let value = template.value(name, path, paths)?;
        Some((name.to_owned(), String::from_utf8_lossy(&value).into_owned()))
    });
    values.collect()
}

/// Returns the reason why the gateway would answer this request itself, such as 405 for TRACE.
fn refusal(config: &Config, mut request: Request<()>) -> Option<String> {
    // Every HTTP/1.1 client sends a `Host`.
    let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    let host = host.unwrap_or(HeaderValue::from_static("localhost"));
    request.headers_mut().entry(HOST).or_insert(host);
    crate::proxy::validate(config, &request).err().map(|failure| failure.summary())
}

/// The values in the request's body that keys, tenants and costs of the route are.
///
/// # Errors
///
/// The answer of the gateway to a body that it cannot read.
fn body_values(
    config: &Config,
    route: &Route,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<JsonValues>, String> {
    let (parts, most) = (body_parts(config, route), config.limits.json_body);
    let values = parts.map(|parts| json_body(headers, body, &parts, most)).transpose();
    Ok(values.map_err(|failure| failure.summary())?.flatten())
}

/// The parts of the request's body that keys, tenants and costs of the route are.
fn body_parts(config: &Config, route: &Route) -> Option<BodyParts> {
    let works = |charge: &&Charge| config.limiters[charge.limiter].mode != Mode::Off;
    let charges = route.limiters.iter().filter(|_| config.limiting).filter(works);
    let keys = charges.clone().flat_map(|charge| {
        let limiter = &config.limiters[charge.limiter];
        limiter.key.iter().chain(limiter.fair.as_ref().map(|fair| &fair.by))
    });
    BodyParts::of(keys, charges.map(|charge| &charge.cost))
}

/// How long a request waits for its slot.
fn waits(is_held: bool, wait: Duration, has_preference: bool) -> String {
    let from = if has_preference { "from Prefer, within the route's cap" } else { "max_wait" };
    match wait.is_zero() {
        _ if !is_held => "never: no limiter enforces".into(),
        true => format!("not at all ({from}): 429 when there is no slot now"),
        false => format!("up to {wait:?} ({from}), then 429"),
    }
}

fn why(route: &Route) -> String {
    let path = match &route.path {
        PathRule::Suffix(Suffix::Any) => "suffix * matches every path".to_owned(),
        PathRule::Suffix(Suffix::Segments(bytes) | Suffix::Characters(bytes)) => {
            format!("the longest suffix that matches is {}", String::from_utf8_lossy(bytes))
        }
        PathRule::Template(template) => {
            format!("the most literal path that matches is {}", template.text())
        }
        PathRule::Descriptor => "it is for a service, which asks without a path".to_owned(),
    };
    let host = route.host.as_ref().map_or(String::new(), |host| format!(", for host {host}"));
    let methods: Vec<_> = route.methods.iter().map(Method::as_str).collect();
    let methods =
        if methods.is_empty() { String::new() } else { format!(", for {}", methods.join(", ")) };
    format!("{path}{host}{methods}")
}

/// Returns the reason why a route whose suffix or path also matches was not taken.
fn passed_over(
    taken: &Route,
    other: &Route,
    method: &Method,
    host: Option<&str>,
    path: &[u8],
) -> Option<String> {
    if !other.path.takes(path) {
        return None;
    }
    Some(if !other.methods.is_empty() && !other.methods.contains(method) {
        format!("it is not for {method}")
    } else if other
        .host
        .as_deref()
        .is_some_and(|own| !host.is_some_and(|h| h.eq_ignore_ascii_case(own)))
    {
        "it is for another host".into()
    } else {
        match (&taken.path, &other.path) {
            (PathRule::Template(_), PathRule::Suffix(_)) => "a whole path outranks a suffix".into(),
            (PathRule::Suffix(taken), PathRule::Suffix(other)) if other.len() < taken.len() => {
                "its suffix is shorter".into()
            }
            (PathRule::Template(taken), PathRule::Template(other))
                if taken.relation(other) != Relation::Same =>
            {
                "its path is less literal".into()
            }
            _ => "it is less specific".into(),
        }
    })
}
