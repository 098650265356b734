//! The keys of changes to headers.

use super::spec::{ANY, Keys, elsewhere, key, meant};

pub(in crate::config) const HEADERS: Keys = Keys {
    name: "headers",
    meaning: "Changes to headers of requests and responses.",
    rules: "",
    specs: &[
        key("request", "[changes](#headers)")
            .means("changes to the headers of requests, before the upstream gets them")
            .schema(r##""$ref": "#/$defs/optional_edits""##),
        key("response", "[changes](#headers)")
            .means("changes to the headers of the upstream's responses, before the caller gets them")
            .schema(r##""$ref": "#/$defs/optional_edits""##),
        key("own", "[changes](#headers)")
            .means("changes to the headers of the gateway's own answers to requests of the route (429, 502, 503, ...), \
                   such as [those of CORS](http.md#cors)")
            .schema(r##""$ref": "#/$defs/optional_edits""##),
    ],
    others: &[
        elsewhere(&[ANY], "write `headers: { request: { set: { NAME: ... } } }`, or `response`"),
        elsewhere(&["set", "add", "remove"], WHICH),
        meant(&["req", "upstream"], &["request"]),
        meant(&["downstream", "hide"], &["response"]),
        meant(&["refusal", "refusals", "gateway", "errors", "cors"], &["own"]),
    ],
};

pub(in crate::config) const EDITS: Keys = Keys {
    name: "edits",
    meaning: "Changes to headers: first `remove`, then `replace`, `set` and `add`. Headers that frame a message or \
              belong to one connection, `host` and `paceway-origin` cannot be changed.",
    rules: "",
    specs: &[
        key("set", "map of NAME: VALUE, at most 100")
            .means("each replaces all headers of its name")
            .schema(r##""type": ["object", "null"],
"propertyNames": { "$ref": "#/$defs/header_name" },
"additionalProperties": { "$ref": "#/$defs/header_value" },
"examples": [{"authorization": "Bearer ${file:/run/secrets/vendor}"}]"##),
        key("add", "map of NAME: VALUE or NAME: [VALUE, ...], at most 100")
            .means("each is added after the headers of its name")
            .schema(r##""type": ["object", "null"],
"propertyNames": { "$ref": "#/$defs/header_name" },
"additionalProperties": {
  "anyOf": [
    { "title": "a value", "$ref": "#/$defs/header_value" },
    { "title": "several", "type": "array", "items": { "$ref": "#/$defs/header_value" } }
  ]
}"##),
        key("remove", "list of at most 100 names")
            .means("all headers of these names are removed. No name may also be under `set`")
            .schema(r##""type": ["array", "null"],
"maxItems": 100,
"uniqueItems": true,
"items": { "anyOf": [{ "$ref": "#/$defs/header_name" }, { "$ref": "#/$defs/variable" }] },
"examples": [["cookie", "x-internal"]]"##),
        key("replace", "map of NAME: `auto` or NAME: { BEGINNING: TEXT, ... }, at most 100")
            .means("[each](#redirects) replaces the beginning of the values of its name. `auto`, for responses, \
                   replaces the URL of the upstream, so that a `location` leads the caller to the gateway")
            .schema(r##""type": ["object", "null"],
"propertyNames": { "$ref": "#/$defs/header_name" },
"additionalProperties": {
  "anyOf": [
    { "title": "the URL of the upstream", "const": "auto" },
    { "$ref": "#/$defs/variable" },
    {
      "title": "beginnings and what replaces them",
      "type": "object",
      "minProperties": 1,
      "maxProperties": 100,
      "propertyNames": { "minLength": 1 },
      "additionalProperties": { "$ref": "#/$defs/header_value" }
    }
  ]
},
"examples": [{"location": "auto"}, {"location": {"https://api.vendor.example/": "https://gateway.example/"}}]"##),
    ],
    others: &[
        elsewhere(&[ANY], "write `set: { NAME: ... }`, or `add`"),
        meant(&["overwrite"], &["set"]),
        meant(&["append"], &["add"]),
        meant(&["delete", "unset", "hide", "drop"], &["remove"]),
        meant(&["rewrite", "edit", "substitute"], &["replace"]),
    ],
};

const WHICH: &str = "`request`, `response` or `own` comes first, as in `headers: { request: { set: { NAME: VALUE } } }`";
