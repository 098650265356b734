//! A configuration made ready for requests: lookups, allocations and names that can be made once are made here. All
//! workers share it.

mod auto_limit;
mod counters;
mod redact;
mod route_policy;

pub use auto_limit::{AutoLimit, Observed};
pub use counters::WorkerCounters;
pub(crate) use redact::Redactor;
pub(crate) use route_policy::RoutePolicy;

use crate::{
    algorithm::Micros,
    answer::{Policy, Quota},
    config::{self, Config, Mode},
    key::StateNames,
    limit::micros,
    metrics::{self, LimiterMetrics, RouteMetrics, UpstreamMetrics},
    route::Table,
    store::Check,
    throttle::RefusalStreak,
    upstream::KeptBytes,
};
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};
use tokio::time::Instant;

/// The most bytes of all answers that are kept because they say the true cost of a request, 64 MiB.
const SETTLED_ANSWERS: usize = 64 << 20;

/// All that a request needs to know of the configuration, in the form in which it is needed.
pub struct Plan {
    /// The configuration that the plan was made from.
    pub config: Config,
    pub(crate) table: Table,
    /// The metrics of each route, by its index in the configuration.
    pub(crate) routes: Vec<RouteMetrics>,
    /// The policies of the routes. A route names its own by index, and routes with the same limits share one.
    pub(crate) policies: Vec<RoutePolicy>,
    pub(crate) held: Held,
    /// The limiters, by their index in the configuration.
    pub limiters: Vec<LimiterPlan>,
    pub(crate) upstreams: Vec<UpstreamMetrics>,
    /// The refusals in a row of each upstream, by its index.
    pub(crate) streaks: Box<[RefusalStreak]>,
    /// The time at which the request of the newest answer with a quota was sent, for each upstream, by its index.
    pub(crate) newest: Box<[AtomicU64]>,
    /// Bounds the bytes that requests keep because they may be sent again.
    pub(crate) kept: Arc<KeptBytes>,
    /// The instant from which the times of refusals count.
    epoch: Instant,
    pub(crate) no_route: RouteMetrics,
    /// The counters of each worker, by the worker's index.
    pub(crate) counters: Box<[WorkerCounters]>,
    /// Bounds the answers that are kept until their end because they say the true cost of a request.
    pub(crate) settled: Arc<KeptBytes>,
    /// Hides the secrets in access lines; `None` if the gateway writes no access lines.
    pub(crate) redactor: Option<Redactor>,
}

/// The number of requests that wait in this gateway, in sum and for each route.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Held {
    all: AtomicUsize,
    /// The number of waiting requests of each route, by its index.
    of_routes: Box<[AtomicUsize]>,
}

/// A limiter with the values that do not depend on a request.
pub struct LimiterPlan {
    /// The limiter as it is configured.
    pub limiter: config::LimiterConfig,
    /// The description that a refused caller receives, for each rate of the limiter.
    pub policies: Vec<Policy>,
    /// The check of one permit of a limiter without a key, for each of its rates.
    pub checks: Vec<Check>,
    /// The names of its states, for each of its rates.
    names: Vec<StateNames>,
    /// The part of its rule that is learned; `None` for a limiter that learns nothing.
    auto: Option<Box<AutoLimit>>,
    /// The most that its requests can ask of it.
    demand: Demand,
    /// The requests of this gateway that wait for this limiter at the moment.
    pub waiting: AtomicUsize,
    /// The handles of its metrics.
    pub metrics: LimiterMetrics,
}

/// The most that the routes can ask of a limiter. It bounds the permits that a loss of data can hide.
#[derive(Clone, Copy)]
struct Demand {
    /// The longest wait of the requests that use it, µs.
    wait: Micros,
    /// The greatest cost of a request that uses it, permits.
    cost: i64,
}

/// Counts a waiting request from its creation to its drop, for its route and for the limiter that bound it.
pub(crate) struct Waiting<'a> {
    plan: &'a Plan,
    /// The indices of the route and of the limiter.
    route: usize,
    limiter: usize,
}

// === impl Plan ===

