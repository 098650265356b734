//! A configuration made ready for requests: lookups, allocations and names that can be made once are made here. All
//! workers share it.

mod accounts;
mod shared_margin;
mod counters;
mod former_states;
mod forward_routes;
mod kept_reads;
mod kept_reservations;
mod ledger;
mod learned_limits;
mod learned_reserves;
mod limiter_plan;
mod previous;
mod redact;
mod remainders;
mod recent;
mod route_policy;
mod service_counts;
mod streaks;
mod taken_permits;
mod totals;
mod waiting;
mod working_rate;

pub(crate) use accounts::{
    AccountSet, AccountsPlan, AllParked, OpenAccounts, RouteAccounts, Trial, open_ways, question,
};
pub(crate) use counters::LimiterCounters;
pub use counters::WorkerCounters;
pub(crate) use forward_routes::ForwardRoutes;
use kept_reads::KeptReads;
pub(crate) use kept_reads::ReadPolicy;
pub(crate) use kept_reservations::{KEPT_FOR, KeptReservation, KeptReservations};
pub use learned_limits::LearnedLimits;
pub(crate) use learned_reserves::LearnedCall;
pub use learned_reserves::{KeyCosts, LearnedReserves};
pub use ledger::CountLedger;
pub use limiter_plan::LimiterPlan;
pub use recent::{MOST_RECENT, RecentReason, RecentRequest, RecentRequests};
pub(crate) use redact::Redactor;
pub(crate) use remainders::{Consequence, HeardRemainder, Left, Remainders};
use route_policy::RoutePolicies;
pub(crate) use route_policy::{CheckOwner, PolicyChecks, RoutePolicy, SettledCheck, Unpayable};
pub(crate) use service_counts::ServiceCounts;
pub use shared_margin::{Observed, SharedMargin};
pub(crate) use streaks::RefusalStreaks;
pub(crate) use taken_permits::TakenPermits;
pub use totals::{ExchangeTotals, ROUTE_KINDS, UPSTREAM_KINDS};
pub(crate) use waiting::{Waiting, WaitingCounts};
pub use working_rate::{WorkingRate, per_second, rate_text, reason, slowest_per_second};

use crate::{
    algorithm::Rule,
    config::{self, Config, Mode},
    metrics::{RouteMetrics, UpstreamMetrics},
    reads::SharedWaits,
    route::Table,
    store::Check,
    trace::Tracer,
    upstream::{BodyLine, KeptBytes},
};
use former_states::UsedStates;
use previous::Previous;
use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};
use tokio::time::Instant;

/// The most bytes of all answers that are kept because they say the true cost of a request, 64 MiB.
const SETTLED_ANSWERS: usize = 64 << 20;

/// The room of a process for what limiters read of large bodies, 64 MiB.
const LARGE_BODIES: usize = 64 << 20;

