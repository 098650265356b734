//! The keys of `access_log`, `log` and `tracing`.

use super::spec::{KeySpec, Keys, elsewhere, meant};

pub(in crate::config) const ACCESS_LOG: Keys = Keys {
    name: "access_log",
    meaning: "The access lines on stdout.",
    rules: "",
    specs: &[
        KeySpec {
            name: "format",
            algorithms: "",
            kind: "`off` `text` `json`",
            default: "`text` when stdout is a terminal, otherwise `json`",
            meaning: "the form of the lines",
            schema: r##""anyOf": [{ "enum": ["off", "text", "json", false, null] }, { "$ref": "#/$defs/variable" }]"##,
        },
        KeySpec {
            name: "user_agent",
            algorithms: "",
            kind: "`on` `off`",
            default: "`off`",
            meaning: "whether a line has the client's `User-Agent`, its first 256 characters",
            schema: r##""default": "off",
"$ref": "#/$defs/switch""##,
        },
    ],
    others: &[meant("form", &["format"]), meant("agent", &["user_agent"])],
};

pub(in crate::config) const LOG: Keys = Keys {
    name: "log",
    meaning: "The events on stderr.",
    rules: "",
    specs: &[KeySpec {
        name: "format",
        algorithms: "",
        kind: "`text` `json`",
        default: "`text` when stderr is a terminal, otherwise `json`",
        meaning: "the form of the lines",
        schema: r##""anyOf": [{ "enum": ["text", "json", null] }, { "$ref": "#/$defs/variable" }]"##,
    }],
    others: &[
        meant("form", &["format"]),
        elsewhere("level", "the level is that of the environment variable `PACEWAY_LOG`"),
    ],
};
