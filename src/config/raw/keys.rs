//! The keys of each kind of section, and what somebody meant who wrote another. Reads nothing.

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
pub(in crate::config) const TLS: Keys = Keys {
    now: &["cert", "key", "client_ca", "certificates"],
    later: &[],
    others: &[
        meant("certificate", &["cert"]),
        meant("ssl_certificate", &["cert"]),
        meant("crt", &["cert"]),
        meant("chain", &["cert"]),
        meant("private_key", &["key"]),
        meant("ssl_certificate_key", &["key"]),
        meant("ca", &["client_ca"]),
        meant("ca_file", &["client_ca"]),
        meant("verify_client", &["client_ca"]),
        meant("ssl_client_certificate", &["client_ca"]),
        meant("certs", &["certificates"]),
        elsewhere("min_version", VERSIONS),
        elsewhere("protocols", VERSIONS),
        elsewhere("alpn", VERSIONS),
    ],
};
pub(in crate::config) const CERTIFICATE: Keys = Keys {
    now: &["cert", "key"],
    later: &[],
    others: &[
        meant("certificate", &["cert"]),
        meant("crt", &["cert"]),
        meant("private_key", &["key"]),
        elsewhere("host", "the names stand in the certificate"),
        elsewhere("server_name", "the names stand in the certificate"),
    ],
};
pub(in crate::config) const CLIENT: Keys = Keys {
    now: &["header_timeout", "idle_timeout", "body_timeout", "max_connections"],
    later: &[],
    others: &[
        meant("timeout", &["header_timeout", "body_timeout"]),
        meant("request_timeout", &["header_timeout", "body_timeout"]),
        meant("client_header_timeout", &["header_timeout"]),
        meant("request_headers_timeout", &["header_timeout"]),
        meant("client_body_timeout", &["body_timeout"]),
        meant("send_timeout", &["body_timeout"]),
        meant("keepalive_timeout", &["idle_timeout"]),
        meant("keep_alive", &["idle_timeout"]),
        meant("maxconn", &["max_connections"]),
    ],
};
pub(in crate::config) const LIMITS: Keys = Keys {
    now: &["header_bytes", "headers", "body", "uri"],
    later: &[],
    others: &[
        meant("client_max_body_size", &["body"]),
        meant("max_body_size", &["body"]),
        meant("body_bytes", &["body"]),
        meant("max_request_bytes", &["body"]),
        meant("max_header_bytes", &["header_bytes"]),
        meant("header_size", &["header_bytes"]),
        meant("large_client_header_buffers", &["header_bytes"]),
        meant("max_request_headers_kb", &["header_bytes"]),
        meant("max_headers", &["headers"]),
        meant("max_headers_count", &["headers"]),
        meant("url", &["uri"]),
        meant("uri_bytes", &["uri"]),
        elsewhere("max_connections", CLIENTS),
    ],
};
pub(in crate::config) const STORE: Keys =
    Keys { now: &["url", "prefix", "timeout"], later: &["on_failure"], others: &[] };