/// All that a request needs to know of the configuration, in the form in which it is needed.
pub struct Plan {
    /// The configuration that the plan was made from.
    pub config: Config,
    pub(crate) table: Table,
    /// The routes of requests that come through the forward proxy; `None` if there is none.
    pub(crate) forward: Option<Box<ForwardRoutes>>,
    /// The metrics of each route, by its index in the configuration.
    pub(crate) routes: Vec<RouteMetrics>,
    /// The policies of the routes. A route names its own by index, and routes with the same limits share one.
    pub(crate) policies: Vec<RoutePolicy>,
    pub(crate) waiting: WaitingCounts,
    /// The limiters, by their index in the configuration.
    pub limiters: Vec<LimiterPlan>,
    /// The states of limiters that the configuration does not have any more.
    absent: Vec<UsedStates>,
    pub(crate) upstreams: Vec<UpstreamMetrics>,
    /// The accounts of each upstream; `None` for one without.
    pub(crate) accounts: Vec<Option<Arc<AccountsPlan>>>,
    /// The knowledge from the answers of each upstream, by its index.
    pub(crate) heard: Box<[Arc<HeardAnswers>]>,
    /// Bounds the bytes that requests keep because they may be sent again.
    pub(crate) kept: Arc<KeptBytes>,
    /// The room for large bodies that limiters read. Plans that follow each other share it.
    pub(crate) large_bodies: Arc<BodyLine>,
    /// The instant from which the times of refusals count.
    epoch: Instant,
    pub(crate) no_route: RouteMetrics,
    /// The counters of each worker, by the worker's index.
    pub(crate) counters: Box<[WorkerCounters]>,
    /// The counters of the requests that services decided.
    pub(crate) services: Vec<ServiceCounts>,
    /// Bounds the answers that are kept until their end because they say the true cost of a request.
    pub(crate) settled: Arc<KeptBytes>,
    /// Hides the secrets in access lines; `None` if the gateway writes no access lines.
    pub(crate) redactor: Option<Redactor>,
    /// The names of the routes, by index, for [`RecentRequests`].
    pub(crate) route_names: Box<[Arc<str>]>,
    /// The requests that were held or refused last. Plans that follow each other share them.
    pub recent: Arc<RecentRequests>,
    /// The reservations that programs may still refund or settle. Plans that follow each other share them.
    pub(crate) kept_reservations: Arc<KeptReservations>,
    /// The permits that descriptors of Envoy may give back.
    pub(crate) taken_permits: Arc<TakenPermits>,
    /// The identical reads that wait together. Plans that follow each other share them.
    pub(crate) shared_waits: Arc<SharedWaits>,
    /// The answers that upstreams are asked to confirm.
    kept_answers: KeptReads,
    /// Begins traces of requests; `None` if none are traced.
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// The part of the names of states that no other gateway has. Each start has another one.
    instance: String,
}

/// The knowledge from the answers of one upstream. Plans that follow each other share it.
#[derive(Debug, Default)]
pub(crate) struct HeardAnswers {
    /// The refusals in a row of each key.
    pub(crate) streaks: RefusalStreaks,
    /// The newest values of what remains of its quotas.
    pub(crate) remaining: Remainders,
}

/// An account whose state in the store is paused.
pub(crate) struct ParkedAccount<'p> {
    pub(crate) plan: &'p AccountsPlan,
    pub(crate) account: usize,
    /// The name of its upstream.
    pub(crate) upstream: &'p str,
    pub(crate) name: &'p str,
}

// === impl Plan ===

impl Plan {
    /// Makes `config` ready. With `access_log`, the gateway writes an access line for each request.
    pub fn new(config: Config, access_log: bool) -> Self {
        Self::after(&Previous::none(), config, access_log)
    }

    /// Makes `config` ready to take over from this plan. Limiters, routes and upstreams of the same name keep what the gateway
    /// knows of them: waiting requests, refusals in a row and learned margins. Counters begin at 0; [`CountLedger`] keeps those
    /// of this plan.
    pub fn next(&self, config: Config) -> Self {
        Self::after(&Previous::of(self), config, self.redactor.is_some())
    }

