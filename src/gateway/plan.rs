//! A configuration made ready for requests: what can be looked up, allocated or named once is done here.
//! Shared by all workers.

use super::{
    ledger::{Ledger, RouteLine},
    redact::Redactor,
};
use crate::{
    algorithm::Micros,
    answer::{Policy, Quota},
    config::{self, Charge, Config, Mode},
    key::{Cost, Parts},
    limit::micros,
    metrics::{LimiterMetrics, RouteMetrics, UpstreamMetrics},
    route::Table,
    store::{Check, Checks},
    upstream::headers::Rules,
};
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Everything a request needs to know.
pub struct Plan {
    /// The configuration it was made from.
    pub config: Config,
    pub(super) table: Table,
    pub(super) routes: Vec<RoutePlan>,
    /// By index of the route.
    pub(super) rooms: Box<[Room]>,
    /// By index of the limiter.
    pub limiters: Vec<LimiterPlan>,
    pub(super) upstreams: Vec<UpstreamMetrics>,
    pub(super) no_route: RouteMetrics,
    /// By index of the worker.
    pub(super) ledgers: Box<[Ledger]>,
    /// `None`: no access lines are written.
    pub(super) redactor: Option<Redactor>,
}

/// A route. A request that goes at once reads nothing of it but what is in the [`RouteLine`] of its worker.
pub(super) struct RoutePlan {
    pub(super) name: String,
    /// What is charged; empty: nothing limits it.
    charges: Vec<Charge>,
    /// For each check, the index of its limiter and of its rate there.
    owners: SmallVec<[(u32, u32); 1]>,
    max_wait: Duration,
    pub(super) max_wait_cap: Duration,
    upstream: u32,
    rules: Option<Arc<[Rules; 2]>>,
    pub(super) metrics: RouteMetrics,
}

/// How many requests of a route wait in this gateway, and may.
pub(super) struct Room {
    max_waiting: u32,
    waiting: AtomicU32,
}

/// A limiter.
pub struct LimiterPlan {
    /// As configured.
    pub limiter: config::Limiter,
    /// What callers are told of it, for each rate.
    pub policies: Vec<Policy>,
    /// As it is asked for one permit where it has no key, for each rate.
    pub checks: Vec<Check>,
    names: Names,
    /// Requests that wait for it in this gateway.
    pub waiting: AtomicUsize,
    /// Its metrics.
    pub metrics: LimiterMetrics,
}

/// What the routes make of a limiter.
#[derive(Clone, Copy)]
struct Use {
    /// Of its requests the longest, µs.
    wait: Micros,
    /// The greatest, permits.
    cost: i64,
}

/// What stands in the name of every state.
#[derive(Clone)]
struct Names {
    prefix: Arc<str>,
    instance: Arc<str>,
}

/// Counts a request that is being held.
pub(super) struct Waiting<'a> {
    room: &'a Room,
    route: &'a RoutePlan,
    limiter: &'a LimiterPlan,
}

// === impl Plan ===

impl Plan {
    /// Makes `config` ready; `access_log` says whether a line a request is written.
    pub fn new(config: Config, access_log: bool) -> Self {
        let prefix = match &config.store {
            config::Store::Memory => "paceway",
            config::Store::Redis { prefix, .. } => prefix,
        };
        // Another one at each start: nobody else may have it.
        let instance = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let names = Names { prefix: prefix.into(), instance: instance.into() };
        let limiters = config.limiters.iter().enumerate();
        let limiters: Vec<_> = limiters
            .map(|(i, limiter)| LimiterPlan::new(limiter, &names, Use::of(i, &config)))
            .collect();
        let routes = config.routes.iter().map(|route| RoutePlan::new(route, &limiters, &config));
        let routes: Vec<_> = routes.collect();
        let mut shared = HashMap::new();
        let fixed: Vec<_> =
            routes.iter().map(|route| route.fixed(&limiters, &mut shared)).collect();
        let ledger = |_| Ledger::new(&routes, &fixed, limiters.len(), config.upstreams.len());
        let upstreams = config.upstreams.iter();
        Self {
            ledgers: (0..config.workers.get()).map(ledger).collect(),
            table: Table::new(&config.routes),
            rooms: config.routes.iter().map(Room::of).collect(),
            routes,
            limiters,
            upstreams: upstreams.map(|upstream| UpstreamMetrics::new(&upstream.name)).collect(),
            no_route: RouteMetrics::new("-"),
            redactor: access_log.then(|| Redactor::new(&config.redact)),
            config,
        }
    }

