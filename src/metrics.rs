//! Every metric: name, help, labels, buckets. No other file names one.
//!
//! Handles are resolved once, when a configuration is loaded; recording through one costs some ns. Labels
//! come from the configuration or from closed sets, never from a request. What every request is counted in lies
//! together and is written here; the rest is the exporter's.

mod counts;
mod labels;
mod times;

pub use counts::{Decisions, Outcomes, Statuses};
pub use labels::{Outcome, Protocol, Refusal, Verdict};
pub use times::Times;

use crate::{
    store::{
        StoreError,
        batch::StoreMetrics,
        health::{HealthMetrics, PaceMetrics},
    },
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
const REQUESTS: &str = "paceway_requests_total";
const DECISIONS: &str = "paceway_decisions_total";
const WAIT: &str = "paceway_wait_seconds";
const WAITING: &str = "paceway_waiting";
const TUNNELS: &str = "paceway_tunnels";
const AVAILABLE: &str = "paceway_limiter_available";
const LATE: &str = "paceway_late_wakeups_total";
const UPSTREAM_REQUESTS: &str = "paceway_upstream_requests_total";
const UPSTREAM_SECONDS: &str = "paceway_upstream_seconds";
const UPSTREAM_THROTTLED: &str = "paceway_upstream_throttled_total";
const UPSTREAM_ADDRESSES: &str = "paceway_upstream_addresses";
const UPSTREAM_EJECTIONS: &str = "paceway_upstream_ejections_total";
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
const BUILD_INFO: &str = "paceway_build_info";

/// Of clients' connections.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// By [`Protocol`].
    open: [Gauge; Protocol::ALL.len()],
    refused: [Counter; Refusal::ALL.len()],
}

/// Of one route.
pub struct RouteMetrics {
    /// `route="NAME"`.
    label: String,
    /// Requests that are being held.
    pub waiting: Gauge,
    /// Upgraded connections that are open.
    pub tunnels: Gauge,
}

/// Of one limiter.
pub struct LimiterMetrics {
    /// `limiter="NAME"`.
    label: String,
    /// Permits that could be taken now, of a limiter with one state; set at each scrape.
    pub available: Option<Gauge>,
    /// Slots that were not used because their request woke too late for them.
    pub late: Counter,
}

/// Of one upstream.
pub struct UpstreamMetrics {
    /// `upstream="NAME"`.
    label: String,
    /// Its 429s.
    pub throttled: Counter,
}

/// What the workers count, to be told beside what the exporter has. Each part has its labels, and is added up over the
/// workers when it is asked for.
pub struct Counted<R, L, U> {
    /// Of each route.
    pub routes: R,
    /// Of each limiter.
    pub limiters: L,
    /// Of each upstream.
    pub upstreams: U,
    /// Of the gateway itself.
    pub overhead: Times,
}

// === impl ConnectionMetrics ===

impl ConnectionMetrics {
    /// The handle for connections that speak `protocol`.
    pub fn open(&self, protocol: Protocol) -> &Gauge {
        &self.open[protocol as usize]
    }

    /// Counts a connection that we ended.
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
    /// Handles for the route named `route`.
    pub fn new(route: &str) -> Self {
        Self {
            label: label("route", route),
            waiting: gauge!(WAITING, "route" => route.to_owned()),
            tunnels: gauge!(TUNNELS, "route" => route.to_owned()),
        }
    }
}

// === impl LimiterMetrics ===

impl LimiterMetrics {
    /// Handles for the limiter named `limiter`; `is_one` unless it has a state for each key, or none.
    pub fn new(limiter: &str, is_one: bool) -> Self {
        Self {
            label: label("limiter", limiter),
            available: is_one.then(|| gauge!(AVAILABLE, "limiter" => limiter.to_owned())),
            late: counter!(LATE, "limiter" => limiter.to_owned()),
        }
    }
}

// === impl UpstreamMetrics ===

impl UpstreamMetrics {
    /// Handles for the upstream named `upstream`.
    pub fn new(upstream: &str) -> Self {
        Self {
            label: label("upstream", upstream),
            throttled: counter!(UPSTREAM_THROTTLED, "upstream" => upstream.to_owned()),
        }
    }
}

/// Handles for a store.
pub fn store() -> StoreMetrics {
    StoreMetrics {
        seconds: histogram!(STORE_SECONDS),
        errors: StoreError::KINDS.map(|kind| counter!(STORE_ERRORS, "kind" => kind)),
    }
}

/// The handle for losses of the store's states.
pub fn store_losses() -> Counter {
    counter!(STORE_LOSSES)
}

/// The handle for whether the store gives decisions.
pub fn store_up() -> Gauge {
    gauge!(STORE_UP)
}

/// Handles for the health of a store.
pub fn store_health() -> HealthMetrics {
    HealthMetrics {
        breaker: gauge!(STORE_BREAKER),
        gateways: gauge!(STORE_GATEWAYS),
        up: store_up(),
    }
}

