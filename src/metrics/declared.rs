//! Every metric, declared once: its help, its kind, its name, and its labels with what bounds their values. `metrics/labels`
//! has the sets of values.

use super::{
    MoveReason, Outcome, Protocol, Refusal, RetryResult, Verdict,
    counts::STATUSES,
    metric::{Label, Metric, MetricKind, closed, configured},
};
use crate::{
    config::PRIORITIES,
    log::LogStream,
    store::{Source, StoreError},
};

pub(super) const ROUTE: Label = configured("route");
pub(super) const LIMITER: Label = configured("limiter");
pub(super) const UPSTREAM: Label = configured("upstream");
/// Requests that a service decided have it, too, after that of their route.
pub(super) const SERVICE: Label = configured("service");

/// Makes a static of each metric, and the list of all. The comment of a metric is its help.
macro_rules! declare {
    ($($(#[doc = $help:literal])+ $kind:ident $metric:ident = $name:literal by [$($label:expr),*];)+) => {
        $($(#[doc = $help])+
        pub(crate) static $metric: Metric =
            Metric::new($name, MetricKind::$kind, &[$($label),*], concat!($($help),+));)+

        /// All metrics, in the order of `/metrics`.
        pub(super) static ALL: &[&Metric] = &[$(&$metric),+];
    };
}

declare! {
    // === requests: each worker counts its own, and the sums are given for a scrape

    /// Requests, by route and outcome.
    Counter REQUESTS = "paceway_requests_total" by [ROUTE, closed("outcome", Outcome::ALL.len())];
    /// Time that forwarded requests were held.
    Histogram WAIT = "paceway_wait_seconds" by [ROUTE, closed("priority", PRIORITIES.len())];
    /// Decisions of a limiter, by their source; would_* are those of mode observe.
    Counter DECISIONS = "paceway_decisions_total"
        by [LIMITER, closed("decision", Verdict::ALL.len()), closed("source", Source::ALL.len())];
    /// Permits of a limiter with which requests were sent.
    Counter GRANTED = "paceway_granted_permits_total" by [LIMITER];
    /// Time that requests were held because of a limiter.
    Histogram LIMITER_WAIT = "paceway_limiter_wait_seconds" by [LIMITER];
    /// Responses of an upstream, by status.
    Counter UPSTREAM_REQUESTS = "paceway_upstream_requests_total" by [UPSTREAM, closed("status", STATUSES)];
    /// Time from the slot to the head of the upstream's response.
    Histogram UPSTREAM_SECONDS = "paceway_upstream_seconds" by [UPSTREAM];
    /// Time to the head of the response, without the wait and the time of the upstream.
    Histogram OVERHEAD = "paceway_overhead_seconds" by [];

    // === routes, limiters, upstreams and certificates

    /// Requests that are being held for their slot.
    Gauge WAITING = "paceway_waiting" by [ROUTE];
    /// Connections that were upgraded, such as WebSockets, and are open.
    Gauge TUNNELS = "paceway_tunnels" by [ROUTE];
    /// Longest time that a request of a route waits unless it asks for another one.
    Gauge MAX_WAIT = "paceway_max_wait_seconds" by [ROUTE];
    /// Permits of a limiter that could be taken now.
    Gauge AVAILABLE = "paceway_limiter_available" by [LIMITER];
    /// Seconds until the quota of a window is used up at the pace of the last hour; infinite if it lasts until its reset.
    Gauge USED_UP = "paceway_limiter_used_up_seconds" by [LIMITER];
    /// Seconds until the quota of a window begins again.
    Gauge RESET = "paceway_limiter_reset_seconds" by [LIMITER];
    /// Permits a second of a limiter, by the slowest of its rates, as refusals have lowered it.
    Gauge RATE = "paceway_limiter_rate" by [LIMITER];
    /// Permits that an unused limiter grants at once; of `concurrency` all of them.
    Gauge CAPACITY = "paceway_limiter_capacity" by [LIMITER];
    /// Period of the slowest rate of a limiter.
    Gauge PERIOD = "paceway_limiter_period_seconds" by [LIMITER];
    /// Slots asked for again because their request woke too late for them.
    Counter LATE = "paceway_late_wakeups_total" by [LIMITER];
    /// Seconds until the longest pause of a limiter ends; 0 if it is not paused.
    Gauge PAUSED = "paceway_limiter_paused" by [LIMITER];
    /// Pauses of a limiter that refusals of an upstream asked for.
    Counter PAUSES = "paceway_pauses_total" by [LIMITER];
    /// Permits by which true costs differ from reserved ones.
    Counter SETTLED = "paceway_settled_permits_total" by [LIMITER, closed("direction", 2)];
    /// Permits that reads of a route did without: they had the answer of another one, or confirmed what was kept.
    Counter SAVED = "paceway_saved_permits_total" by [ROUTE, closed("by", 2)];
    /// Refusals of an upstream with retries, by the result for the request.
    Counter RETRIES = "paceway_retries_total" by [UPSTREAM, closed("result", RetryResult::ALL.len())];
    /// Responses by which an upstream throttles, as `throttle.when` describes them.
    Counter UPSTREAM_THROTTLED = "paceway_upstream_throttled_total" by [UPSTREAM];
    /// Requests that were sent with an account of an upstream.
    Counter ACCOUNT_REQUESTS = "paceway_account_requests_total" by [UPSTREAM, configured("account")];
    /// Requests that left an account for another one, by the reason.
    Counter ACCOUNT_MOVES = "paceway_account_moves_total" by [UPSTREAM, configured("account"), closed("reason", MoveReason::ALL.len())];
    /// Whether an account is not used, because the vendor has rejected it: 1 or 0.
    Gauge ACCOUNT_PARKED = "paceway_account_parked" by [UPSTREAM, configured("account")];
    /// Addresses of an upstream, by whether requests are sent to them.
    Gauge UPSTREAM_ADDRESSES = "paceway_upstream_addresses" by [UPSTREAM, closed("state", 2)];
    /// Times an address was ejected because it did not work.
    Counter UPSTREAM_EJECTIONS = "paceway_upstream_ejections_total" by [UPSTREAM];
    /// Health checks of addresses of an upstream, by result.
    Counter UPSTREAM_CHECKS = "paceway_upstream_health_checks_total" by [UPSTREAM, closed("result", 2)];
    /// When a certificate that clients see expires, in Unix time.
    Gauge CERTIFICATES = "paceway_certificate_expiry_timestamp_seconds" by [configured("certificate")];

    // === connections of clients

    /// Connections of clients, by protocol.
    Gauge CONNECTIONS = "paceway_connections" by [closed("protocol", Protocol::ALL.len())];
    /// Connections of clients that were ended, by reason.
    Counter CONNECTIONS_REFUSED = "paceway_connections_refused_total" by [closed("reason", Refusal::ALL.len())];

    // === the store

    /// Time of one call of the store.
    Histogram STORE_SECONDS = "paceway_store_seconds" by [];
    /// Calls of the store without a decision, by kind.
    Counter STORE_ERRORS = "paceway_store_errors_total" by [closed("kind", StoreError::KINDS.len())];
    /// Permits that the store granted in blocks for later requests.
    Counter STORE_BLOCK_PERMITS = "paceway_store_block_permits_total" by [closed("fate", 2)];
    /// Times the store had lost states, or may have.
    Counter STORE_LOSSES = "paceway_store_losses_total" by [];
    // Set at each scrape, as are the states, the tasks, the dropped lines and the open files.
    /// By how much the clock of limiters is ahead of that of the store, which was set back.
    Gauge STORE_CLOCK_SET_BACK = "paceway_store_clock_set_back_seconds" by [];
    /// 1 while the store answers.
    Gauge STORE_UP = "paceway_store_up" by [];
    /// Whether the store is asked: 0 yes, 1 with one call to try it, 2 no.
    Gauge STORE_BREAKER = "paceway_store_breaker_state" by [];
    /// Gateways that share the rules without the store, as it last confirmed.
    Gauge STORE_GATEWAYS = "paceway_store_gateways" by [];
    /// Round trip of the store: the second longest of the last 5 to 10 s.
    Gauge STORE_ROUND_TRIP = "paceway_store_round_trip_seconds" by [];
    /// Time that a request waits for the store: store.timeout, or longer while the store is slow.
    Gauge STORE_TIMEOUT = "paceway_store_timeout_seconds" by [];
    /// States that the memory store keeps, one for each limiter and key; at most 1048576. Absent with Redis.
    Gauge STORE_STATES = "paceway_store_states" by [];

    // === the configuration

    /// The configuration in use, by the hash of its file.
    Gauge CONFIG_INFO = "paceway_config_info" by [closed("hash", 1)];
    /// Reloads of the configuration, by result.
    Counter CONFIG_RELOADS = "paceway_config_reloads_total" by [closed("result", 2)];
    /// When the configuration in use was loaded, in Unix time.
    Gauge CONFIG_LOADED = "paceway_config_loaded_timestamp_seconds" by [];
    /// Whether the database of limits_from gave its rows last time.
    Gauge LIMITS_FROM_UP = "paceway_limits_from_up" by [];
    /// Queries of limits_from that failed.
    Counter LIMITS_FROM_ERRORS = "paceway_limits_from_errors_total" by [];
    /// Rows of limits_from that are in use.
    Gauge LIMITS_FROM_ROWS = "paceway_limits_from_rows" by [];
    /// Rows of limits_from that keep their last valid value.
    Gauge LIMITS_FROM_INVALID = "paceway_limits_from_invalid_rows" by [];
    /// Limiters that are named and that neither the file nor a row of limits_from has.
    Gauge LIMITS_FROM_MISSING = "paceway_limits_from_missing_limiters" by [];
    /// Whether the file or database of rates_from of a limiter gave its rates last time.
    Gauge RATES_FROM_UP = "paceway_rates_from_up" by [LIMITER];
    /// Rates of keys of a limiter that come from rates_from.
    Gauge RATES_FROM_ROWS = "paceway_rates_from_rows" by [LIMITER];
    /// Rows of rates_from of a limiter that keep their last valid rate.
    Gauge RATES_FROM_INVALID = "paceway_rates_from_invalid_rows" by [LIMITER];
    /// When limits_from gave its rows last, in Unix time.
    Gauge LIMITS_FROM_LOADED = "paceway_limits_from_loaded_timestamp_seconds" by [];

    // === the process

    /// Always 1; the label is the version of this program.
    Gauge BUILD_INFO = "paceway_build_info" by [closed("version", 1)];
    /// Tasks of the workers: connections of both sides, and work in the background.
    Gauge TASKS = "paceway_tasks" by [];
    /// Lines of the log that were dropped: their reader is too slow.
    Counter LOG_DROPPED = "paceway_log_lines_dropped_total" by [closed("stream", LogStream::ALL.len())];
    // `exported`, `dropped` because the queue was full, or `failed` because the collector did not take them.
    /// Spans of traces, by whether the collector took them.
    Counter SPANS = "paceway_trace_spans_total" by [closed("result", 3)];
    /// File descriptors that the process may open.
    Gauge MAX_FILES = "process_max_fds" by [];
    /// File descriptors that the process has open.
    Gauge OPEN_FILES = "process_open_fds" by [];
    /// CPU time of the process, of users and of the system.
    Counter CPU_SECONDS = "process_cpu_seconds_total" by [];
    /// Memory of the process that is in RAM.
    Gauge RESIDENT_BYTES = "process_resident_memory_bytes" by [];
    /// Addresses that the process has reserved.
    Gauge VIRTUAL_BYTES = "process_virtual_memory_bytes" by [];
    /// Threads of the process.
    Gauge THREADS = "process_threads" by [];
    /// When the process began, in Unix time.
    Gauge STARTED = "process_start_time_seconds" by [];
}
