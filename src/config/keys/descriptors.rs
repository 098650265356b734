//! The keys of an entry of `descriptors`.

use super::{
    CHARGE,
    kind::Kind,
    spec::{HOUR, Keys, duration, elsewhere, key, list, map, meant, number},
};
use std::time::Duration;

pub(in crate::config) const DESCRIPTOR: Keys = Keys {
    name: "descriptor",
    meaning: "The limiters of the descriptors that Envoy sends to `services.envoy_rate_limit`.",
    specs: &[
        key("name", Kind::Text).otherwise("the match, as in `path=/search`")
            .says("the name in metrics and logs, where it is the `route`"),
        map("match", 1..=16, &Kind::Text).written("map of keys and values").required()
            .says("the keys that a descriptor must have, each with its value; `\"*\"` takes any value. A descriptor may \
                have more keys. The first entry that matches wins; a descriptor that none matches is allowed"),
        list("limiters", 0..=u64::MAX, &Kind::Section(&CHARGE)).written("list of limiters or [charges](#what-a-request-costs)")
            .says("the limiters, as in a route. Each cost is multiplied by `hits_addend`"),
        key("key", Kind::Template).otherwise("that of each limiter")
            .says("the bucket at each of the limiters, in place of the limiter's own `key`: `{descriptor.NAME}` is the \
                value of a key of the descriptor"),
        duration("max_wait", Duration::ZERO..=HOUR).or(&[Kind::Fraction], ", or percentage").default("0")
            .says("the time that an answer may wait for its slot, as in a route. The deadline of the call, which Envoy \
                takes from `timeout` of its filter, shortens it"),
        number("max_waiting", 1..=10_000_000).default("10000")
            .says("the calls that may wait at one time in one gateway; a further one is an error"),
    ],
    others: &[
        meant("matches entries", "match"),
        meant("limiter", "limiters"),
        elsewhere("cost", "a cost belongs to a limiter, as in `limiters: [{ limiter: search, cost: 5 }]`"),
    ],
};
