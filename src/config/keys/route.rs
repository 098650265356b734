//! The keys of a route.

use super::{
    CHARGE, HEADERS, REVALIDATE, SHARE,
    kind::Kind,
    spec::{
        COST, HOUR, Keys, REDIRECT, REMOVE, RETRIES, SET, choice, duration, elsewhere, key, list,
        meant, number, replaced, section, words,
    },
};
use crate::config::AnswerForm;
use std::time::Duration;

pub(in crate::config) const ROUTE: Keys = Keys {
    name: "route",
    meaning: "The requests of one kind, and what happens to them.",
    specs: &[
        key("name", Kind::Text).written("text, 1 to 128").otherwise("the suffix or path")
            .says("labels metrics and logs; unique"),
        key("suffix", Kind::Text).required().but(", or `path`")
            .says("the end of the path, see [below](#how-a-path-is-compared). `\"*\"` (in quotes) matches every path"),
        key("path", Kind::Text)
            .says("the whole path, in place of `suffix`, see [below](#whole-paths): `{name}` is one segment, `{*rest}` \
                one segment or more. It outranks every suffix, and the more literal path wins"),
        list("methods", 1..=u64::MAX, &Kind::Text).otherwise("all")
            .says("the methods that the route takes, in capitals. `GET` includes `HEAD`, unless another route with the \
                same suffix or path names `HEAD`"),
        key("host", Kind::Text).otherwise("all")
            .says("the host that the route is for, without scheme and port; compared without regard to case"),
        key("upstream", Kind::Text).written("name").otherwise("the only one")
            .says("the name of the upstream; required when there are several"),
        list("limiters", 0..=u64::MAX, &Kind::Section(&CHARGE)).written("list of [charges](#what-a-request-costs)")
            .says("the limiters that a request must pass, all or none, besides those of the upstream. Each once"),
        words("priority", || vec!["high", "normal", "low", "rfc9218"]).or(&[], ", or a header").default("normal")
            .says("the priority among the requests that wait for [the same limiter](fair.md). `\"{header.x-priority}\"`: \
                each request says its own, by one of the three words in this header; `rfc9218`: by the urgency in its \
                field `Priority`, as in `u=7`. Both count only from `trusted_proxies`, and all other requests are \
                `normal`"),
        duration("max_wait", Duration::ZERO..=HOUR).or(&[Kind::Fraction], ", or a [percentage](#how-long-a-request-waits)").default("0")
            .says("the wait budget: the longest time that a request is held until its slot comes. With `0` a request \
                that cannot pass at once is refused at once; a missing key means the same and is a warning"),
        duration("max_wait_cap", Duration::ZERO..=HOUR).or(&[Kind::Fraction], ", or a [percentage](#how-long-a-request-waits)").otherwise("that of `max_wait`")
            .says("how far a caller may lengthen its wait with `Prefer: wait=SECONDS`; not below `max_wait`"),
        number("max_waiting", 1..=10_000_000).default("10000")
            .says("requests held on this route at one time in one gateway; above it 503 `queue-full`"),
        words("ratelimit_headers", || vec!["refused", "all"]).otherwise("that of the file")
            .says("as at the top of the file, for this route"),
        choice::<AnswerForm>("answers").otherwise("that of the upstream")
            .says("as for the upstream, for this route"),
        choice::<bool>("share").or(&[Kind::Section(&SHARE)], ", or a [list of headers](#share)").default("off")
            .says("identical `GET` or `HEAD` requests that wait become [one call](reads.md)"),
        choice::<bool>("revalidate").or(&[Kind::Section(&REVALIDATE)], ", or [memory](#revalidate)").otherwise("that of the upstream")
            .says("as for the upstream, for this route, with a memory of its own"),
        section("headers", &HEADERS, "[changes](#headers)")
            .says("changes to headers, after those of the upstream's own `headers`"),
    ],
    others: &[
        replaced("prefix paths location", "path", PATH),
        meant("limiter", "limiters"),
        meant("coalesce collapse singleflight deduplicate", "share"),
        meant("cache etag", "revalidate"),
        elsewhere("rate rps rpm burst algorithm key mode fair", QUOTA),
        elsewhere("cost", COST),
        elsewhere(
            "weight",
            "weights belong to a limiter, as in `fair: { by: \"{header.x-team}\", weights: { NAME: 4 } }`",
        ),
        elsewhere("url urls", "a route names one of the `upstreams`, which have the URLs"),
        elsewhere("timeout response_timeout", TIMEOUT),
        elsewhere("retry retries", RETRIES),
        elsewhere("add_headers set_headers request_headers response_headers", SET),
        elsewhere("remove_headers", REMOVE),
        elsewhere("proxy_redirect redirect", REDIRECT),
    ],
};

const PATH: &str = "a route matches the end of a path, as in `suffix: /search` for /search and /v2/search, or a whole \
                    path, as in `path: \"/v2/shops/{shop}\"`; all paths below /v2 are `path: \"/v2/{*rest}\"`";
const TIMEOUT: &str = "it is `upstreams.NAME.response_timeout`";
const QUOTA: &str = "it belongs to a limiter under `limiters:` at the top, which the route names";
