//! The keys of `admin`.

use super::spec::{Keys, key, meant};

pub(in crate::config) const ADMIN: Keys = Keys {
    name: "admin",
    meaning: "The address of the admin side, and the access to it.",
    rules: r##""if": { "properties": { "read": { "const": "token" } }, "required": ["read"] },
"then": { "properties": { "token": { "type": ["string", "integer"] } }, "required": ["token"] }"##,
    specs: &[
        key("listen", "address")
            .default("`127.0.0.1:9090`")
            .means("the address of the admin side. It may not be the `listen` of the data plane")
            .schema(r##""examples": ["127.0.0.1:9090", "0.0.0.0:9090"],
"$ref": "#/$defs/address""##),
        key("token", "text")
            .means("every change needs it, as `Authorization: Bearer TOKEN`. Without a token only loopback \
                   addresses may change anything, see [access](admin.md#access)")
            .schema(r##""$ref": "#/$defs/token",
"examples": ["${file:/run/secrets/admin}"]"##),
        key("read", "`open` `token`")
            .default("`open`")
            .means("`token`: reading needs the token, too, except for `/metrics`, `/healthz` and `/readyz`")
            .schema(r##""anyOf": [{ "enum": ["open", "token", null] }, { "$ref": "#/$defs/variable" }]"##),
    ],
    others: &[
        meant(&["address", "bind"], &["listen"]),
        meant(&["password", "auth", "bearer"], &["token"]),
    ],
};
