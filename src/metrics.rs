//! Every metric: name, help, labels, buckets. No other file names one.
//!
//! Handles are resolved once, when a configuration is loaded; recording through one costs some ns. Labels
//! come from the configuration or from closed sets, never from a request. What every request is counted in lies
//! together and is written here; the rest is the exporter's.

mod times;

pub use times::Times;

use crate::{
    store::{Source, StoreError, batch::StoreMetrics, health::HealthMetrics},
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
use std::{
    fmt::Write,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
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
const TASKS: &str = "paceway_tasks";
const BUILD_INFO: &str = "paceway_build_info";

/// What became of a request; the `outcome` label and the word in the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Forwarded at once.
    Passed,
    /// Forwarded when its slot had come.
    Waited,
    /// Forwarded, though a limiter in `mode: observe` would have held or refused it.
    Observed,
    /// 429: no slot within its budget.
    Refused,
    /// 503: too many wait already.
    QueueFull,
    /// 404: no route matches.
    NoRoute,
    /// 400, 408, 413: a request that cannot be forwarded.
    BadRequest,
    /// 503: the store gave no decision.
    StoreUnavailable,
    /// 502, 504: the upstream gave no response.
    UpstreamFailed,
    /// The client left before the response.
    Cancelled,
}

/// What a limiter said; the `decision` label. The later ones say more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Go now.
    Pass,
    /// Go later.
    Wait,
    /// Not within the budget.
    Refuse,
    /// As above, said by a limiter in `mode: observe`.
    WouldPass,
    /// As above, said by a limiter in `mode: observe`.
    WouldWait,
    /// As above, said by a limiter in `mode: observe`.
    WouldRefuse,
}

/// What a client speaks with us; the `protocol` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0 and 1.1.
    Http1,
    /// In clear text or over TLS.
    Http2,
    /// What was HTTP/1.1 before its upgrade.
    Tunnel,
}

/// Why a connection of a client was ended by us; the `reason` label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `max_connections` are open.
    Limit,
    /// No agreement on TLS, or no certificate that is ours to trust.
    Tls,
    /// A trusted proxy that does not begin with its header.
    ProxyProtocol,
    /// No whole request, or handshake, within `header_timeout`.
    HeaderTimeout,
    /// It took nothing of a response within `body_timeout`.
    Stalled,
    /// It broke the rules of HTTP/2, or asked for too much.
    Http2,
}

/// Of clients' connections.
#[derive(Clone)]
pub struct ConnectionMetrics {
    /// By [`Protocol`].
    open: [Gauge; Protocol::ALL.len()],
    refused: [Counter; Refusal::ALL.len()],
}

/// Of one route. What most requests are counted in is one cache line: the last of `requests` and the first of `wait`.
#[repr(C, align(64))]
pub struct RouteMetrics {
    /// By [`Outcome`], the last one first.
    requests: [AtomicU64; Outcome::ALL.len()],
    /// Time that forwarded requests were held.
    pub wait: Times,
    /// `route="NAME"`.
    label: String,
    /// Requests that are being held.
    pub waiting: Gauge,
    /// Upgraded connections that are open.
    pub tunnels: Gauge,
}

/// Of one limiter.
#[derive(Clone)]
pub struct LimiterMetrics {
    decisions: [[Counter; Verdict::ALL.len()]; Source::ALL.len()],
    /// Permits that could be taken now, of a limiter with one state; set at each scrape.
    pub available: Option<Gauge>,
    /// Slots that were not used because their request woke too late for them.
    pub late: Counter,
}

/// Of one upstream.
pub struct UpstreamMetrics {
    name: String,
    /// By status, 100 to 599, made when first seen.
    requests: Box<[OnceLock<Counter>]>,
    /// Time to the head of the response.
    pub seconds: Times,
    /// Its 429s.
    pub throttled: Counter,
}

// === impl Outcome ===

impl Outcome {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Passed,
        Self::Waited,
        Self::Observed,
        Self::Refused,
        Self::QueueFull,
        Self::NoRoute,
        Self::BadRequest,
        Self::StoreUnavailable,
        Self::UpstreamFailed,
        Self::Cancelled,
    ];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Waited => "waited",
            Self::Observed => "observed",
            Self::Refused => "refused",
            Self::QueueFull => "queue_full",
            Self::NoRoute => "no_route",
            Self::BadRequest => "bad_request",
            Self::StoreUnavailable => "store_unavailable",
            Self::UpstreamFailed => "upstream_failed",
            Self::Cancelled => "cancelled",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::Pass, Self::Wait, Self::Refuse, Self::WouldPass, Self::WouldWait, Self::WouldRefuse];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Wait => "wait",
            Self::Refuse => "refuse",
            Self::WouldPass => "would_pass",
            Self::WouldWait => "would_wait",
            Self::WouldRefuse => "would_refuse",
        }
    }
}

// === impl Protocol ===

impl Protocol {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Http1, Self::Http2, Self::Tunnel];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Tunnel => "tunnel",
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Limit,
        Self::Tls,
        Self::ProxyProtocol,
        Self::HeaderTimeout,
        Self::Stalled,
        Self::Http2,
    ];

    /// The label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Tls => "tls",
            Self::ProxyProtocol => "proxy_protocol",
            Self::HeaderTimeout => "header_timeout",
            Self::Stalled => "stalled",
            Self::Http2 => "http2",
        }
    }
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
            requests: Default::default(),
            wait: Times::default(),
            label: label("route", route),
            waiting: gauge!(WAITING, "route" => route.to_owned()),
            tunnels: gauge!(TUNNELS, "route" => route.to_owned()),
        }
    }

    /// Counts a request.
    pub fn count(&self, outcome: Outcome) {
        self.requests[Outcome::ALL.len() - 1 - outcome as usize].fetch_add(1, Relaxed);
    }
}

