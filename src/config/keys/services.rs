//! The keys of `services`.

use super::spec::{KeySpec, Keys, Other, key, meant};

pub(in crate::config) const SERVICES: Keys = Keys {
    name: "services",
    meaning: "Services by which other proxies use the limiters. Each has an address of its own.",
    rules: r##""type": ["object", "null"]"##,
    specs: &[
        key("decisions", "address or [map](#servicesdecisions)")
            .means("decides calls that programs make themselves, over HTTP and JSON, see [decisions](services/decisions.md)")
            .schema(r##""examples": ["127.0.0.1:8084"],
"anyOf": [
  { "title": "an address", "$ref": "#/$defs/address" },
  { "title": "the long form", "$ref": "#/$defs/decisions" },
  { "type": "null" }
]"##),
        key("envoy_rate_limit", "address or [map](#servicesenvoy_rate_limit)")
            .means("Envoy's rate limit service (gRPC, version 3), which answers by [descriptors](#descriptors)")
            .schema(r##""examples": ["127.0.0.1:8081", "0.0.0.0:8081"],
"anyOf": [
  { "title": "an address", "$ref": "#/$defs/address" },
  { "title": "the long form", "$ref": "#/$defs/envoy_rate_limit" },
  { "type": "null" }
]"##),
        key("ext_authz", "address or [map](#servicesext_authz)")
            .means("decides requests of Envoy's filter `ext_authz` over gRPC, see [Envoy](services/envoy.md#ext_authz-over-grpc)")
            .schema(r##""examples": ["127.0.0.1:8083", "0.0.0.0:8083"],
"anyOf": [
  { "title": "an address", "$ref": "#/$defs/address" },
  { "title": "the long form", "$ref": "#/$defs/ext_authz" },
  { "type": "null" }
]"##),
        key("forward_auth", "address or [map](#servicesforward_auth)")
            .means("decides requests of nginx (`auth_request`), Traefik (`ForwardAuth`), Caddy (`forward_auth`), HAProxy \
                   and Envoy (`ext_authz` over HTTP), see [services](services/README.md)")
            .schema(r##""examples": ["127.0.0.1:8082", "0.0.0.0:8082"],
"anyOf": [
  { "title": "an address", "$ref": "#/$defs/address" },
  { "title": "the long form", "$ref": "#/$defs/forward_auth" },
  { "type": "null" }
]"##),
    ],
    others: &[
        meant(&["ratelimit", "rate_limit", "envoy"], &["envoy_rate_limit"]),
        meant(&["forwardAuth", "auth_request"], &["forward_auth"]),
        meant(&["envoy_ext_authz"], &["ext_authz"]),
        meant(&["decision", "acquire"], &["decisions"]),
    ],
};

pub(in crate::config) const FORWARD_AUTH: Keys = Keys {
    name: "forward_auth",
    meaning: "The service that decides requests of another proxy over HTTP.",
    rules: r##""required": ["listen"]"##,
    specs: &[
        LISTEN.schema(r##""examples": ["127.0.0.1:8082", "0.0.0.0:8082"],
"$ref": "#/$defs/address""##),
        TLS,
        TOKEN.schema(r##""$ref": "#/$defs/token",
"examples": ["${file:/run/secrets/forward_auth}"]"##),
        key("original", "`auto` `x-forwarded` `x-original` `target`")
            .default("`auto`")
            .means("the place that describes the original request: `X-Forwarded-Uri`, `-Method` and `-Host`; \
                   `X-Original-URI` or `-URL`, and `-Method`; or the call itself. `auto` takes what is there, and \
                   refuses a call that has headers of both kinds, because its caller may have added one")
            .schema(r##""anyOf": [{ "enum": ["auto", "x-forwarded", "x-original", "target", null] }, { "$ref": "#/$defs/variable" }]"##),
        key("path_prefix", "path")
            .means("the path before the original one where the call itself is the original request, such as Envoy's \
                   `path_prefix`")
            .schema(r##""type": ["string", "null"],
"pattern": "^(/[A-Za-z0-9._~-]+)+$|\\$\\{",
"examples": ["/paceway"]"##),
        key("denied_status", "`401` `403` `429`")
            .default("that of the denial")
            .means("the status of every denial. `Paceway-Status` has that of the denial then, such as 429 or 503. nginx needs 403: \
                   its `auth_request` makes 500 of all others")
            .schema(r##""anyOf": [{ "enum": [401, 403, 429, null] }, { "$ref": "#/$defs/variable" }]"##),
    ],
    others: &[
        ADDRESS,
        PASSWORD,
        meant(&["prefix"], &["path_prefix"]),
        meant(&["status", "denied"], &["denied_status"]),
        meant(&["headers"], &["original"]),
    ],
};

pub(in crate::config) const ENVOY_RATE_LIMIT: Keys = Keys {
    name: "envoy_rate_limit",
    meaning: "Envoy's rate limit service.",
    rules: r##""required": ["listen"]"##,
    specs: &[
        LISTEN.schema(
            r##""examples": ["127.0.0.1:8081", "0.0.0.0:8081"],
"$ref": "#/$defs/address""##,
        ),
        TLS,
        GRPC_TOKEN,
    ],
    others: &[ADDRESS, PASSWORD],
};

pub(in crate::config) const EXT_AUTHZ: Keys = Keys {
    name: "ext_authz",
    meaning: "The service that decides requests of Envoy's filter `ext_authz` over gRPC.",
    rules: r##""required": ["listen"]"##,
    specs: &[
        LISTEN.schema(
            r##""examples": ["127.0.0.1:8083", "0.0.0.0:8083"],
"$ref": "#/$defs/address""##,
        ),
        TLS,
        GRPC_TOKEN,
    ],
    others: &[ADDRESS, PASSWORD],
};

pub(in crate::config) const DECISIONS: Keys = Keys {
    name: "decisions",
    meaning: "The service that decides calls which programs make themselves. They may use every limiter, so that in a Redis \
              Cluster all limiters are one group.",
    rules: r##""required": ["listen"]"##,
    specs: &[
        LISTEN.schema(r##""examples": ["127.0.0.1:8084", "0.0.0.0:8084"],
"$ref": "#/$defs/address""##),
        TLS,
        TOKEN.schema(r##""$ref": "#/$defs/token",
"examples": ["${file:/run/secrets/decisions}"]"##),
        key("max_wait", "duration, at most 1h")
            .default("`30s`")
            .means("the longest time that a call may wait, whatever its `max_wait_ms`")
            .schema(r##""examples": ["10s", "5min"],
"$ref": "#/$defs/duration""##),
        key("max_waiting", "number, 1 to 10000000")
            .default("`10000`")
            .means("the calls that may wait at one time in one gateway; a further one gets 503 `queue-full`")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 10000000"##),
    ],
    others: &[ADDRESS, PASSWORD, meant(&["timeout"], &["max_wait"])],
};

/// Names that users write for the keys which every service has.
const ADDRESS: Other = meant(&["address", "bind"], &["listen"]);
const PASSWORD: Other = meant(&["password"], &["token"]);

/// The key `token` of a service that is called by gRPC.
const GRPC_TOKEN: KeySpec = key("token", "text")
    .means("every call needs it, in the header `paceway-token` of its metadata; without it the answer is an error. An \
           address that other hosts reach needs a token, or `tls` with `client_ca`")
    .schema(r##""$ref": "#/$defs/token",
"examples": ["${file:/run/secrets/envoy}"]"##);

const TLS: KeySpec = key("tls", "[certificates](#tls)")
    .default("clear text")
    .means("the service speaks TLS, and nothing else. With `client_ca` only proxies with a certificate may call it")
    .schema(r##""anyOf": [{ "title": "certificates", "$ref": "#/$defs/tls" }, { "type": "null" }]"##);

/// The key `listen`: the services differ only in the example addresses, which are in the schema.
const LISTEN: KeySpec = key("listen", "address")
    .default("required")
    .means("the address of the service. No other listener may have it");

/// The key `token` of a service that is called over HTTP, without the example file.
const TOKEN: KeySpec = key("token", "text")
    .means("every call needs it, in the header `Paceway-Token`; without it the answer is 401. An address that other \
           hosts reach needs a token, or `tls` with `client_ca`");
