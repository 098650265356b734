//! The keys of an upstream, and of its health checks.

use super::{
    ACCOUNT, CERTIFICATE, CHARGE, HEADERS, REVALIDATE, THROTTLE,
    kind::Kind,
    spec::{
        ALWAYS_CHECKED, DAY, HOUR, Keys, MILLISECOND, REDIRECT, REMOVE, SET, TENTH, choice,
        duration, elsewhere, key, list, meant, number, section,
    },
};
use crate::config::AnswerForm;

pub(in crate::config) const UPSTREAM: Keys = Keys {
    name: "upstream",
    meaning: "A throttled API.",
    specs: &[
        key("url", Kind::Url).required().but(", or `urls`")
            .says("`http://` or `https://`, with an optional base path that is put before each request's path. No \
                credentials, no query. A name with several addresses is used with all of them"),
        list("urls", 1..=100, &Kind::Url).written("list of {least} to {most} URLs").otherwise("")
            .says("in place of `url`: the addresses of one API that has several. All have one scheme and one base path. \
                Each call is sent to the one with the fewest calls under way among those that work; at most 64 addresses \
                are used ([http.md](http.md#addresses-of-an-upstream))"),
        list("limiters", 0..=u64::MAX, &Kind::Section(&CHARGE)).written("list of [charges](#what-a-request-costs)")
            .says("charged for every call to this upstream, whatever the route"),
        duration("connect_timeout", MILLISECOND..=DAY).default("2s")
            .says("until a connection is made, TLS included; then the next address is tried. 504 after the last address, \
                or after three of these times. A single address that refuses connections is [tried \
                again](http.md#addresses-of-an-upstream) until this time has passed. An upstream that has been away for \
                longer costs no request more than its own wait budget"),
        duration("response_timeout", MILLISECOND..=DAY).default("30s")
            .says("from the slot, or from the last piece of the request's body that the upstream accepted, to the head \
                of the response; then 504. The wait for the slot never counts; the body may take any time"),
        duration("idle_timeout", MILLISECOND..=DAY).default("4s")
            .says("how long a connection is kept without a call. It should be below the upstream's own idle time-out \
                (Node: 5 s), so that the upstream never closes one that is about to be used; above 60s is a warning"),
        number("pool_size", 0..=100_000).default("1024")
            .says("HTTP/1.1 connections without a call that the gateway keeps, divided among its workers, at least one \
                each; more are closed. `0` makes one for each call"),
        key("http2", Kind::Switch).default("off")
            .says("the gateway speaks HTTP/2 to the upstream, which gRPC needs: with https by ALPN, and HTTP/1.1 where \
                the upstream does not choose HTTP/2; with http by prior knowledge. Such an upstream gets [no \
                upgrades](http.md#websockets-and-other-upgrades)"),
        key("via", Kind::Url)
            .says("the HTTP proxy through which it is reached (CONNECT, also for `http://`): `http://HOST:PORT`, or \
                `http://USER:PASSWORD@HOST:PORT`, see [forward.md](forward.md#through-another-proxy)"),
        section("health", &HEALTH, "[checks](#health)")
            .says("requests of the gateway's own by which it learns which addresses work; they pass no limiter"),
        key("ca", Kind::File).otherwise("the system's")
            .says("https: PEM certificates of the authorities that sign its certificate, in place of those of the system"),
        key("client_cert", Kind::File).or(&[Kind::Section(&CERTIFICATE)], "").written("`{ cert, key }`, or a file")
            .says("https: the certificate that the gateway presents to an upstream that asks for one; one PEM file may \
                hold both"),
        key("server_name", Kind::Text).otherwise("the host of the URL")
            .says("https: the name that is asked for (SNI) and that its certificate must have"),
        key("preserve_host", Kind::Switch).default("off")
            .says("the upstream gets the host that the caller asked for in place of that of its URL"),
        key("forwarded", Kind::Switch).default("off")
            .says("the upstream gets `Forwarded` (RFC 7239) beside `X-Forwarded-For`, `-Proto`, `-Host` and `-Port`"),
        section("headers", &HEADERS, "[changes](#headers)")
            .says("changes to the headers of each call to it"),
        choice::<bool>("throttle").or(&[Kind::Section(&THROTTLE)], ", or [rules](#throttle)").default("on")
            .says("how it says \"slow down\", and what then happens: its refusals pause limiters, and refused requests \
                are sent again within their budget. `off` passes refusals on and does nothing else"),
        list("accounts", 1..=64, &Kind::Section(&ACCOUNT)).written("list of {least} to {most} [accounts](#accounts)")
            .says("several credentials or addresses for the API: each call takes the one whose slot is the \
                [earliest](accounts.md)"),
        list("park", 0..=16, &Kind::Text).written("list of at most {most} [conditions](#when)").otherwise("`[401, \"403 with json /message=Bad credentials\"]`")
            .says("the answers by which the vendor rejects an account, which is then not used; the call takes another one"),
        duration("park_for", MILLISECOND..=DAY).default("10min")
            .says("how long it is not used; then one call tries it"),
        choice::<bool>("revalidate").or(&[Kind::Section(&REVALIDATE)], ", or [memory](#revalidate)").default("off")
            .says("answers with `ETag` or `Last-Modified` are kept, and the next `GET` asks [whether they still \
                hold](reads.md#revalidate)"),
        choice::<AnswerForm>("answers").default("problem")
            .says("the form of the gateway's own answers, such as its 429: `problem`, or that of a vendor, [whose SDKs then \
                understand them](limiting.md#answers-that-sdks-understand)"),
    ],
    others: &[
        meant("servers targets endpoints addresses", "urls"),
        meant("errors error_format", "answers"),
        meant("cache etag", "revalidate"),
        meant("credentials keys tokens pool", "accounts"),
        meant("timeout read_timeout proxy_read_timeout", "response_timeout"),
        meant("proxy_connect_timeout", "connect_timeout"),
        meant("keepalive_timeout", "idle_timeout"),
        meant("keepalive max_idle", "pool_size"),
        meant("h2 grpc", "http2"),
        meant("proxy https_proxy http_proxy", "via"),
        meant("ca_file cacert", "ca"),
        meant("certificate", "client_cert"),
        meant("health_check healthcheck", "health"),
        meant("sni proxy_ssl_name", "server_name"),
        elsewhere("cert key", PAIR),
        elsewhere("retry retries max_retries attempts", ATTEMPTS),
        elsewhere("tls ssl", ORIGIN_TLS),
        elsewhere("insecure insecure_skip_verify verify", ALWAYS_CHECKED),
        elsewhere("host host_header", HOST),
        elsewhere("proxy_set_header add_headers set_headers request_headers response_headers headers_to_add", SET),
        elsewhere("remove_headers hide_headers proxy_hide_header", REMOVE),
        elsewhere("proxy_redirect redirect", REDIRECT),
    ],
};

