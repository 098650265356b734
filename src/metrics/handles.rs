//! The handles of the metrics that are recorded where something happens, together for each part of the gateway.

use super::{
    declared::{
        ACCOUNT_MOVES, ACCOUNT_PARKED, ACCOUNT_REQUESTS, AVAILABLE, BUILD_INFO, CAPACITY,
        CONFIG_RELOADS, CONNECTIONS, CONNECTIONS_REFUSED, LATE, LIMITER, MAX_WAIT, PAUSED, PAUSES,
        PERIOD, RATE, RESET, RETRIES, ROUTE, SAVED, SERVICE, SETTLED, STORE_BLOCK_PERMITS,
        STORE_BREAKER, STORE_ERRORS, STORE_GATEWAYS, STORE_ROUND_TRIP, STORE_SECONDS,
        STORE_TIMEOUT, STORE_UP, TUNNELS, UPSTREAM, UPSTREAM_ADDRESSES, UPSTREAM_CHECKS,
        UPSTREAM_EJECTIONS, UPSTREAM_THROTTLED, USED_UP, WAITING,
    },
    labels::{MoveReason, Protocol, Refusal, RetryResult},
};
use crate::{
    algorithm::Micros,
    config::Route,
    store::{
        StoreError,
        batch::StoreMetrics,
        health::{HealthMetrics, PaceMetrics},
    },
    upstream::AddressMetrics,
};
use metrics::{Counter, Gauge};

/// Handles for one route, and its label for the metrics that workers count.
pub struct RouteMetrics {
    /// The label as the text of `/metrics` contains it: `route="NAME"`.
    label: String,
    /// Requests of this route that are held now, until their slot comes.
    pub waiting: Gauge,
    /// Open connections of this route that were upgraded, such as WebSockets.
    pub tunnels: Gauge,
    /// Permits that its reads did without; `None` if it neither shares nor keeps answers.
    pub saved: Option<SavedPermits>,
    /// Its `max_wait`; `None` for requests without a route. Kept because the series ends with its handle.
    _max_wait: Option<Gauge>,
}

/// Handles for the permits that the reads of one route did without.
pub struct SavedPermits {
    /// The reads had the answer of another one.
    pub shared: Counter,
    /// The upstream confirmed what was kept, and did not count that.
    pub revalidated: Counter,
}

/// Handles for one limiter, and its label for the metrics that workers count.
pub struct LimiterMetrics {
    /// The label as the text of `/metrics` contains it: `limiter="NAME"`.
    pub(crate) label: String,
    /// Permits that could be taken now, set at each scrape. `None` for a limiter that has a state for each key.
    pub available: Option<Gauge>,
    /// When its quota ends, set at each scrape. `None` unless it has one state for all requests, with a window.
    pub(crate) quota: Option<QuotaMetrics>,
    /// The permits a second of its slowest rate, without a key as refusals have lowered it at the last scrape;
    /// `None` without a rate.
    pub rate: Option<Gauge>,
    /// The period of that rate; `None` without a rate.
    pub period: Option<Gauge>,
    /// The permits that it grants at once when it is unused.
    pub capacity: Gauge,
    /// Slots that were not used, because their request woke too late for them.
    pub late: Counter,
    /// The seconds that are left of its pause, set at each scrape: of the longest one of its keys.
    pub paused: Gauge,
    /// Pauses that refusals of an upstream have asked for.
    pub pauses: Counter,
    /// Permits that answers settled.
    pub settled: SettledPermits,
}

/// Handles for the end of the quota of one limiter with a window.
pub(crate) struct QuotaMetrics {
    reset: Gauge,
    used_up: Gauge,
}

/// Handles for the permits of one limiter that were reserved for another cost than the true one.
#[derive(Debug, Clone)]
pub struct SettledPermits {
    /// Permits that were refunded.
    pub refunded: Counter,
    /// Permits that were charged after their request.
    pub owed: Counter,
}