/// Handles for the pace of a store.
pub fn store_pace() -> PaceMetrics {
    PaceMetrics { round_trip: gauge!(STORE_ROUND_TRIP), timeout: gauge!(STORE_TIMEOUT) }
}

/// Handles for the addresses of the upstream named `upstream`.
pub fn addresses(upstream: &str) -> AddressMetrics {
    let of =
        |state| gauge!(UPSTREAM_ADDRESSES, "upstream" => upstream.to_owned(), "state" => state);
    AddressMetrics {
        up: of("up"),
        ejected: of("ejected"),
        ejections: counter!(UPSTREAM_EJECTIONS, "upstream" => upstream.to_owned()),
    }
}

/// The handle for the tasks of the data plane; set at each scrape.
pub fn tasks() -> Gauge {
    gauge!(TASKS)
}

/// All metrics as text: those of `exporter`, and what the workers counted.
pub fn text<'a>(
    exporter: &PrometheusHandle,
    counted: Counted<
        impl Iterator<Item = (&'a RouteMetrics, Outcomes, Times)>,
        impl Iterator<Item = (&'a LimiterMetrics, Decisions)>,
        impl Iterator<Item = (&'a UpstreamMetrics, Statuses, Times)>,
    >,
) -> String {
    let mut text = exporter.render();
    // All of a family stands together, and each route has a part in two.
    let (mut waits, mut seconds) = (String::new(), String::new());
    family(&mut text, REQUESTS, "counter", "Requests, by route and by what became of them.");
    family(&mut waits, WAIT, "histogram", "Time that forwarded requests were held.");
    for (route, outcomes, wait) in counted.routes {
        outcomes.write(&mut text, REQUESTS, &route.label);
        wait.write(&mut waits, WAIT, &route.label);
    }
    text.push_str(&waits);
    let help = "Decisions of a limiter, by who decided; would_* are those of mode observe.";
    family(&mut text, DECISIONS, "counter", help);
    for (limiter, decisions) in counted.limiters {
        decisions.write(&mut text, DECISIONS, &limiter.label);
    }
    family(&mut text, UPSTREAM_REQUESTS, "counter", "Responses of an upstream, by status.");
    let help = "Time from the slot to the head of the upstream's response.";
    family(&mut seconds, UPSTREAM_SECONDS, "histogram", help);
    for (upstream, statuses, times) in counted.upstreams {
        statuses.write(&mut text, UPSTREAM_REQUESTS, &upstream.label);
        times.write(&mut seconds, UPSTREAM_SECONDS, &upstream.label);
    }
    text.push_str(&seconds);
    let help = "Time to the head of the response, less the wait and the upstream's.";
    family(&mut text, OVERHEAD, "histogram", help);
    counted.overhead.write(&mut text, OVERHEAD, "");
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    write_help_line(text, name, None, None, help);
    write_type_line(text, name, None, None, kind);
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", sanitize_label_value(value))
}

/// Installs the recorder of this process and describes every metric. The caller runs the handle's upkeep:
/// without it, histograms keep every sample.
///
/// # Errors
///
/// When this process has a recorder already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let all_histograms = Matcher::Suffix("_seconds".into());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(all_histograms, &Times::bounds())?
        .install_recorder()?;
    describe();
    let version = env!("CARGO_PKG_VERSION");
    gauge!(BUILD_INFO, "version" => version).set(1.0);
    Ok(handle)
}

fn describe() {
    describe_gauge!(WAITING, "Requests that are being held for their slot.");
    describe_gauge!(TUNNELS, "Connections that were upgraded, such as WebSockets, and are open.");
    describe_gauge!(AVAILABLE, "Permits of a limiter that could be taken now.");
    describe_counter!(LATE, "Slots asked for again because their request woke too late for them.");
    describe_counter!(UPSTREAM_THROTTLED, "Times an upstream said 429.");
    describe_gauge!(UPSTREAM_ADDRESSES, "Addresses of an upstream, by whether requests go there.");
    describe_counter!(UPSTREAM_EJECTIONS, "Times an address was put out because it did not work.");
    describe_gauge!(CONNECTIONS, "Connections of clients, by what they speak.");
    describe_counter!(CONNECTIONS_REFUSED, "Connections of clients that were ended, by reason.");
    describe_histogram!(STORE_SECONDS, Unit::Seconds, "Time of one call of the store.");
    describe_counter!(STORE_ERRORS, "Calls of the store without a decision, by kind.");
    describe_counter!(STORE_LOSSES, "Times the store had lost states, or may have.");
    describe_gauge!(STORE_UP, "1 while the store answers.");
    describe_gauge!(
        STORE_BREAKER,
        "Whether the store is asked: 0 it is, 1 about to be again, 2 it is not."
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
        "How long a request waits for the store: store.timeout, or longer while the store is slow."
    );
    describe_gauge!(
        TASKS,
        "Tasks of the data plane: connections of both sides, and what goes on for them."
    );
    describe_gauge!(BUILD_INFO, "1, with the version of this program.");
}
