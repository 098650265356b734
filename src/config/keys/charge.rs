//! The keys of a charge: a limiter and the cost of a request there.

use super::spec::{Keys, key, meant, replaced};

pub(in crate::config) const CHARGE: Keys = Keys {
    name: "charge",
    meaning: "A limiter, and the cost of a request there.",
    rules: r##""required": ["limiter"]"##,
    specs: &[
        key("limiter", "name")
            .default("required")
            .means("the limiter that the request is charged to")
            .schema(r##""$ref": "#/$defs/limiter_name""##),
        key("cost", "number, part of a request, or a [reserved cost](#a-cost-that-the-answer-says)")
            .default("`1`")
            .means("the permits that a request takes, at most as many as the limiter can give at once; or a \
                   part of the request, such as `\"{header.x-cost}\"` or `\"{body./n}\"`: a request without the part costs \
                   1, one with `0` there takes nothing, and one with another value than such a number is answered \
                   400. A `concurrency` limiter takes no cost")
            .schema(r##""anyOf": [
  {
    "title": "number or part of a request",
    "type": ["integer", "string", "null"],
    "minimum": 1,
    "pattern": "^0*[1-9][0-9]*$|^\\{(header|query|segment)\\.[^{}]+\\}$|^\\{body\\./[^{}]*\\}$|\\$\\{"
  },
  { "title": "reserved", "$ref": "#/$defs/reserved_cost" }
],
"examples": [5, "{header.x-cost}"]"##),
    ],
    others: &[replaced(&["name"], &["limiter"], "write it as in `{ limiter: a, cost: 5 }`")],
};

pub(in crate::config) const RESERVED_COST: Keys = Keys {
    name: "reserved_cost",
    meaning: "A cost that is reserved until the answer says the true one.",
    rules: r##""required": ["reserve"]"##,
    specs: &[
        key("reserve", "number or part of a request")
            .default("required")
            .means("the permits that are reserved, such as `\"{body./max_tokens}\"`. More than the limiter can give at \
                   once are cut to that number. With `settle` at least 1 is reserved, otherwise `0` takes nothing")
            .schema(r##""type": ["integer", "string"],
"minimum": 1,
"pattern": "^0*[1-9][0-9]*$|^\\{(header|query|segment)\\.[^{}]+\\}$|^\\{body\\./[^{}]*\\}$|\\$\\{",
"examples": [1000, "{body./max_tokens}"]"##),
        key("default", "number")
            .default("`1`")
            .means("the permits that are reserved where that part of the request is missing or no whole number")
            .schema(r##""type": ["integer", "string", "null"],
"minimum": 1,
"pattern": "^0*[1-9][0-9]*$|\\$\\{""##),
        key("settle", "part of an answer")
            .means("the part of the answer that has the true cost: `\"{response.header.NAME}\"`, or \
                   `\"{response.body./POINTER}\"` for a JSON body or the last event of a stream that has it. Permits \
                   beyond the true cost are refunded, and a shortfall is a debt that moves later slots")
            .schema(r##""type": ["string", "null"],
"pattern": "^\\{response\\.(header\\.[^{}]+|body\\./[^{}]*)\\}$|\\$\\{",
"examples": ["{response.body./usage/total_tokens}", "{response.header.x-cost}"]"##),
    ],
    others: &[
        meant(&["estimate", "max", "cost"], &["reserve"]),
        meant(&["actual"], &["settle"]),
        meant(&["fallback"], &["default"]),
    ],
};
