//! A configuration made ready for requests: what can be looked up, allocated or named once is done here.
//! Shared by all workers.

mod counters;
mod redact;
mod route_policy;

pub use counters::WorkerCounters;
pub(crate) use redact::Redactor;
pub(crate) use route_policy::RoutePolicy;

use crate::{
    algorithm::Micros,
    answer::{Policy, Quota},
    config::{self, Config, Mode},
    key::{Cost, StateNames},
    limit::micros,
    metrics::{LimiterMetrics, RouteMetrics, UpstreamMetrics},
    route::Table,
    store::Check,
};
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Everything a request needs to know.
pub struct Plan {
    /// The configuration it was made from.
    pub config: Config,
    pub(crate) table: Table,
    /// By index of the route.
    pub(crate) routes: Vec<RouteMetrics>,
    /// What applies to requests of the routes, which name their own.
    pub(crate) policies: Vec<RoutePolicy>,
    pub(crate) held: Held,
    /// By index of the limiter.
    pub limiters: Vec<LimiterPlan>,
    pub(crate) upstreams: Vec<UpstreamMetrics>,
    pub(crate) no_route: RouteMetrics,
    /// By index of the worker.
    pub(crate) counters: Box<[WorkerCounters]>,
    /// `None`: no access lines are written.
    pub(crate) redactor: Option<Redactor>,
}

/// How many requests wait in this gateway.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Held {
    all: AtomicUsize,
    /// By index of the route.
    of_routes: Box<[AtomicUsize]>,
}

/// A limiter.
pub struct LimiterPlan {
    /// As configured.
    pub limiter: config::LimiterConfig,
    /// What callers are told of it, for each rate.
    pub policies: Vec<Policy>,
    /// As it is asked for one permit where it has no key, for each rate.
    pub checks: Vec<Check>,
    /// Of its states, for each rate.
    names: Vec<StateNames>,
    /// Requests that wait for it in this gateway.
    pub waiting: AtomicUsize,
    /// Its metrics.
    pub metrics: LimiterMetrics,
}

/// What the routes make of a limiter.
#[derive(Clone, Copy)]
struct Demand {
    /// Of its requests the longest, µs.
    wait: Micros,
    /// The greatest, permits.
    cost: i64,
}

/// Counts a request that is being held.
pub(crate) struct Waiting<'a> {
    plan: &'a Plan,
    /// Indices.
    route: usize,
    limiter: usize,
}

// === impl Plan ===

impl Plan {
    /// Makes `config` ready; `access_log` says whether a line a request is written.
    pub fn new(config: Config, access_log: bool) -> Self {
        let prefix = match &config.store {
            config::StoreConfig::Memory => "paceway",
            config::StoreConfig::Redis { prefix, .. } => prefix,
        };
        // Another one at each start: nobody else may have it.
        let instance = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let limiters = config.limiters.iter().enumerate();
        let limiters: Vec<_> = limiters
            .map(|(i, limiter)| {
                LimiterPlan::new(limiter, [prefix, &instance], Demand::of(i, &config))
            })
            .collect();
        let (policies, of_routes) = RoutePolicy::all(&config, &limiters);
        let counters = |_| {
            let fixed = policies.iter().map(|policies| policies.fixed(&limiters)).collect();
            WorkerCounters::new(&of_routes, fixed, limiters.len(), config.upstreams.len())
        };
        let routes = config.routes.iter().map(|route| RouteMetrics::new(&route.name));
        let upstreams = config.upstreams.iter();
        Self {
            counters: (0..config.workers.get()).map(counters).collect(),
            table: Table::new(&config.routes, config.paths),
            held: Held::new(config.routes.len()),
            routes: routes.collect(),
            policies,
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

// === impl Held ===

impl Held {
    fn new(routes: usize) -> Self {
        Self { of_routes: (0..routes).map(|_| AtomicUsize::new(0)).collect(), ..Self::default() }
    }

    /// How many of a route wait. One of thousands is far away, and as a rule there is no need to go there.
    pub(crate) fn of(&self, route: usize) -> usize {
        match self.all.load(Relaxed) {
            0 => 0,
            _ => self.of_routes[route].load(Relaxed),
        }
    }
}

// === impl LimiterPlan ===

impl LimiterPlan {
    fn new(
        limiter: &config::LimiterConfig,
        [prefix, instance]: [&str; 2],
        is_used: Demand,
    ) -> Self {
        let policy = |quota| Policy { name: limiter.name.clone(), quota };
        let policies = limiter.algorithms.iter().enumerate().map(|(i, rule)| {
            let rate = limiter.rates.get(i).copied();
            policy(rate.map_or(Quota::Places(rule.limit()), Quota::Rate))
        });
        let is_one = limiter.key.is_none() && limiter.mode != Mode::Off;
        let names = 0..limiter.algorithms.len();
        let names = names.map(|rate| limiter.state_names(prefix, Some(instance), rate));
        let names: Vec<_> = names.collect();
        let rules = limiter.algorithms.iter().zip(&names).enumerate();
        let checks = rules.map(|(rate, (algorithm, names))| {
            // A bucket that no request can name: a hash is 32 digits long.
            let overflow = limiter.key.is_some().then(|| names.of(Some("#overflow")).into());
            Check {
                key: names.of(None).into(),
                algorithm: *algorithm,
                cost: 1,
                enforce: limiter.mode == Mode::Enforce,
                horizon: algorithm.horizon(is_used.wait, is_used.cost),
                overflow,
                on_failure: limiter.without_store(rate),
            }
        });
        let checks = checks.collect();
        Self {
            limiter: limiter.clone(),
            policies: policies.collect(),
            checks,
            names,
            waiting: AtomicUsize::new(0),
            metrics: LimiterMetrics::new(&limiter.name, is_one),
        }
    }

    /// As it is asked for `cost` permits of the bucket `filled`, for each rate.
    pub fn checks(&self, filled: Option<&str>, cost: i64) -> impl Iterator<Item = Check> {
        self.checks.iter().zip(&self.names).map(move |(check, names)| {
            let key = match filled {
                None => check.key.clone(),
                filled => names.of(filled).into(),
            };
            let overflow = check.overflow.clone().filter(|_| filled.is_some());
            Check { key, cost, overflow, ..*check }
        })
    }
}

// === impl Demand ===

impl Demand {
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

// === impl Waiting ===

impl<'a> Waiting<'a> {
    /// `None` when as many as `most` wait on the route.
    pub(crate) fn enter(plan: &'a Plan, route: usize, limiter: usize, most: usize) -> Option<Self> {
        if plan.held.of_routes[route].fetch_add(1, Relaxed) >= most {
            plan.held.of_routes[route].fetch_sub(1, Relaxed);
            return None;
        }
        plan.held.all.fetch_add(1, Relaxed);
        plan.limiters[limiter].waiting.fetch_add(1, Relaxed);
        plan.routes[route].waiting.increment(1.0);
        Some(Self { plan, route, limiter })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.plan.held.of_routes[self.route].fetch_sub(1, Relaxed);
        self.plan.held.all.fetch_sub(1, Relaxed);
        self.plan.limiters[self.limiter].waiting.fetch_sub(1, Relaxed);
        self.plan.routes[self.route].waiting.decrement(1.0);
    }
}
