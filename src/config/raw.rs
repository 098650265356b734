//! The file as written, checked against the contract: unknown keys are mistakes, all mistakes are found at
//! once, and each knows its place.

use super::{
    AccessLog, Config, Limiter, Mistake, Mode, Place, Rate, Route, Store, Upstream, unit,
    yaml::{self, Node, Outside, Scalar, Value},
};
use crate::{
    algorithm::{Algorithm, TokenBucket},
    path::Suffix,
    store::redis::RedisUrl,
    upstream::{Target, Timeouts},
};
use http::Method;
use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    thread,
    time::Duration,
};

/// The keys of one kind of section: those that work, and those of the contract that do not yet.
pub(super) struct Keys {
    pub(super) now: &'static [&'static str],
    pub(super) later: &'static [&'static str],
}

pub(super) const ROOT: Keys = Keys {
    now: &[
        "listen",
        "admin",
        "workers",
        "access_log",
        "drain_timeout",
        "store",
        "limiting",
        "upstream",
        "upstreams",
        "limiters",
        "routes",
    ],
    later: &["tls", "trusted_proxies"],
};
pub(super) const STORE: Keys = Keys { now: &["url", "prefix", "timeout"], later: &["on_failure"] };
pub(super) const UPSTREAM: Keys =
    Keys { now: &["url", "connect_timeout", "response_timeout", "limiters"], later: &["throttle"] };
pub(super) const LIMITER: Keys = Keys {
    now: &["algorithm", "rate", "burst", "mode"],
    later: &["margin", "capacity", "warm_up", "cold_factor", "max", "lease", "key", "scope"],
};
pub(super) const ROUTE: Keys = Keys {
    now: &[
        "name",
        "suffix",
        "methods",
        "host",
        "upstream",
        "limiters",
        "max_wait",
        "max_wait_cap",
        "max_waiting",
    ],
    later: &[],
};
const LATER_ALGORITHMS: &[&str] =
    &["sliding_window", "fixed_window", "leaky_bucket", "warm_up", "concurrency"];
const METHODS: &[&str] =
    &["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"];

const NOT_YET: &str = "not supported yet";
const MAX_WAIT: Duration = Duration::from_secs(3600);
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

/// Collects mistakes; what it returns in spite of one is only there to find the next.
struct Reader {
    mistakes: Vec<Mistake>,
}

/// A map with its name.
struct Section<'n> {
    path: String,
    place: Place,
    entries: &'n [(yaml::Key, Node)],
}

/// A value with its name.
struct Field<'n> {
    path: String,
    node: &'n Node,
}

// === impl Section ===

impl<'n> Section<'n> {
    fn get(&self, key: &str) -> Option<Field<'n>> {
        let (_, node) = self.entries.iter().find(|(k, _)| k.name == key)?;
        (!node.is_null()).then(|| Field { path: join(&self.path, key), node })
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

// === impl Field ===

impl<'n> Field<'n> {
    fn scalar(&self) -> Option<&'n Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    fn item(&self, i: usize, node: &'n Node) -> Self {
        Self { path: format!("{}[{i}]", self.path), node }
    }
}

// === impl Reader ===

impl Reader {
    fn note(&mut self, place: Place, path: &str, reason: impl fmt::Display) {
        self.mistakes.push(Mistake::new(place, path, reason.to_string()));
    }

    fn note_at(&mut self, field: &Field<'_>, reason: impl fmt::Display) {
        self.note(field.node.place, &field.path, reason);
    }

