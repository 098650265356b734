//! Every metric: its name, help, labels and buckets. Three files name metrics: this one those that workers count themselves,
//! `metrics/families` those with a name of the configuration as a label, `metrics/exported` all others.
//!
//! Handles are resolved once, when a configuration is loaded, so that recording costs a few ns. Labels come from the
//! configuration or from closed sets, never from a request. The counters and histograms that every request updates are our
//! own, lie together in memory, and are written as text here; the exporter keeps and writes those of `metrics/exported`.

mod counts;
mod exported;
mod families;
mod family;
mod handles;
mod labels;
mod lines;
mod process;
mod times;

pub use counts::{Decisions, Outcomes, Statuses};
pub use exported::{
    ConnectionMetrics, config_loaded, config_reloads, install, limits_from_errors,
    limits_from_loaded, limits_from_rows, limits_from_up, log_dropped, max_files, open_files,
    spans, store, store_clock_set_back, store_health, store_losses, store_pace, store_states,
    store_up, tasks,
};
pub use handles::{
    LimiterMetrics, RouteMetrics, SettledPermits, UpstreamMetrics, addresses, certificate,
    ejections, limiter_rate, pauses, service_label, throttled,
};
pub use labels::{Outcome, Protocol, Refusal, RetryResult, Verdict};
pub use process::process;
pub use times::{TimeCounts, TimeHistogram};

use lines::family;
use metrics_exporter_prometheus::PrometheusHandle;
use std::{fmt::Write, time::Duration};

const REQUESTS: &str = "paceway_requests_total";
const DECISIONS: &str = "paceway_decisions_total";
const WAIT: &str = "paceway_wait_seconds";
const GRANTED: &str = "paceway_granted_permits_total";
const LIMITER_WAIT: &str = "paceway_limiter_wait_seconds";
const UPSTREAM_REQUESTS: &str = "paceway_upstream_requests_total";
const UPSTREAM_SECONDS: &str = "paceway_upstream_seconds";
const OVERHEAD: &str = "paceway_overhead_seconds";
const CONFIG_INFO: &str = "paceway_config_info";

/// The counts of all workers, which `/metrics` lists after the metrics of the exporter. Each count is added up over the
/// workers when it is written.
pub struct WorkerCounts<R, L, U> {
    /// Requests and waits of each route, with their labels as the text contains them.
    pub routes: R,
    /// Decisions, permits and waits of each limiter.
    pub limiters: L,
    /// Responses of each upstream, by status, and their times.
    pub upstreams: U,
    /// The time that the gateway itself takes for a request.
    pub overhead: TimeHistogram,
    /// The longest time that any route may hold a request. It decides how far the buckets of waits reach.
    pub longest_wait: Duration,
}

/// The waits of a route's requests, each with the label `priority` that they have.
pub type ShownWaits = Vec<(&'static str, TimeHistogram)>;

/// The counts of one limiter, over all workers.
pub struct LimiterCounts {
    /// Its decisions.
    pub decisions: Decisions,
    /// Permits with which requests were sent.
    pub permits: u64,
    /// The time that requests were held because of it.
    pub wait: TimeHistogram,
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
        impl Iterator<Item = (&'a str, (Outcomes, ShownWaits))>,
        impl Iterator<Item = (&'a LimiterMetrics, LimiterCounts)>,
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
    for (route, (outcomes, times)) in counted.routes {
        outcomes.write(&mut text, REQUESTS, route);
        for (priority, times) in times {
            let labels = format!("{route},priority=\"{priority}\"");
            times.write(&mut waits, WAIT, &labels, wait_bounds);
        }
    }
    text.push_str(&waits);
    let help = "Decisions of a limiter, by their source; would_* are those of mode observe.";
    family(&mut text, DECISIONS, "counter", help);
    let (mut granted, mut waits) = (String::new(), String::new());
    let help = "Permits of a limiter with which requests were sent.";
    family(&mut granted, GRANTED, "counter", help);
    let help = "Time that requests were held because of a limiter.";
    family(&mut waits, LIMITER_WAIT, "histogram", help);
    for (limiter, LimiterCounts { decisions, permits, wait }) in counted.limiters {
        decisions.write(&mut text, DECISIONS, &limiter.label);
        // Writing to a string cannot fail.
        let _ = writeln!(granted, "{GRANTED}{{{}}} {permits}", limiter.label);
        wait.write(&mut waits, LIMITER_WAIT, &limiter.label, wait_bounds);
    }
    text.push_str(&granted);
    text.push_str(&waits);
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
