//! The keys of `client`, `limits` and `paths`.

use super::spec::{CLIENTS, Keys, elsewhere, key, meant};

pub(in crate::config) const CLIENT: Keys = Keys {
    name: "client",
    meaning: "How long clients may take, and how many may be connected.",
    rules: "",
    specs: &[
        key("header_timeout", "duration, 1ms to 1d")
            .default("`10s`")
            .means("from the first byte of a request to the end of its headers: then 408. It also bounds the \
                   time until the first byte of a new connection, and a TLS handshake with its PROXY header: \
                   then the connection is closed")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("idle_timeout", "duration, 1ms to 1d")
            .default("`75s`")
            .means("between two requests of a connection. Then it is closed")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("body_timeout", "duration, 1ms to 1d")
            .default("`30s`")
            .means("between two pieces of a body, and for the whole of a body that is [read for \
                   limiters](#parts-of-the-body). If a request's body stalls for longer, the request is given \
                   up: 408 where no response has begun, otherwise a response that breaks off. A client that \
                   accepts nothing of a response is disconnected")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("max_connections", "number, at most 10000000")
            .default("`0`")
            .means("connections at one time, of all workers together. More are answered 503 \
                   `too-many-connections`, or closed with `tls`. `0` is half of what the [limit of open \
                   files](http.md#file-descriptors) leaves; a number above 7 eighths of that is lowered to \
                   them")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 0,
"maximum": 10000000"##),
        key("max_connections_per_address", "number, at most 10000000")
            .default("`0`")
            .means("connections of one client address at one time, of all workers together; all addresses of an IPv6 \
                   `/64` are one. More are refused like those above `max_connections`. `0` is any number. \
                   `trusted_proxies` have no limit; with `proxy_protocol` the address that they name has one")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 0,
"maximum": 10000000"##),
    ],
    others: &[
        meant(&["timeout", "request_timeout"], &["header_timeout", "body_timeout"]),
        meant(&["client_header_timeout", "request_headers_timeout"], &["header_timeout"]),
        meant(&["client_body_timeout", "send_timeout"], &["body_timeout"]),
        meant(&["keepalive_timeout", "keep_alive"], &["idle_timeout"]),
        meant(&["maxconn"], &["max_connections"]),
        meant(&["max_connections_per_ip", "limit_conn"], &["max_connections_per_address"]),
    ],
};

pub(in crate::config) const LIMITS: Keys = Keys {
    name: "limits",
    meaning: "The greatest size of a request. A larger one is refused before any limiter is charged.",
    rules: "",
    specs: &[
        key("header_bytes", "size, 1KiB to 1MiB")
            .default("`32KiB`")
            .means("the request line and all headers; above it 431")
            .schema(r##""$ref": "#/$defs/size""##),
        key("headers", "number, 1 to 1000")
            .default("`100`")
            .means("how many headers a request may have; above it 431")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 1000"##),
        key("body", "size from 1B, or `none`")
            .default("`none`")
            .means("the body, whatever its framing; above it 413. With `none` it may be of any size, because \
                   bodies stream")
            .schema(r##""examples": ["none", "10MiB"],
"anyOf": [{ "const": "none" }, { "$ref": "#/$defs/size" }]"##),
        key("retry_bodies", "size, at most 64GiB")
            .default("`64MiB`")
            .means("the memory of all bodies together that one gateway keeps so that refused requests can be sent \
                   again ([`retry`](#retry)), or that it [reads for limiters](#parts-of-the-body) and services. While \
                   they use it up, further requests with a body are sent once. Bodies that are read have 1 MiB more; \
                   without room for one, its request gets 503 `too-many-bodies`")
            .schema(r##""anyOf": [{ "enum": [0, "0"] }, { "$ref": "#/$defs/size" }]"##),
        key("uri", "size, 64B to 64000B, below `header_bytes`")
            .default("`8KiB`, but at most half of `header_bytes`")
            .means("the request target; above it 414")
            .schema(r##""default": "8KiB",
"$ref": "#/$defs/size""##),
    ],
    others: &[
        meant(
            &["client_max_body_size", "max_body_size", "body_bytes", "max_request_bytes"],
            &["body"],
        ),
        meant(
            &[
                "max_header_bytes",
                "header_size",
                "large_client_header_buffers",
                "max_request_headers_kb",
            ],
            &["header_bytes"],
        ),
        meant(&["max_headers", "max_headers_count"], &["headers"]),
        meant(&["url", "uri_bytes"], &["uri"]),
        elsewhere(&["max_connections"], CLIENTS),
    ],
};

pub(in crate::config) const PATHS: Keys = Keys {
    name: "paths",
    meaning: "How the upstreams read paths, where origins differ. Without a key, a path is limited as if the \
              upstream could do either.",
    rules: "",
    specs: &[
        key("encoded_slash", "`separator` `data`")
            .default("either")
            .means("`%2f` in a path is a slash (`separator`), or a character of a segment (`data`)")
            .schema(r##""anyOf": [{ "enum": ["separator", "data", null] }, { "$ref": "#/$defs/variable" }]"##),
        key("fold_case", "switch")
            .default("either")
            .means("`on`: `/Search` is `/search`. `off`: it is another resource")
            .schema(r##""$ref": "#/$defs/switch""##),
        key("trailing_dots", "`strip` `keep`")
            .default("either")
            .means("dots and spaces at the end of a path or of a segment are cut off (`strip`), or belong to \
                   it (`keep`)")
            .schema(r##""anyOf": [{ "enum": ["strip", "keep", null] }, { "$ref": "#/$defs/variable" }]"##),
    ],
    others: &[
        meant(&["case", "case_sensitive", "case_insensitive", "ignore_case"], &["fold_case"]),
        meant(&["slash", "encoded_slashes", "allow_encoded_slashes"], &["encoded_slash"]),
        meant(&["dots"], &["trailing_dots"]),
    ],
};
