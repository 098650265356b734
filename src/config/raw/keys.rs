//! The keys of each kind of section, and the keys of other gateways that users write in their place. Reads nothing.

use crate::config::reader::{Keys, Other};

pub(in crate::config) const ROOT: Keys = Keys {
    now: &[
        "listen",
        "admin",
        "workers",
        "access_log",
        "drain_timeout",
        "tls",
        "trusted_proxies",
        "proxy_protocol",
        "client",
        "limits",
        "paths",
        "redact",
        "resolver",
        "store",
        "limiting",
        "upstream",
        "upstreams",
        "limiters",
        "routes",
    ],
    later: &[],
    others: &[
        meant("rate_limits", &["limiters"]),
        meant("rate_limit", &["limiters"]),
        meant("ratelimits", &["limiters"]),
        meant("rules", &["routes"]),
        meant("url", &["upstream"]),
        meant("backend", &["upstream"]),
        meant("backends", &["upstreams"]),
        meant("clusters", &["upstreams"]),
        meant("redis", &["store"]),
        meant("ssl", &["tls"]),
        meant("https", &["tls"]),
        meant("certificates", &["tls"]),
        meant("real_ip", &["trusted_proxies"]),
        meant("set_real_ip_from", &["trusted_proxies"]),
        meant("accept_proxy", &["proxy_protocol"]),
        meant("dns", &["resolver"]),
        meant("nameservers", &["resolver"]),
        meant("mask", &["redact"]),
        elsewhere("timeout", TIMEOUT),
        elsewhere("timeouts", TIMEOUT),
        elsewhere("header_timeout", CLIENTS),
        elsewhere("idle_timeout", CLIENTS),
        elsewhere("body_timeout", CLIENTS),
        elsewhere("keepalive_timeout", CLIENTS),
        elsewhere("max_connections", CLIENTS),
        elsewhere("maxconn", CLIENTS),
        elsewhere("client_max_body_size", BODY),
        elsewhere("max_body_size", BODY),
        elsewhere("headers", CHANGES),
        elsewhere("add_headers", CHANGES),
        elsewhere("cert", CERTS),
        elsewhere("key", CERTS),
    ],
};
pub(in crate::config) const PATHS: Keys = Keys {
    now: &["encoded_slash", "fold_case", "trailing_dots"],
    later: &[],
    others: &[
        meant("case", &["fold_case"]),
        meant("case_sensitive", &["fold_case"]),
        meant("case_insensitive", &["fold_case"]),
        meant("ignore_case", &["fold_case"]),
        meant("slash", &["encoded_slash"]),
        meant("encoded_slashes", &["encoded_slash"]),
        meant("allow_encoded_slashes", &["encoded_slash"]),
        meant("dots", &["trailing_dots"]),
    ],
};
pub(in crate::config) const STORE: Keys = Keys {
    now: &["url", "prefix", "timeout", "gateways", "tls", "on_failure"],
    later: &[],
    others: &[
        meant("ssl", &["tls"]),
        elsewhere("host", STORE_URL),
        elsewhere("port", STORE_URL),
        elsewhere("user", STORE_URL),
        elsewhere("username", STORE_URL),
        elsewhere("password", STORE_URL),
        elsewhere("db", STORE_URL),
        elsewhere("database", STORE_URL),
        elsewhere("sentinels", STORE_URL),
        elsewhere("master_name", STORE_URL),
        elsewhere("ca", STORE_CERTS),
        elsewhere("cert", STORE_CERTS),
        elsewhere("key", STORE_CERTS),
        elsewhere("server_name", STORE_CERTS),
        meant("fallback", &["on_failure"]),
        meant("failure_mode", &["on_failure"]),
        meant("fail_open", &["on_failure"]),
        meant("on_error", &["on_failure"]),
    ],
};
pub(in crate::config) const LIMITER: Keys = Keys {
    now: &[
        "algorithm",
        "rate",
        "burst",
        "margin",
        "capacity",
        "warm_up",
        "cold_factor",
        "max",
        "lease",
        "key",
        "scope",
        "mode",
        "on_failure",
    ],
    later: &[],
    others: &[
        meant("type", &["algorithm"]),
        meant("kind", &["algorithm"]),
        meant("limit", &["rate", "max"]),
        meant("fallback", &["on_failure"]),
        meant("failure_mode", &["on_failure"]),
        Other { name: "period", meant: &["rate"], says: Some(PERIOD) },
        Other { name: "window", meant: &["rate"], says: Some(PERIOD) },
        Other { name: "interval", meant: &["rate"], says: Some(PERIOD) },
        Other { name: "per", meant: &["rate"], says: Some(PERIOD) },
        elsewhere("max_wait", WAIT),
        elsewhere("max_wait_cap", WAIT),
        elsewhere("max_waiting", WAIT),
        elsewhere("cost", COST),
    ],
};
pub(in crate::config) const CHARGE: Keys = Keys {
    now: &["limiter", "cost"],
    later: &[],
    others: &[Other {
        name: "name",
        meant: &["limiter"],
        says: Some("write it as in `{ limiter: a, cost: 5 }`"),
    }],
};
pub(in crate::config) const ROUTE: Keys = Keys {
    now: &[
        "name",
        "suffix",
        "methods",
        "host",
        "upstream",
        "limiters",
        "max_wait",
        "max_wait_cap",
        "max_waiting",
        "headers",
    ],
    later: &[],
    others: &[
        Other { name: "path", meant: &["suffix"], says: Some(SUFFIX) },
        Other { name: "prefix", meant: &["suffix"], says: Some(SUFFIX) },
        Other { name: "paths", meant: &["suffix"], says: Some(SUFFIX) },
        Other { name: "location", meant: &["suffix"], says: Some(SUFFIX) },
        meant("limiter", &["limiters"]),
        elsewhere("rate", QUOTA),
        elsewhere("burst", QUOTA),
        elsewhere("algorithm", QUOTA),
        elsewhere("key", QUOTA),
        elsewhere("mode", QUOTA),
        elsewhere("cost", COST),
        elsewhere("url", "a route names one of the `upstreams`, which have the URLs"),
        elsewhere("urls", "a route names one of the `upstreams`, which have the URLs"),
        elsewhere("timeout", "time-outs belong to the upstream"),
        elsewhere("response_timeout", "time-outs belong to the upstream"),
        elsewhere("add_headers", SET),
        elsewhere("set_headers", SET),
        elsewhere("request_headers", SET),
        elsewhere("response_headers", SET),
        elsewhere("remove_headers", REMOVE),
    ],
};

