//! The settings of a configuration as types. Reads no file.

use super::{
    accounts::Accounts,
    admin::AdminConfig,
    document::Document,
    fair::PriorityRule,
    forward::ForwardConfig,
    http::{AnswerForm, ClientLimits, Limits, ServerTls},
    keys::Choice,
    limiter::{Charge, FailurePolicy, LimiterConfig},
    rows_from::{MissingLimiter, RowsFrom},
    services::{DescriptorRule, Service, Services},
    throttle::ThrottleConfig,
    traces::TracingConfig,
};
use crate::{
    key::{Cost, Template},
    path::{PathRule, Paths},
    store::{OnLoss, redis::RedisUrl},
    upstream::{ClientTls, HealthCheck, Target, Timeouts, Via, headers::Rules},
};
use http::{HeaderName, Method};
use ipnet::IpNet;
use std::{net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

/// All settings of a configuration file, with every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The address on which the gateway takes the requests of clients.
    pub listen: SocketAddr,
    /// The admin side: metrics, health and the state of limiters.
    pub admin: AdminConfig,
    /// The services for programs that keep their own proxy.
    pub services: Services,
    /// The forward proxy; `None` if there is none.
    pub forward: Option<ForwardConfig>,
    /// The descriptors that Envoy's rate limit service decides, in the order of the file.
    pub descriptors: Vec<DescriptorRule>,
    /// The number of threads that serve clients.
    pub workers: NonZeroUsize,
    /// The form of access lines. `None` means text if stdout is a terminal, otherwise JSON.
    pub access_log: Option<AccessLog>,
    /// Whether access lines have the client's user agent.
    pub logs_user_agent: bool,
    /// The form of events. `None` means text if stderr is a terminal, otherwise JSON.
    pub log: Option<EventFormat>,
    /// The time that requests which run or wait have to finish after SIGTERM.
    pub drain_timeout: Duration,
    /// Whether a file that changes takes effect without a signal.
    pub watch: bool,
    /// The time after SIGTERM in which the gateway still accepts clients, before it drains.
    pub shutdown_delay: Duration,
    /// The certificates that clients are shown; `None` means that clients speak clear text.
    pub tls: Option<ServerTls>,
    /// The proxies whose X-Forwarded-For is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Whether connections of trusted proxies begin with a PROXY protocol header.
    pub proxy_protocol: bool,
    /// The time-outs of clients' connections, and how many may be open.
    pub client: ClientLimits,
    /// The greatest size of a request.
    pub limits: Limits,
    /// How the upstreams read paths, as far as the configuration decides it.
    pub paths: Paths,
    /// Names of query parameters and headers whose values no log shows, in addition to names that look like credentials.
    pub redact: Vec<String>,
    /// The DNS servers that resolve the names of upstreams. If empty, those of the system are used.
    pub resolver: Vec<SocketAddr>,
    /// Traces of requests; `None` traces none.
    pub tracing: Option<TracingConfig>,
    /// The store in which limiters keep their state.
    pub store: StoreConfig,
    /// Whether limiters limit. If false, the gateway forwards every request at once.
    pub limiting: bool,
    /// At least one upstream. Routes refer to upstreams by their index.
    pub upstreams: Vec<Upstream>,
    /// All limiters. Charges refer to limiters by their index.
    pub limiters: Vec<LimiterConfig>,
    /// The database whose rows replace limiters, or add some.
    pub limits_from: Option<RowsFrom>,
    /// The limiters that routes or upstreams name, and that neither the file nor a row has. Empty without `limits_from`.
    pub missing: Vec<MissingLimiter>,
    /// At least one route. The table of routes refers to them by their index.
    pub routes: Vec<Route>,
    /// The file, from which a changed configuration is made.
    pub(super) document: Arc<Document>,
    /// Keys of headers that look like credentials and are written in the file in clear text.
    pub(super) clear_secrets: Vec<String>,
    /// A sentence for each file of authorities that cannot do what it is for.
    pub(super) flaws: Vec<String>,
    /// Names of routes that have a limiter with a rate, and neither `max_wait` nor `max_wait_cap`.
    pub(super) unheld: Vec<String>,
}

/// The form of the access log, which has one line for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessLog {
    /// No access lines are written.
    Off,
    /// Each line is text, for people.
    Text,
    /// Each line is a JSON object, for programs.
    Json,
}

/// The form of the events on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFormat {
    /// Each line is text, for people.
    Text,
    /// Each line is a JSON object, for programs.
    Json,
}

/// The store in which limiters keep their state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// The memory of this process, which no other gateway shares.
    Memory,
    /// One Redis server, a primary that Sentinels name, or a Redis Cluster.
    Redis {
        /// The URL, with credentials and the address.
        url: RedisUrl,
        /// The first part of every key in Redis.
        prefix: String,
        /// The time that a request waits for a decision of the store.
        timeout: Duration,
        /// The least number of gateways among which a rule is divided while the store is away. The number that the store
        /// reported counts if it is greater.
        gateways: i64,
        /// The behaviour of limiters without `on_failure` while the store gives no decisions.
        on_failure: FailurePolicy,
        /// The behaviour of limiters without `on_loss` after the store has lost states.
        on_loss: OnLoss,
    },
}

