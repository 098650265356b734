//! Every metric: its name, help, labels and buckets. No other file names a metric.
//!
//! Handles are resolved once, when a configuration is loaded, so that recording costs a few ns. Labels come from the
//! configuration or from closed sets, never from a request. The counters and histograms that every request updates are our
//! own, lie together in memory, and are written as text here; the exporter keeps and writes all others.

mod counts;
mod families;
mod family;
mod labels;
mod times;

pub use counts::{Decisions, Outcomes, Statuses};
pub use labels::{Outcome, Protocol, Refusal, RetryResult, Verdict};
pub use times::TimeHistogram;

use crate::{
    log,
    store::{
        StoreError,
        batch::StoreMetrics,
        health::{HealthMetrics, PaceMetrics},
    },
    throttle::Timestamp,
    upstream::AddressMetrics,
};
use metrics::{
    Counter, Gauge, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle,
    formatting::{sanitize_label_value, write_help_line, write_type_line},
};
use std::{fmt::Write, time::Duration};

const REQUESTS: &str = "paceway_requests_total";
const DECISIONS: &str = "paceway_decisions_total";
const WAIT: &str = "paceway_wait_seconds";
const UPSTREAM_REQUESTS: &str = "paceway_upstream_requests_total";
const UPSTREAM_SECONDS: &str = "paceway_upstream_seconds";
const OVERHEAD: &str = "paceway_overhead_seconds";
const CONNECTIONS: &str = "paceway_connections";
const CONNECTIONS_REFUSED: &str = "paceway_connections_refused_total";
const STORE_SECONDS: &str = "paceway_store_seconds";
const STORE_ERRORS: &str = "paceway_store_errors_total";
const STORE_LOSSES: &str = "paceway_store_losses_total";
const STORE_UP: &str = "paceway_store_up";
const STORE_BREAKER: &str = "paceway_store_breaker_state";
const STORE_GATEWAYS: &str = "paceway_store_gateways";
const STORE_ROUND_TRIP: &str = "paceway_store_round_trip_seconds";
const STORE_TIMEOUT: &str = "paceway_store_timeout_seconds";
const TASKS: &str = "paceway_tasks";
const LOG_DROPPED: &str = "paceway_log_lines_dropped_total";
const MAX_FILES: &str = "process_max_fds";
const OPEN_FILES: &str = "process_open_fds";
const CONFIG_RELOADS: &str = "paceway_config_reloads_total";
const CONFIG_LOADED: &str = "paceway_config_loaded_timestamp_seconds";
const CONFIG_INFO: &str = "paceway_config_info";
const LIMITS_FROM_UP: &str = "paceway_limits_from_up";
const LIMITS_FROM_ERRORS: &str = "paceway_limits_from_errors_total";
const LIMITS_FROM_LOADED: &str = "paceway_limits_from_loaded_timestamp_seconds";
const BUILD_INFO: &str = "paceway_build_info";

/// Handles for the connections of clients, shared by all workers.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// Open connections, one gauge for each [`Protocol`].
    open: [Gauge; Protocol::ALL.len()],
    refused: [Counter; Refusal::ALL.len()],
}

/// Handles for one route, and its label for the metrics that workers count.
pub struct RouteMetrics {
    /// The label as the text of `/metrics` contains it: `route="NAME"`.
    label: String,
    /// Requests of this route that are held now, until their slot comes.
    pub waiting: Gauge,
    /// Open connections of this route that were upgraded, such as WebSockets.
    pub tunnels: Gauge,
}

/// Handles for one limiter, and its label for the metrics that workers count.
pub struct LimiterMetrics {
    /// The label as the text of `/metrics` contains it: `limiter="NAME"`.
    label: String,
    /// Permits that could be taken now, set at each scrape. `None` for a limiter that has a state for each key.
    pub available: Option<Gauge>,
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
    label: String,
    /// Responses by which the upstream throttles, as `throttle.when` describes them.
    pub throttled: Counter,
    /// Its refusals, by the result for the request: one counter for each [`RetryResult`].
    pub retries: [Counter; RetryResult::ALL.len()],
}

/// The counts of all workers, which `/metrics` lists after the metrics of the exporter. Each count is added up over the
/// workers when it is written.
pub struct WorkerCounts<R, L, U> {
    /// Requests and waits of each route.
    pub routes: R,
    /// Decisions of each limiter.
    pub limiters: L,
    /// Responses of each upstream, by status, and their times.
    pub upstreams: U,
    /// The time that the gateway itself takes for a request.
    pub overhead: TimeHistogram,
    /// The longest time that any route may hold a request. It decides how far the buckets of waits reach.
    pub longest_wait: Duration,
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
            open: Protocol::ALL.map(|protocol| gauge!(CONNECTIONS, "protocol" => protocol.name())),
            refused: Refusal::ALL
                .map(|reason| counter!(CONNECTIONS_REFUSED, "reason" => reason.name())),
        }
    }
}