const SUFFIX: &str = "a route matches the end of a path, as in `suffix: /search` for /search and /v2/search; there is \
                      no match by the beginning or the whole of a path yet";
const PERIOD: &str = "a period is a part of the rate, as in `rate: 5/s`";
const WAIT: &str = "it belongs to the route";
const COST: &str = "it belongs to the route, as in `limiters: [{ limiter: a, cost: 5 }]`";
const TIMEOUT: &str =
    "time-outs of clients are written under `client`, those of an upstream under `upstreams.NAME`";
pub(super) const CLIENTS: &str = "what clients may take is written `client: { header_timeout, idle_timeout, \
                       body_timeout, max_connections }`";
const BODY: &str = "the size of a body is written `limits: { body: 10MiB }`";
const CERTS: &str = "certificates are written `tls: { cert: FILE, key: FILE }`";
const STORE_URL: &str = "it is a part of the URL, as in redis://USER:PASSWORD@HOST:PORT/DATABASE or \
                         redis-sentinel://HOST:PORT,HOST:PORT/MASTER";
const STORE_CERTS: &str =
    "it is written `tls: { ca: FILE, cert: FILE, key: FILE, server_name: NAME }`";
const CHANGES: &str = "changes of headers belong to an upstream or a route";
pub(super) const SET: &str =
    "it is written `headers: { request: { set: { NAME: VALUE } } }`, or `response`";
pub(super) const REMOVE: &str =
    "it is written `headers: { response: { remove: [NAME] } }`, or `request`";
const QUOTA: &str = "it belongs to a limiter under `limiters:` at the top, which the route names";

pub(super) const fn meant(name: &'static str, meant: &'static [&'static str]) -> Other {
    Other { name, meant, says: None }
}

pub(super) const fn elsewhere(name: &'static str, says: &'static str) -> Other {
    Other { name, meant: &[], says: Some(says) }
}
