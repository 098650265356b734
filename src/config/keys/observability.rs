//! The keys of `access_log`, `log` and `tracing`.

use super::{
    kind::Kind,
    spec::{Keys, choice, elsewhere, key, meant},
};
use crate::config::{
    settings::{AccessLog, EventFormat},
    traces::OtlpProtocol,
};

pub(in crate::config) const ACCESS_LOG: Keys = Keys {
    name: "access_log",
    meaning: "The access lines on stdout.",
    specs: &[
        choice::<AccessLog>("format")
            .otherwise("`text` when stdout is a terminal, otherwise `json`")
            .says("the form of the lines"),
        key("user_agent", Kind::Switch)
            .written("`on` `off`")
            .default("off")
            .says("whether a line has the client's `User-Agent`, its first 256 characters"),
    ],
    others: &[meant("form", "format"), meant("agent", "user_agent")],
};

pub(in crate::config) const LOG: Keys = Keys {
    name: "log",
    meaning: "The events on stderr.",
    specs: &[choice::<EventFormat>("format")
        .otherwise("`text` when stderr is a terminal, otherwise `json`")
        .says("the form of the lines")],
    others: &[meant("form", "format"), elsewhere("level", LEVEL)],
};

pub(in crate::config) const LEVEL: &str =
    "the level is that of the environment variable: `PACEWAY_LOG=debug`";

pub(in crate::config) const TRACING: Keys = Keys {
    name: "tracing",
    meaning: "Traces of requests, which an OpenTelemetry collector receives.",
    specs: &[
        key("otlp", Kind::Url).required()
            .says("the collector: `http://HOST:4317` for gRPC (`https` for TLS), `http://HOST:4318` for HTTP"),
        choice::<OtlpProtocol>("protocol").otherwise("`http` for port 4318 or a URL with a path, otherwise `grpc`")
            .says("the protocol of the collector: OTLP over gRPC, or over HTTP with protobuf"),
        key("sample", Kind::Fraction).written("number, 0 to 1").default("0.01")
            .says("the part of the requests without a `traceparent` that is traced. A request with one is traced if its \
                sender records it"),
    ],
    others: &[
        meant("endpoint url collector", "otlp"),
        meant("ratio sampling", "sample"),
        elsewhere("headers", "headers are those of the environment variable OTEL_EXPORTER_OTLP_HEADERS"),
    ],
};
