//! The keys of `store`.

use super::{
    STORE_TLS,
    kind::Kind,
    spec::{
        Keys, MILLISECOND, MINUTE, choice, duration, elsewhere, key, meant, number, section, words,
    },
};

use crate::{config::limiter::FailurePolicy, store::OnLoss};

pub(in crate::config) const STORE: Keys = Keys {
    name: "store",
    meaning: "A Redis that gateways share.",
    specs: &[
        key("url", Kind::Url).required()
            .says("the address of the store, see [its forms](#the-url-of-a-store)"),
        key("prefix", Kind::Text).written("1 to 64 letters, digits, `_` `-` `.` `:`").default("paceway")
            .says("first part of every key. Gateways with different prefixes share nothing"),
        duration("timeout", MILLISECOND..=MINUTE).written("duration, 1ms to 60s").default("50ms")
            .says("how long a request waits for the store's decision; then `on_failure` decides. It bounds the call, not \
                the wait for the slot. For a store that is measured to be slower it grows, [up to \
                500ms](operation.md#when-redis-is-away)"),
        number("gateways", 1..=10_000).default("1")
            .says("the least number of gateways that share the store. Without the store each enforces its \
                [share](operation.md#when-redis-is-away): the rule divided by this number, or by the number that the \
                store last reported if that is larger. Set it where gateways may start while the store is away"),
        section("tls", &STORE_TLS, "[certificates](#storetls)")
            .says("how the servers of a `rediss://` URL are checked, and the certificate that they are shown"),
        choice::<FailurePolicy>("on_failure").default("share")
            .says("the behaviour of limiters while the store gives no decisions, see [when Redis is \
                away](operation.md#when-redis-is-away)"),
        choice::<OnLoss>("on_loss").default("close")
            .says("the behaviour of limiters after the store has lost states, or may have, see [when Redis loses \
                states](operation.md#when-redis-loses-states)"),
        words("functions", || vec!["auto", "off"]).default("auto")
            .says("how servers execute the decision script: by a library of functions where they keep one (`auto`), or \
                always by `EVALSHA` (`off`), which costs them several times as much, see [functions](redis.md#functions)"),
    ],
    others: &[
        meant("ssl", "tls"),
        elsewhere("type address host port user username password db database sentinels master_name", STORE_URL),
        elsewhere("ca cert key server_name", STORE_CERTS),
        meant("fallback failure_mode fail_open on_error", "on_failure"),
    ],
};

const STORE_URL: &str = "it is a part of the URL, as in redis://USER:PASSWORD@HOST:PORT/DATABASE or \
                         redis-sentinel://HOST:PORT,HOST:PORT/MASTER";
const STORE_CERTS: &str =
    "it is written `tls: { ca: FILE, cert: FILE, key: FILE, server_name: NAME }`";
