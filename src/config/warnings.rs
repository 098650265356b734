//! Warns of settings that are allowed and probably not meant. Refuses nothing.

mod accounts;
mod starved;
mod throttle;
mod turns;

use super::{
    limiter::{Charge, FailurePolicy, LimiterConfig, Mode, Scope},
    rows_from::MissingLimiter,
    settings::{Config, Route, StoreConfig, Upstream},
    unit::{Rate, Span},
};
use crate::{
    algorithm::Returns,
    path::{PathRule, Suffix},
    store::OnLoss,
    suggest::suggest,
    upstream::headers::names_client,
};
use std::{borrow::Cow, time::Duration};

/// An `idle_timeout` above this is warned of. Most servers close an idle connection after 5 to 75 s.
const LONG_IDLE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

// === impl Config ===

impl Config {
    /// Returns a sentence for each setting that is allowed and probably not meant.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (i, limiter) in self.limiters.iter().enumerate() {
            self.warn_of_limiter(i, limiter, &mut warnings);
        }
        for route in &self.routes {
            warnings.extend(self.nothing_waits(route));
            warnings.extend(self.idle_priority(route));
            warnings.extend(idle_share(route));
            warnings.extend(colon_segment(route));
        }
        warnings.extend(self.starved_routes());
        warnings.extend(self.nothing_is_limited());
        warnings.extend(self.nothing_is_held());
        warnings.extend(self.drains_early());
        for net in self.trusted_proxies.iter().filter(|net| net.prefix_len() == 0) {
            warnings.push(format!(
                "`trusted_proxies` holds {net}, so that every caller can choose the address under which it is counted"
            ));
        }
        for upstream in self.upstreams.iter().filter(|upstream| upstream.timeouts.idle > LONG_IDLE)
        {
            warnings.push(format!(
                "the idle_timeout {} of the upstream `{}` is longer than most servers keep a connection: the \
                 gateway should close it first",
                Span(upstream.timeouts.idle),
                upstream.name
            ));
        }
        warnings.extend(self.throttle_warnings());
        warnings.extend(self.account_warnings());
        warnings.extend(self.circles());
        warnings.extend(self.open_services());
        warnings.extend(self.open_admin());
        warnings.extend(self.open_tunnels());
        warnings.extend(self.unguarded_proxy());
        warnings.extend(self.uncounted_gateways());
        warnings.extend(self.flaws.iter().cloned());
        for key in &self.clear_secrets {
            warnings.push(format!(
                "`{key}` looks secret and is written in the file in clear text: take it from outside, as in \
                 `${{file:/run/secrets/NAME}}`"
            ));
        }
        warnings
    }

    fn warn_of_limiter(&self, i: usize, limiter: &LimiterConfig, warnings: &mut Vec<String>) {
        let name = &limiter.name;
        let uses = |route: &Route| route.limiters.iter().any(|charge| charge.limiter == i);
        if !self.routes.iter().any(uses) {
            warnings.push(format!("no route and no upstream uses the limiter `{name}`"));
        }
        for (rate, stricter) in limiter.idle_rates() {
            warnings.push(format!(
                "the rate {rate} of the limiter `{name}` never binds: {stricter} is always stricter"
            ));
        }
        warnings.extend(self.forged_addresses(limiter));
        warnings.extend(self.forgotten_windows(limiter));
        warnings.extend(costly_margin(limiter));
        warnings.extend(self.nothing_to_share(i, limiter));
        warnings.extend(self.floors(i, limiter));
        if self.store == StoreConfig::Memory && limiter.on_loss == OnLoss::Trust {
            warnings.push(format!(
                "`on_loss` of the limiter `{name}` is for a store that can lose states; `store: memory` never does"
            ));
        }
        if self.store == StoreConfig::Memory && limiter.on_failure != FailurePolicy::Share {
            warnings.push(format!(
                "`on_failure` of the limiter `{name}` is for a store that can be away; `store: memory` never is"
            ));
        }
    }

    /// Returns a sentence for each limiter that only a row of `limits_from` can add. At a start they are as they should
    /// be; a check, which asks no database, names them because a name may be misspelt.
    pub fn missing_warnings(&self) -> Vec<String> {
        let warning = |missing: &MissingLimiter| {
            let names = self.limiters.iter().map(|limiter| limiter.name.as_str());
            let hint =
                suggest(&missing.name, names).map_or(String::new(), |hint| format!(" ({hint})"));
            format!(
                "{}: the limiter `{}` is not in the file{hint}: its requests get 503 until `limits_from` has such a row",
                missing.mistake.path, missing.name
            )
        };
        self.missing.iter().map(warning).collect()
    }

    /// Warns of a forward proxy by which programs on other hosts reach hosts that no entry names by itself.
    fn open_tunnels(&self) -> Option<String> {
        let forward = self.forward.as_ref().filter(|own| !own.listen.ip().is_loopback())?;
        let is_wide = forward.allow.iter().any(|pattern| !pattern.is_exact());
        is_wide.then(|| {
            format!(
                "everyone who reaches {} can open tunnels to hosts that `forward.allow` does not name one by one",
                forward.listen
            )
        })
    }

    /// Warns of a forward proxy on other hosts' networks, where `listen` is only for callers with a certificate.
    fn unguarded_proxy(&self) -> Option<String> {
        self.tls.as_ref()?.client_ca.as_ref()?;
        let forward = self.forward.as_ref().filter(|own| !own.listen.ip().is_loopback())?;
        Some(format!(
            "`tls.client_ca` does not apply to `forward.listen`: everyone who reaches {} can use the proxy without a \
             certificate; listen on a loopback address, or let a firewall choose the callers",
            forward.listen
        ))
    }

    /// Warns of upstreams that are the gateway itself. A program that mounts the proxy does not listen there.
    fn circles(&self) -> impl Iterator<Item = String> {
        let leads_here = |upstream: &&Upstream| {
            upstream.targets.iter().any(|target| target.leads_to(self.listen))
        };
        self.upstreams.iter().filter(leads_here).map(|upstream| {
            format!(
                "the upstream `{}` is this gateway's own `listen`: requests would go round in a circle",
                upstream.name
            )
        })
    }

    /// Warns of services that other hosts reach. The service of programs refuses that.
    fn open_services(&self) -> impl Iterator<Item = String> {
        self.services.all().filter(|(_, listener)| listener.is_open()).map(|(service, _)| {
            format!(
                "other hosts reach `{}` and can use up its quotas: set `token`, or `tls` with `client_ca`, or listen \
                 on a loopback address",
                service.key()
            )
        })
    }

    /// Warns of an admin side that other hosts can read. `read: open` says that this is meant.
    fn open_admin(&self) -> Option<String> {
        let is_open = !self.admin.listen.ip().is_loopback() && self.admin.token.is_none();
        (is_open && !self.document.says("admin", "read")).then(|| {
            format!(
                "other hosts can read the pages of the admin side on {}, with the keys of callers and the paths of requests: \
                 set `token` and `read: token`, or listen on a loopback address; `read: open` says that it is meant",
                self.admin.listen
            )
        })
    }

    /// Warns of a shared store without `gateways`: a gateway that has not reached it yet takes itself for the only one.
    fn uncounted_gateways(&self) -> Option<String> {
        let StoreConfig::Redis { .. } = self.store else { return None };
        let shares = |limiter: &LimiterConfig| {
            limiter.on_failure == FailurePolicy::Share
                && limiter.mode == Mode::Enforce
                && limiter.scope == Scope::Cluster
        };
        let is_counted = self.document.says("store", "gateways") || !self.limiting;
        (!is_counted && self.limiters.iter().any(shares)).then(|| {
            "`store` has no `gateways`: a gateway that cannot reach the store at its start enforces the whole rate, as if it were \
             the only one; write how many there are, as in `store: { url: ..., gateways: 3 }`"
                .into()
        })
    }

    /// Warns of a file whose requests meet no limiter at all. Descriptors and decisions of services have routes of their own.
    fn nothing_is_limited(&self) -> Option<String> {
        let is_free = |route: &Route| route.limiters.is_empty() && route.missing.is_empty();
        (self.limiting && self.routes.iter().all(is_free))
            .then(|| "no route has a limiter, so nothing is limited".into())
    }

    /// Warns of routes that refuse every request above their rate at once, although they have no `max_wait: 0`.
    fn nothing_is_held(&self) -> Option<String> {
        const NAMED: usize = 5;
        let has_warning = |name: &&String| {
            let route = self.routes.iter().find(|route| route.name == **name);
            route.is_some_and(|route| self.nothing_waits(route).is_some())
        };
        let routes: Vec<_> = self.unheld.iter().filter(|name| !has_warning(name)).collect();
        if routes.is_empty() || !self.limiting {
            return None;
        }
        let names: Vec<_> = routes.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
        let more = match routes.len() - names.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (noun, has) = if routes.len() == 1 { ("route", "has") } else { ("routes", "have") };
        Some(format!(
            "the {noun} {}{more} {has} limiters and no `max_wait`: a request above the rate is never held, but refused \
             with 429 at once; write how long a request may wait, as in `max_wait: 2s`, or `max_wait: 0` if that is meant",
            names.join(", ")
        ))
    }

    /// Warns of routes whose requests may wait for longer than a drain lasts: of the one with the longest wait.
    fn drains_early(&self) -> Option<String> {
        let enforces = |charge: &Charge| self.limiters[charge.limiter].mode == Mode::Enforce;
        let held = self.routes.iter().filter(|route| route.limiters.iter().any(enforces));
        let waits = held.map(|route| (route.max_wait.max(route.max_wait_cap), &*route.name));
        let waits: Vec<_> = waits.filter(|(wait, _)| *wait > self.drain_timeout).collect();
        let (wait, name) = waits.iter().max_by_key(|(wait, _)| *wait).filter(|_| self.limiting)?;
        let more = match waits.len() {
            1 => String::new(),
            more => format!(" (and those of {} more routes for up to as long)", more - 1),
        };
        Some(format!(
            "requests of the route `{name}` may wait for {}{more}, but a gateway that stops serves them for {} only \
             (`drain_timeout`): those whose slots come later get 503",
            Span(*wait),
            Span(self.drain_timeout)
        ))
    }

    /// Warns of a route with a limiter that spaces calls, on which no request can wait.
    fn nothing_waits(&self, route: &Route) -> Option<String> {
        // A caller may ask for a wait up to the cap.
        if !route.max_wait_cap.is_zero() {
            return None;
        }
        let mut used = route.limiters.iter().map(|charge| &self.limiters[charge.limiter]);
        let (limiter, kind) = used.find_map(|limiter| {
            let facts = limiter.algorithms.first()?.as_rate()?.facts();
            let spaces = limiter.mode == Mode::Enforce && facts.spaces_permits;
            spaces.then_some((limiter, facts.name))
        })?;
        Some(format!(
            "nothing can wait on the route `{}` for its {kind} `{}`, which spaces calls: set its `max_wait`",
            route.name, limiter.name
        ))
    }

    /// Warns of a key from a header in which proxies name the client, if no proxy is trusted. Every caller can then write the
    /// header itself, and so choose another bucket for each request.
    fn forged_addresses(&self, limiter: &LimiterConfig) -> Option<String> {
        let mut headers = limiter.key.as_ref()?.headers();
        let header = headers.find(|name| names_client(name))?;
        self.trusted_proxies.is_empty().then(|| {
            format!(
                "the key of the limiter `{}` is made from `{{header.{header}}}`, which every caller can write: use \
                 `{{client_ip}}`, and name the proxies that are believed under `trusted_proxies`",
                limiter.name
            )
        })
    }

    /// Warns of a `fixed_window` of a day or more in the memory store, whose state a restart forgets.
    fn forgotten_windows(&self, limiter: &LimiterConfig) -> Option<String> {
        let rule = limiter.algorithms.first()?.as_rate()?;
        let Returns::AtWindowEnd { .. } = rule.facts().returns else { return None };
        let rate = limiter.rates.iter().find(|rate| rate.period >= DAY)?;
        (self.store == StoreConfig::Memory).then(|| {
            format!(
                "a restart forgets what is used of the windows of the limiter `{}` with {rate}: with `store: memory` states \
                 end with the process",
                limiter.name
            )
        })
    }
}

