//! The keys of sections about HTTP and TLS, and the keys of other gateways that users write in their place. Reads nothing.

use super::keys::{CLIENTS, REMOVE, SET, elsewhere, meant};
use crate::config::reader::Keys;

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
        elsewhere("host", "the names are in the certificate"),
        elsewhere("server_name", "the names are in the certificate"),
    ],
};

pub(in crate::config) const STORE_TLS: Keys = Keys {
    now: &["ca", "cert", "key", "server_name"],
    later: &[],
    others: &[
        meant("ca_file", &["ca"]),
        meant("ca_cert", &["ca"]),
        meant("certificate", &["cert"]),
        meant("client_cert", &["cert"]),
        meant("crt", &["cert"]),
        meant("private_key", &["key"]),
        meant("client_key", &["key"]),
        meant("sni", &["server_name"]),
        elsewhere("insecure", ALWAYS_CHECKED),
        elsewhere("insecure_skip_verify", ALWAYS_CHECKED),
        elsewhere("verify", ALWAYS_CHECKED),
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

const VERSIONS: &str = "TLS 1.2 and 1.3 and HTTP/1.1 and 2 are always offered";
const PAIR: &str =
    "the certificate for the upstream is written `client_cert: { cert: FILE, key: FILE }`";
const ORIGIN_TLS: &str = "an https:// URL speaks TLS; `ca`, `client_cert` and `server_name` are keys of the \
                          upstream itself";
const ALWAYS_CHECKED: &str =
    "certificates are always checked; name the authority of this one in `ca`";
const HOST: &str = "it gets the host of its URL, or the client's with `preserve_host: true`";
const WHICH: &str =
    "`request` or `response` comes first, as in `headers: { request: { set: { NAME: VALUE } } }`";
