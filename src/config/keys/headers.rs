//! The keys of changes to headers.

use super::{
    kind::Kind,
    spec::{ANY, Keys, elsewhere, list, map, meant, section},
};

pub(in crate::config) const HEADERS: Keys = Keys {
    name: "headers",
    meaning: "Changes to headers of requests and responses.",
    specs: &[
        section("request", &EDITS, "[changes](#headers)")
            .says("changes to the headers of requests, before the upstream gets them"),
        section("response", &EDITS, "[changes](#headers)")
            .says("changes to the headers of the upstream's responses, before the caller gets them"),
        section("own", &EDITS, "[changes](#headers)")
            .says("changes to the headers of the gateway's own answers to requests of the route (429, 502, 503, ...), \
                such as [those of CORS](http.md#cors)"),
    ],
    others: &[
        elsewhere(ANY, "write `headers: { request: { set: { NAME: ... } } }`, or `response`"),
        elsewhere("set add remove", WHICH),
        meant("req upstream", "request"),
        meant("downstream hide", "response"),
        meant("refusal refusals gateway errors cors", "own"),
    ],
};

pub(in crate::config) const EDITS: Keys = Keys {
    name: "edits",
    meaning: "Changes to headers: first `remove`, then `replace`, `set` and `add`. Headers that frame a message or \
              belong to one connection, `host` and `paceway-origin` cannot be changed.",
    specs: &[
        map("set", 0..=100, &Kind::Text).written("map of NAME: VALUE, at most {most}")
            .says("each replaces all headers of its name"),
        map("add", 0..=100, &Kind::Text).written("map of NAME: VALUE or NAME: [VALUE, ...], at most {most}")
            .says("each is added after the headers of its name"),
        list("remove", 0..=100, &Kind::Text).written("list of at most {most} names")
            .says("all headers of these names are removed. No name may also be under `set`"),
        map("replace", 0..=100, &Kind::Text).written("map of NAME: `auto` or NAME: { BEGINNING: TEXT, ... }, at most {most}")
            .says("[each](#redirects) replaces the beginning of the values of its name. `auto`, for responses, replaces \
                the URL of the upstream, so that a `location` leads the caller to the gateway"),
    ],
    others: &[
        elsewhere(ANY, "write `set: { NAME: ... }`, or `add`"),
        meant("overwrite", "set"),
        meant("append", "add"),
        meant("delete unset hide drop", "remove"),
        meant("rewrite edit substitute", "replace"),
    ],
};

const WHICH: &str = "`request`, `response` or `own` comes first, as in `headers: { request: { set: { NAME: VALUE } } }`";
