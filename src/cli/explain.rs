//! `paceway explain`: prints what the gateway would do with a request, and why. Asks no store and charges nothing.

mod throttle;

use super::{CommandError, load, print};
use crate::{
    algorithm::{Algorithm, MAX_BUDGET, auto_rate::nanohertz},
    config::{AutoRule, Charge, Config, FailurePolicy, Mode, Route, Scope, StoreConfig, Upstream},
    key::{self, Cost, Parts},
    path::{PathRule, PathTemplate, Relation, Suffix},
    route::{Table, host_of},
    store::OnLoss,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header::HOST};
use std::{borrow::Cow, fmt::Write as _, net::IpAddr, path::Path};

pub(super) fn explain(
    file: &Path,
    method: &str,
    url: &str,
    headers: &[String],
    client_ip: IpAddr,
) -> Result<(), CommandError> {
    let config = load(file)?;
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| CommandError::usage(format!("error: `{method}` is no method")))?;
    let uri: Uri = url
        .parse()
        .map_err(|_| CommandError::usage(format!("error: `{url}` is neither a path nor a URL")))?;
    // `*` is a target for OPTIONS alone; the validation of the gateway checks that.
    if !uri.path().starts_with('/') && uri.path() != "*" {
        return Err(CommandError::usage(format!(
            "error: `{url}` has no path that starts with `/`"
        )));
    }
    let headers = read_headers(headers)?;
    let (text, is_refused) = text(&config, &method, &uri, &headers, client_ip);
    print(text.trim_end())?;
    match is_refused {
        false => Ok(()),
        true => Err(CommandError {
            code: 1,
            message: "the gateway does not forward this request".into(),
        }),
    }
}

/// Returns the reason why the gateway would answer this request itself, such as 405 for TRACE.
fn refusal(config: &Config, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let mut request = Request::new(());
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers.clone();
    // Every HTTP/1.1 client sends a `Host`.
    let host = uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    let host = host.unwrap_or(HeaderValue::from_static("localhost"));
    request.headers_mut().entry(HOST).or_insert(host);
    crate::proxy::validate(config, &request).err().map(|failure| failure.summary())
}

fn read_headers(lines: &[String]) -> Result<HeaderMap, CommandError> {
    let mut headers = HeaderMap::new();
    for line in lines {
        let pair = line.split_once(':').and_then(|(name, value)| {
            Some((
                name.trim().parse::<HeaderName>().ok()?,
                HeaderValue::from_str(value.trim()).ok()?,
            ))
        });
        let Some((name, value)) = pair else {
            let message = format!("error: `{line}` is no header; write -H 'Name: value'");
            return Err(CommandError::usage(message));
        };
        headers.append(name, value);
    }
    Ok(headers)
}

