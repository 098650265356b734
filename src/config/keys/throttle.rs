//! The keys under `throttle` of an upstream.

use super::spec::{Keys, elsewhere, key, meant};

pub(in crate::config) const THROTTLE: Keys = Keys {
    name: "throttle",
    meaning: "How an upstream says \"slow down\", and what then happens.",
    rules: "",
    specs: &[
        key("when", "list of at most 32 conditions")
            .default("`[429, \"503 with retry-after\"]`, or those of `style`")
            .means("the answers that are refusals, see [below](#when)")
            .schema(r##""type": ["array", "null"],
"minItems": 1,
"maxItems": 32,
"items": { "$ref": "#/$defs/throttle_condition" },
"examples": [[429, "503 with retry-after", "403 with x-ratelimit-remaining=0"]]"##),
        key("style", "name of a [vendor](vendors/README.md)")
            .default("`auto`")
            .means("the vendor whose headers are read. It also decides the defaults of `when` and `default_pause`: \
                   `github` takes some answers of 403 for refusals, for example. `auto`: the headers that an answer \
                   has show how to read them")
            .schema(r##""anyOf": [
  { "enum": ["auto", "ietf", "amazon", "anthropic", "azure", "discord", "github", "google", "hubspot", "openai", "opik", "riot",
    "salesforce", "shopify", "shopify-graphql", "slack", "stripe", "twilio", "x", null] },
  { "$ref": "#/$defs/variable" }
]"##),
        key("pauses", "`all`, or a list of limiters")
            .default("`all`")
            .means("which of the limiters that the refused request was charged to are paused, each for the key that \
                   the request had there")
            .schema(r##""anyOf": [
  { "const": "all" },
  { "type": "array", "minItems": 1, "uniqueItems": true, "items": { "$ref": "#/$defs/name" } },
  { "$ref": "#/$defs/variable" },
  { "type": "null" }
]"##),
        key("default_pause", "duration, 100ms to `max_pause`")
            .default("`1s`, or that of `style`")
            .means("how long the limiters are paused when the answer names no time. It doubles with each refusal in a \
                   row of one key, up to `max_pause`; refusals of requests that were under way together count once")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("max_pause", "duration, 100ms to 1d")
            .default("`10min`")
            .means("no pause is longer, whatever the upstream says")
            .schema(r##""$ref": "#/$defs/duration""##),
        key("retry", "[bounds](#retry)")
            .default("see there")
            .means("how refused requests are sent again")
            .schema(r##""anyOf": [{ "title": "bounds", "$ref": "#/$defs/retry" }, { "type": "null" }]"##),
        key("learn", "`off` `remaining`")
            .default("`remaining`")
            .means("`remaining`: headers in which the upstream says what remains of its quota lower the level of the \
                   limiter that has this quota. A quota that is used up can pause it. They never raise it")
            .schema(r##""anyOf": [{ "enum": ["off", "remaining", false, null] }, { "$ref": "#/$defs/variable" }]"##),
    ],
    others: &[
        meant(&["vendor", "dialect"], &["style"]),
        meant(&["on", "if", "status", "statuses", "conditions", "codes"], &["when"]),
        meant(&["pause"], &["default_pause", "pauses"]),
        meant(&["limiters"], &["pauses"]),
        meant(&["backoff", "min_pause"], &["default_pause"]),
        elsewhere(&["retries", "attempts", "max_retries"], ATTEMPTS),
        elsewhere(&["max_body"], "it is written `retry: { max_body: <64KiB> }`"),
    ],
};

pub(in crate::config) const RETRY: Keys = Keys {
    name: "retry",
    meaning: "How refused requests are sent again: at their new slot, within the caller's own wait budget.",
    rules: "",
    specs: &[
        key("attempts", "number, 1 to 100")
            .default("`3`")
            .means("how often a request is sent at most, the first time included; `1` means that none is sent again. \
                   Each attempt takes its own permits")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 100"##),
        key("max_body", "size, at most 16MiB")
            .default("`64KiB`")
            .means("the longest body that is kept for another attempt; a request with a longer one is sent once. `0` \
                   keeps none. All kept bodies together are bounded by [`limits.retry_bodies`](#limits)")
            .schema(r##""anyOf": [{ "enum": [0, "0"] }, { "$ref": "#/$defs/size" }]"##),
    ],
    others: &[
        meant(&["max_attempts", "retries", "max_retries", "num_retries"], &["attempts"]),
        meant(&["body", "max_body_size", "buffer"], &["max_body"]),
        elsewhere(&["backoff"], "the time between attempts is the pause, see `default_pause`"),
        elsewhere(&["per_try_timeout"], "each attempt has the upstream's `response_timeout`"),
    ],
};

const ATTEMPTS: &str = "attempts are written `retry: { attempts: <3> }`";
