//! The keys of an upstream, and of its health checks.

use super::spec::{ALWAYS_CHECKED, Keys, REDIRECT, REMOVE, SET, elsewhere, key, meant};

pub(in crate::config) const UPSTREAM: Keys = Keys {
    name: "upstream",
    meaning: "A throttled API.",
    rules: r##""oneOf": [
  { "required": ["url"], "title": "one address" },
  { "required": ["urls"], "title": "several addresses" }
]"##,
    specs: &[
        key("url", "URL")
            .default("required, or `urls`")
            .means("`http://` or `https://`, with an optional base path that is put before each request's \
                   path. No credentials, no query. A name with several addresses is used with all of them")
            .schema(r##""$ref": "#/$defs/upstream_url""##),
        key("urls", "list of 1 to 100 URLs")
            .default("")
            .means("in place of `url`: the addresses of one API that has several. All have one scheme and one \
                   base path. Each call is sent to the one with the fewest calls under way among those that \
                   work; at most 64 addresses are used ([http.md](http.md#addresses-of-an-upstream))")
            .schema(r##""type": "array",
"minItems": 1,
"maxItems": 100,
"uniqueItems": true,
"items": { "$ref": "#/$defs/upstream_url" },
"examples": [["https://a.vendor.example", "https://b.vendor.example"]]"##),
        key("limiters", "list of [charges](#what-a-request-costs)")
            .means("charged for every call to this upstream, whatever the route")
            .schema(r##""default": [],
"$ref": "#/$defs/charges""##),
        key("connect_timeout", "duration, 1ms to 1d")
            .default("`2s`")
            .means("until a connection is made, TLS included; then the next address is tried. 504 after the \
                   last address, or after three of these times. A single address that refuses connections is \
                   [tried again](http.md#addresses-of-an-upstream) until this time has passed. An upstream that has \
                   been away for longer costs no request more than its own wait budget")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("response_timeout", "duration, 1ms to 1d")
            .default("`30s`")
            .means("from the slot, or from the last piece of the request's body that the upstream accepted, \
                   to the head of the response; then 504. The wait for the slot never counts; the body may \
                   take any time")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("idle_timeout", "duration, 1ms to 1d")
            .default("`4s`")
            .means("how long a connection is kept without a call. It should be below the upstream's own idle \
                   time-out (Node: 5 s), so that the upstream never closes one that is about to be used; \
                   above 60s is a warning")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("pool_size", "number, at most 100000")
            .default("`1024`")
            .means("HTTP/1.1 connections without a call that the gateway keeps, divided among its workers, at \
                   least one each; more are closed. `0` makes one for each call")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 0,
"maximum": 100000"##),
        key("http2", "switch")
            .default("`off`")
            .means("the gateway speaks HTTP/2 to the upstream, which gRPC needs: with https by ALPN, and \
                   HTTP/1.1 where the upstream does not choose HTTP/2; with http by prior knowledge. Such an \
                   upstream gets [no upgrades](http.md#websockets-and-other-upgrades)")
            .schema(r##""default": false,
"$ref": "#/$defs/switch""##),
        key("health", "[checks](#health)")
            .means("requests of the gateway's own by which it learns which addresses work; they pass no limiter")
            .schema(r##""anyOf": [{ "title": "checks", "$ref": "#/$defs/health" }, { "type": "null" }]"##),
        key("ca", "file")
            .default("the system's")
            .means("https: PEM certificates of the authorities that sign its certificate, in place of those \
                   of the system")
            .schema(r##""$ref": "#/$defs/optional_file""##),
        key("client_cert", "`{ cert, key }`, or a file")
            .means("https: the certificate that the gateway presents to an upstream that asks for one; one \
                   PEM file may hold both")
            .schema(r##""anyOf": [
  { "title": "one file", "$ref": "#/$defs/file" },
  { "title": "two files", "$ref": "#/$defs/certificate" },
  { "type": "null" }
]"##),
        key("server_name", "text")
            .default("the host of the URL")
            .means("https: the name that is asked for (SNI) and that its certificate must have")
            .schema(r##""type": ["string", "null"],
"pattern": "^[A-Za-z0-9._-]+$|^[0-9A-Fa-f:.]+$|\\$\\{""##),
        key("preserve_host", "switch")
            .default("`off`")
            .means("the upstream gets the host that the caller asked for in place of that of its URL")
            .schema(r##""default": false,
"$ref": "#/$defs/switch""##),
        key("forwarded", "switch")
            .default("`off`")
            .means("the upstream gets `Forwarded` (RFC 7239) beside `X-Forwarded-For`, `-Proto`, `-Host` and \
                   `-Port`")
            .schema(r##""$ref": "#/$defs/switch""##),
        key("headers", "[changes](#headers)")
            .means("changes to the headers of each call to it")
            .schema(r##""$ref": "#/$defs/optional_headers""##),
        key("throttle", "`on` `off`, or [rules](#throttle)")
            .default("`on`")
            .means("how it says \"slow down\", and what then happens: its refusals pause limiters, and refused \
                   requests are sent again within their budget. `off` passes refusals on and does nothing else")
            .schema(r##""anyOf": [
  { "title": "on or off", "$ref": "#/$defs/switch" },
  { "title": "rules", "$ref": "#/$defs/throttle" },
  { "type": "null" }
]"##),
    ],
    others: &[
        meant(&["servers", "targets", "endpoints", "addresses"], &["urls"]),
        meant(&["timeout", "read_timeout", "proxy_read_timeout"], &["response_timeout"]),
        meant(&["proxy_connect_timeout"], &["connect_timeout"]),
        meant(&["keepalive_timeout"], &["idle_timeout"]),
        meant(&["keepalive", "max_idle"], &["pool_size"]),
        meant(&["h2", "grpc"], &["http2"]),
        meant(&["ca_file", "cacert"], &["ca"]),
        meant(&["certificate"], &["client_cert"]),
        meant(&["health_check", "healthcheck"], &["health"]),
        meant(&["sni", "proxy_ssl_name"], &["server_name"]),
        elsewhere(&["cert", "key"], PAIR),
        elsewhere(&["retry", "retries", "max_retries", "attempts"], ATTEMPTS),
        elsewhere(&["tls", "ssl"], ORIGIN_TLS),
        elsewhere(&["insecure", "insecure_skip_verify", "verify"], ALWAYS_CHECKED),
        elsewhere(&["host", "host_header"], HOST),
        elsewhere(
            &[
                "proxy_set_header",
                "add_headers",
                "set_headers",
                "request_headers",
                "response_headers",
                "headers_to_add",
            ],
            SET,
        ),
        elsewhere(&["remove_headers", "hide_headers", "proxy_hide_header"], REMOVE),
        elsewhere(&["proxy_redirect", "redirect"], REDIRECT),
    ],
};

pub(in crate::config) const HEALTH: Keys = Keys {
    name: "health",
    meaning: "Health checks of an upstream's addresses: a GET that has to be answered with 2xx or 3xx within `every`, or 10s.",
    rules: r##""required": ["path"]"##,
    specs: &[
        key("path", "path")
            .default("required")
            .means("the path that each address is asked for, with its query. The base path of the URL is not put before it")
            .schema(r##""type": "string",
"pattern": "^/[^#\\s]*$|\\$\\{",
"examples": ["/healthz"]"##),
        key("every", "duration, 100ms to 1h")
            .default("`5s`")
            .means("the time between two checks of one address")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("healthy", "number, 1 to 100")
            .default("`2`")
            .means("how many checks in a row must pass until an address gets requests again")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 100"##),
        key("unhealthy", "number, 1 to 100")
            .default("`3`")
            .means("how many checks in a row must fail until an address gets no requests")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 100"##),
    ],
    others: &[
        meant(&["uri", "url"], &["path"]),
        meant(&["interval"], &["every"]),
        meant(&["rise"], &["healthy"]),
        meant(&["fall"], &["unhealthy"]),
    ],
};

const ATTEMPTS: &str = "it is written `throttle: { retry: { attempts: <3> } }`";
const PAIR: &str =
    "the certificate for the upstream is written `client_cert: { cert: FILE, key: FILE }`";
const ORIGIN_TLS: &str = "an https:// URL speaks TLS; `ca`, `client_cert` and `server_name` are keys of the \
                          upstream itself";
const HOST: &str = "it gets the host of its URL, or the client's with `preserve_host: true`";