/// Returns the text about a request, and `true` if the gateway refuses the request.
fn text(
    config: &Config,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    peer: IpAddr,
) -> (String, bool) {
    let host = match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(HOST).and_then(|host| host.to_str().ok()),
    };
    let host = host.map(host_of);
    let mut out = String::new();
    let mut line = |name: &str, what: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<10} {what}");
    };
    let path = config.paths.normal(uri.path());
    line(
        "request",
        format!("{method} {uri}{}", host.map_or(String::new(), |h| format!(" (host {h})"))),
    );
    line("compared", format!("{} (the path in normal form)", String::from_utf8_lossy(&path)));
    if let Some(refusal) = refusal(config, method, uri, headers) {
        line("refused", refusal);
        return (out, true);
    }
    let covers = |one: usize, other: usize| config.routes[one].covers(&config.routes[other]);
    let table = Table::new(&config.routes, config.paths);
    let found = match table.find_covering(method, host, uri.path(), covers) {
        Ok(Some(found)) => found,
        Ok(None) => {
            let what = "none: 404 no-route; add a route with suffix \"*\" to pass such requests";
            line("route", what.into());
            return (out, true);
        }
        Err(ambiguous) => {
            line("route", format!("none: 400, {ambiguous}"));
            return (out, true);
        }
    };
    let route = &config.routes[found];
    let is_own = table.find(method, host, uri.path()) == Some(found);
    let why = match is_own {
        true => why(route),
        false => "servers read this path in several ways; it has the limiters of all".into(),
    };
    line("route", format!("{} (routes[{found}]): {why}", route.name));
    for (i, other) in config.routes.iter().enumerate().filter(|(i, _)| is_own && *i != found) {
        if let Some(reason) = passed_over(route, other, method, host, &path) {
            line("", format!("not {} (routes[{i}]): {reason}", other.name));
        }
    }
    let upstream = &config.upstreams[route.upstream];
    let target = upstream.targets[0].uri(uri.path_and_query());
    let target = target.map_or_else(|| uri.path().to_owned(), |target| target.to_string());
    let origin = upstream.targets[0].origin.to_string();
    let others = match upstream.targets.len() {
        1 => String::new(),
        addresses => format!(" (one of {addresses} addresses)"),
    };
    let origin = origin.trim_end_matches('/');
    line("upstream", format!("{}: {origin}{target}{others}", upstream.name));
    for change in changes(upstream, route) {
        line("headers", change);
    }
    if !config.limiting {
        line("limiters", "none work: `limiting: off`".into());
    } else if route.limiters.is_empty() {
        line("limiters", "none: forwarded at once".into());
    }
    let client_ip = key::client_ip(peer, headers, &config.trusted_proxies);
    let template = route.path.template().map(|template| &**template);
    for name in template.into_iter().flat_map(PathTemplate::names) {
        let value = template.and_then(|own| own.value(name, uri.path(), &config.paths));
        if let Some(value) = value {
            line("", format!("{{path.{name}}} is {}", String::from_utf8_lossy(&value)));
        }
    }
    let (body, paths) = (None, config.paths);
    let parts = Parts { client_ip, host, method, uri, headers, body, paths, template };
    let mut is_refused = false;
    for charge in route.limiters.iter().filter(|_| config.limiting) {
        let from = match upstream.limiters.contains(charge) {
            true => format!("of upstream {}", upstream.name),
            false => "of the route".into(),
        };
        line("limiter", format!("{}, {from}", limiter(config, charge, &parts)));
        is_refused |= cost(config, charge, &parts).is_err();
        line("", state(config, charge, &parts));
        if let Some(what) = without_store(config, charge) {
            line("", what);
        }
    }
    let wait = crate::proxy::budget(route.max_wait, route.max_wait_cap, headers);
    let from = if headers.contains_key("prefer") {
        "from Prefer, within the route's cap"
    } else {
        "max_wait"
    };
    let enforces = |charge: &Charge| config.limiters[charge.limiter].mode == Mode::Enforce;
    let is_limited = config.limiting && !route.limiters.is_empty();
    if is_limited {
        line(
            "waits",
            match wait.is_zero() {
                _ if !route.limiters.iter().any(enforces) => "never: no limiter enforces".into(),
                true => format!("not at all ({from}): 429 when there is no slot now"),
                false => format!("up to {wait:?} ({from}), then 429"),
            },
        );
    }
    for (name, what) in throttle::lines(config, route, wait) {
        line(name, what);
    }
    (out, is_refused)
}

/// Returns the cost of a request at a limiter that is on; otherwise the reason of the 400.
fn cost(config: &Config, charge: &Charge, parts: &Parts<'_>) -> Result<i64, String> {
    let limiter = &config.limiters[charge.limiter];
    match limiter.mode {
        Mode::Off => Ok(1),
        _ => charge.cost.of(parts, limiter.capacity(), &limiter.name),
    }
}

/// Lists the changes to headers in the order in which the gateway makes them.
fn changes(upstream: &Upstream, route: &Route) -> Vec<String> {
    let mut all = Vec::new();
    let of_upstream = format!("of upstream {}", upstream.name);
    let (first, then) = (&upstream.headers, &route.headers);
    for (what, pair) in [
        ("request", [&first.request, &then.request]),
        ("response", [&first.response, &then.response]),
    ] {
        for (edits, from) in pair.into_iter().zip([&*of_upstream, "of the route"]) {
            let removed = edits.remove.iter().map(|name| format!("removes {name}"));
            let set =
                edits.set.iter().map(|(name, value)| format!("sets {name}: {}", shown(value)));
            let added =
                edits.add.iter().map(|(name, value)| format!("adds {name}: {}", shown(value)));
            all.extend(
                removed.chain(set).chain(added).map(|change| format!("{what} {change}, {from}")),
            );
        }
    }
    all
}

fn shown(value: &HeaderValue) -> Cow<'_, str> {
    match value.is_sensitive() {
        true => "***".into(),
        false => String::from_utf8_lossy(value.as_bytes()),
    }
}

