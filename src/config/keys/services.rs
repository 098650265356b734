//! The keys of `services`.

use super::{
    kind::Kind,
    spec::{HOUR, KeySpec, Keys, Other, choice, duration, key, meant, number, section, words},
};
use crate::config::services::OriginalRequest;
use std::time::Duration;

pub(in crate::config) const SERVICES: Keys = Keys {
    name: "services",
    meaning: "Services by which other proxies use the limiters. Each has an address of its own.",
    specs: &[
        key("decisions", Kind::Address).or(&[Kind::Section(&DECISIONS)], " or [map](#servicesdecisions)")
            .says("decides calls that programs make themselves, over HTTP and JSON, see \
                [decisions](services/decisions.md)"),
        key("envoy_rate_limit", Kind::Address).or(&[Kind::Section(&ENVOY_RATE_LIMIT)], " or [map](#servicesenvoy_rate_limit)")
            .says("Envoy's rate limit service (gRPC, version 3), which answers by [descriptors](#descriptors)"),
        key("ext_authz", Kind::Address).or(&[Kind::Section(&EXT_AUTHZ)], " or [map](#servicesext_authz)")
            .says("decides requests of Envoy's filter `ext_authz` over gRPC, see \
                [Envoy](services/envoy.md#ext_authz-over-grpc)"),
        key("forward_auth", Kind::Address).or(&[Kind::Section(&FORWARD_AUTH)], " or [map](#servicesforward_auth)")
            .says("decides requests of nginx (`auth_request`), Traefik (`ForwardAuth`), Caddy (`forward_auth`), HAProxy \
                and Envoy (`ext_authz` over HTTP), see [services](services/README.md)"),
    ],
    others: &[
        meant("ratelimit rate_limit envoy", "envoy_rate_limit"),
        meant("forwardAuth auth_request", "forward_auth"),
        meant("envoy_ext_authz", "ext_authz"),
        meant("decision acquire", "decisions"),
    ],
};

pub(in crate::config) const FORWARD_AUTH: Keys = Keys {
    name: "forward_auth",
    meaning: "The service that decides requests of another proxy over HTTP.",
    specs: &[
        LISTEN,
        TLS,
        TOKEN,
        choice::<OriginalRequest>("original").default("auto")
            .says("the place that describes the original request: `X-Forwarded-Uri`, `-Method` and `-Host`; \
                `X-Original-URI` or `-URL`, and `-Method`; or the call itself. `auto` takes what is there, and refuses a \
                call that has headers of both kinds, because its caller may have added one"),
        key("path_prefix", Kind::Text).written("path")
            .says("the path before the original one where the call itself is the original request, such as Envoy's \
                `path_prefix`"),
        words("denied_status", || vec!["401", "403", "429"]).otherwise("that of the denial")
            .says("the status of every denial. `Paceway-Status` has that of the denial then, such as 429 or 503. nginx \
                needs 403: its `auth_request` makes 500 of all others"),
    ],
    others: &[
        ADDRESS,
        PASSWORD,
        meant("prefix", "path_prefix"),
        meant("status denied", "denied_status"),
        meant("headers", "original"),
    ],
};

pub(in crate::config) const ENVOY_RATE_LIMIT: Keys = Keys {
    name: "envoy_rate_limit",
    meaning: "Envoy's rate limit service.",
    specs: &[LISTEN, TLS, GRPC_TOKEN],
    others: &[ADDRESS, PASSWORD],
};

pub(in crate::config) const EXT_AUTHZ: Keys = Keys {
    name: "ext_authz",
    meaning: "The service that decides requests of Envoy's filter `ext_authz` over gRPC.",
    specs: &[LISTEN, TLS, GRPC_TOKEN],
    others: &[ADDRESS, PASSWORD],
};

pub(in crate::config) const DECISIONS: Keys = Keys {
    name: "decisions",
    meaning: "The service that decides calls which programs make themselves. They may use every limiter, so that in a Redis \
              Cluster all limiters are one group.",
    specs: &[
        LISTEN,
        TLS,
        TOKEN,
        duration("max_wait", Duration::ZERO..=HOUR).default("30s")
            .says("the longest time that a call may wait, whatever its `max_wait_ms`"),
        number("max_waiting", 1..=10_000_000).default("10000")
            .says("the calls that may wait at one time in one gateway; a further one gets 503 `queue-full`"),
    ],
    others: &[ADDRESS, PASSWORD, meant("timeout", "max_wait")],
};

/// Names that users write for the keys which every service has.
const ADDRESS: Other = meant("address bind", "listen");
const PASSWORD: Other = meant("password", "token");

/// The key `token` of a service that is called by gRPC.
const GRPC_TOKEN: KeySpec = key("token", Kind::Secret)
    .says("every call needs it, in the header `paceway-token` of its metadata; without it the answer is an \
                error. An address that other hosts reach needs a token, or `tls` with `client_ca`");

const TLS: KeySpec = section("tls", &super::TLS, "[certificates](#tls)").otherwise("clear text")
    .says("the service speaks TLS, and nothing else. With `client_ca` only proxies with a certificate may call \
                it");

/// The key `listen`: the services differ only in the example addresses, which are in the schema.
const LISTEN: KeySpec = key("listen", Kind::Address)
    .required()
    .says("the address of the service. No other listener may have it");

/// The key `token` of a service that is called over HTTP, without the example file.
const TOKEN: KeySpec = key("token", Kind::Secret)
    .says("every call needs it, in the header `Paceway-Token`; without it the answer is 401. An address that \
                other hosts reach needs a token, or `tls` with `client_ca`");