/// Handles for one upstream, and its label for the metrics that workers count.
pub struct UpstreamMetrics {
    /// The label as the text of `/metrics` contains it: `upstream="NAME"`.
    pub(crate) label: String,
    /// Responses by which the upstream throttles, as `throttle.when` describes them.
    pub throttled: Counter,
    /// Its refusals, by the result for the request: one counter for each [`RetryResult`].
    pub retries: [Counter; RetryResult::ALL.len()],
}

/// Handles for one account of an upstream.
#[derive(Clone)]
pub struct AccountMetrics {
    /// Requests that were sent with it.
    pub requests: Counter,
    /// Whether it is not used, because the vendor has rejected it.
    pub parked: Gauge,
    moves: [Counter; MoveReason::ALL.len()],
}

/// Handles for the connections of clients, shared by all workers.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// Open connections, one gauge for each [`Protocol`].
    open: [Gauge; Protocol::ALL.len()],
    refused: [Counter; Refusal::ALL.len()],
}

// === impl AccountMetrics ===

impl AccountMetrics {
    /// Makes the handles for an account.
    pub fn new(upstream: &str, account: &str) -> Self {
        let moves =
            MoveReason::ALL.map(|reason| ACCOUNT_MOVES.count(&[upstream, account, reason.name()]));
        let parked = ACCOUNT_PARKED.level(&[upstream, account]);
        Self { requests: ACCOUNT_REQUESTS.count(&[upstream, account]), parked, moves }
    }

    /// Counts a request that left it.
    pub fn moved(&self, reason: MoveReason) {
        self.moves[reason as usize].increment(1);
    }
}

impl std::fmt::Debug for AccountMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccountMetrics").finish_non_exhaustive()
    }
}

// === impl RouteMetrics ===

impl RouteMetrics {
    /// Makes the handles for a route.
    pub fn new(route: &Route) -> Self {
        let saved = |by| SAVED.count(&[&route.name, by]);
        let saves = route.share.is_some() || route.revalidate.is_some();
        let max_wait = MAX_WAIT.level(&[&route.name]);
        max_wait.set(route.max_wait.as_secs_f64());
        let saved = saves
            .then(|| SavedPermits { shared: saved("share"), revalidated: saved("revalidate") });
        Self { saved, _max_wait: Some(max_wait), ..Self::named(&route.name) }
    }

    /// Makes the handles for requests without a route.
    pub fn without_route() -> Self {
        Self::named("-")
    }

    fn named(route: &str) -> Self {
        Self {
            saved: None,
            _max_wait: None,
            label: ROUTE.text(route),
            waiting: WAITING.level(&[route]),
            tunnels: TUNNELS.level(&[route]),
        }
    }

    /// The label as the text of `/metrics` contains it: `route="NAME"`.
    pub fn label(&self) -> &str {
        &self.label
    }
}

// === impl LimiterMetrics ===

impl LimiterMetrics {
    /// Makes the handles for the limiter named `limiter`. `is_one` is true if the limiter has one state for all requests, and
    /// `has_rate` if it has a rate.
    pub fn new(limiter: &str, is_one: bool, has_rate: bool) -> Self {
        Self {
            quota: None,
            rate: has_rate.then(|| RATE.level(&[limiter])),
            period: has_rate.then(|| PERIOD.level(&[limiter])),
            capacity: CAPACITY.level(&[limiter]),
            label: LIMITER.text(limiter),
            available: is_one.then(|| AVAILABLE.level(&[limiter])),
            late: LATE.count(&[limiter]),
            paused: PAUSED.level(&[limiter]),
            pauses: PAUSES.count(&[limiter]),
            settled: SettledPermits {
                refunded: SETTLED.count(&[limiter, "refund"]),
                owed: SETTLED.count(&[limiter, "debt"]),
            },
        }
    }
}

// === impl QuotaMetrics ===

impl QuotaMetrics {
    /// Makes the handles for the limiter named `limiter`, whose quota lasts as far as is known.
    pub(crate) fn new(limiter: &str) -> Self {
        let (reset, used_up) = (RESET.level(&[limiter]), USED_UP.level(&[limiter]));
        used_up.set(f64::INFINITY);
        Self { reset, used_up }
    }

