//! The metrics that the exporter keeps and writes: those of the process, of clients' connections, of the store and of the
//! configuration. Their labels are closed sets.

use super::{
    labels::{Protocol, Refusal},
    times::TimeHistogram,
};
use crate::{
    log,
    store::{
        StoreError,
        batch::StoreMetrics,
        health::{HealthMetrics, PaceMetrics},
    },
    throttle::Timestamp,
};
use metrics::{
    Counter, Gauge, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

const CONNECTIONS: &str = "paceway_connections";
const CONNECTIONS_REFUSED: &str = "paceway_connections_refused_total";
const STORE_SECONDS: &str = "paceway_store_seconds";
const STORE_ERRORS: &str = "paceway_store_errors_total";
const STORE_LOSSES: &str = "paceway_store_losses_total";
const STORE_CLOCK_SET_BACK: &str = "paceway_store_clock_set_back_seconds";
const STORE_BLOCK_PERMITS: &str = "paceway_store_block_permits_total";
const STORE_UP: &str = "paceway_store_up";
const STORE_BREAKER: &str = "paceway_store_breaker_state";
const STORE_GATEWAYS: &str = "paceway_store_gateways";
const STORE_ROUND_TRIP: &str = "paceway_store_round_trip_seconds";
const STORE_TIMEOUT: &str = "paceway_store_timeout_seconds";
const STORE_STATES: &str = "paceway_store_states";
const TASKS: &str = "paceway_tasks";
const LOG_DROPPED: &str = "paceway_log_lines_dropped_total";
const MAX_FILES: &str = "process_max_fds";
const OPEN_FILES: &str = "process_open_fds";
const CONFIG_RELOADS: &str = "paceway_config_reloads_total";
const CONFIG_LOADED: &str = "paceway_config_loaded_timestamp_seconds";
const SPANS: &str = "paceway_trace_spans_total";
const LIMITS_FROM_UP: &str = "paceway_limits_from_up";
const LIMITS_FROM_ERRORS: &str = "paceway_limits_from_errors_total";
const LIMITS_FROM_ROWS: &str = "paceway_limits_from_rows";
const LIMITS_FROM_INVALID: &str = "paceway_limits_from_invalid_rows";
const LIMITS_FROM_MISSING: &str = "paceway_limits_from_missing_limiters";
const LIMITS_FROM_LOADED: &str = "paceway_limits_from_loaded_timestamp_seconds";
const BUILD_INFO: &str = "paceway_build_info";

/// Handles for the connections of clients, shared by all workers.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// Open connections, one gauge for each [`Protocol`].
    open: [Gauge; Protocol::ALL.len()],
    refused: [Counter; Refusal::ALL.len()],
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

/// Makes the handles for the calls of a store: their times, and their errors by kind.
pub fn store() -> StoreMetrics {
    StoreMetrics {
        seconds: histogram!(STORE_SECONDS),
        errors: StoreError::KINDS.map(|kind| counter!(STORE_ERRORS, "kind" => kind)),
        blocks: ["used", "lapsed"].map(|fate| counter!(STORE_BLOCK_PERMITS, "fate" => fate)),
    }
}

/// Returns the counter of times at which the store lost states, for example when Redis restarted without its data.
pub fn store_losses() -> Counter {
    counter!(STORE_LOSSES)
}

/// Returns the gauge of the time by which the store's clock is ahead of that of its server, which was set back.
pub fn store_clock_set_back() -> Gauge {
    gauge!(STORE_CLOCK_SET_BACK)
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

/// Returns the gauge of states that the memory store keeps, which the admin side sets at each scrape. With Redis it is
/// absent.
pub fn store_states() -> Gauge {
    gauge!(STORE_STATES)
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

/// Returns the counter of spans with this result: `exported`, `dropped` because the queue was full, or `failed` because the
/// collector did not take them.
pub fn spans(result: &'static str) -> Counter {
    counter!(SPANS, "result" => result)
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

/// Sets how many rows of `limits_from` are in use and how many are invalid, and how many limiters are named that neither the
/// file nor a row has.
pub fn limits_from_rows(used: usize, invalid: usize, missing: usize) {
    gauge!(LIMITS_FROM_ROWS).set(used as f64);
    gauge!(LIMITS_FROM_INVALID).set(invalid as f64);
    gauge!(LIMITS_FROM_MISSING).set(missing as f64);
}

/// Sets the time at which the database of `limits_from` gave its rows last.
pub fn limits_from_loaded(at: Timestamp) {
    gauge!(LIMITS_FROM_LOADED).set(at.as_millisecond() as f64 / 1e3);
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
    describe_gauge!(LIMITS_FROM_ROWS, "Rows of limits_from that are in use.");
    describe_gauge!(LIMITS_FROM_INVALID, "Rows of limits_from that keep their last valid value.");
    describe_gauge!(
        LIMITS_FROM_MISSING,
        "Limiters that are named and that neither the file nor a row of limits_from has."
    );
    describe_gauge!(LIMITS_FROM_LOADED, "When limits_from gave its rows last, in Unix time.");
    describe_counter!(SPANS, "Spans of traces, by whether the collector took them.");
    describe_gauge!(CONNECTIONS, "Connections of clients, by protocol.");
    describe_counter!(CONNECTIONS_REFUSED, "Connections of clients that were ended, by reason.");
    describe_histogram!(STORE_SECONDS, Unit::Seconds, "Time of one call of the store.");
    describe_counter!(STORE_ERRORS, "Calls of the store without a decision, by kind.");
    describe_counter!(
        STORE_BLOCK_PERMITS,
        "Permits that the store granted in blocks for later requests."
    );
    describe_counter!(STORE_LOSSES, "Times the store had lost states, or may have.");
    describe_gauge!(
        STORE_CLOCK_SET_BACK,
        "By how much the clock of limiters is ahead of that of the store, which was set back."
    );
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
        STORE_STATES,
        "States that the memory store keeps, one for each limiter and key; at most 1048576. Absent with Redis."
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
