//! The keys of a route.

use super::spec::{COST, Keys, REDIRECT, REMOVE, RETRIES, SET, elsewhere, key, meant, replaced};

pub(in crate::config) const ROUTE: Keys = Keys {
    name: "route",
    meaning: "The requests of one kind, and what happens to them.",
    rules: r##""oneOf": [{ "required": ["suffix"] }, { "required": ["path"] }]"##,
    specs: &[
        key("name", "text, 1 to 128")
            .default("the suffix or path")
            .means("labels metrics and logs; unique")
            .schema(r##""type": ["string", "null"],
"minLength": 1,
"maxLength": 128,
"examples": ["search"]"##),
        key("suffix", "text")
            .default("required, or `path`")
            .means("the end of the path, see [below](#how-a-path-is-compared). `\"*\"` (in quotes) matches \
                   every path")
            .schema(r##""type": "string",
"pattern": "^\\*$|^[^*?#;\\\\]+$|\\$\\{",
"examples": ["/search", ".json", "*"]"##),
        key("path", "text")
            .means("the whole path, in place of `suffix`, see [below](#whole-paths): `{name}` is one segment, `{*rest}` one \
                   segment or more. It outranks every suffix, and the more literal path wins")
            .schema(r##""type": "string",
"pattern": "^/([^*?#;\\\\]|\\{\\*)*$|\\$\\{",
"examples": ["/channels/{channel}/messages/{message}", "/files/{*rest}"]"##),
        key("methods", "list")
            .default("all")
            .means("the methods that the route takes, in capitals. `GET` includes `HEAD`, unless another route with the same suffix or path names `HEAD`")
            .schema(r##""type": ["array", "null"],
"minItems": 1,
"uniqueItems": true,
"items": {
  "anyOf": [
    {
      "enum": [
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "OPTIONS",
        "PATCH",
        "CONNECT",
        "TRACE"
      ]
    },
    {
      "title": "another method",
      "type": "string",
      "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"
    },
    { "$ref": "#/$defs/variable" }
  ]
},
"examples": [["GET", "POST"]]"##),
        key("host", "text")
            .default("all")
            .means("the host that the route is for, without scheme and port; compared without regard to case")
            .schema(r##""type": ["string", "null"],
"pattern": "^[A-Za-z0-9._-]+$|^\\[[0-9A-Fa-f:.]+\\]$|\\$\\{",
"examples": ["api.internal"]"##),
        key("upstream", "name")
            .default("the only one")
            .means("the name of the upstream; required when there are several")
            .schema(r##""type": ["string", "null"],
"pattern": "^[A-Za-z0-9_.-]{1,64}$|\\$\\{""##),
        key("limiters", "list of [charges](#what-a-request-costs)")
            .means("the limiters that a request must pass, all or none, besides those of the upstream. Each \
                   once")
            .schema(r##""default": [],
"examples": [["search", { "limiter": "points", "cost": 5}]],
"$ref": "#/$defs/charges""##),
        key("priority", "`high` `normal` `low` `rfc9218`, or a header")
            .default("`normal`")
            .means("the priority among the requests that wait for [the same limiter](fair.md). `\"{header.x-priority}\"`: each \
                   request says its own, by one of the three words in this header; `rfc9218`: by the urgency in its field \
                   `Priority`, as in `u=7`. Both count only from `trusted_proxies`, and all other requests are `normal`")
            .schema(r##""anyOf": [
  { "enum": ["high", "normal", "low", "rfc9218", null] },
  { "title": "a header", "type": "string", "pattern": "^\\{header\\.[!#$%&'*+.^_`|~0-9A-Za-z-]+\\}$" },
  { "$ref": "#/$defs/variable" }
],
"examples": ["high", "{header.x-priority}"]"##),
        key("max_wait", "duration, at most 1h, or a [percentage](#how-long-a-request-waits)")
            .default("`0`")
            .means("the wait budget: the longest time that a request is held until its slot comes. With `0` a \
                   request that cannot pass at once is refused at once; a missing key means the same and is \
                   a warning")
            .schema(r##""examples": ["500ms", "2s", "50%"],
"$ref": "#/$defs/wait""##),
        key("max_wait_cap", "duration, at most 1h, or a [percentage](#how-long-a-request-waits)")
            .default("that of `max_wait`")
            .means("how far a caller may lengthen its wait with `Prefer: wait=SECONDS`; not below `max_wait`")
            .schema(r##""examples": ["10s", "200%"],
"$ref": "#/$defs/wait""##),
        key("max_waiting", "number, 1 to 10000000")
            .default("`10000`")
            .means("requests held on this route at one time in one gateway; above it 503 `queue-full`")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 10000000"##),
        key("ratelimit_headers", "`refused` `all`")
            .default("that of the file")
            .means("as at the top of the file, for this route")
            .schema(r##""anyOf": [{ "enum": ["refused", "all", null] }, { "$ref": "#/$defs/variable" }]"##),
        key("headers", "[changes](#headers)")
            .means("changes to headers, after those of the upstream's own `headers`")
            .schema(r##""$ref": "#/$defs/optional_headers""##),
    ],
    others: &[
        replaced(&["prefix", "paths", "location"], &["path"], PATH),
        meant(&["limiter"], &["limiters"]),
        elsewhere(&["rate", "rps", "rpm", "burst", "algorithm", "key", "mode", "fair"], QUOTA),
        elsewhere(&["cost"], COST),
        elsewhere(
            &["weight"],
            "weights belong to a limiter, as in `fair: { by: \"{header.x-team}\", weights: { NAME: 4 } }`",
        ),
        elsewhere(&["url", "urls"], "a route names one of the `upstreams`, which have the URLs"),
        elsewhere(&["timeout", "response_timeout"], TIMEOUT),
        elsewhere(&["retry", "retries"], RETRIES),
        elsewhere(&["add_headers", "set_headers", "request_headers", "response_headers"], SET),
        elsewhere(&["remove_headers"], REMOVE),
        elsewhere(&["proxy_redirect", "redirect"], REDIRECT),
    ],
};

const PATH: &str = "a route matches the end of a path, as in `suffix: /search` for /search and /v2/search, or a whole \
                    path, as in `path: \"/v2/shops/{shop}\"`; all paths below /v2 are `path: \"/v2/{*rest}\"`";
const TIMEOUT: &str = "it is `upstreams.NAME.response_timeout`";
const QUOTA: &str = "it belongs to a limiter under `limiters:` at the top, which the route names";