pub(in crate::config) const UPSTREAM: Keys = Keys {
    now: &[
        "url",
        "urls",
        "limiters",
        "connect_timeout",
        "response_timeout",
        "idle_timeout",
        "pool_size",
        "http2",
        "ca",
        "client_cert",
        "server_name",
        "preserve_host",
        "forwarded",
        "headers",
    ],
    later: &["throttle"],
    others: &[
        meant("servers", &["urls"]),
        meant("targets", &["urls"]),
        meant("endpoints", &["urls"]),
        meant("addresses", &["urls"]),
        meant("timeout", &["response_timeout"]),
        meant("read_timeout", &["response_timeout"]),
        meant("proxy_read_timeout", &["response_timeout"]),
        meant("proxy_connect_timeout", &["connect_timeout"]),
        meant("keepalive_timeout", &["idle_timeout"]),
        meant("keepalive", &["pool_size"]),
        meant("max_idle", &["pool_size"]),
        meant("h2", &["http2"]),
        meant("grpc", &["http2"]),
        meant("ca_file", &["ca"]),
        meant("cacert", &["ca"]),
        meant("certificate", &["client_cert"]),
        meant("sni", &["server_name"]),
        meant("proxy_ssl_name", &["server_name"]),
        elsewhere("cert", PAIR),
        elsewhere("key", PAIR),
        elsewhere("tls", ORIGIN_TLS),
        elsewhere("ssl", ORIGIN_TLS),
        elsewhere("insecure", ALWAYS_CHECKED),
        elsewhere("insecure_skip_verify", ALWAYS_CHECKED),
        elsewhere("verify", ALWAYS_CHECKED),
        elsewhere("host", HOST),
        elsewhere("host_header", HOST),
        elsewhere("proxy_set_header", SET),
        elsewhere("add_headers", SET),
        elsewhere("set_headers", SET),
        elsewhere("request_headers", SET),
        elsewhere("response_headers", SET),
        elsewhere("headers_to_add", SET),
        elsewhere("remove_headers", REMOVE),
        elsewhere("hide_headers", REMOVE),
        elsewhere("proxy_hide_header", REMOVE),
    ],
};
pub(in crate::config) const HEADERS: Keys = Keys {
    now: &["request", "response"],
    later: &[],
    others: &[
        elsewhere("set", WHICH),
        elsewhere("add", WHICH),
        elsewhere("remove", WHICH),
        meant("req", &["request"]),
        meant("upstream", &["request"]),
        meant("downstream", &["response"]),
        meant("hide", &["response"]),
    ],
};
pub(in crate::config) const EDITS: Keys = Keys {
    now: &["set", "add", "remove"],
    later: &[],
    others: &[
        meant("replace", &["set"]),
        meant("overwrite", &["set"]),
        meant("append", &["add"]),
        meant("delete", &["remove"]),
        meant("unset", &["remove"]),
        meant("hide", &["remove"]),
        meant("drop", &["remove"]),
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
    ],
    later: &[],
    others: &[
        meant("type", &["algorithm"]),
        meant("kind", &["algorithm"]),
        meant("limit", &["rate", "max"]),
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
        meant("path", &["suffix"]),
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

const PERIOD: &str = "a period is a part of the rate, as in `rate: 5/s`";
const WAIT: &str = "it belongs to the route";
const COST: &str = "it belongs to the route, as in `limiters: [{ limiter: a, cost: 5 }]`";
const TIMEOUT: &str =
    "time-outs of clients stand under `client`, of an upstream under `upstreams.NAME`";
const CLIENTS: &str = "what clients may take is written `client: { header_timeout, idle_timeout, \
                       body_timeout, max_connections }`";
const BODY: &str = "the size of a body is written `limits: { body: 10MiB }`";
const CERTS: &str = "certificates are written `tls: { cert: FILE, key: FILE }`";
const VERSIONS: &str = "TLS 1.2 and 1.3 and HTTP/1.1 and 2 are always offered";
const PAIR: &str =
    "what we show to the upstream is written `client_cert: { cert: FILE, key: FILE }`";
const ORIGIN_TLS: &str = "an https:// URL speaks TLS; `ca`, `client_cert` and `server_name` stand in the \
                          upstream itself";
const ALWAYS_CHECKED: &str =
    "certificates are always checked; name the authority of this one in `ca`";
const HOST: &str = "it gets the host of its URL, or the client's with `preserve_host: true`";
const CHANGES: &str = "changes of headers belong to an upstream or a route";
const SET: &str = "it is written `headers: { request: { set: { NAME: VALUE } } }`, or `response`";
const REMOVE: &str = "it is written `headers: { response: { remove: [NAME] } }`, or `request`";
const WHICH: &str =
    "`request` or `response` comes first, as in `headers: { request: { set: { NAME: VALUE } } }`";
const QUOTA: &str = "it belongs to a limiter under `limiters:` at the top, which the route names";

const fn meant(name: &'static str, meant: &'static [&'static str]) -> Other {
    Other { name, meant, says: None }
}

const fn elsewhere(name: &'static str, says: &'static str) -> Other {
    Other { name, meant: &[], says: Some(says) }
}
