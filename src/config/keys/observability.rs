//! The keys of `access_log`, `log` and `tracing`.

use super::spec::{Keys, elsewhere, key, meant};

pub(in crate::config) const ACCESS_LOG: Keys = Keys {
    name: "access_log",
    meaning: "The access lines on stdout.",
    rules: "",
    specs: &[
        key("format", "`off` `text` `json`")
            .default("`text` when stdout is a terminal, otherwise `json`")
            .means("the form of the lines")
            .schema(r##""anyOf": [{ "enum": ["off", "text", "json", false, null] }, { "$ref": "#/$defs/variable" }]"##),
        key("user_agent", "`on` `off`")
            .default("`off`")
            .means("whether a line has the client's `User-Agent`, its first 256 characters")
            .schema(r##""$ref": "#/$defs/switch""##),
    ],
    others: &[meant(&["form"], &["format"]), meant(&["agent"], &["user_agent"])],
};

pub(in crate::config) const LOG: Keys = Keys {
    name: "log",
    meaning: "The events on stderr.",
    rules: "",
    specs: &[key("format", "`text` `json`")
        .default("`text` when stderr is a terminal, otherwise `json`")
        .means("the form of the lines")
        .schema(
            r##""anyOf": [{ "enum": ["text", "json", null] }, { "$ref": "#/$defs/variable" }]"##,
        )],
    others: &[meant(&["form"], &["format"]), elsewhere(&["level"], LEVEL)],
};

pub(in crate::config) const LEVEL: &str =
    "the level is that of the environment variable: `PACEWAY_LOG=debug`";

pub(in crate::config) const TRACING: Keys = Keys {
    name: "tracing",
    meaning: "Traces of requests, which an OpenTelemetry collector receives.",
    rules: r##""required": ["otlp"]"##,
    specs: &[
        key("otlp", "URL")
            .default("required")
            .means("the collector: `http://HOST:4317` for gRPC (`https` for TLS), `http://HOST:4318` for HTTP")
            .schema(r##""type": "string",
"pattern": "^https?://[^@?]+$|\\$\\{",
"examples": ["http://collector:4317", "http://collector:4318/v1/traces"]"##),
        key("protocol", "`grpc` `http`")
            .default("`http` for port 4318 or a URL with a path, otherwise `grpc`")
            .means("the protocol of the collector: OTLP over gRPC, or over HTTP with protobuf")
            .schema(r##""anyOf": [{ "enum": ["grpc", "http", null] }, { "$ref": "#/$defs/variable" }]"##),
        key("sample", "number, 0 to 1")
            .default("`0.01`")
            .means("the part of the requests without a `traceparent` that is traced. A request with one is traced if its \
                   sender records it")
            .schema(r##""type": ["number", "string", "null"],
"minimum": 0,
"maximum": 1,
"pattern": "^(0|1|0?\\.[0-9]+|[01]\\.[0-9]*)$|\\$\\{",
"examples": [0.01, 1]"##),
    ],
    others: &[
        meant(&["endpoint", "url", "collector"], &["otlp"]),
        meant(&["ratio", "sampling"], &["sample"]),
        elsewhere(
            &["headers"],
            "headers are those of the environment variable OTEL_EXPORTER_OTLP_HEADERS",
        ),
    ],
};