/// An API that throttles its callers, with one address or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The name in metrics and logs.
    pub name: String,
    /// The addresses of the upstream, at least one. They serve the same API.
    pub targets: Vec<Target>,
    /// The time-outs for connecting, for the response and for idle connections.
    pub timeouts: Timeouts,
    /// The number of idle connections that one gateway keeps open to the upstream.
    pub pool_size: usize,
    /// How its addresses are checked; `None` leaves that to requests.
    pub health: Option<HealthCheck>,
    /// The proxy through which it is reached; `None` for none.
    pub via: Option<Via>,
    /// Whether the gateway speaks HTTP/2 to the upstream.
    pub http2: bool,
    /// How the certificate of an https upstream is checked, and the certificate that it is shown.
    pub tls: ClientTls,
    /// Whether the upstream receives the client's `Host` instead of the host of its URL.
    pub preserve_host: bool,
    /// Whether the upstream receives `Forwarded` (RFC 7239) in addition to the X-Forwarded fields.
    pub forwarded: bool,
    /// The changes to headers of requests and responses.
    pub headers: Rules,
    /// The limiters that every request to the upstream is charged to.
    pub limiters: Vec<Charge>,
    /// The names of limiters that every request is charged to, and that a row of `limits_from` has to add.
    pub missing: Vec<String>,
    /// How the upstream says "slow down", and what follows from that.
    pub throttle: ThrottleConfig,
    /// Its accounts; `None` for an upstream with one credential, or with those of its callers.
    pub accounts: Option<Accounts>,
    /// The memory for answers that it is asked to confirm, in bytes; `None` if none are kept.
    pub revalidate: Option<usize>,
    /// The form of the gateway's own answers on routes that name none.
    pub answers: AnswerForm,
}

/// The memory of a route for answers that the upstream is asked to confirm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeptMemory {
    /// Its bytes.
    pub bytes: usize,
    /// Whether it is that of the upstream, for all of its routes that have none of their own.
    pub is_of_upstream: bool,
}

/// The requests that one entry under `routes` matches, and what happens to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The name in metrics and logs.
    pub name: String,
    /// The paths that the route takes: a whole path, or the end of one.
    pub path: PathRule,
    /// Whether a key or a cost of its limiters is a parameter of its path, such as `{path.channel}`.
    pub captures: bool,
    /// The methods that the route takes; if empty, it takes all.
    pub methods: Vec<Method>,
    /// The host that a request must name, in small letters and without port; `None` means any host.
    pub host: Option<String>,
    /// The upstream, as an index into [`Config::upstreams`].
    pub upstream: usize,
    /// The limiters of the route, then those of its upstream. A limiter that both name occurs once, at the route's cost.
    pub limiters: Vec<Charge>,
    /// The bucket at each limiter, in place of the limiter's own key; only for descriptors.
    pub key: Option<Template>,
    /// The names of its limiters, and of those of its upstream, that a row of `limits_from` has to add. Until then each
    /// request gets 503.
    pub missing: Vec<String>,
    /// The priority of its requests among those that wait for the same limiter.
    pub priority: PriorityRule,
    /// The time that a request may wait for its slot if it has no `Prefer: wait=`.
    pub max_wait: Duration,
    /// The longest time that a request may ask for with `Prefer: wait=`.
    pub max_wait_cap: Duration,
    /// The number of requests of this route that may wait in this gateway at the same time.
    pub max_waiting: usize,
    /// The changes to headers, made after those of the upstream.
    pub headers: Rules,
    /// Whether every answer says what its limiter has left, and not only a refusal.
    pub tells_quota: bool,
    /// The headers in which requests agree that become one call while they wait, besides credentials; `None` if each request
    /// is a call of its own.
    pub share: Option<Vec<HeaderName>>,
    /// Where answers are kept that the upstream is asked to confirm; `None` if none are.
    pub revalidate: Option<KeptMemory>,
    /// The form of the gateway's own answers.
    pub answers: AnswerForm,
}

// === impl StoreConfig ===

impl StoreConfig {
    /// Whether states are on several servers, so that those of one decision need a hash tag.
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Redis { url, .. } if url.is_cluster())
    }
}

// === impl AccessLog ===

impl Choice for AccessLog {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("text", Self::Text), ("json", Self::Json)];
}

// === impl EventFormat ===

impl Choice for EventFormat {
    const CHOICES: &'static [(&'static str, Self)] = &[("text", Self::Text), ("json", Self::Json)];
}

// === impl Config ===