// === impl RouteMetrics ===

impl RouteMetrics {
    /// Makes the handles for the route named `route`.
    pub fn new(route: &str) -> Self {
        Self {
            label: label("route", route),
            waiting: families::WAITING.level(&[("route", route)]),
            tunnels: families::TUNNELS.level(&[("route", route)]),
        }
    }
}

// === impl LimiterMetrics ===

impl LimiterMetrics {
    /// Makes the handles for the limiter named `limiter`. `is_one` is true if the limiter has one state for all requests.
    pub fn new(limiter: &str, is_one: bool) -> Self {
        Self {
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

/// Makes the handle for the learned rate of a limiter with `rate: auto`, in permits a second.
pub fn limiter_rate(limiter: &str) -> Gauge {
    families::RATE.level(&[("limiter", limiter)])
}

/// Makes the handles for the calls of a store: their times, and their errors by kind.
pub fn store() -> StoreMetrics {
    StoreMetrics {
        seconds: histogram!(STORE_SECONDS),
        errors: StoreError::KINDS.map(|kind| counter!(STORE_ERRORS, "kind" => kind)),
    }
}

/// Returns the counter of times at which the store lost states, for example when Redis restarted without its data.
pub fn store_losses() -> Counter {
    counter!(STORE_LOSSES)
}

/// Returns the gauge that is 1 while the store gives decisions, and 0 otherwise.
pub fn store_up() -> Gauge {
    gauge!(STORE_UP)
}

/// Makes the handles for the health of a store: the breaker, the number of gateways, and whether the store answers.
pub fn store_health() -> HealthMetrics {
    HealthMetrics {
        breaker: gauge!(STORE_BREAKER),
        gateways: gauge!(STORE_GATEWAYS),
        up: store_up(),
    }
}

/// Makes the handles for the round trip of a store and for the time-out that results from it.
pub fn store_pace() -> PaceMetrics {
    PaceMetrics { round_trip: gauge!(STORE_ROUND_TRIP), timeout: gauge!(STORE_TIMEOUT) }
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

/// Returns the gauge of tasks on the workers, which the admin side sets at each scrape.
pub fn tasks() -> Gauge {
    gauge!(TASKS)
}

/// Returns the counter of log lines that were dropped, which the admin side sets at each scrape.
pub fn log_dropped(stream: log::LogStream) -> Counter {
    counter!(LOG_DROPPED, "stream" => stream.name())
}

/// Returns the gauge for the limit of open files, which is set once at the start.
pub fn max_files() -> Gauge {
    gauge!(MAX_FILES)
}

/// Returns the gauge of open files, which the admin side sets at each scrape on systems with `/proc`.
pub fn open_files() -> Gauge {
    gauge!(OPEN_FILES)
}

/// Returns the counter of reloads of the configuration: those that took effect, or those of an invalid file.
pub fn config_reloads(is_ok: bool) -> Counter {
    counter!(CONFIG_RELOADS, "result" => if is_ok { "ok" } else { "error" })
}

/// Sets the time at which the configuration in use was loaded.
pub fn config_loaded(at: Timestamp) {
    gauge!(CONFIG_LOADED).set(at.as_millisecond() as f64 / 1e3);
}

/// Sets whether the database of `limits_from` gave its rows at the last query.
pub fn limits_from_up(is_up: bool) {
    gauge!(LIMITS_FROM_UP).set(f64::from(u8::from(is_up)));
}

/// Returns the counter of queries of `limits_from` that failed.
pub fn limits_from_errors() -> Counter {
    counter!(LIMITS_FROM_ERRORS)
}

/// Sets the time at which the database of `limits_from` gave its rows last.
pub fn limits_from_loaded(at: Timestamp) {
    gauge!(LIMITS_FROM_LOADED).set(at.as_millisecond() as f64 / 1e3);
}

/// Appends the metric with the hash of the configuration in use. The exporter would keep a line for each earlier hash.
pub fn config_info(text: &mut String, hash: &str) {
    family(text, CONFIG_INFO, "gauge", "The configuration in use, by the hash of its file.");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{CONFIG_INFO}{{hash=\"{hash}\"}} 1");
}

/// Writes all metrics in the text format of Prometheus: those of `exporter`, then the counts of the workers.
pub fn text<'a>(
    exporter: &PrometheusHandle,
    counted: WorkerCounts<
        impl Iterator<Item = (&'a RouteMetrics, Outcomes, TimeHistogram)>,
        impl Iterator<Item = (&'a LimiterMetrics, Decisions)>,
        impl Iterator<Item = (&'a UpstreamMetrics, Statuses, TimeHistogram)>,
    >,
) -> String {
    let mut text = exporter.render();
    let bounds = TimeHistogram::bounds().len();
    let wait_bounds = TimeHistogram::bounds_for(counted.longest_wait);
    // The format wants all lines of a metric together, but each route adds lines to two metrics.
    let (mut waits, mut seconds) = (String::new(), String::new());
    family(&mut text, REQUESTS, "counter", "Requests, by route and outcome.");
    family(&mut waits, WAIT, "histogram", "Time that forwarded requests were held.");
    for (route, outcomes, wait) in counted.routes {
        outcomes.write(&mut text, REQUESTS, &route.label);
        wait.write(&mut waits, WAIT, &route.label, wait_bounds);
    }
    text.push_str(&waits);
    let help = "Decisions of a limiter, by their source; would_* are those of mode observe.";
    family(&mut text, DECISIONS, "counter", help);
    for (limiter, decisions) in counted.limiters {
        decisions.write(&mut text, DECISIONS, &limiter.label);
    }
    family(&mut text, UPSTREAM_REQUESTS, "counter", "Responses of an upstream, by status.");
    let help = "Time from the slot to the head of the upstream's response.";
    family(&mut seconds, UPSTREAM_SECONDS, "histogram", help);
    for (upstream, statuses, times) in counted.upstreams {
        statuses.write(&mut text, UPSTREAM_REQUESTS, &upstream.label);
        times.write(&mut seconds, UPSTREAM_SECONDS, &upstream.label, bounds);
    }
    text.push_str(&seconds);
    families::ALL.iter().for_each(|family| family.write(&mut text));
    let help = "Time to the head of the response, without the wait and the time of the upstream.";
    family(&mut text, OVERHEAD, "histogram", help);
    counted.overhead.write(&mut text, OVERHEAD, "", bounds);
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    write_help_line(text, name, None, None, help);
    write_type_line(text, name, None, None, kind);
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", sanitize_label_value(value))
}

/// Installs the recorder of this process and describes every metric. The caller must run the handle's upkeep every few
/// seconds, because the histograms of the exporter keep every sample until then.
///
/// # Errors
///
/// An error if this process has a recorder already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let all_histograms = Matcher::Suffix("_seconds".into());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(all_histograms, &TimeHistogram::bounds())?
        .install_recorder()?;
    describe();
    // A series that begins with the first error cannot show an increase at it.
    [true, false].map(config_reloads).iter().for_each(|reloads| reloads.absolute(0));
    let version = env!("CARGO_PKG_VERSION");
    gauge!(BUILD_INFO, "version" => version).set(1.0);
    Ok(handle)
}

fn describe() {
    describe_counter!(CONFIG_RELOADS, "Reloads of the configuration, by result.");
    describe_gauge!(CONFIG_LOADED, "When the configuration in use was loaded, in Unix time.");
    describe_gauge!(LIMITS_FROM_UP, "Whether the database of limits_from gave its rows last time.");
    describe_counter!(LIMITS_FROM_ERRORS, "Queries of limits_from that failed.");
    describe_gauge!(LIMITS_FROM_LOADED, "When limits_from gave its rows last, in Unix time.");
    describe_gauge!(CONNECTIONS, "Connections of clients, by protocol.");
    describe_counter!(CONNECTIONS_REFUSED, "Connections of clients that were ended, by reason.");
    describe_histogram!(STORE_SECONDS, Unit::Seconds, "Time of one call of the store.");
    describe_counter!(STORE_ERRORS, "Calls of the store without a decision, by kind.");
    describe_counter!(STORE_LOSSES, "Times the store had lost states, or may have.");
    describe_gauge!(STORE_UP, "1 while the store answers.");
    describe_gauge!(
        STORE_BREAKER,
        "Whether the store is asked: 0 yes, 1 with one call to try it, 2 no."
    );
    describe_gauge!(
        STORE_GATEWAYS,
        "Gateways that share the rules without the store, as it last confirmed."
    );
    describe_gauge!(
        STORE_ROUND_TRIP,
        Unit::Seconds,
        "Round trip of the store: the second longest of the last 5 to 10 s."
    );
    describe_gauge!(
        STORE_TIMEOUT,
        Unit::Seconds,
        "Time that a request waits for the store: store.timeout, or longer while the store is slow."
    );
    describe_gauge!(
        TASKS,
        "Tasks of the workers: connections of both sides, and work in the background."
    );
    describe_counter!(LOG_DROPPED, "Lines of the log that were dropped: their reader is too slow.");
    describe_gauge!(MAX_FILES, "File descriptors that the process may open.");
    describe_gauge!(OPEN_FILES, "File descriptors that the process has open.");
    describe_gauge!(BUILD_INFO, "Always 1; the label is the version of this program.");
}