/// Warns of a route whose reads never wait, so that none joins another one.
fn idle_share(route: &Route) -> Option<String> {
    let is_idle = route.max_wait_cap.is_zero() || route.limiters.is_empty();
    (route.share.is_some() && is_idle && route.missing.is_empty()).then(|| {
        format!(
            "`share` of the route `{}` does nothing: its requests wait for no slot; give it limiters and `max_wait`",
            route.name
        )
    })
}

/// Warns of a segment such as `:id`, which other routers read as a parameter.
fn colon_segment(route: &Route) -> Option<String> {
    let path = match &route.path {
        PathRule::Template(template) => Cow::Borrowed(template.text()),
        PathRule::Suffix(Suffix::Segments(bytes)) => String::from_utf8_lossy(bytes),
        PathRule::Suffix(_) | PathRule::Descriptor => return None,
    };
    let name = path.split('/').find_map(|segment| segment.strip_prefix(':'))?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let within = if route.path.template().is_some() { "" } else { " of a `path`" };
    is_name.then(|| {
        format!(
            "`:{name}` in the route `{}` is read as these characters; a parameter{within} is written `{{{name}}}`",
            route.name
        )
    })
}

/// Warns of a margin that leaves less than half of the quota.
fn costly_margin(limiter: &LimiterConfig) -> Option<String> {
    let facts = limiter.algorithms.first()?.as_rate()?.facts();
    let margin = Duration::from_micros(u64::try_from(facts.margin).ok()?);
    let padded = |rate: &Rate| {
        // It lies between two permits, or between two windows.
        let times = if facts.spaces_permits { u128::from(rate.count) } else { 1 };
        rate.period.as_micros() + margin.as_micros() * times
    };
    // The rate with the fewest permits per time, if its period is the one that `period` returns.
    let tightest = |period: &dyn Fn(&Rate) -> u128| {
        let rates = limiter.rates.iter().map(|rate| (u128::from(rate.count), period(rate)));
        rates.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)))
    };
    let (count, period) = tightest(&|rate| rate.period.as_micros())?;
    let (left, longer) = tightest(&padded)?;
    let percent = 100 * left * period / (longer * count);
    (percent < 50).then(|| {
        format!(
            "the margin {} of the limiter `{}` leaves {percent} % of its quota",
            Span(margin),
            limiter.name
        )
    })
}
