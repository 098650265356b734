//! The metrics whose series have a name of the configuration as a label.

use super::family::SeriesFamily;

/// All of them, in the order of `/metrics`.
pub(super) static ALL: [&SeriesFamily; 17] = [
    &WAITING,
    &TUNNELS,
    &AVAILABLE,
    &RATE,
    &CAPACITY,
    &PERIOD,
    &MAX_WAIT,
    &CERTIFICATES,
    &LATE,
    &PAUSED,
    &PAUSES,
    &RETRIES,
    &SETTLED,
    &UPSTREAM_THROTTLED,
    &UPSTREAM_ADDRESSES,
    &UPSTREAM_EJECTIONS,
    &UPSTREAM_CHECKS,
];

pub(super) static WAITING: SeriesFamily =
    SeriesFamily::gauge("paceway_waiting", "Requests that are being held for their slot.");
pub(super) static TUNNELS: SeriesFamily = SeriesFamily::gauge(
    "paceway_tunnels",
    "Connections that were upgraded, such as WebSockets, and are open.",
);
pub(super) static AVAILABLE: SeriesFamily = SeriesFamily::gauge(
    "paceway_limiter_available",
    "Permits of a limiter that could be taken now.",
);
pub(super) static RATE: SeriesFamily = SeriesFamily::gauge(
    "paceway_limiter_rate",
    "Permits a second of a limiter, by the slowest of its rates, as it is now.",
);
pub(super) static CAPACITY: SeriesFamily = SeriesFamily::gauge(
    "paceway_limiter_capacity",
    "Permits that an unused limiter grants at once; of `concurrency` all of them.",
);
pub(super) static PERIOD: SeriesFamily = SeriesFamily::gauge(
    "paceway_limiter_period_seconds",
    "Period of the slowest rate of a limiter.",
);
pub(super) static MAX_WAIT: SeriesFamily = SeriesFamily::gauge(
    "paceway_max_wait_seconds",
    "Longest time that a request of a route waits unless it asks for another one.",
);
pub(super) static CERTIFICATES: SeriesFamily = SeriesFamily::gauge(
    "paceway_certificate_expiry_timestamp_seconds",
    "When a certificate that clients see expires, in Unix time.",
);
pub(super) static LATE: SeriesFamily = SeriesFamily::counter(
    "paceway_late_wakeups_total",
    "Slots asked for again because their request woke too late for them.",
);
pub(super) static PAUSED: SeriesFamily = SeriesFamily::gauge(
    "paceway_limiter_paused",
    "Seconds until the longest pause of a limiter ends; 0 if it is not paused.",
);
pub(super) static PAUSES: SeriesFamily = SeriesFamily::counter(
    "paceway_pauses_total",
    "Pauses of a limiter that refusals of an upstream asked for.",
);
pub(super) static RETRIES: SeriesFamily = SeriesFamily::counter(
    "paceway_retries_total",
    "Refusals of an upstream with retries, by the result for the request.",
);
pub(super) static SETTLED: SeriesFamily = SeriesFamily::counter(
    "paceway_settled_permits_total",
    "Permits by which true costs differ from reserved ones.",
);
pub(super) static UPSTREAM_THROTTLED: SeriesFamily = SeriesFamily::counter(
    "paceway_upstream_throttled_total",
    "Responses by which an upstream throttles, as `throttle.when` describes them.",
);
pub(super) static UPSTREAM_ADDRESSES: SeriesFamily = SeriesFamily::gauge(
    "paceway_upstream_addresses",
    "Addresses of an upstream, by whether requests are sent to them.",
);
pub(super) static UPSTREAM_EJECTIONS: SeriesFamily = SeriesFamily::counter(
    "paceway_upstream_ejections_total",
    "Times an address was ejected because it did not work.",
);
pub(super) static UPSTREAM_CHECKS: SeriesFamily = SeriesFamily::counter(
    "paceway_upstream_health_checks_total",
    "Health checks of addresses of an upstream, by result.",
);