    /// The limiters that work and have one state for all, as they are asked for one permit.
    pub fn levels(&self) -> Vec<Check> {
        let works = |plan: &&LimiterPlan| {
            let limiter = &plan.limiter;
            self.config.limiting && limiter.mode != Mode::Off && limiter.key.is_none()
        };
        self.limiters.iter().filter(works).flat_map(|plan| plan.checks.clone()).collect()
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("config", &self.config).finish_non_exhaustive()
    }
}

// === impl RoutePlan ===

impl RoutePlan {
    fn new(route: &config::Route, limiters: &[LimiterPlan], config: &Config) -> Self {
        let works = |charge: &&Charge| {
            config.limiting && limiters[charge.limiter].limiter.mode != Mode::Off
        };
        let charges: Vec<Charge> = route.limiters.iter().filter(works).cloned().collect();
        let owners = charges.iter().flat_map(|charge| {
            let rates = 0..limiters[charge.limiter].checks.len();
            rates.map(|rate| (charge.limiter as u32, rate as u32))
        });
        let rules = [config.upstreams[route.upstream].headers.clone(), route.headers.clone()];
        Self {
            name: route.name.clone(),
            owners: owners.collect(),
            charges,
            // There are not as many.
            upstream: u32::try_from(route.upstream).unwrap_or(u32::MAX),
            rules: rules.iter().any(|rules| !rules.is_empty()).then(|| Arc::new(rules)),
            max_wait: route.max_wait,
            max_wait_cap: route.max_wait_cap,
            metrics: RouteMetrics::new(&route.name),
        }
    }

    /// What a worker touches of it; `fixed` are its checks of that worker.
    pub(super) fn line(&self, fixed: Option<Checks>) -> RouteLine {
        let limiter = match self.owners[..] {
            [(limiter, _)] => Some(limiter),
            _ => None,
        };
        RouteLine::new(fixed, self.max_wait, self.rules.clone(), self.upstream, limiter)
    }

    /// What the limiters are asked, where nothing of it depends on the request. Routes with the same charges share it,
    /// by limiters and costs.
    fn fixed(
        &self,
        limiters: &[LimiterPlan],
        shared: &mut HashMap<Vec<(usize, i64)>, Checks>,
    ) -> Option<Checks> {
        let fixed = self.charges.iter().map(|charge| match charge.cost {
            Cost::Fixed(cost) if limiters[charge.limiter].limiter.key.is_none() => {
                Some((charge.limiter, cost))
            }
            _ => None,
        });
        let fixed = fixed.collect::<Option<Vec<_>>>().filter(|fixed| !fixed.is_empty())?;
        let checks =
            fixed.iter().flat_map(|(limiter, cost)| limiters[*limiter].checks(None, *cost));
        let checks = checks.collect();
        Some(shared.entry(fixed).or_insert(checks).clone())
    }

    /// What the limiters are asked for a request, where that is not the same for all; `None` where nothing limits it.
    ///
    /// # Errors
    ///
    /// A message for the caller, when the request names a cost that cannot be paid.
    pub(super) fn checks<'p>(
        &self,
        limiters: &[LimiterPlan],
        parts: impl FnOnce() -> Parts<'p>,
    ) -> Result<Option<Checks>, String> {
        if self.charges.is_empty() {
            return Ok(None);
        }
        let parts = parts();
        let mut checks = Vec::with_capacity(self.owners.len());
        for Charge { limiter, cost } in &self.charges {
            let plan = &limiters[*limiter];
            let cost = cost.of(&parts, plan.limiter.capacity())?;
            let filled = plan.limiter.key.as_ref().map(|template| template.fill(&parts));
            checks.extend(plan.checks(filled.as_deref(), cost));
        }
        Ok(Some(checks.into()))
    }

    /// The limiter behind a check, and the place of its rate.
    pub(super) fn owner(&self, check: usize) -> (usize, usize) {
        let (limiter, rate) = self.owners[check];
        (limiter as usize, rate as usize)
    }
}

