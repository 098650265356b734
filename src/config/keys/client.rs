//! The keys of `client`, `limits` and `paths`.

use super::{
    kind::Kind,
    spec::{CLIENTS, DAY, Keys, MILLISECOND, duration, elsewhere, key, meant, number, size, words},
};

pub(in crate::config) const CLIENT: Keys = Keys {
    name: "client",
    meaning: "How long clients may take, and how many may be connected.",
    specs: &[
        duration("header_timeout", MILLISECOND..=DAY).default("10s")
            .says("from the first byte of a request to the end of its headers: then 408. It also bounds the time until \
                the first byte of a new connection, and a TLS handshake with its PROXY header: then the connection is \
                closed. In the [forward proxy](forward.md) it bounds each of CONNECT, connecting and TLS"),
        duration("idle_timeout", MILLISECOND..=DAY).default("75s")
            .says("between two requests of a connection. Then it is closed"),
        duration("body_timeout", MILLISECOND..=DAY).default("30s")
            .says("between two pieces of a body, and for the whole of a body that is [read for \
                limiters](#parts-of-the-body). If a request's body stalls for longer, the request is given up: 408 where \
                no response has begun, otherwise a response that breaks off. A client that accepts nothing of a response \
                is disconnected"),
        number("max_connections", 0..=10_000_000).default("0")
            .says("connections at one time, of all workers together. More are answered 503 `too-many-connections`, or \
                closed with `tls`. `0` is half of what the [limit of open files](http.md#file-descriptors) leaves; a \
                number above 7 eighths of that is lowered to them"),
        number("max_connections_per_address", 0..=10_000_000).default("0")
            .says("connections of one client address at one time, of all workers together; all addresses of an IPv6 \
                `/64` are one. More are refused like those above `max_connections`. `0` is any number. `trusted_proxies` \
                have no limit; with `proxy_protocol` the address that they name has one"),
    ],
    others: &[
        meant("timeout request_timeout", "header_timeout body_timeout"),
        meant("client_header_timeout request_headers_timeout", "header_timeout"),
        meant("client_body_timeout send_timeout", "body_timeout"),
        meant("keepalive_timeout keep_alive", "idle_timeout"),
        meant("maxconn", "max_connections"),
        meant("max_connections_per_ip limit_conn", "max_connections_per_address"),
    ],
};

pub(in crate::config) const LIMITS: Keys = Keys {
    name: "limits",
    meaning: "The greatest size of a request. A larger one is refused before any limiter is charged.",
    specs: &[
        size("header_bytes", 1 << 10..=1 << 20).default("32KiB")
            .says("the request line and all headers; above it 431"),
        number("headers", 1..=1000).default("100")
            .says("how many headers a request may have; above it 431"),
        size("body", 1..=u64::MAX).or(&[Kind::Word(|| vec!["none"])], ", or `none`").default("none")
            .says("the body, whatever its framing; above it 413. With `none` it may be of any size, because bodies \
                stream"),
        size("json_body", 1 << 10..=64 << 20).default("1MiB")
            .says("the bytes of a body in which its [parts](#parts-of-the-body) are sought"),
        size("retry_bodies", 0..=1 << 36).default("64MiB")
            .says("the memory of all bodies together that one gateway keeps for [another attempt](#retry), or [reads for \
                limiters](#parts-of-the-body) and services, which have 1 MiB more. Without room a request is sent once, \
                or gets 503 `too-many-bodies` if its body has to be read"),
        size("uri", 64..=64_000).written("size, 64B to 64000B, below `header_bytes`").default("8KiB").but(", but at most half of `header_bytes`")
            .says("the request target; above it 414"),
    ],
    others: &[
        meant("client_max_body_size max_body_size body_bytes max_request_bytes", "body"),
        meant("max_header_bytes header_size large_client_header_buffers max_request_headers_kb", "header_bytes"),
        meant("max_headers max_headers_count", "headers"),
        meant("url uri_bytes", "uri"),
        elsewhere("max_connections", CLIENTS),
    ],
};

pub(in crate::config) const PATHS: Keys = Keys {
    name: "paths",
    meaning: "How the upstreams read paths, where origins differ. Without a key, a path is limited as if the \
              upstream could do either.",
    specs: &[
        words("encoded_slash", || vec!["separator", "data"]).otherwise("either")
            .says("`%2f` in a path is a slash (`separator`), or a character of a segment (`data`)"),
        key("fold_case", Kind::Switch).otherwise("either")
            .says("`on`: `/Search` is `/search`. `off`: it is another resource"),
        words("trailing_dots", || vec!["strip", "keep"]).otherwise("either")
            .says("dots and spaces at the end of a path or of a segment are cut off (`strip`), or belong to it (`keep`)"),
    ],
    others: &[
        meant("case case_sensitive case_insensitive ignore_case", "fold_case"),
        meant("slash encoded_slashes allow_encoded_slashes", "encoded_slash"),
        meant("dots", "trailing_dots"),
    ],
};