impl Plan {
    /// Makes `config` ready. With `access_log`, the gateway writes an access line for each request.
    pub fn new(config: Config, access_log: bool) -> Self {
        let prefix = match &config.store {
            config::StoreConfig::Memory => "paceway",
            config::StoreConfig::Redis { prefix, .. } => prefix,
        };
        // Each start has another one, so that no other gateway shares the states of `scope: instance`.
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
            streaks: config.upstreams.iter().map(|_| RefusalStreak::default()).collect(),
            newest: config.upstreams.iter().map(|_| AtomicU64::new(0)).collect(),
            kept: KeptBytes::new(config.limits.retry_bodies),
            epoch: Instant::now(),
            no_route: RouteMetrics::new("-"),
            settled: KeptBytes::new(SETTLED_ANSWERS),
            redactor: access_log.then(|| Redactor::new(&config.redact)),
            config,
        }
    }

    /// The limiters that hold or refuse requests.
    pub fn enforcing(&self) -> impl Iterator<Item = &LimiterPlan> {
        let limiting = self.config.limiting;
        let enforces = move |plan: &&LimiterPlan| limiting && plan.limiter.mode == Mode::Enforce;
        self.limiters.iter().filter(enforces)
    }

    /// The limiter that a state in the store belongs to, and the key of the state.
    pub(crate) fn owner<'n>(&self, state: &'n str) -> Option<(&LimiterPlan, Option<&'n str>)> {
        self.limiters.iter().find_map(|plan| Some((plan, plan.key_in(state)?)))
    }

    /// The time from the making of the plan to `at`, µs.
    pub(crate) fn micros(&self, at: Instant) -> u64 {
        let span = at.saturating_duration_since(self.epoch);
        span.as_secs() * 1_000_000 + u64::from(span.subsec_micros())
    }

    /// The checks of one permit for all limiters that are switched on and have a single state: those whose level can be
    /// shown.
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

    /// How many requests of a route wait. The sum is looked at first: it is in a cache and usually 0, while the number
    /// of one route among thousands is not.
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
            // The name of a state that no request can have, because the hash of a long key has 32 digits.
            let overflow = limiter.key.is_some().then(|| names.of(Some("#overflow")).into());
            Check {
                key: names.of(None).into(),
                algorithm: *algorithm,
                cost: 1,
                enforce: limiter.mode == Mode::Enforce,
                horizon: algorithm.horizon(is_used.wait, is_used.cost),
                on_loss: limiter.on_loss,
                overflow,
                on_failure: limiter.without_store(rate),
            }
        });
        let checks = checks.collect();
        let metrics = LimiterMetrics::new(&limiter.name, is_one);
        let key = limiter.auto_name(prefix, instance);
        let auto = AutoLimit::new(limiter, key, || metrics::limiter_rate(&limiter.name));
        Self {
            limiter: limiter.clone(),
            auto: auto.map(Box::new),
            demand: is_used,
            policies: policies.collect(),
            checks,
            names,
            waiting: AtomicUsize::new(0),
            metrics,
        }
    }

    /// The key of a state in the store, if it is a state of this limiter.
    pub(crate) fn key_in<'n>(&self, state: &'n str) -> Option<Option<&'n str>> {
        self.names.iter().find_map(|names| names.key_in(state))
    }

    /// The checks of `cost` permits of the bucket `filled`, one for each rate of the limiter.
    pub fn checks(&self, filled: Option<&str>, cost: i64) -> impl Iterator<Item = Check> {
        let all = self.checks.iter().zip(&self.names).enumerate();
        all.map(move |(rate, (check, names))| {
            let key = match filled {
                None => check.key.clone(),
                filled => names.of(filled).into(),
            };
            let overflow = check.overflow.clone().filter(|_| filled.is_some());
            let check = Check { key, cost, overflow, ..*check };
            if self.auto.is_some() { self.renewed(&check, rate) } else { check }
        })
    }

    /// The check with the rule of the rate with index `i` that holds now.
    #[cold]
    pub(crate) fn renewed(&self, check: &Check, i: usize) -> Check {
        let algorithm = self.auto.as_ref().map_or(check.algorithm, |auto| auto.algorithm(i));
        let Demand { wait, cost } = self.demand;
        Check { algorithm, horizon: algorithm.horizon(wait, cost), ..check.clone() }
    }

    /// The check of one permit for each of its rates, with the rules that hold now. Those of a limiter with a key name no
    /// state.
    pub fn current(&self) -> Vec<Check> {
        self.checks(None, 1).collect()
    }

    /// Whether all requests of one cost have the same checks.
    fn has_fixed_checks(&self) -> bool {
        self.limiter.key.is_none() && self.auto.is_none()
    }

    /// The part of its rule that is learned; `None` for a limiter that learns nothing.
    pub fn auto(&self) -> Option<&AutoLimit> {
        self.auto.as_deref()
    }

    /// The description that a refused caller receives, for the rate with index `i`: that of the rule that holds now.
    pub(crate) fn policy(&self, i: usize) -> Policy {
        let policy = self.policies[i].clone();
        match self.auto().and_then(AutoLimit::quota) {
            Some(quota) => Policy { quota, ..policy },
            None => policy,
        }
    }
}

// === impl Demand ===

impl Demand {
    /// The demand on the limiter with index `i`, over all routes of `config`.
    fn of(i: usize, config: &Config) -> Self {
        let most = config.limiters[i].capacity();
        let mut all = Self { wait: 0, cost: 1 };
        for route in &config.routes {
            for charge in route.limiters.iter().filter(|charge| charge.limiter == i) {
                let cost = charge.cost.fixed().unwrap_or(most);
                let wait = micros(route.max_wait.max(route.max_wait_cap));
                all = Self { wait: all.wait.max(wait), cost: all.cost.max(cost) };
            }
        }
        all
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    /// Counts a request as waiting; returns `None` when `most` requests of the route wait already.
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