// === impl Room ===

impl Room {
    fn of(route: &config::Route) -> Self {
        let max_waiting = u32::try_from(route.max_waiting).unwrap_or(u32::MAX);
        Self { max_waiting, waiting: AtomicU32::new(0) }
    }

    /// Whether as many wait as may.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Relaxed) >= self.max_waiting
    }
}

// === impl LimiterPlan ===

impl LimiterPlan {
    fn new(limiter: &config::Limiter, names: &Names, is_used: Use) -> Self {
        let policy = |quota| Policy { name: limiter.name.clone(), quota };
        let policies = limiter.algorithms.iter().enumerate().map(|(i, rule)| {
            let rate = limiter.rates.get(i).copied();
            policy(rate.map_or(Quota::Places(rule.limit()), Quota::Rate))
        });
        let is_one = limiter.key.is_none() && limiter.mode != Mode::Off;
        let rules = limiter.algorithms.iter().enumerate();
        let checks = rules.map(|(rate, algorithm)| {
            // A bucket that no request can name: a hash is 32 digits long.
            let overflow =
                limiter.key.is_some().then(|| names.key(limiter, rate, Some("#overflow")));
            Check {
                key: names.key(limiter, rate, None),
                algorithm: *algorithm,
                cost: 1,
                enforce: limiter.mode == Mode::Enforce,
                hidden: algorithm.hidden(is_used.wait, is_used.cost),
                overflow,
                on_failure: limiter.without_store(rate),
            }
        });
        Self {
            limiter: limiter.clone(),
            policies: policies.collect(),
            checks: checks.collect(),
            names: names.clone(),
            waiting: AtomicUsize::new(0),
            metrics: LimiterMetrics::new(&limiter.name, is_one),
        }
    }

    /// As it is asked for `cost` permits of the bucket `filled`, for each rate.
    pub fn checks(&self, filled: Option<&str>, cost: i64) -> impl Iterator<Item = Check> {
        self.checks.iter().enumerate().map(move |(rate, check)| {
            let key = match filled {
                None => check.key.clone(),
                filled => self.names.key(&self.limiter, rate, filled),
            };
            let overflow = check.overflow.clone().filter(|_| filled.is_some());
            Check { key, cost, overflow, ..*check }
        })
    }
}

// === impl Use ===

impl Use {
    /// Of the limiter at place `i`.
    fn of(i: usize, config: &Config) -> Self {
        let most = config.limiters[i].capacity();
        let mut all = Self { wait: 0, cost: 1 };
        for route in &config.routes {
            for charge in route.limiters.iter().filter(|charge| charge.limiter == i) {
                let cost = match charge.cost {
                    Cost::Fixed(cost) => cost,
                    Cost::FromRequest(_) => most,
                };
                let wait = micros(route.max_wait.max(route.max_wait_cap));
                all = Self { wait: all.wait.max(wait), cost: all.cost.max(cost) };
            }
        }
        all
    }
}

// === impl Names ===

impl Names {
    /// Of the state of the bucket `filled`.
    fn key(&self, limiter: &config::Limiter, rate: usize, filled: Option<&str>) -> Arc<str> {
        limiter.store_key(&self.prefix, Some(&self.instance), rate, filled).into()
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    /// `None` when as many wait on the route as may.
    pub(super) fn enter(
        room: &'a Room,
        route: &'a RoutePlan,
        limiter: &'a LimiterPlan,
    ) -> Option<Self> {
        if room.waiting.fetch_add(1, Relaxed) >= room.max_waiting {
            room.waiting.fetch_sub(1, Relaxed);
            return None;
        }
        limiter.waiting.fetch_add(1, Relaxed);
        route.metrics.waiting.increment(1.0);
        Some(Self { room, route, limiter })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.room.waiting.fetch_sub(1, Relaxed);
        self.limiter.waiting.fetch_sub(1, Relaxed);
        self.route.metrics.waiting.decrement(1.0);
    }
}
