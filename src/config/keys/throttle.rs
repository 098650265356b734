//! The keys under `throttle` of an upstream.

use super::{
    kind::Kind,
    spec::{
        DAY, Keys, TENTH, choice, duration, elsewhere, list, meant, number, section, size, words,
    },
};
use crate::throttle::Style;

pub(in crate::config) const THROTTLE: Keys = Keys {
    name: "throttle",
    meaning: "How an upstream says \"slow down\", and what then happens.",
    specs: &[
        list("when", 1..=32, &Kind::Text).written("list of at most {most} conditions").otherwise("`[429, \"503 with retry-after\"]`, or those of `style`")
            .says("the answers that are refusals, see [below](#when)"),
        choice::<Style>("style").written("name of a [vendor](vendors/README.md)").default("auto")
            .says("the vendor whose headers are read. It also decides the defaults of `when` and `default_pause`: \
                `github` takes some answers of 403 for refusals, for example. `auto`: the headers that an answer has \
                show how to read them"),
        words("pauses", || vec!["all"])
            .or(&[Kind::List { least: 1, most: u64::MAX, of: &Kind::Text }], ", or a list of limiters").default("all")
            .says("which of the limiters that the refused request was charged to are paused, each for the key that the \
                request had there"),
        duration("default_pause", TENTH..=DAY).written("duration, {least} to `max_pause`").default("1s").but(", or that of `style`")
            .says("how long the limiters are paused when the answer names no time. It doubles with each refusal in a row \
                of one key, up to `max_pause`; refusals of requests that were under way together count once. Any other \
                answer ends the row, and so does an hour"),
        duration("max_pause", TENTH..=DAY).default("10min")
            .says("no pause is longer, whatever the upstream says"),
        section("retry", &RETRY, "[bounds](#retry)").otherwise("see there")
            .says("how refused requests are sent again"),
        list("free", 0..=16, &Kind::Number { least: 200, most: 599 }).written("list of statuses").otherwise("none; `[304]` with `style: github`")
            .says("the statuses of answers that the vendor does not count. Their permits come back at once, as if they \
                had cost 0"),
        words("learn", || vec!["on", "off", "remaining"]).default("on")
            .says("`on`: a refusal lowers the [working rate](refusals.md), and headers in which the upstream says what \
                remains of its quota lower the limiter that has this quota: until the reset that they name no more pass. \
                Nothing raises a limiter above its rule. `off`: a refusal only pauses. `remaining`: an older name of `on`"),
    ],
    others: &[
        meant("vendor dialect", "style"),
        meant("on if status statuses conditions codes", "when"),
        meant("pause", "default_pause pauses"),
        meant("limiters", "pauses"),
        meant("backoff min_pause", "default_pause"),
        elsewhere("retries attempts max_retries", ATTEMPTS),
        elsewhere("max_body", "it is written `retry: { max_body: <64KiB> }`"),
    ],
};

pub(in crate::config) const RETRY: Keys = Keys {
    name: "retry",
    meaning: "How refused requests are sent again: at their new slot, within the caller's own wait budget.",
    specs: &[
        number("attempts", 1..=100).default("100")
            .says("how often a request is sent at most, the first time included; `1` means that none is sent again. Each \
                attempt takes its own permits"),
        size("max_body", 0..=16 << 20).default("64KiB")
            .says("the longest body that is kept for another attempt; a request with a longer one is sent once. `0` \
                keeps none. All kept bodies together are bounded by [`limits.retry_bodies`](#limits)"),
    ],
    others: &[
        meant("max_attempts retries max_retries num_retries", "attempts"),
        meant("body max_body_size buffer", "max_body"),
        elsewhere("backoff", "the time between attempts is the pause, see `default_pause`"),
        elsewhere("per_try_timeout", "each attempt has the upstream's `response_timeout`"),
    ],
};

const ATTEMPTS: &str = "attempts are written `retry: { attempts: <3> }`";