    /// Sets the times until the reset and until the quota is used up, µs; `None` if it lasts until the reset.
    pub(crate) fn set(&self, reset: Micros, used_up: Option<Micros>) {
        self.reset.set(reset as f64 / 1e6);
        self.used_up.set(used_up.map_or(f64::INFINITY, |left| left as f64 / 1e6));
    }
}

// === impl UpstreamMetrics ===

impl UpstreamMetrics {
    /// Makes the handles for the upstream named `upstream`.
    pub fn new(upstream: &str) -> Self {
        Self {
            label: UPSTREAM.text(upstream),
            throttled: UPSTREAM_THROTTLED.count(&[upstream]),
            retries: RetryResult::ALL.map(|result| RETRIES.count(&[upstream, result.name()])),
        }
    }
}

// === impl ConnectionMetrics ===

impl ConnectionMetrics {
    /// Returns the gauge of open connections that speak `protocol`.
    pub fn open(&self, protocol: Protocol) -> &Gauge {
        &self.open[protocol as usize]
    }

    /// Counts a connection that the gateway ended, by its reason.
    pub fn refuse(&self, reason: Refusal) {
        self.refused[reason as usize].increment(1);
    }
}

impl Default for ConnectionMetrics {
    fn default() -> Self {
        Self {
            open: Protocol::ALL.map(|protocol| CONNECTIONS.level(&[protocol.name()])),
            refused: Refusal::ALL.map(|reason| CONNECTIONS_REFUSED.count(&[reason.name()])),
        }
    }
}

/// The labels of a route's requests that a service decided, as the text of `/metrics` contains them:
/// `route="NAME",service="forward_auth"`.
pub fn service_label(route: &str, service: &str) -> String {
    format!("{},{}", ROUTE.text(route), SERVICE.text(service))
}

/// Makes the handles for the addresses of the upstream named `upstream`: how many are used, and how many are ejected.
pub fn addresses(upstream: &str) -> AddressMetrics {
    let of = |state| UPSTREAM_ADDRESSES.level(&[upstream, state]);
    let checks = |result| UPSTREAM_CHECKS.count(&[upstream, result]);
    AddressMetrics {
        checks_passed: checks("passed"),
        checks_failed: checks("failed"),
        up: of("up"),
        ejected: of("ejected"),
        ejections: UPSTREAM_EJECTIONS.count(&[upstream]),
    }
}

/// Makes the handles for the calls of a store: their times, and their errors by kind.
pub fn store() -> StoreMetrics {
    StoreMetrics {
        seconds: STORE_SECONDS.times(&[]),
        errors: StoreError::KINDS.map(|kind| STORE_ERRORS.count(&[kind])),
        blocks: ["used", "lapsed"].map(|fate| STORE_BLOCK_PERMITS.count(&[fate])),
    }
}

/// Makes the handles for the health of a store: the breaker, the number of gateways, and whether the store answers.
pub fn store_health() -> HealthMetrics {
    HealthMetrics {
        breaker: STORE_BREAKER.level(&[]),
        gateways: STORE_GATEWAYS.level(&[]),
        up: STORE_UP.level(&[]),
    }
}

/// Makes the handles for the round trip of a store and for the time-out that results from it.
pub fn store_pace() -> PaceMetrics {
    PaceMetrics { round_trip: STORE_ROUND_TRIP.level(&[]), timeout: STORE_TIMEOUT.level(&[]) }
}

/// Returns the counter of reloads of the configuration: those that took effect, or those of an invalid file.
pub fn config_reloads(is_ok: bool) -> Counter {
    CONFIG_RELOADS.count(&[if is_ok { "ok" } else { "error" }])
}

/// Begins the series that a process has from its start: a series that begins with the first error cannot show an increase
/// at it.
pub fn begin() {
    [true, false].into_iter().for_each(|is_ok| drop(config_reloads(is_ok)));
    BUILD_INFO.level(&[env!("CARGO_PKG_VERSION")]).set(1.0);
}
