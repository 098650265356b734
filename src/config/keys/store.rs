//! The keys of `store`.

use super::spec::{Keys, elsewhere, key, meant};

pub(in crate::config) const STORE: Keys = Keys {
    name: "store",
    meaning: "A Redis that gateways share.",
    rules: r##""required": ["url"]"##,
    specs: &[
        key("url", "URL")
            .default("required")
            .means("the address of the store, see [its forms](#the-url-of-a-store)")
            .schema(r##""$ref": "#/$defs/redis_url""##),
        key("prefix", "1 to 64 letters, digits, `_` `-` `.` `:`")
            .default("`paceway`")
            .means("first part of every key. Gateways with different prefixes share nothing")
            .schema(r##""type": ["string", "null"],
"pattern": "^[A-Za-z0-9_.:-]{1,64}$|\\$\\{""##),
        key("timeout", "duration, 1ms to 60s")
            .default("`50ms`")
            .means("how long a request waits for the store's decision; then `on_failure` decides. It bounds \
                   the call, not the wait for the slot. For a store that is measured to be slower it grows, \
                   [up to 500ms](operation.md#when-redis-is-away)")
            .schema(r##""examples": ["50ms", "200ms"],
"$ref": "#/$defs/duration""##),
        key("gateways", "number, 1 to 10000")
            .default("`1`")
            .means("the least number of gateways that share the store. Without the store each enforces its \
                   [share](operation.md#when-redis-is-away): the rule divided by this number, or by the \
                   number that the store last reported if that is larger. Set it where gateways may start \
                   while the store is away")
            .schema(r##""$ref": "#/$defs/count",
"minimum": 1,
"maximum": 10000"##),
        key("tls", "[certificates](#storetls)")
            .means("how the servers of a `rediss://` URL are checked, and the certificate that they are shown")
            .schema(r##""$ref": "#/$defs/store_tls""##),
        key("on_failure", "`share` `allow` `reject`")
            .default("`share`")
            .means("the behaviour of limiters while the store gives no decisions, see [when Redis is away](operation.md#when-redis-is-away)")
            .schema(r##""$ref": "#/$defs/on_failure""##),
        key("on_loss", "`close` `trust`")
            .default("`close`")
            .means("the behaviour of limiters after the store has lost states, or may have, see [when Redis loses states](operation.md#when-redis-loses-states)")
            .schema(r##""$ref": "#/$defs/on_loss""##),
        key("functions", "`auto` `off`")
            .default("`auto`")
            .means("how servers execute the decision script: by a library of functions where they keep one (`auto`), or always by \
                   `EVALSHA` (`off`), which costs them several times as much, see [functions](redis.md#functions)")
            .schema(r##""anyOf": [{ "enum": ["auto", "off", false, null] }, { "$ref": "#/$defs/variable" }]"##),
    ],
    others: &[
        meant(&["ssl"], &["tls"]),
        elsewhere(
            &[
                "type",
                "address",
                "host",
                "port",
                "user",
                "username",
                "password",
                "db",
                "database",
                "sentinels",
                "master_name",
            ],
            STORE_URL,
        ),
        elsewhere(&["ca", "cert", "key", "server_name"], STORE_CERTS),
        meant(&["fallback", "failure_mode", "fail_open", "on_error"], &["on_failure"]),
    ],
};

const STORE_URL: &str = "it is a part of the URL, as in redis://USER:PASSWORD@HOST:PORT/DATABASE or \
                         redis-sentinel://HOST:PORT,HOST:PORT/MASTER";
const STORE_CERTS: &str =
    "it is written `tls: { ca: FILE, cert: FILE, key: FILE, server_name: NAME }`";
