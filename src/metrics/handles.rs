//! The handles of the metrics whose series have a name of the configuration as a label.

use super::{families, labels::RetryResult, lines::label};
use crate::upstream::AddressMetrics;
use metrics::{Counter, Gauge};
use std::time::Duration;

/// Handles for one route, and its label for the metrics that workers count.
pub struct RouteMetrics {
    /// The label as the text of `/metrics` contains it: `route="NAME"`.
    label: String,
    /// Requests of this route that are held now, until their slot comes.
    pub waiting: Gauge,
    /// Open connections of this route that were upgraded, such as WebSockets.
    pub tunnels: Gauge,
    /// Its `max_wait`; `None` for requests without a route. Kept because the series ends with its handle.
    _max_wait: Option<Gauge>,
}

/// Handles for one limiter, and its label for the metrics that workers count.
pub struct LimiterMetrics {
    /// The label as the text of `/metrics` contains it: `limiter="NAME"`.
    pub(super) label: String,
    /// Permits that could be taken now, set at each scrape. `None` for a limiter that has a state for each key.
    pub available: Option<Gauge>,
    /// The permits a second of its slowest rate. A limiter that learns its rate sets it itself; one without a rate has none.
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
    pub(super) label: String,
    /// Responses by which the upstream throttles, as `throttle.when` describes them.
    pub throttled: Counter,
    /// Its refusals, by the result for the request: one counter for each [`RetryResult`].
    pub retries: [Counter; RetryResult::ALL.len()],
}

// === impl RouteMetrics ===

impl RouteMetrics {
    /// Makes the handles for the route named `route`, or for requests without a route, which have no `max_wait`.
    pub fn new(route: &str, max_wait: Option<Duration>) -> Self {
        let max_wait = max_wait.map(|span| {
            let gauge = families::MAX_WAIT.level(&[("route", route)]);
            gauge.set(span.as_secs_f64());
            gauge
        });
        Self {
            _max_wait: max_wait,
            label: label("route", route),
            waiting: families::WAITING.level(&[("route", route)]),
            tunnels: families::TUNNELS.level(&[("route", route)]),
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
            rate: has_rate.then(|| limiter_rate(limiter)),
            period: has_rate.then(|| families::PERIOD.level(&[("limiter", limiter)])),
            capacity: families::CAPACITY.level(&[("limiter", limiter)]),
            label: label("limiter", limiter),
            available: is_one.then(|| families::AVAILABLE.level(&[("limiter", limiter)])),
            late: families::LATE.count(&[("limiter", limiter)]),
            paused: families::PAUSED.level(&[("limiter", limiter)]),
            pauses: families::PAUSES.count(&[("limiter", limiter)]),
            settled: SettledPermits {
                refunded: families::SETTLED.count(&[("limiter", limiter), ("direction", "refund")]),
                owed: families::SETTLED.count(&[("limiter", limiter), ("direction", "debt")]),
            },
        }
    }
}

// === impl UpstreamMetrics ===

impl UpstreamMetrics {
    /// Makes the handles for the upstream named `upstream`.
    pub fn new(upstream: &str) -> Self {
        Self {
            label: label("upstream", upstream),
            throttled: families::UPSTREAM_THROTTLED.count(&[("upstream", upstream)]),
            retries: RetryResult::ALL.map(|result| {
                families::RETRIES.count(&[("upstream", upstream), ("result", result.name())])
            }),
        }
    }
}

/// The number of ejections of addresses of the upstream named `upstream`.
pub fn ejections(upstream: &str) -> u64 {
    families::UPSTREAM_EJECTIONS.counted(&[("upstream", upstream)])
}

/// The number of responses by which the upstream named `upstream` throttled.
pub fn throttled(upstream: &str) -> u64 {
    families::UPSTREAM_THROTTLED.counted(&[("upstream", upstream)])
}

/// The number of pauses of the limiter named `limiter` that refusals have asked for.
pub fn pauses(limiter: &str) -> u64 {
    families::PAUSES.counted(&[("limiter", limiter)])
}

/// The labels of a route's requests that a service decided, as the text of `/metrics` contains them:
/// `route="NAME",service="forward_auth"`.
pub fn service_label(route: &str, service: &str) -> String {
    format!("{},{}", label("route", route), label("service", service))
}

/// Makes the handle for the learned rate of a limiter with `rate: auto`, in permits a second.
pub fn limiter_rate(limiter: &str) -> Gauge {
    families::RATE.level(&[("limiter", limiter)])
}

/// Makes the handles for the addresses of the upstream named `upstream`: how many are used, and how many are ejected.
pub fn addresses(upstream: &str) -> AddressMetrics {
    let of =
        |state| families::UPSTREAM_ADDRESSES.level(&[("upstream", upstream), ("state", state)]);
    let checks =
        |result| families::UPSTREAM_CHECKS.count(&[("upstream", upstream), ("result", result)]);
    AddressMetrics {
        checks_passed: checks("passed"),
        checks_failed: checks("failed"),
        up: of("up"),
        ejected: of("ejected"),
        ejections: families::UPSTREAM_EJECTIONS.count(&[("upstream", upstream)]),
    }
}

/// Makes the handle for the end of the certificate in `file`, in Unix time.
pub fn certificate(file: &str) -> Gauge {
    families::CERTIFICATES.level(&[("certificate", file)])
}
