//! The one list of keys: name, kind, default, meaning and schema of each. The parser, the JSON Schema and the tables in
//! docs/configuration.md are made from it. Reads nothing.

mod admin;
mod charge;
mod descriptors;
mod client;
mod fair;
mod headers;
mod limiter;
mod limits_from;
mod observability;
mod process;
mod route;
mod services;
mod spec;
mod store;
mod throttle;
mod tls;
mod upstream;

pub(super) use admin::ADMIN;
pub(super) use charge::{CHARGE, RESERVED_COST};
pub(super) use client::{CLIENT, LIMITS, PATHS};
pub(super) use descriptors::DESCRIPTOR;
pub(super) use fair::FAIR;
pub(super) use headers::{EDITS, HEADERS};
pub(super) use limiter::LIMITER;
pub(super) use limits_from::LIMITS_FROM;
pub(super) use observability::{ACCESS_LOG, LOG, TRACING};
pub(super) use process::ROOT;
pub(super) use route::ROUTE;
pub(super) use services::{DECISIONS, ENVOY_RATE_LIMIT, EXT_AUTHZ, FORWARD_AUTH, SERVICES};
pub(super) use spec::{KeySpec, Keys};
pub(super) use store::STORE;
pub(super) use throttle::{RETRY, THROTTLE};
pub(super) use tls::{CERTIFICATE, STORE_TLS, TLS};
pub(super) use upstream::{HEALTH, UPSTREAM};

/// The sections below the top of the file, in the order of the schema.
pub(super) const SECTIONS: [&Keys; 29] = [
    &ADMIN,
    &ACCESS_LOG,
    &LOG,
    &TRACING,
    &SERVICES,
    &FORWARD_AUTH,
    &ENVOY_RATE_LIMIT,
    &EXT_AUTHZ,
    &DECISIONS,
    &DESCRIPTOR,
    &STORE,
    &STORE_TLS,
    &TLS,
    &CERTIFICATE,
    &CLIENT,
    &LIMITS,
    &PATHS,
    &UPSTREAM,
    &HEALTH,
    &THROTTLE,
    &RETRY,
    &HEADERS,
    &EDITS,
    &LIMITER,
    &FAIR,
    &LIMITS_FROM,
    &CHARGE,
    &RESERVED_COST,
    &ROUTE,
];

/// The JSON Schema of the kinds of values to which keys refer, such as a duration.
pub(super) const KINDS: &str = include_str!("keys/kinds.json");