/// The rule, the cost and the mode.
fn limiter(config: &Config, charge: &Charge, parts: &Parts<'_>) -> String {
    let limiter = &config.limiters[charge.limiter];
    let rates: Vec<_> = limiter.rates.iter().map(ToString::to_string).collect();
    let rates = match (&*rates, limiter.auto) {
        ([start], Some(AutoRule::Rate(rule))) => {
            let per_second = |rate| rate as f64 / nanohertz(1, 1_000_000) as f64;
            let (min, max) = (per_second(rule.min), per_second(rule.max));
            format!("auto from {start}, between {min}/s and {max}/s")
        }
        ([rate], _) => rate.clone(),
        (rates, _) => format!("[{}]", rates.join(", ")),
    };
    let first = limiter.algorithms.first();
    let mut rule = first.map_or_else(String::new, |rule| match rule {
        Algorithm::Concurrency(rule) => {
            let lease = crate::limit::duration(rule.lease());
            format!("concurrency, at most {} held, lease {lease:?}", rule.max())
        }
        Algorithm::TokenBucket(_) => {
            format!("token_bucket {rates}, burst {}", limiter.capacity())
        }
        rule => format!("{} {rates}", rule.name()),
    });
    let margin = first.map(Algorithm::margin).filter(|margin| *margin > 0);
    let queue = first.map(Algorithm::longest_wait).filter(|longest| *longest < MAX_BUDGET);
    for (name, span) in [("margin", margin), ("a queue of", queue)] {
        if let Some(span) = span {
            rule += &format!(", {name} {:?}", crate::limit::duration(span));
        }
    }
    if let Some(AutoRule::Margin(_)) = limiter.auto {
        rule += ", margin auto";
    }
    let cost = cost(config, charge, parts);
    let cost = cost.map_or_else(|reason| format!("400: {reason}"), |cost| format!("cost {cost}"));
    let origin = match &charge.cost {
        Cost::Fixed(_) => String::new(),
        Cost::FromRequest(template) => format!(" ({})", template.text()),
        Cost::Reserved(reserved) => {
            let from = charge.cost.template().map_or_else(String::new, |template| {
                format!(" from {}, default {}", template.text(), reserved.default)
            });
            let settle = reserved.settle.as_ref();
            let settle = settle.map_or_else(String::new, |part| format!(", settled by {part}"));
            format!(" (reserved{from}{settle})")
        }
    };
    let mode = match limiter.mode {
        Mode::Enforce => "",
        Mode::Observe => ", only observes",
        Mode::Off => ", off",
    };
    format!("{}: {rule}, {cost}{origin}{mode}", limiter.name)
}

/// Describes the bucket of a request, with the names of its states in the store.
fn state(config: &Config, charge: &Charge, parts: &Parts<'_>) -> String {
    let prefix = match &config.store {
        StoreConfig::Memory => "paceway",
        StoreConfig::Redis { prefix, .. } => prefix,
    };
    let limiter = &config.limiters[charge.limiter];
    let filled = limiter.key.as_ref().map(|template| template.fill(parts));
    let names = 0..limiter.algorithms.len();
    let names =
        names.map(|part| limiter.state_names(prefix, Some("INSTANCE"), part).of(filled.as_deref()));
    let names = names.collect::<Vec<_>>().join(", ");
    let whose = match limiter.scope {
        Scope::Cluster => "",
        Scope::Instance => ", one for each gateway",
    };
    match filled {
        Some(filled) => format!("key {filled}, kept as {names}{whose}"),
        None => format!("one bucket for all, kept as {names}{whose}"),
    }
}

/// Describes what a limiter does while the store is away. `None` for the memory store, which never is.
fn without_store(config: &Config, charge: &Charge) -> Option<String> {
    let limiter = &config.limiters[charge.limiter];
    if config.store == StoreConfig::Memory || limiter.mode == Mode::Off {
        return None;
    }
    let what = match (limiter.on_failure, limiter.scope) {
        (FailurePolicy::Share, Scope::Instance) => "each gateway continues with the whole rule",
        (FailurePolicy::Share, Scope::Cluster) => {
            "each gateway enforces its share, the rule / gateways that live"
        }
        (FailurePolicy::Allow, _) => "it lets requests pass",
        (FailurePolicy::Reject, _) if limiter.mode == Mode::Observe => "it counts nothing",
        (FailurePolicy::Reject, _) => "503 store-unavailable",
    };
    let trust = match limiter.on_loss {
        OnLoss::Close => "",
        OnLoss::Trust => {
            "; on_loss trust: after a loss of states it continues with what the store has"
        }
    };
    Some(format!("on_failure {}: without the store {what}{trust}", limiter.on_failure.name()))
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
    };
    let host = route.host.as_ref().map_or(String::new(), |host| format!(", for host {host}"));
    let methods: Vec<_> = route.methods.iter().map(Method::as_str).collect();
    let methods = match methods.is_empty() {
        true => String::new(),
        false => format!(", for {}", methods.join(", ")),
    };
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
