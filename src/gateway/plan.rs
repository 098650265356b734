//! A configuration made ready for requests: what can be looked up, allocated or named once is done here.
//! Shared by all workers.

use crate::{
    answer::Policy,
    config::{self, Config, Mode},
    limit,
    metrics::{self, LimiterMetrics, RouteMetrics, UpstreamMetrics},
    route::Table,
    store::{Check, Checks},
};
use ::metrics::Histogram;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Everything a request needs to know.
pub struct Plan {
    /// The configuration it was made from.
    pub config: Config,
    pub(super) table: Table,
    pub(super) routes: Vec<RoutePlan>,
    /// By index of the limiter.
    pub limiters: Vec<LimiterPlan>,
    pub(super) upstreams: Vec<UpstreamMetrics>,
    pub(super) no_route: RouteMetrics,
    pub(super) overhead: Histogram,
    pub(super) access_log: bool,
}

/// A route.
pub struct RoutePlan {
    pub(super) name: String,
    /// `None`: nothing limits it.
    pub(super) checks: Option<Checks>,
    /// Indices of the limiters behind `checks`.
    pub(super) limiters: Vec<usize>,
    pub(super) upstream: usize,
    pub(super) max_wait: Duration,
    pub(super) max_wait_cap: Duration,
    pub(super) max_waiting: usize,
    pub(super) waiting: AtomicUsize,
    pub(super) metrics: RouteMetrics,
}

/// A limiter.
pub struct LimiterPlan {
    /// What callers are told of it.
    pub policy: Policy,
    /// As it is asked for one permit.
    pub check: Check,
    /// Whether it holds, counts, or does nothing.
    pub mode: Mode,
    /// Requests that wait for it in this gateway.
    pub waiting: AtomicUsize,
    /// Its metrics.
    pub metrics: LimiterMetrics,
}

/// Counts a request that is being held.
pub(super) struct Waiting<'a> {
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
        let limiters: Vec<_> =
            config.limiters.iter().map(|limiter| LimiterPlan::new(limiter, prefix)).collect();
        let routes = config.routes.iter();
        let routes =
            routes.map(|route| RoutePlan::new(route, &limiters, config.limiting)).collect();
        let upstreams = config.upstreams.iter();
        Self {
            table: Table::new(&config.routes),
            routes,
            limiters,
            upstreams: upstreams.map(|upstream| UpstreamMetrics::new(&upstream.name)).collect(),
            no_route: RouteMetrics::new("-"),
            overhead: metrics::overhead(),
            access_log,
            config,
        }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("config", &self.config).finish_non_exhaustive()
    }
}

// === impl RoutePlan ===

impl RoutePlan {
    fn new(route: &config::Route, limiters: &[LimiterPlan], limiting: bool) -> Self {
        let works = |i: &usize| limiting && limiters[*i].mode != Mode::Off;
        let used: Vec<usize> = route.limiters.iter().copied().filter(works).collect();
        let checks: Checks = used.iter().map(|i| limiters[*i].check.clone()).collect();
        Self {
            name: route.name.clone(),
            checks: (!checks.is_empty()).then_some(checks),
            limiters: used,
            upstream: route.upstream,
            max_wait: route.max_wait,
            max_wait_cap: route.max_wait_cap,
            max_waiting: route.max_waiting,
            waiting: AtomicUsize::new(0),
            metrics: RouteMetrics::new(&route.name),
        }
    }

    /// Whether as many wait as may.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.load(Relaxed) >= self.max_waiting
    }
}

// === impl LimiterPlan ===

impl LimiterPlan {
    fn new(limiter: &config::Limiter, prefix: &str) -> Self {
        let check = Check {
            key: Arc::from(limit::key(prefix, &limiter.group, &limiter.name)),
            algorithm: limiter.algorithm,
            cost: 1,
            enforce: limiter.mode == Mode::Enforce,
        };
        Self {
            policy: Policy { name: limiter.name.clone(), rate: limiter.rate },
            check,
            mode: limiter.mode,
            waiting: AtomicUsize::new(0),
            metrics: LimiterMetrics::new(&limiter.name),
        }
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    /// `None` when as many wait on the route as may.
    pub(super) fn enter(route: &'a RoutePlan, limiter: &'a LimiterPlan) -> Option<Self> {
        if route.waiting.fetch_add(1, Relaxed) >= route.max_waiting {
            route.waiting.fetch_sub(1, Relaxed);
            return None;
        }
        limiter.waiting.fetch_add(1, Relaxed);
        route.metrics.waiting.increment(1.0);
        Some(Self { route, limiter })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.route.waiting.fetch_sub(1, Relaxed);
        self.limiter.waiting.fetch_sub(1, Relaxed);
        self.route.metrics.waiting.decrement(1.0);
    }
}