    fn after(previous: &Previous<'_>, config: Config, access_log: bool) -> Self {
        let prefix = match &config.store {
            config::StoreConfig::Memory => "paceway",
            config::StoreConfig::Redis { prefix, .. } => prefix,
        };
        let before = previous.plan;
        // Random, so that no other gateway shares the states of `scope: instance`.
        let random = || format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let instance = before.map_or_else(random, |before| before.instance.clone());
        let names = [prefix, &instance];
        let limiters: Vec<_> = (0..config.limiters.len())
            .map(|i| LimiterPlan::new(i, &config, names, previous))
            .collect();
        let kept_answers = KeptReads::new(&config, previous);
        let accounts = AccountsPlan::of_all(&config, prefix, previous);
        let routes = RoutePolicies::new(&config, &limiters, &accounts, &kept_answers);
        let workers = 0..config.workers.get();
        let counters = workers.map(|_| routes.counters(&config, &limiters)).collect();
        let RoutePolicies { policies, counted } = routes;
        let routes = config.routes.iter().map(RouteMetrics::new);
        let upstreams = config.upstreams.iter();
        let heard = |name: &str| previous.upstream(name).map(|(plan, i)| plan.heard[i].clone());
        let bound = config.limits.retry_bodies;
        let same_bound = before.filter(|before| before.config.limits.retry_bodies == bound);
        Self {
            counters,
            services: ServiceCounts::all(&config, &counted),
            table: Table::new(&config.routes, config.paths),
            forward: config.forward.is_some().then(|| Box::new(ForwardRoutes::new(&config))),
            waiting: WaitingCounts::new(&config, previous),
            routes: routes.collect(),
            policies,
            limiters,
            heard: upstreams.clone().map(|own| heard(&own.name).unwrap_or_default()).collect(),
            upstreams: upstreams.map(|upstream| UpstreamMetrics::new(&upstream.name)).collect(),
            kept: same_bound.map_or_else(|| KeptBytes::new(bound), |before| before.kept.clone()),
            large_bodies: before
                .map_or_else(|| BodyLine::new(LARGE_BODIES), |before| before.large_bodies.clone()),
            epoch: before.map_or_else(Instant::now, |before| before.epoch),
            no_route: RouteMetrics::without_route(),
            settled: before
                .map_or_else(|| KeptBytes::new(SETTLED_ANSWERS), |before| before.settled.clone()),
            redactor: access_log.then(|| Redactor::new(&config.redact)),
            route_names: config.routes.iter().map(|route| route.name.as_str().into()).collect(),
            recent: before.map(|before| before.recent.clone()).unwrap_or_default(),
            taken_permits: before.map(|before| before.taken_permits.clone()).unwrap_or_default(),
            kept_reservations: before
                .map(|before| before.kept_reservations.clone())
                .unwrap_or_default(),
            tracer: before.and_then(|before| before.tracer.clone()),
            absent: previous.absent(&config),
            shared_waits: before.map(|before| before.shared_waits.clone()).unwrap_or_default(),
            kept_answers,
            accounts,
            config,
            instance,
        }
    }

    /// The same plan, whose requests are traced by `tracer`.
    pub fn traced(self, tracer: Option<Arc<Tracer>>) -> Self {
        Self { tracer, ..self }
    }

    /// Whether the store notifies requests: a limiter counts calls at a time, or its requests take turns.
    pub fn is_notified(&self) -> bool {
        let has_leases = |rules: &[Rule]| rules.iter().any(|rule| rule.lease().is_some());
        let mut limiters = self.config.limiters.iter();
        limiters.any(|limiter| limiter.has_turns || has_leases(&limiter.algorithms))
    }

    /// The limiters that hold or refuse requests.
    pub fn enforcing(&self) -> impl Iterator<Item = &LimiterPlan> {
        let limiting = self.config.limiting;
        let enforces = move |plan: &&LimiterPlan| limiting && plan.limiter.mode == Mode::Enforce;
        self.limiters.iter().filter(enforces)
    }

    /// The instant from which a limiter has fewer states to ask than this plan says; `None` if there is none.
    pub(crate) fn former_until(&self) -> Option<Instant> {
        let absent = self.absent.iter().flat_map(|own| &own.all).map(|state| state.until);
        self.limiters.iter().filter_map(LimiterPlan::former_until).chain(absent).min()
    }

    /// Whether identical reads of any route wait together.
    pub(crate) fn shares_waits(&self) -> bool {
        self.config.routes.iter().any(|route| route.share.is_some())
    }

    /// The number of requests that wait in this gateway.
    pub fn waiting(&self) -> usize {
        self.waiting.all()
    }

    /// The number of requests that wait on the route with index `route`.
    pub fn waiting_on(&self, route: usize) -> usize {
        self.waiting.of(route)
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
        let own = self.limiters.iter().filter(works).flat_map(|plan| plan.checks.clone());
        let parks = self.accounts.iter().flatten().flat_map(|accounts| accounts.parks());
        own.chain(parks.cloned()).collect()
    }

    /// The upstream and the index of the account that a state in the store parks.
    pub(crate) fn parked_account(&self, state: &str) -> Option<ParkedAccount<'_>> {
        self.accounts.iter().enumerate().find_map(|(upstream, plan)| {
            let plan = plan.as_deref()?;
            let account = plan.parked_by(state)?;
            let config = &self.config.upstreams[upstream];
            let name = &config.accounts.as_ref()?.all[account].name;
            Some(ParkedAccount { plan, account, upstream: &config.name, name })
        })
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("config", &self.config).finish_non_exhaustive()
    }
}
