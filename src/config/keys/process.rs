//! The keys at the top of the file.

use super::{
    ACCESS_LOG, ADMIN, CLIENT, DESCRIPTOR, FORWARD, LEVEL, LIMITER, LIMITS, LIMITS_FROM, LOG,
    PATHS, ROUTE, SERVICES, STORE, TLS, TRACING, UPSTREAM,
    kind::Kind,
    spec::{
        CLIENTS, DAY, Keys, RETRIES, choice, duration, elsewhere, key, list, map, meant, number,
        section, words,
    },
};
use crate::config::settings::{AccessLog, EventFormat};
use std::time::Duration;

pub(in crate::config) const ROOT: Keys = Keys {
    name: "root",
    meaning: SCHEMA_ABOUT,
    specs: &[
        key("listen", Kind::Address).default("127.0.0.1:8080")
            .says("the data plane: where callers send requests. In a container: `0.0.0.0:8080`"),
        key("admin", Kind::Address).or(&[Kind::Section(&ADMIN)], " or [map](#admin)").default("127.0.0.1:9090")
            .says("the admin side: `/metrics`, `/healthz`, `/readyz`, `/limiters`. Without a token only loopback \
                addresses may change anything. It may not be the address of `listen`"),
        section("services", &SERVICES, "[map](#services)")
            .says("addresses at which other proxies use the limiters"),
        section("forward", &FORWARD, "[map](#forward)")
            .says("a proxy for programs that cannot change the URL that they call, see [forward.md](forward.md)"),
        list("descriptors", 0..=1_000, &Kind::Section(&DESCRIPTOR)).written("list of [descriptors](#descriptors)")
            .says("the limiters of the requests that Envoy describes to `services.envoy_rate_limit`"),
        number("workers", 1..=1024).otherwise("one per core")
            .says("threads of the data plane. Each has its own connections to the upstreams and to the store"),
        choice::<AccessLog>("access_log").or(&[Kind::Section(&ACCESS_LOG)], " or [map](#access_log-log)").otherwise("`text` when stdout is a terminal, otherwise `json`")
            .says("one line per request on stdout, see [Logs](#logs)"),
        choice::<EventFormat>("log").or(&[Kind::Section(&LOG)], " or [map](#access_log-log)").otherwise("`text` when stderr is a terminal, otherwise `json`")
            .says("the form of the events on stderr, see [Logs](#logs)"),
        section("tracing", &TRACING, "[map](#tracing)")
            .says("traces of requests, for an OpenTelemetry collector"),
        duration("drain_timeout", Duration::ZERO..=DAY).default("30s")
            .says("after SIGTERM or SIGINT, how long running and waiting requests may take. A request whose slot comes \
                later [gets 503 at once](http.md#the-end-of-a-gateway)"),
        key("watch", Kind::Switch).written("`on` `off`").default("on")
            .says("the file takes effect within 2 s after it has changed, see \
                [operation.md](operation.md#changes-of-the-configuration). `off`: only on SIGHUP and `POST /reload`"),
        duration("shutdown_delay", Duration::ZERO..=DAY).default("0")
            .says("after SIGTERM or SIGINT, how long the gateway still accepts clients while `/readyz` says 503, so that \
                load balancers take it out of use [before the drain](http.md#the-end-of-a-gateway)"),
        section("tls", &TLS, "[certificates](#tls)").otherwise("clear text")
            .says("the data plane speaks TLS, and nothing else"),
        list("trusted_proxies", 0..=u64::MAX, &Kind::Text).written("list of networks")
            .says("the proxies whose `X-Forwarded-For` is believed: for `{client_ip}`, the access log and the upstream, \
                see [below](#the-caller-behind-proxies)"),
        key("proxy_protocol", Kind::Switch).written("`on` `off`").default("off")
            .says("connections of `trusted_proxies` begin with a [PROXY protocol header](http.md#the-proxy-protocol), \
                version 1 or 2, which names the client. `on` without `trusted_proxies` is an error, because then no \
                client could connect"),
        section("client", &CLIENT, "[time-outs](#client)").otherwise("see there")
            .says("how long clients may take"),
        section("limits", &LIMITS, "[sizes](#limits)").otherwise("see there")
            .says("how large a request may be"),
        section("paths", &PATHS, "[known readings](#paths)")
            .says("how the upstreams read a path, where origins differ"),
        list("redact", 0..=100, &Kind::Text).written("list of at most {most} names")
            .says("query parameters whose values no log shows, besides those that [are always \
                hidden](http.md#the-access-log). Case, `-` and `_` do not matter. Keys of limiters with such a name are \
                hidden, too. (A log shows the host, the request id, the trace id, the keys of limiters, hashed where \
                they are secret, by configuration the user agent, and no other header.)"),
        list("resolver", 0..=8, &Kind::Text).written("list of at most {most} `IP` or `IP:PORT`").otherwise("the system's")
            .says("DNS servers that look up the names of upstreams. The port is 53 unless the entry names another"),
        words("store", || vec!["memory"]).or(&[Kind::Url, Kind::Section(&STORE)], ", URL or map").default("memory")
            .says("the place where limiters keep their state, see [below](#store)"),
        choice::<bool>("limiting").default("on")
            .says("`off` forwards everything unlimited; the store is not asked for any request"),
        words("ratelimit_headers", || vec!["refused", "all"]).default("refused")
            .says("which answers have [`RateLimit` and `RateLimit-Policy`](limiting.md#what-is-left-of-a-quota): \
                refusals, or `all` answers to requests that a limiter decided"),
        key("upstream", Kind::Url).otherwise("")
            .says("the only upstream; short for `upstreams` with one entry named `default`. It or `upstreams` is \
                required"),
        map("upstreams", 1..=u64::MAX, &Kind::Section(&UPSTREAM)).written("map of [upstreams](#upstream-upstreams)").otherwise("")
            .says("the throttled APIs, by name. The value is a URL or a map"),
        map("limiters", 0..=u64::MAX, &Kind::Section(&LIMITER)).written("map of [limiters](#limiters)")
            .says("the quotas, by name. The value is a rate such as `5/s`, a list of rates, or a map. A limiter works \
                only where a route or an upstream names it"),
        section("limits_from", &LIMITS_FROM, "[map](#limits_from)")
            .says("a query of PostgreSQL or MySQL whose rows replace `limiters`, or add some"),
        list("routes", 1..=u64::MAX, &Kind::Section(&ROUTE)).written("list of [routes](#routes)").required()
            .says("the requests that the gateway forwards. A whole `path` wins over a suffix, the longest matching \
                suffix over others; among equal ones the more specific route (a host before methods, few methods before \
                many). A request that no route matches is answered 404"),
    ],
    others: &[
        meant("rate_limits rate_limit ratelimits", "limiters"),
        meant("rules", "routes"),
        meant("url backend", "upstream"),
        meant("backends clusters", "upstreams"),
        meant("service", "services"),
        meant("proxy forward_proxy connect", "forward"),
        meant("redis", "store"),
        meant("ssl https certificates", "tls"),
        meant("real_ip set_real_ip_from", "trusted_proxies"),
        meant("accept_proxy", "proxy_protocol"),
        meant("dns nameservers", "resolver"),
        meant("mask", "redact"),
        meant("opentelemetry otel traces", "tracing"),
        meant("log_format logging", "log"),
        meant("rate_limit_headers", "ratelimit_headers"),
        elsewhere("max_wait", "it belongs to a route: `routes: [{ ..., max_wait: 2s }]`"),
        elsewhere("max_wait_cap", "it belongs to a route: `routes: [{ ..., max_wait_cap: 10s }]`"),
        elsewhere("max_waiting", "it belongs to a route: `routes: [{ ..., max_waiting: 100 }]`"),
        elsewhere("retry retries max_retries attempts", RETRIES),
        elsewhere("log_level loglevel level verbosity debug", LEVEL),
        elsewhere("timeout timeouts", TIMEOUT),
        elsewhere("header_timeout idle_timeout body_timeout keepalive_timeout max_connections maxconn", CLIENTS),
        elsewhere("client_max_body_size max_body_size", BODY),
        elsewhere("headers add_headers", CHANGES),
        elsewhere("cert key", CERTS),
    ],
};

const TIMEOUT: &str =
    "time-outs of clients are written under `client`, those of an upstream under `upstreams.NAME`";
const BODY: &str = "the size of a body is written `limits: { body: 10MiB }`";
const CERTS: &str = "certificates are written `tls: { cert: FILE, key: FILE }`";
const CHANGES: &str = "changes of headers belong to an upstream or a route";
const SCHEMA_ABOUT: &str = "The configuration of the Paceway gateway. Any single value may hold `${NAME}`, `${NAME:-default}` or \
     `${file:PATH}`; `paceway check FILE` prints all mistakes of a file, with line and column.";