// === impl LimiterMetrics ===

impl LimiterMetrics {
    /// Handles for the limiter named `limiter`; `is_one` unless it has a state for each key, or none.
    pub fn new(limiter: &str, is_one: bool) -> Self {
        let said = |source: Source| {
            Verdict::ALL.map(|verdict| {
                counter!(
                    DECISIONS,
                    "limiter" => limiter.to_owned(),
                    "decision" => verdict.name(),
                    "source" => source.name()
                )
            })
        };
        Self {
            decisions: Source::ALL.map(said),
            available: is_one.then(|| gauge!(AVAILABLE, "limiter" => limiter.to_owned())),
            late: counter!(LATE, "limiter" => limiter.to_owned()),
        }
    }

    /// Counts a decision.
    pub fn count(&self, verdict: Verdict, source: Source) {
        self.decisions[source as usize][verdict as usize].increment(1);
    }
}

// === impl UpstreamMetrics ===

impl UpstreamMetrics {
    /// Handles for the upstream named `upstream`.
    pub fn new(upstream: &str) -> Self {
        Self {
            name: upstream.to_owned(),
            requests: (100..600).map(|_| OnceLock::new()).collect(),
            seconds: Times::default(),
            throttled: counter!(UPSTREAM_THROTTLED, "upstream" => upstream.to_owned()),
        }
    }

    /// Counts a response.
    pub fn count(&self, status: http::StatusCode) {
        let slot = usize::from(status.as_u16()).checked_sub(100).and_then(|i| self.requests.get(i));
        // A status that HTTP does not define is counted as the last one that it could.
        let (slot, status) = match slot {
            Some(slot) => (slot, status.as_u16()),
            None => (&self.requests[499], 599),
        };
        let upstream = || self.name.clone();
        slot.get_or_init(|| {
            counter!(UPSTREAM_REQUESTS, "upstream" => upstream(), "status" => status.to_string())
        })
        .increment(1);
        if status == 429 {
            self.throttled.increment(1);
        }
    }
}

/// Handles for a store.
pub fn store() -> StoreMetrics {
    StoreMetrics {
        seconds: histogram!(STORE_SECONDS),
        up: gauge!(STORE_UP),
        errors: StoreError::KINDS.map(|kind| counter!(STORE_ERRORS, "kind" => kind)),
    }
}

/// The handle for losses of the store's states.
pub fn store_losses() -> Counter {
    counter!(STORE_LOSSES)
}

/// Handles for the health of a store.
pub fn store_health() -> HealthMetrics {
    HealthMetrics {
        breaker: gauge!(STORE_BREAKER),
        gateways: gauge!(STORE_GATEWAYS),
        up: gauge!(STORE_UP),
    }
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

/// All metrics as text: those of `exporter`, and what the requests of all `routes` and `upstreams` were counted in, with
/// the `overhead` of the gateway itself.
pub fn text<'a>(
    exporter: &PrometheusHandle,
    routes: impl Iterator<Item = &'a RouteMetrics> + Clone,
    upstreams: &[UpstreamMetrics],
    overhead: &Times,
) -> String {
    let mut text = exporter.render();
    family(&mut text, REQUESTS, "counter", "Requests, by route and by what became of them.");
    for RouteMetrics { requests, label, .. } in routes.clone() {
        for (count, outcome) in requests.iter().rev().zip(Outcome::ALL) {
            let (outcome, count) = (outcome.name(), count.load(Relaxed));
            // A string takes whatever is written.
            let _ = writeln!(text, "{REQUESTS}{{{label},outcome=\"{outcome}\"}} {count}");
        }
    }
    family(&mut text, WAIT, "histogram", "Time that forwarded requests were held.");
    routes.for_each(|route| route.wait.write(&mut text, WAIT, &route.label));
    let help = "Time from the slot to the head of the upstream's response.";
    family(&mut text, UPSTREAM_SECONDS, "histogram", help);
    for upstream in upstreams {
        upstream.seconds.write(&mut text, UPSTREAM_SECONDS, &label("upstream", &upstream.name));
    }
    let help = "Time to the head of the response, less the wait and the upstream's.";
    family(&mut text, OVERHEAD, "histogram", help);
    overhead.write(&mut text, OVERHEAD, "");
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
    describe_counter!(
        DECISIONS,
        "Decisions of a limiter, by who decided; would_* are those of mode observe."
    );
    describe_gauge!(WAITING, "Requests that are being held for their slot.");
    describe_gauge!(TUNNELS, "Connections that were upgraded, such as WebSockets, and are open.");
    describe_gauge!(AVAILABLE, "Permits of a limiter that could be taken now.");
    describe_counter!(LATE, "Slots asked for again because their request woke too late for them.");
    describe_counter!(UPSTREAM_REQUESTS, "Responses of an upstream, by status.");
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
    describe_gauge!(STORE_GATEWAYS, "Gateways that live on the store, as it last said.");
    describe_gauge!(
        TASKS,
        "Tasks of the data plane: connections of both sides, and what goes on for them."
    );
    describe_gauge!(BUILD_INFO, "1, with the version of this program.");
}
