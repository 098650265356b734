//! The keys at the top of the file.

use super::{
    observability::LEVEL,
    spec::{CLIENTS, Keys, RETRIES, elsewhere, key, meant},
};

pub(in crate::config) const ROOT: Keys = Keys {
    name: "root",
    meaning: SCHEMA_ABOUT,
    rules: r##""required": ["routes"],
"oneOf": [
  { "required": ["upstream"], "title": "one upstream" },
  { "required": ["upstreams"], "title": "named upstreams" }
]"##,
    specs: &[
        key("listen", "address")
            .default("`127.0.0.1:8080`")
            .means("the data plane: where callers send requests. In a container: `0.0.0.0:8080`")
            .schema(r##""examples": ["127.0.0.1:8080", "0.0.0.0:8080", "[::]:8080"],
"$ref": "#/$defs/address""##),
        key("admin", "address or [map](#admin)")
            .default("`127.0.0.1:9090`")
            .means("the admin side: `/metrics`, `/healthz`, `/readyz`, `/limiters`. Without a token only loopback \
                   addresses may change anything. It may not be the address of `listen`")
            .schema(r##""examples": ["127.0.0.1:9090", "0.0.0.0:9090"],
"anyOf": [
  { "title": "an address", "$ref": "#/$defs/address" },
  { "title": "the long form", "$ref": "#/$defs/admin" }
]"##),
        key("services", "[map](#services)")
            .means("addresses at which other proxies use the limiters")
            .schema(r##""anyOf": [{ "title": "services", "$ref": "#/$defs/services" }, { "type": "null" }]"##),
        key("descriptors", "list of [descriptors](#descriptors)")
            .means("the limiters of the requests that Envoy describes to `services.envoy_rate_limit`")
            .schema(r##""type": ["array", "null"],
"maxItems": 1000,
"items": { "$ref": "#/$defs/descriptor" }"##),
        key("workers", "number, 1 to 1024")
            .default("one per core")
            .means("threads of the data plane. Each has its own connections to the upstreams and to the store")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 1024,
"examples": [4]"##),
        key("access_log", "`off` `text` `json` or [map](#access_log-log)")
            .default("`text` when stdout is a terminal, otherwise `json`")
            .means("one line per request on stdout, see [Logs](#logs)")
            .schema(r##""anyOf": [
  { "enum": ["off", "text", "json", false, null] },
  { "$ref": "#/$defs/variable" },
  { "title": "the long form", "$ref": "#/$defs/access_log" }
]"##),
        key("log", "`text` `json` or [map](#access_log-log)")
            .default("`text` when stderr is a terminal, otherwise `json`")
            .means("the form of the events on stderr, see [Logs](#logs)")
            .schema(r##""anyOf": [
  { "enum": ["text", "json", null] },
  { "$ref": "#/$defs/variable" },
  { "title": "the long form", "$ref": "#/$defs/log" }
]"##),
        key("tracing", "[map](#tracing)")
            .means("traces of requests, for an OpenTelemetry collector")
            .schema(r##""anyOf": [{ "title": "the collector", "$ref": "#/$defs/tracing" }, { "type": "null" }]"##),
        key("drain_timeout", "duration, at most 1d")
            .default("`30s`")
            .means("after SIGTERM or SIGINT, how long running and waiting requests may take. A request whose \
                   slot comes later [gets 503 at once](http.md#the-end-of-a-gateway)")
            .schema(r##""examples": ["30s", "5min"],
"$ref": "#/$defs/duration""##),
        key("watch", "`on` `off`")
            .default("`on`")
            .means("the file takes effect within 2 s after it has changed, see \
                   [operation.md](operation.md#changes-of-the-configuration). `off`: only on SIGHUP and `POST /reload`")
            .schema(r##""$ref": "#/$defs/switch""##),
        key("shutdown_delay", "duration, at most 1d")
            .default("`0`")
            .means("after SIGTERM or SIGINT, how long the gateway still accepts clients while `/readyz` says 503, \
                   so that load balancers take it out of use [before the drain](http.md#the-end-of-a-gateway)")
            .schema(r##""examples": ["10s"],
"$ref": "#/$defs/duration""##),
        key("tls", "[certificates](#tls)")
            .default("clear text")
            .means("the data plane speaks TLS, and nothing else")
            .schema(r##""anyOf": [{ "title": "certificates", "$ref": "#/$defs/tls" }, { "type": "null" }]"##),
        key("trusted_proxies", "list of networks")
            .means("the proxies whose `X-Forwarded-For` is believed: for `{client_ip}`, the access log and \
                   the upstream, see [below](#the-caller-behind-proxies)")
            .schema(r##""type": ["array", "null"],
"default": [],
"items": { "$ref": "#/$defs/network" },
"examples": [["10.0.0.0/8", "fd00::/8", "192.0.2.7"]]"##),
        key("proxy_protocol", "`on` `off`")
            .default("`off`")
            .means("connections of `trusted_proxies` begin with a [PROXY protocol \
                   header](http.md#the-proxy-protocol), version 1 or 2, which names the client. `on` without \
                   `trusted_proxies` is an error, because then no client could connect")
            .schema(r##""$ref": "#/$defs/switch""##),
        key("client", "[time-outs](#client)")
            .default("see there")
            .means("how long clients may take")
            .schema(r##""anyOf": [{ "title": "time-outs", "$ref": "#/$defs/client" }, { "type": "null" }]"##),
        key("limits", "[sizes](#limits)")
            .default("see there")
            .means("how large a request may be")
            .schema(r##""anyOf": [{ "title": "sizes", "$ref": "#/$defs/limits" }, { "type": "null" }]"##),
        key("paths", "[known readings](#paths)")
            .means("how the upstreams read a path, where origins differ")
            .schema(r##""anyOf": [{ "title": "what is known", "$ref": "#/$defs/paths" }, { "type": "null" }]"##),
        key("redact", "list of at most 100 names")
            .means("query parameters whose values no log shows, besides those that [are always \
                   hidden](http.md#the-access-log). Case, `-` and `_` do not matter. Keys \
                   of limiters with such a name are hidden, too. (A log shows the host, the request id, the trace id, the \
                   keys of limiters, hashed where they are secret, by configuration the user agent, and no other header.)")
            .schema(r##""type": ["array", "null"],
"default": [],
"maxItems": 100,
"items": {"type": "string", "pattern": "^[^\\s&=,]{1,128}$|\\$\\{"},
"examples": [["voucher", "shop-id"]]"##),
        key("resolver", "list of at most 8 `IP` or `IP:PORT`")
            .default("the system's")
            .means("DNS servers that look up the names of upstreams. The port is 53 unless the entry names \
                   another")
            .schema(r##""type": ["array", "null"],
"default": [],
"maxItems": 8,
"items": { "$ref": "#/$defs/name_server" },
"examples": [["10.0.0.2", "[fd00::1]:53"]]"##),
        key("store", "`memory`, URL or map")
            .default("`memory`")
            .means("the place where limiters keep their state, see [below](#store)")
            .schema(r##""anyOf": [
  { "title": "memory", "const": "memory" },
  { "title": "a Redis URL", "$ref": "#/$defs/redis_url" },
  { "title": "the long form", "$ref": "#/$defs/store" },
  { "type": "null" }
]"##),
        key("limiting", "`on` `off`")
            .default("`on`")
            .means("`off` forwards everything unlimited; the store is not asked for any request")
            .schema(r##""anyOf": [{ "enum": ["on", "off", true, false, null] }, { "$ref": "#/$defs/variable" }]"##),
        key("ratelimit_headers", "`refused` `all`")
            .default("`refused`")
            .means("which answers have [`RateLimit` and `RateLimit-Policy`](limiting.md#what-is-left-of-a-quota): refusals, or `all` \
                   answers to requests that a limiter decided")
            .schema(r##""anyOf": [{ "enum": ["refused", "all", null] }, { "$ref": "#/$defs/variable" }]"##),
        key("upstream", "URL")
            .default("")
            .means("the only upstream; short for `upstreams` with one entry named `default`. It or \
                   `upstreams` is required")
            .schema(r##""$ref": "#/$defs/upstream_url""##),
        key("upstreams", "map of [upstreams](#upstream-upstreams)")
            .default("")
            .means("the throttled APIs, by name. The value is a URL or a map")
            .schema(r##""type": "object",
"minProperties": 1,
"propertyNames": { "$ref": "#/$defs/name" },
"additionalProperties": {
  "anyOf": [
    { "title": "a URL", "$ref": "#/$defs/upstream_url" },
    { "title": "the long form", "$ref": "#/$defs/upstream" }
  ]
}"##),
        key("limiters", "map of [limiters](#limiters)")
            .means("the quotas, by name. The value is a rate such as `5/s`, a list of rates, or a map. A \
                   limiter works only where a route or an upstream names it")
            .schema(r##""type": ["object", "null"],
"default": {},
"propertyNames": { "$ref": "#/$defs/name" },
"additionalProperties": {
  "anyOf": [
    { "title": "a rate", "$ref": "#/$defs/rate" },
    { "title": "a list of rates", "$ref": "#/$defs/rates" },
    { "title": "the long form", "$ref": "#/$defs/limiter" }
  ]
}"##),
        key("limits_from", "[map](#limits_from)")
            .means("a query of PostgreSQL or MySQL whose rows replace `limiters`, or add some")
            .schema(r##""anyOf": [
  { "type": "null" },
  { "$ref": "#/$defs/limits_from" }
]"##),
        key("routes", "list of [routes](#routes)")
            .default("required")
            .means("the requests that the gateway forwards. A whole `path` wins over a suffix, the longest matching suffix over \
                   others; among equal ones the more specific route (a host before methods, few methods before many). A \
                   request that no route matches is answered 404")
            .schema(r##""type": "array",
"minItems": 1,
"items": { "$ref": "#/$defs/route" }"##),
    ],
    others: &[
        meant(&["rate_limits", "rate_limit", "ratelimits"], &["limiters"]),
        meant(&["rules"], &["routes"]),
        meant(&["url", "backend"], &["upstream"]),
        meant(&["backends", "clusters"], &["upstreams"]),
        meant(&["service"], &["services"]),
        meant(&["redis"], &["store"]),
        meant(&["ssl", "https", "certificates"], &["tls"]),
        meant(&["real_ip", "set_real_ip_from"], &["trusted_proxies"]),
        meant(&["accept_proxy"], &["proxy_protocol"]),
        meant(&["dns", "nameservers"], &["resolver"]),
        meant(&["mask"], &["redact"]),
        meant(&["opentelemetry", "otel", "traces"], &["tracing"]),
        meant(&["log_format", "logging"], &["log"]),
        meant(&["rate_limit_headers"], &["ratelimit_headers"]),
        elsewhere(&["max_wait"], "it belongs to a route: `routes: [{ ..., max_wait: 2s }]`"),
        elsewhere(
            &["max_wait_cap"],
            "it belongs to a route: `routes: [{ ..., max_wait_cap: 10s }]`",
        ),
        elsewhere(&["max_waiting"], "it belongs to a route: `routes: [{ ..., max_waiting: 100 }]`"),
        elsewhere(&["retry", "retries", "max_retries", "attempts"], RETRIES),
        elsewhere(&["log_level", "loglevel", "level", "verbosity", "debug"], LEVEL),
        elsewhere(&["timeout", "timeouts"], TIMEOUT),
        elsewhere(
            &[
                "header_timeout",
                "idle_timeout",
                "body_timeout",
                "keepalive_timeout",
                "max_connections",
                "maxconn",
            ],
            CLIENTS,
        ),
        elsewhere(&["client_max_body_size", "max_body_size"], BODY),
        elsewhere(&["headers", "add_headers"], CHANGES),
        elsewhere(&["cert", "key"], CERTS),
    ],
};

const TIMEOUT: &str =
    "time-outs of clients are written under `client`, those of an upstream under `upstreams.NAME`";
const BODY: &str = "the size of a body is written `limits: { body: 10MiB }`";
const CERTS: &str = "certificates are written `tls: { cert: FILE, key: FILE }`";
const CHANGES: &str = "changes of headers belong to an upstream or a route";
const SCHEMA_ABOUT: &str = "The configuration of the Paceway gateway. Any single value may hold `${NAME}`, `${NAME:-default}` or \
     `${file:PATH}`; `paceway check FILE` prints all mistakes of a file, with line and column.";
