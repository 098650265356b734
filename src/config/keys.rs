//! The one list of keys: name, kind, default, meaning and schema of each. The parser, the JSON Schema and the tables in
//! docs/configuration.md are made from it. Reads nothing.

mod accounts;
mod admin;
mod charge;
mod descriptors;
mod client;
mod fair;
mod floors;
mod forward;
mod headers;
mod kind;
mod limiter;
mod limits_from;
mod observability;
mod process;
mod rates_from;
mod reads;
mod route;
mod rule_kind;
mod services;
mod spec;
mod store;
mod throttle;
mod tls;
mod upstream;

pub(super) use accounts::ACCOUNT;
pub(super) use admin::ADMIN;
pub(super) use charge::{CHARGE, RESERVED_COST};
pub(super) use client::{CLIENT, LIMITS, PATHS};
pub(super) use descriptors::DESCRIPTOR;
pub(super) use fair::FAIR;
pub(super) use floors::FLOORS;
pub(super) use forward::FORWARD;
pub(super) use headers::{EDITS, HEADERS};
pub(super) use kind::{Choice, Kind};
pub(super) use limiter::LIMITER;
pub(super) use limits_from::LIMITS_FROM;
pub(super) use observability::{ACCESS_LOG, LEVEL, LOG, TRACING};
pub(super) use process::ROOT;
pub(super) use rates_from::RATES_FROM;
pub(super) use reads::{REVALIDATE, SHARE};
pub(super) use route::ROUTE;
pub(super) use rule_kind::RuleKind;
pub(super) use services::{DECISIONS, ENVOY_RATE_LIMIT, EXT_AUTHZ, FORWARD_AUTH, SERVICES};
pub(super) use spec::{DefaultValue, KeySpec, Keys};
pub(super) use store::STORE;
pub(super) use throttle::{RETRY, THROTTLE};
pub(super) use tls::{CERTIFICATE, STORE_TLS, TLS};
pub(super) use upstream::{HEALTH, UPSTREAM};

/// The sections below the top of the file, in the order of the schema.
pub(super) const SECTIONS: [&Keys; 35] = [
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
    &FORWARD,
    &STORE,
    &STORE_TLS,
    &TLS,
    &CERTIFICATE,
    &CLIENT,
    &LIMITS,
    &PATHS,
    &UPSTREAM,
    &ACCOUNT,
    &REVALIDATE,
    &HEALTH,
    &THROTTLE,
    &RETRY,
    &HEADERS,
    &EDITS,
    &LIMITER,
    &FAIR,
    &FLOORS,
    &RATES_FROM,
    &LIMITS_FROM,
    &CHARGE,
    &RESERVED_COST,
    &ROUTE,
    &SHARE,
];

/// The JSON Schema of the kinds of values to which keys refer, such as a duration.
pub(super) const KINDS: &str = include_str!("keys/kinds.json");

/// The JSON Schema of sections and of keys that say more than their kind does, by their names, such as `route.methods`. In it
/// `"{least}"` and `"{most}"` are the bounds of the key.
pub(super) const SHAPES: &str = include_str!("keys/shapes.json");

/// Whether a message may show a value that a variable has brought in, at each key of this name.
pub(super) fn may_be_shown(name: &str) -> bool {
    let all = || [&ROOT].into_iter().chain(SECTIONS).flat_map(|keys| keys.specs);
    let mut own = all().filter(|key| key.name == name).peekable();
    own.peek().is_some() && own.all(KeySpec::may_be_shown)
}

#[cfg(test)]
mod tests {
    use super::{DefaultValue, Kind, ROOT, SECTIONS, may_be_shown};
    use crate::config::value::Value;
    use rstest::rstest;
    use std::{net::SocketAddr, time::Duration};

    /// A declaration has its default as text, and a reader of the configuration relies on it.
    #[test]
    fn each_default_is_a_value_of_its_kind() {
        let mut checked = 0;
        for keys in [&ROOT].into_iter().chain(SECTIONS) {
            for key in keys.specs.iter().filter(|key| key.others.is_empty()) {
                let DefaultValue::Value(text) = key.default else { continue };
                let read = match key.kind {
                    Kind::Number { .. } | Kind::Size { .. } => u64::read(text, &key.kind).map(drop),
                    Kind::Duration { .. } => Duration::read(text, &key.kind).map(drop),
                    Kind::Switch => bool::read(text, &key.kind).map(drop),
                    Kind::Word(_) => <&str>::read(text, &key.kind).map(drop),
                    Kind::Address => SocketAddr::read(text, &key.kind).map(drop),
                    _ => continue,
                };
                assert_eq!(read, Ok(()), "{}.{}", keys.name, key.name);
                checked += 1;
            }
        }
        assert!(checked > 40, "only {checked} defaults found");
    }

    #[rstest]
    #[case::addresses("listen", true)]
    #[case::an_address_or_a_map("admin", true)]
    #[case::durations("max_wait", true)]
    #[case::a_time_out("connect_timeout", true)]
    #[case::numbers("burst", true)]
    #[case::rates("start", true)]
    #[case::sizes("max_body", true)]
    #[case::switches("http2", true)]
    #[case::words("on_failure", true)]
    #[case::vendors("style", true)]
    #[case::tokens("token", false)]
    #[case::urls("url", false)]
    #[case::words_or_a_url("store", false)]
    #[case::files("client_cert", false)]
    #[case::a_part_of_a_request("cost", false)]
    #[case::a_text_of_some_length("prefix", false)]
    #[case::values_of_headers("set", false)]
    #[case::a_number_here_and_a_map_there("headers", false)]
    #[case::no_key("password", false)]
    fn shows_no_value_that_can_be_a_secret(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(may_be_shown(name), expected);
    }
}