    fn section<'n>(&mut self, field: &Field<'n>, keys: &Keys) -> Option<Section<'n>> {
        let section = self.map(field)?;
        for (key, _) in section.entries {
            let path = join(&section.path, &key.name);
            if keys.later.contains(&key.name.as_str()) {
                self.note(key.place, &path, NOT_YET);
            } else if !keys.now.contains(&key.name.as_str()) {
                let all = keys.now.iter().chain(keys.later).copied();
                let known = keys.now.join(", ");
                let hint =
                    suggest(&key.name, all).unwrap_or_else(|| format!("known here: {known}"));
                self.note(key.place, &path, format!("unknown key `{}`; {hint}", key.name));
            }
        }
        Some(section)
    }

    fn map<'n>(&mut self, field: &Field<'n>) -> Option<Section<'n>> {
        let Value::Map(entries) = &field.node.value else {
            self.note_at(field, "must be a map of `key: value` lines");
            return None;
        };
        Some(Section { path: field.path.clone(), place: field.node.place, entries })
    }

    fn list<'n>(&mut self, field: &Field<'n>) -> Option<&'n [Node]> {
        let Value::List(items) = &field.node.value else {
            self.note_at(field, "must be a list: [one, two]");
            return None;
        };
        Some(items)
    }

    /// `read` says what is wrong with a text, for behind "`TEXT` ".
    fn scalar<T, E: fmt::Display>(
        &mut self,
        field: &Field<'_>,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let Some(scalar) = field.scalar() else {
            self.note_at(field, "must be a single value");
            return None;
        };
        match read(&scalar.text) {
            Ok(value) => Some(value),
            Err(reason) => {
                self.note_at(field, format!("`{}` {reason}", scalar.written));
                None
            }
        }
    }

    fn get<T, E: fmt::Display>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        default: T,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> T {
        let field = section.get(key);
        field.and_then(|field| self.scalar(&field, read)).unwrap_or(default)
    }

    fn one_of<T: Copy>(
        &mut self,
        section: &Section<'_>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let field = section.get(key)?;
        self.scalar(&field, |text| {
            let found = choices.iter().find(|(name, _)| *name == text);
            found.map(|(_, choice)| *choice).ok_or_else(|| {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                format!("is not one of {}", names.join(", "))
            })
        })
    }

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

    fn limiters(&mut self, root: &Section<'_>) -> Vec<Limiter> {
        let Some(section) = root.get("limiters").and_then(|field| self.map(&field)) else {
            return Vec::new();
        };
        let named = section.entries.iter();
        named.map(|(key, node)| self.limiter(&section.path, key, node)).collect()
    }

    fn limiter(&mut self, path: &str, key: &yaml::Key, node: &Node) -> Limiter {
        self.name(&join(path, &key.name), key);
        let stand_in = Rate { count: 1, period: Duration::from_secs(1) };
        let bucket = |rate: Rate, burst: u64| {
            let micros = i64::try_from(rate.period.as_micros()).ok()?;
            TokenBucket::new(i64::try_from(rate.count).ok()?, micros, i64::try_from(burst).ok()?)
        };
        let mut limiter = Limiter {
            name: key.name.clone(),
            algorithm: Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND),
            rate: stand_in,
            mode: Mode::Enforce,
            group: String::new(),
        };
        let field = Field { path: join(path, &key.name), node };
        let (rate, burst) = match &node.value {
            Value::Scalar(_) => (self.scalar(&field, unit::rate), None),
            Value::List(_) => {
                self.note_at(&field, format!("a list of rates is {NOT_YET}"));
                return limiter;
            }
            Value::Map(_) => {
                let Some(section) = self.section(&field, &LIMITER) else { return limiter };
                let modes =
                    [("enforce", Mode::Enforce), ("observe", Mode::Observe), ("off", Mode::Off)];
                limiter.mode = self.one_of(&section, "mode", &modes).unwrap_or(Mode::Enforce);
                self.get(&section, "algorithm", (), |name| match name {
                    "token_bucket" => Ok(()),
                    name if LATER_ALGORITHMS.contains(&name) => Err(format!("is {NOT_YET}")),
                    name => {
                        Err(suggest(name, LATER_ALGORITHMS.iter().copied().chain(["token_bucket"]))
                            .map_or("is no algorithm; use token_bucket".into(), |hint| {
                                format!("is no algorithm; {hint}")
                            }))
                    }
                });
                let burst = section.get("burst");
                let burst = burst.and_then(|field| {
                    let burst = self.scalar(&field, |text| positive(text, 1_000_000_000))?;
                    Some((burst, field))
                });
                (self.rate(&section), burst)
            }
        };
        let Some(rate) = rate else { return limiter };
        limiter.rate = rate;
        let permits = burst.as_ref().map_or(rate.count, |(burst, _)| *burst);
        match bucket(rate, permits) {
            Some(rule) => limiter.algorithm = Algorithm::TokenBucket(rule),
            None => {
                let place = burst.as_ref().map_or(node.place, |(_, field)| field.node.place);
                let reason = format!(
                    "a bucket of {permits} takes more than 70 years to fill at {rate}; lower `burst`"
                );
                self.note(place, &field.path, reason);
            }
        }
        limiter
    }

    fn rate(&mut self, section: &Section<'_>) -> Option<Rate> {
        let Some(field) = section.get("rate") else {
            self.note(section.place, &join(&section.path, "rate"), "is missing, as in `rate: 5/s`");
            return None;
        };
        if let Value::List(_) = field.node.value {
            self.note_at(&field, format!("a list of rates is {NOT_YET}"));
            return None;
        }
        self.scalar(&field, unit::rate)
    }

    fn name(&mut self, path: &str, key: &yaml::Key) {
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !(1..=64).contains(&key.name.len()) || !key.name.chars().all(good) {
            self.note(
                key.place,
                path,
                "a name holds letters, digits, `_`, `-` and `.`, at most 64",
            );
        }
    }

    fn upstreams(&mut self, root: &Section<'_>, limiters: &[Limiter]) -> Vec<Upstream> {
        let (short, long) = (root.get("upstream"), root.get("upstreams"));
        let timeouts = Timeouts::default();
        match (short, long) {
            (Some(short), None) => {
                let target = self.scalar(&short, Target::parse);
                let named = |target| Upstream {
                    name: "default".into(),
                    target,
                    timeouts,
                    limiters: Vec::new(),
                };
                target.map(named).into_iter().collect()
            }
            (None, Some(long)) => {
                let Some(section) = self.map(&long) else { return Vec::new() };
                if section.entries.is_empty() {
                    self.note_at(&long, "names no upstream");
                }
                let named = section.entries.iter();
                named.map(|(key, node)| self.upstream(&section.path, key, node, limiters)).collect()
            }
            (Some(_), Some(long)) => {
                self.note_at(&long, "stands beside `upstream`, its short form; keep one of them");
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
        node: &Node,
        limiters: &[Limiter],
    ) -> Upstream {
        let path = join(path, &key.name);
        self.name(&path, key);
        let mut upstream = Upstream {
            name: key.name.clone(),
            target: Target::default(),
            timeouts: Timeouts::default(),
            limiters: Vec::new(),
        };
        let field = Field { path, node };
        if let Value::Scalar(_) = node.value {
            upstream.target = self.scalar(&field, Target::parse).unwrap_or_default();
            return upstream;
        }
        let Some(section) = self.section(&field, &UPSTREAM) else { return upstream };
        match section.get("url") {
            Some(url) => {
                upstream.target = self.scalar(&url, Target::parse).unwrap_or_default();
            }
            None => self.note(section.place, &join(&section.path, "url"), "is missing"),
        }
        let limit = |text: &str| span(text, Duration::from_millis(1), MAX_TIMEOUT);
        let timeouts = &mut upstream.timeouts;
        timeouts.connect = self.get(&section, "connect_timeout", timeouts.connect, limit);
        timeouts.response = self.get(&section, "response_timeout", timeouts.response, limit);
        upstream.limiters = self.used_limiters(&section, limiters);
        upstream
    }

    /// Indices of the limiters that a section names, each once.
    fn used_limiters(&mut self, section: &Section<'_>, limiters: &[Limiter]) -> Vec<usize> {
        let Some(field) = section.get("limiters") else { return Vec::new() };
        let Some(items) = self.list(&field) else { return Vec::new() };
        let mut used = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            if let Value::Map(_) = node.value {
                self.note_at(
                    &item,
                    format!("a limiter with a cost is {NOT_YET}; write its name alone"),
                );
                continue;
            }
            let found = self.scalar(&item, |name| find(name, "limiter", limiters, |l| &l.name));
            let Some(found) = found else { continue };
            if used.contains(&found) {
                self.note_at(&item, "named twice; a request is charged once per limiter");
                continue;
            }
            used.push(found);
        }
        used
    }

    fn routes(
        &mut self,
        root: &Section<'_>,
        limiters: &[Limiter],
        upstreams: &[Upstream],
    ) -> Vec<Route> {
        let Some(field) = root.get("routes") else {
            let reason = "is missing, and without routes every request is answered 404; \
                          `- { suffix: \"*\" }` passes all";
            self.note(root.place, "routes", reason);
            return Vec::new();
        };
        let Some(items) = self.list(&field) else { return Vec::new() };
        if items.is_empty() {
            self.note_at(&field, "is empty; `- { suffix: \"*\" }` passes all");
        }
        let mut routes: Vec<(Route, Field<'_>)> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let Some(route) = self.route(&item, limiters, upstreams) else { continue };
            self.check_against(&routes, &route, &item);
            routes.push((route, item));
        }
        routes.into_iter().map(|(route, _)| route).collect()
    }

    fn route(
        &mut self,
        field: &Field<'_>,
        limiters: &[Limiter],
        upstreams: &[Upstream],
    ) -> Option<Route> {
        let section = self.section(field, &ROUTE)?;
        let path = |key: &str| join(&section.path, key);
        let (written, suffix) = match section.get("suffix") {
            Some(field) => {
                let written = field.scalar().map_or("", |scalar| &scalar.text).to_owned();
                (written, self.scalar(&field, Suffix::parse))
            }
            None => {
                self.note(section.place, &path("suffix"), "is missing; \"*\" matches every path");
                (String::new(), None)
            }
        };
        let name = self.get(&section, "name", written, route_name);
        let methods = self.methods(&section);
        let host = self.get(&section, "host", None, |text| host(text).map(Some));
        let upstream = match section.get("upstream") {
            Some(field) => self.scalar(&field, |name| {
                find(name, "upstream", upstreams, |upstream| &upstream.name)
            }),
            None if upstreams.len() > 1 => {
                let names: Vec<_> = upstreams.iter().map(|u| u.name.as_str()).collect();
                let reason = format!("is missing; there is more than one: {}", names.join(", "));
                self.note(section.place, &path("upstream"), reason);
                None
            }
            None => Some(0),
        };
        let mut used = self.used_limiters(&section, limiters);
        let wait = |text: &str| match text.strip_suffix('%') {
            Some(_) => Err(format!("is a percentage, which is {NOT_YET}; write a duration")),
            None => span(text, Duration::ZERO, MAX_WAIT),
        };
        let max_wait = self.get(&section, "max_wait", Duration::ZERO, wait);
        let max_wait_cap = self.get(&section, "max_wait_cap", max_wait, wait);
        if max_wait_cap < max_wait
            && let Some(field) = section.get("max_wait_cap")
        {
            self.note_at(&field, "is below max_wait; no request may wait longer than the cap");
        }
        let max_waiting =
            self.get(&section, "max_waiting", 10_000, |text| positive(text, 10_000_000));
        let upstream = upstream.filter(|upstream| *upstream < upstreams.len());
        for limiter in upstream.map_or(&[][..], |upstream| &upstreams[upstream].limiters) {
            if !used.contains(limiter) {
                used.push(*limiter);
            }
        }
        Some(Route {
            name,
            suffix: suffix?,
            methods,
            host,
            upstream: upstream?,
            limiters: used,
            max_wait,
            max_wait_cap,
            max_waiting: usize::try_from(max_waiting).unwrap_or(usize::MAX),
        })
    }

    fn methods(&mut self, section: &Section<'_>) -> Vec<Method> {
        let Some(field) = section.get("methods") else { return Vec::new() };
        let Some(items) = self.list(&field) else { return Vec::new() };
        if items.is_empty() {
            self.note_at(&field, "is empty; leave it out for all methods");
        }
        let mut methods = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let method = self.scalar(&item, |text| {
                if METHODS.iter().any(|known| known.eq_ignore_ascii_case(text) && *known != text) {
                    return Err(format!("must be written in capitals: {}", text.to_uppercase()));
                }
                Method::from_bytes(text.as_bytes()).map_err(|_| "is no method".to_owned())
            });
            let Some(method) = method else { continue };
            if methods.contains(&method) {
                self.note_at(&item, "named twice");
                continue;
            }
            methods.push(method);
        }
        methods
    }

    fn check_against(&mut self, routes: &[(Route, Field<'_>)], route: &Route, field: &Field<'_>) {
        let line = |other: &Field<'_>| other.node.place.line;
        if let Some((_, other)) = routes.iter().find(|(other, _)| tie(other, route)) {
            let reason = format!(
                "matches the same requests as {} in line {}, and neither is more specific; \
                 change its suffix, host or methods",
                other.path,
                line(other)
            );
            self.note_at(field, reason);
        } else if let Some((_, other)) = routes.iter().find(|(other, _)| other.name == route.name) {
            let reason = format!(
                "has the name `{}` of {} in line {}; give it a `name`, which labels metrics and logs",
                route.name,
                other.path,
                line(other)
            );
            self.note_at(field, reason);
        }
    }
}

/// Whether a request could match both routes with nothing to choose between them.
fn tie(a: &Route, b: &Route) -> bool {
    let within = |a: &Route, b: &Route| a.methods.iter().all(|method| b.methods.contains(method));
    let overlap = match (a.methods.is_empty(), b.methods.is_empty()) {
        (true, true) => true,
        (false, false) => {
            let shared = a.methods.iter().any(|method| b.methods.contains(method));
            // A proper subset is the more specific one.
            shared && (within(a, b) == within(b, a))
        }
        _ => false,
    };
    a.suffix == b.suffix && a.host == b.host && overlap
}

/// Names the groups of limiters that some route uses together after their first name in the alphabet.
fn group(config: &mut Config) {
    let mut leader: Vec<usize> = (0..config.limiters.len()).collect();
    for route in &config.routes {
        let Some(&first) = route.limiters.first() else { continue };
        for &limiter in &route.limiters {
            let (a, b) = (leader[first], leader[limiter]);
            leader.iter_mut().filter(|l| **l == b).for_each(|l| *l = a);
        }
    }
    for (i, own) in leader.iter().enumerate() {
        let members = leader.iter().zip(&config.limiters).filter(|(l, _)| *l == own);
        let name = members.map(|(_, limiter)| limiter.name.as_str()).min();
        let name = name.unwrap_or_default().to_owned();
        config.limiters[i].group = name;
    }
}

fn find<T>(
    name: &str,
    what: &str,
    all: &[T],
    name_of: impl Fn(&T) -> &String,
) -> Result<usize, String> {
    all.iter().position(|one| name_of(one) == name).ok_or_else(|| {
        let names = || all.iter().map(|one| name_of(one).as_str());
        let hint = suggest(name, names()).unwrap_or_else(|| match all.len() {
            0 => format!("there is no {what}"),
            _ => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
        });
        format!("is no {what}; {hint}")
    })
}

fn suggest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = |known: &'a str| {
        (strsim::damerau_levenshtein(&name.to_lowercase(), &known.to_lowercase()), known)
    };
    let (distance, best) = known.map(near).min()?;
    let close = distance <= 1 + best.chars().count().max(name.chars().count()) / 4;
    close.then(|| format!("did you mean `{best}`?"))
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "is no address; write IP:PORT, as in 127.0.0.1:8080 or [::]:8080")
}

fn workers(text: &str) -> Result<NonZeroUsize, String> {
    let workers = positive(text, 1024)?;
    usize::try_from(workers).ok().and_then(NonZeroUsize::new).ok_or_else(|| "is too large".into())
}

fn positive(text: &str, most: u64) -> Result<u64, String> {
    match unit::whole(text)? {
        0 => Err("must be at least 1".into()),
        number if number > most => Err(format!("must be at most {most}")),
        number => Ok(number),
    }
}

fn span(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let span = unit::duration(text)?;
    if span < least {
        return Err(format!("must be at least {least:?}"));
    }
    if span > most {
        return Err(format!("must be at most {}s", most.as_secs()));
    }
    Ok(span)
}

fn key_prefix(text: &str) -> Result<String, &'static str> {
    let good = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) {
        return Err("must be 1 to 64 letters, digits and _ - . :");
    }
    Ok(text.to_owned())
}

fn route_name(text: &str) -> Result<String, &'static str> {
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
    Ok(text.to_ascii_lowercase())
}
