//! The keys of an entry of `descriptors`.

use super::spec::{Keys, elsewhere, key, meant};

pub(in crate::config) const DESCRIPTOR: Keys = Keys {
    name: "descriptor",
    meaning: "The limiters of the descriptors that Envoy sends to `services.envoy_rate_limit`.",
    rules: r##""required": ["match"]"##,
    specs: &[
        key("name", "text")
            .default("the match, as in `path=/search`")
            .means("the name in metrics and logs, where it is the `route`")
            .schema(r##""type": ["string", "null"],
"pattern": "^[^\\x00-\\x1f\\x7f]{1,128}$|\\$\\{""##),
        key("match", "map of keys and values")
            .default("required")
            .means("the keys that a descriptor must have, each with its value; `\"*\"` takes any value. A descriptor may \
                   have more keys. The first entry that matches wins; a descriptor that none matches is allowed")
            .schema(r##""type": "object",
"minProperties": 1,
"maxProperties": 16,
"additionalProperties": { "type": ["string", "integer", "number", "boolean"] },
"examples": [{ "path": "/search" }, { "shop": "*" }]"##),
        key("limiters", "list of limiters or [charges](#what-a-request-costs)")
            .means("the limiters, as in a route. Each cost is multiplied by `hits_addend`")
            .schema(r##""default": [],
"$ref": "#/$defs/charges""##),
        key("key", "template")
            .default("that of each limiter")
            .means("the bucket at each of the limiters, in place of the limiter's own `key`: `{descriptor.NAME}` is the value \
                   of a key of the descriptor")
            .schema(r##""examples": ["{descriptor.shop}"],
"$ref": "#/$defs/template""##),
        key("max_wait", "duration, at most 1h, or percentage")
            .default("`0`")
            .means("the time that an answer may wait for its slot, as in a route. The deadline of the call, which Envoy takes \
                   from `timeout` of its filter, shortens it")
            .schema(r##""examples": ["500ms", "2s"],
"$ref": "#/$defs/wait""##),
        key("max_waiting", "number, 1 to 10000000")
            .default("`10000`")
            .means("the calls that may wait at one time in one gateway; a further one is an error")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 10000000"##),
    ],
    others: &[
        meant(&["matches", "entries"], &["match"]),
        meant(&["limiter"], &["limiters"]),
        elsewhere(
            &["cost"],
            "a cost belongs to a limiter, as in `limiters: [{ limiter: search, cost: 5 }]`",
        ),
    ],
};