pub(in crate::config) const HEALTH: Keys = Keys {
    name: "health",
    meaning: "Health checks of an upstream's addresses: a GET that has to be answered with 2xx or 3xx within `every`, or 10s.",
    specs: &[
        key("path", Kind::Text).written("path").required()
            .says("the path that each address is asked for, with its query. The base path of the URL is not put before \
                it"),
        duration("every", TENTH..=HOUR).default("5s")
            .says("the time between two checks of one address"),
        number("healthy", 1..=100).default("2")
            .says("how many checks in a row must pass until an address gets requests again"),
        number("unhealthy", 1..=100).default("3")
            .says("how many checks in a row must fail until an address gets no requests"),
    ],
    others: &[
        meant("uri url", "path"),
        meant("interval", "every"),
        meant("rise", "healthy"),
        meant("fall", "unhealthy"),
    ],
};

const ATTEMPTS: &str = "it is written `throttle: { retry: { attempts: <3> } }`";
const PAIR: &str =
    "the certificate for the upstream is written `client_cert: { cert: FILE, key: FILE }`";
const ORIGIN_TLS: &str = "an https:// URL speaks TLS; `ca`, `client_cert` and `server_name` are keys of the \
                          upstream itself";
const HOST: &str = "it gets the host of its URL, or the client's with `preserve_host: true`";
