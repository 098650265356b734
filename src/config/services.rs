//! The settings of the services for programs that keep their own proxy. Keeps no token, only its digest.

use super::{admin::AdminToken, http::ServerTls, keys::Choice};
use http::StatusCode;
use std::{net::SocketAddr, time::Duration};

/// The services beside the data plane. Each has a listener of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    /// The service that decides requests of proxies such as nginx and Traefik; `None` if there is none.
    pub forward_auth: Option<ForwardAuthConfig>,
    /// Envoy's rate limit service; `None` if there is none.
    pub envoy_rate_limit: Option<ServiceListener>,
    /// The service that decides requests of Envoy's filter `ext_authz` over gRPC; `None` if there is none.
    pub ext_authz: Option<ServiceListener>,
    /// The service that decides calls which programs make themselves; `None` if there is none.
    pub decisions: Option<DecisionsConfig>,
}

/// An entry of `descriptors`: which descriptors of Envoy it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DescriptorRule {
    /// The keys that a descriptor must have, each with its value; `None` takes any value.
    pub pairs: Vec<(String, Option<String>)>,
    /// The index of its route, which has its limiters and its budget and takes no path.
    pub route: usize,
}

/// The service that decided a request for another proxy: the label `service`, and the same word in the access log. Requests
/// of the data plane have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Service {
    /// Decisions over HTTP for nginx, Traefik, Caddy, HAProxy and Envoy.
    ForwardAuth,
    /// Envoy's rate limit service.
    EnvoyRateLimit,
    /// Decisions over gRPC for Envoy's filter `ext_authz`.
    ExtAuthz,
    /// Decisions over HTTP and JSON for programs that call a vendor themselves.
    Decisions,
}

/// The listener of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceListener {
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// The certificates that proxies are shown; `None` means that they speak clear text.
    pub tls: Option<ServerTls>,
    /// The token that each call needs; `None` lets every client of the address call it.
    pub token: Option<AdminToken>,
}

/// The settings of `services.forward_auth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardAuthConfig {
    /// The listener.
    pub listener: ServiceListener,
    /// The place in a call that describes the original request.
    pub original: OriginalRequest,
    /// The path before the original path, where the target of a call is the original target; empty if there is none.
    pub path_prefix: String,
    /// The status of every denial; `None` keeps the status that the data plane would answer.
    pub denied_status: Option<StatusCode>,
}

/// The settings of `services.decisions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionsConfig {
    /// The listener.
    pub listener: ServiceListener,
    /// The longest time that a call may wait, and that a slot may be in the future.
    pub max_wait: Duration,
    /// The number of calls that may wait in this gateway at the same time.
    pub max_waiting: usize,
}

/// The place in a call to `forward_auth` that describes the original request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginalRequest {
    /// The headers that the call has, or its target without any. A call with headers of two kinds is refused.
    Auto,
    /// `X-Forwarded-Uri`, `-Method` and `-Host`, as Traefik and Caddy send them.
    Forwarded,
    /// `X-Original-URI` or `-URL`, and `-Method`, as nginx is configured to send them.
    Original,
    /// The call itself: its method, target and `Host`, as Envoy sends them.
    Target,
}

// === impl OriginalRequest ===

impl Choice for OriginalRequest {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("x-forwarded", Self::Forwarded),
        ("x-original", Self::Original),
        ("target", Self::Target),
    ];
}

// === impl Service ===

impl Service {
    /// The label, which is also its key of the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::ForwardAuth => "forward_auth",
            Self::EnvoyRateLimit => "envoy_rate_limit",
            Self::ExtAuthz => "ext_authz",
            Self::Decisions => "decisions",
        }
    }

    /// The place of its listener in the configuration.
    pub fn key(self) -> &'static str {
        match self {
            Self::ForwardAuth => "services.forward_auth",
            Self::EnvoyRateLimit => "services.envoy_rate_limit",
            Self::ExtAuthz => "services.ext_authz",
            Self::Decisions => "services.decisions",
        }
    }
}

// === impl ServiceListener ===

impl ServiceListener {
    /// Whether programs on other hosts reach it without showing who they are.
    pub fn is_open(&self) -> bool {
        let knows_clients = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        !self.listen.ip().is_loopback() && self.token.is_none() && !knows_clients
    }
}

// === impl Services ===

impl Services {
    /// The services that are configured, with their listeners.
    pub fn all(&self) -> impl Iterator<Item = (Service, &ServiceListener)> {
        let forward_auth = self.forward_auth.as_ref();
        let forward_auth = forward_auth.map(|own| (Service::ForwardAuth, &own.listener));
        let envoy = self.envoy_rate_limit.as_ref().map(|own| (Service::EnvoyRateLimit, own));
        let ext_authz = self.ext_authz.as_ref().map(|own| (Service::ExtAuthz, own));
        let decisions = self.decisions.as_ref();
        let decisions = decisions.map(|own| (Service::Decisions, &own.listener));
        forward_auth.into_iter().chain(envoy).chain(ext_authz).chain(decisions)
    }
}

// === impl DescriptorRule ===

impl DescriptorRule {
    /// Whether it takes a descriptor with these `pairs`, which may have more keys than the rule.
    pub fn takes<'a, I>(&self, pairs: impl Fn() -> I) -> bool
    where
        I: Iterator<Item = (&'a str, &'a str)>,
    {
        self.pairs.iter().all(|(key, value)| {
            let is_value = |own: &str| value.as_deref().is_none_or(|value| value == own);
            pairs().any(|(own, its)| own == key && is_value(its))
        })
    }
}
