//! The keys of a limiter.

use super::spec::{COST, Keys, elsewhere, key, meant, replaced};

pub(in crate::config) const LIMITER: Keys = Keys {
    name: "limiter",
    meaning: "A quota.",
    rules: r##""if": { "required": ["algorithm"], "properties": { "algorithm": { "$ref": "#/$defs/variable" } } },
"then": {
  "anyOf": [
    { "title": "with a rate", "$ref": "#/$defs/has_rate" },
    { "title": "concurrency", "$ref": "#/$defs/has_max" }
  ]
},
"else": {
  "if": { "required": ["algorithm"], "properties": { "algorithm": { "const": "concurrency" } } },
  "then": { "$ref": "#/$defs/has_max" },
  "else": {
    "$ref": "#/$defs/has_rate",
    "if": {
      "required": ["algorithm"],
      "properties": { "algorithm": { "const": "warm_up" } }
    },
    "then": {
      "required": ["warm_up"],
      "properties": { "warm_up": { "not": { "type": "null" } } }
    }
  }
},
"dependentSchemas": {
  "burst": {
    "properties": {
      "algorithm": {
        "anyOf": [
          { "enum": ["token_bucket", null] },
          { "$ref": "#/$defs/variable" }
        ]
      }
    }
  },
  "margin": {
    "required": ["algorithm"],
    "properties": {
      "algorithm": {
        "anyOf": [
          { "enum": ["sliding_window", "leaky_bucket"] },
          { "$ref": "#/$defs/variable" }
        ]
      }
    }
  },
  "capacity": {
    "required": ["algorithm"],
    "properties": {
      "algorithm": {
        "anyOf": [
          { "const": "leaky_bucket" },
          { "$ref": "#/$defs/variable" }
        ]
      }
    }
  },
  "warm_up": {
    "required": ["algorithm"],
    "properties": {
      "algorithm": {
        "anyOf": [
          { "const": "warm_up" },
          { "$ref": "#/$defs/variable" }
        ]
      }
    }
  },
  "cold_factor": {
    "required": ["algorithm"],
    "properties": {
      "algorithm": {
        "anyOf": [
          { "const": "warm_up" },
          { "$ref": "#/$defs/variable" }
        ]
      }
    }
  },
  "start": { "$ref": "#/$defs/has_auto_rate" },
  "min": { "$ref": "#/$defs/has_auto_rate" },
  "max": {
    "anyOf": [
      {
        "title": "of a concurrency limiter",
        "required": ["algorithm"],
        "properties": {
          "max": { "type": ["integer", "string", "null"], "pattern": "^[0-9]+$|\\$\\{" },
          "rate": { "type": "null" },
          "algorithm": {
            "anyOf": [
              { "const": "concurrency" },
              { "$ref": "#/$defs/variable" }
            ]
          }
        }
      },
      {
        "title": "of an automatic rate",
        "properties": { "max": { "anyOf": [{ "$ref": "#/$defs/rate" }, { "type": "null" }] } },
        "$ref": "#/$defs/has_auto_rate"
      }
    ]
  },
  "lease": {
    "required": ["algorithm"],
    "properties": {
      "algorithm": {
        "anyOf": [
          { "const": "concurrency" },
          { "$ref": "#/$defs/variable" }
        ]
      }
    }
  }
}"##,
    specs: &[
        key("algorithm", "`token_bucket` `sliding_window` `fixed_window` `leaky_bucket` `warm_up` `concurrency`")
            .default("`token_bucket`")
            .means("how the quota is kept, see [which for which quota](limiters/README.md). `token_bucket`: \
                   permits flow in at a constant rate, and up to `burst` are kept. `sliding_window`: at most \
                   COUNT in any window of a PERIOD. `fixed_window`: at most COUNT in each window of the \
                   store's clock. `leaky_bucket`: one after the other, evenly spaced. `warm_up`: a rate that \
                   rises from cold to full while it is used. `concurrency`: at most `max` at a time")
            .schema(r##""anyOf": [
  {
    "enum": [
      "token_bucket",
      "sliding_window",
      "fixed_window",
      "leaky_bucket",
      "warm_up",
      "concurrency",
      null
    ]
  },
  { "$ref": "#/$defs/variable" }
]"##),
        key("rate", "rate, rates, or `auto`")
            .default("required")
            .means("COUNT requests of cost 1 in a PERIOD. A list for `token_bucket`, `sliding_window` and \
                   `fixed_window`. `auto`, for `token_bucket`, `sliding_window` and `leaky_bucket`: the rate is \
                   [learned](limiting.md#rates-and-margins-that-are-learned) from the upstream's refusals")
            .schema(r##""anyOf": [
  { "title": "a rate", "$ref": "#/$defs/rate" },
  { "title": "learned from the upstream's refusals", "const": "auto" },
  { "title": "a list of rates", "$ref": "#/$defs/rates" },
  { "type": "null" }
]"##),
        key("start", "rate")
            .default("required")
            .means("the rate before anything is known. Its PERIOD is the time after which the rate may grow by a \
                   tenth")
            .schema(r##""$ref": "#/$defs/rate""##),
        key("min", "rate")
            .default("a hundredth of `start`")
            .means("the lowest rate")
            .schema(r##""anyOf": [{ "$ref": "#/$defs/rate" }, { "type": "null" }]"##),
        key("burst", "number, 1 to 1000000000")
            .default("COUNT of the rate; `1` with `rate: auto`")
            .means("permits that an idle limiter keeps, so the most that can pass at once. A bucket that \
                   would take more than 70 years to fill is an error. Not with a list, where each rate's \
                   burst is its own COUNT")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 1000000000,
"examples": [1, 5]"##),
        key("margin", "duration, at most 1h, or `auto`")
            .default("`0`")
            .means("extra spacing for delay that varies on the way to the upstream. `auto`: \
                   [learned](limiting.md#rates-and-margins-that-are-learned) from the times of answers and from \
                   refusals")
            .schema(r##""examples": ["30ms", "auto"],
"anyOf": [{ "$ref": "#/$defs/duration" }, { "const": "auto" }]"##),
        key("capacity", "number, 1 to 1000000000")
            .default("as many as the wait budget allows")
            .means("permits that may queue")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 1000000000,
"examples": [10]"##),
        key("warm_up", "duration, 1ms to 1h")
            .default("required")
            .means("the time from cold to the full rate")
            .schema(r##""examples": ["4s"],
"$ref": "#/$defs/duration""##),
        key("cold_factor", "number above 1, at most 100, also `2.5`")
            .default("`3`")
            .means("how many times slower than the full rate a cold limiter is")
            .schema(r##""type": ["number", "string", "null"],
"exclusiveMinimum": 1,
"maximum": 100,
"pattern": "^[0-9]*\\.?[0-9]*$|\\$\\{",
"examples": [3, 2.5]"##),
        key("max", "number, 1 to 1000000000; a rate")
            .default("required; a thousand times `start`")
            .means("how many requests may be under way at a time; with `rate: auto` the highest rate")
            .schema(r##""type": ["integer", "string", "null"],
"minimum": 1,
"maximum": 1000000000,
"examples": [4, "100/s"]"##),
        key("lease", "duration, 1s to 1d")
            .default("`60s`")
            .means("how long the permits of a gateway that died stay taken")
            .schema(r##""examples": ["60s"],
"$ref": "#/$defs/duration""##),
        key("key", "[template](#which-bucket-a-request-belongs-to)")
            .default("one bucket for all")
            .means("the bucket that a request belongs to: text and parts of the request, such as `{client_ip}`, \
                   `{client_ip/64}`, `{path.NAME}`, `{path.NAME:int}`, `{header.NAME}`, `{query.NAME}`, `{body./POINTER}` or `{segment.N}`, joined")
            .schema(r##""$ref": "#/$defs/template""##),
        key("fair", "[tenants and weights](fair.md)")
            .default("first come, first served")
            .means("the tenants that share the slots, or the permits of `concurrency`, while several of them wait, such as \
                   `{ by: \"{header.x-team}\", weights: { checkout: 4 } }`. With a `key`, they share each bucket")
            .schema(r##""anyOf": [{ "title": "tenants", "$ref": "#/$defs/fair" }, { "type": "null" }]"##),
        key("scope", "`cluster` `instance`")
            .default("`cluster`")
            .means("`instance`: each gateway has the quota for itself, whatever the store")
            .schema(r##""anyOf": [{ "enum": ["cluster", "instance", null] }, { "$ref": "#/$defs/variable" }]"##),
        key("mode", "`enforce` `observe` `off`")
            .default("`enforce`")
            .means("`observe` decides and counts, but never holds or refuses; `off` does nothing. `false`, \
                   which tools of YAML 1.1 make of `off`, means the same")
            .schema(r##""anyOf": [{ "enum": ["enforce", "observe", "off", false, null] }, { "$ref": "#/$defs/variable" }]"##),
        key("on_failure", "`share` `allow` `reject`")
            .default("that of the store")
            .means("the behaviour of this limiter [while the store is away](operation.md#when-redis-is-away). If a \
                   request has several limiters, the strictest counts")
            .schema(r##""$ref": "#/$defs/on_failure""##),
        key("on_loss", "`close` `trust`")
            .default("that of the store")
            .means("the behaviour of this limiter [after the store has lost states](operation.md#when-redis-loses-states), or \
                   may have: `close` counts lost states as used up, `trust` continues with what the store has")
            .schema(r##""$ref": "#/$defs/on_loss""##),
    ],
    others: &[
        meant(&["type", "kind"], &["algorithm"]),
        meant(&["limit"], &["rate", "max"]),
        meant(&["fallback", "failure_mode"], &["on_failure"]),
        replaced(&["period", "window", "interval", "per"], &["rate"], PERIOD),
        replaced(&["rps", "qps", "tps", "per_second"], &["rate"], SECOND),
        replaced(&["rpm", "per_minute"], &["rate"], MINUTE),
        replaced(&["rph", "per_hour"], &["rate"], "write `rate: <5>/h`"),
        replaced(&["rpd", "per_day"], &["rate"], "write `rate: <5>/d`"),
        meant(&["quota"], &["rate"]),
        elsewhere(&["max_wait", "max_wait_cap", "max_waiting"], WAIT),
        elsewhere(&["cost"], COST),
        elsewhere(&["priority"], "it belongs to the route, as in `priority: high`"),
        elsewhere(&["weights", "weight"], FAIR),
        meant(&["fairness"], &["fair"]),
    ],
};

/// The algorithms whose limiters have a key, in Markdown; empty for a key that all limiters have.
pub(in crate::config) fn algorithms_with(key: &str) -> &'static str {
    match key {
        "rate" => "all but `concurrency`",
        "start" | "min" => "those with `rate: auto`",
        "burst" => "`token_bucket`",
        "margin" => "`sliding_window` `leaky_bucket`",
        "capacity" => "`leaky_bucket`",
        "warm_up" | "cold_factor" => "`warm_up`",
        "max" => "`concurrency`, and those with `rate: auto`",
        "lease" => "`concurrency`",
        _ => "",
    }
}

const SECOND: &str = "write `rate: <5>/s`";
const MINUTE: &str = "write `rate: <5>/min`";
const PERIOD: &str = "a period is a part of the rate, as in `rate: 5/s`";
const FAIR: &str = "weights are written `fair: { by: \"{header.x-team}\", weights: { NAME: 4 } }`";
const WAIT: &str = "it belongs to the route";