impl Config {
    /// Returns one line with the number of routes, limiters and upstreams, the store and the addresses.
    pub fn summary(&self) -> String {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let store = match &self.store {
            StoreConfig::Memory => "memory".to_owned(),
            StoreConfig::Redis { url, .. } => format!("redis at {url}"),
        };
        // Those of descriptors and of decisions are not written under `routes`.
        let routes = self.routes.iter().filter(|route| route.path != PathRule::Descriptor);
        let forward = self.forward.as_ref();
        let forward =
            forward.map_or(String::new(), |own| format!(", forward proxy on {}", own.listen));
        format!(
            "{}, {}, {}; store: {store}; listening on {}, admin on {}{forward}",
            count(routes.count(), "route"),
            count(self.limiters.len(), "limiter"),
            count(self.upstreams.len(), "upstream"),
            self.listen,
            self.admin.listen,
        )
    }

    /// Groups the limiters that some route uses together, for a Redis Cluster. A group has the first name of its limiters in
    /// the alphabet. A limiter with a key that is alone in its group is spread over the Cluster, unless programs may name two
    /// of its keys in one call.
    ///
    /// Every other store decides on any keys together, so each limiter there is its own group. Its keys then stay the same
    /// when routes are added, also while gateways with the old and the new routes run side by side.
    pub(crate) fn group_limiters(&mut self) {
        if !self.store.is_cluster() {
            for limiter in &mut self.limiters {
                limiter.group = limiter.name.clone();
                limiter.spread = false;
            }
            return;
        }
        let names_keys = self.decisions_route().is_some();
        let mut leader: Vec<usize> = (0..self.limiters.len()).collect();
        for route in &self.routes {
            let Some(first) = route.limiters.first() else { continue };
            for charge in &route.limiters {
                let (a, b) = (leader[first.limiter], leader[charge.limiter]);
                leader.iter_mut().filter(|l| **l == b).for_each(|l| *l = a);
            }
        }
        for (i, own) in leader.iter().enumerate() {
            let members = || leader.iter().zip(&self.limiters).filter(|(l, _)| *l == own);
            let name = members().map(|(_, limiter)| limiter.name.as_str()).min();
            let name = name.unwrap_or_default().to_owned();
            let alone = members().count() == 1;
            let limiter = &mut self.limiters[i];
            limiter.group = name;
            // The store looks at all accounts of an upstream in one step.
            let has_accounts = self.routes.iter().any(|route| {
                let uses = |charge: &Charge| charge.limiter == i;
                self.upstreams[route.upstream].accounts.is_some() && route.limiters.iter().any(uses)
            });
            limiter.spread = alone && !names_keys && !has_accounts && limiter.key.is_some();
        }
    }

    /// Gives the decisions of programs a route without paths, so that they have a budget and counters as every route has. It
    /// has all limiters, because a call may name any of them; in a Cluster they are therefore one group.
    pub(crate) fn route_decisions(&mut self) {
        self.routes.retain(|route| !route.is_of_decisions());
        let Some(own) = &self.services.decisions else { return };
        let charge = |limiter| Charge { limiter, cost: Cost::ONE };
        self.routes.push(Route {
            name: Service::Decisions.name().to_owned(),
            path: PathRule::Descriptor,
            captures: false,
            methods: Vec::new(),
            host: None,
            upstream: 0,
            limiters: (0..self.limiters.len()).map(charge).collect(),
            key: None,
            missing: Vec::new(),
            priority: PriorityRule::Normal,
            max_wait: Duration::ZERO,
            max_wait_cap: own.max_wait,
            max_waiting: own.max_waiting,
            headers: Rules::default(),
            tells_quota: false,
            share: None,
            revalidate: None,
            answers: AnswerForm::Problem,
        });
    }

    /// The index of the route of the decisions of programs; `None` without `services.decisions`.
    pub(crate) fn decisions_route(&self) -> Option<usize> {
        let last = self.routes.len().checked_sub(1)?;
        self.routes[last].is_of_decisions().then_some(last)
    }
}

// === impl Route ===

impl Route {
    /// Whether it is the route of the decisions of programs. Descriptors may not have its name.
    fn is_of_decisions(&self) -> bool {
        self.path == PathRule::Descriptor && self.name == Service::Decisions.name()
    }

    /// Whether this route has all limiters of `other`, each at no smaller cost. A path that origins may read as a path of
    /// either route then takes this one.
    pub fn covers(&self, other: &Self) -> bool {
        let costs_as_much = |own: &Charge, theirs: &Charge| match (&own.cost, &theirs.cost) {
            (Cost::Fixed(own), Cost::Fixed(theirs)) => own >= theirs,
            (own, theirs) => own == theirs,
        };
        let has_all = other.limiters.iter().all(|theirs| {
            let own = self.limiters.iter().find(|own| own.limiter == theirs.limiter);
            own.is_some_and(|own| costs_as_much(own, theirs))
        });
        has_all && other.missing.iter().all(|name| self.missing.contains(name))
    }
}
