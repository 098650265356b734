//! The keys of `fair` of a limiter.

use super::spec::{Keys, elsewhere, key, meant};

pub(in crate::config) const FAIR: Keys = Keys {
    name: "fair",
    meaning: "The tenants that share a limiter, and their weights.",
    rules: r##""required": ["by"]"##,
    specs: &[
        key("by", "[template](#which-bucket-a-request-belongs-to)")
            .default("required")
            .means("the tenant that a request belongs to, by the parts that a `key` may have. Requests without the part are one \
                   tenant, `-`")
            .schema(r##""examples": ["{header.x-team}"],
"$ref": "#/$defs/template""##),
        key("weights", "map of names and numbers, 1 to 1000")
            .default("`1` for each")
            .means("the weights of tenants, at most 1024: while several wait, one of weight 4 gets four times the slots of one of \
                   weight 1")
            .schema(r##""type": ["object", "null"],
"maxProperties": 1024,
"additionalProperties": {
  "type": ["integer", "string"],
  "minimum": 1,
  "maximum": 1000,
  "pattern": "^[0-9]+$|\\$\\{"
},
"examples": [{ "checkout": 4, "batch": 1 }]"##),
    ],
    others: &[
        meant(&["key", "tenant"], &["by"]),
        meant(&["weight"], &["weights"]),
        elsewhere(&["priority"], "it belongs to the route, as in `priority: high`"),
        elsewhere(&["priorities"], "each route has its own, as in `priority: high`"),
    ],
};
