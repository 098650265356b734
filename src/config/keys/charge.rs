//! The keys of a charge: a limiter and the cost of a request there.

use super::{
    kind::Kind,
    spec::{Keys, key, meant, number, replaced},
};

pub(in crate::config) const CHARGE: Keys = Keys {
    name: "charge",
    meaning: "A limiter, and the cost of a request there.",
    specs: &[
        key("limiter", Kind::Text).written("name").required()
            .says("the limiter that the request is charged to"),
        number("cost", 1..=u64::MAX).or(
            &[Kind::Template, Kind::Section(&RESERVED_COST)],
            ", part of a request, their [sum](#sums), or a [reserved cost](#a-cost-that-the-answer-says)",
        ).default("1")
            .says("the permits that a request takes, at most as many as the limiter can give at once; or a part of the \
                request, such as `\"{header.x-cost}\"` or `\"{body./n}\"`: a part that is missing counts 1, a cost of `0` \
                takes nothing, and a request with another value than such a number is answered 400. A `concurrency` \
                limiter takes no cost"),
    ],
    others: &[replaced("name", "limiter", "write it as in `{ limiter: a, cost: 5 }`")],
};

pub(in crate::config) const RESERVED_COST: Keys = Keys {
    name: "reserved_cost",
    meaning: "A cost that is reserved until the answer says the true one.",
    specs: &[
        number("reserve", 1..=u64::MAX).or(&[Kind::Template], ", part of a request, their [sum](#sums), or `learned`").required()
            .says("the permits that are reserved, such as `\"{body./max_tokens}\"`. More than the limiter can give at \
                once are cut to that number. With `settle` at least 1 is reserved, otherwise `0` takes nothing. `learned` \
                is as much as [19 of 20 such calls cost](#a-reserve-that-is-learned)"),
        number("default", 1..=u64::MAX).default("1")
            .says("the number for each part of the request that is missing or no whole number, and until a reserve is learned"),
        key("settle", Kind::Template).written("part of an answer, or a [sum](#sums)")
            .says("the part of the answer that has the true cost: `\"{response.header.NAME}\"`, or \
                `\"{response.body./POINTER}\"` for a JSON body or the last event of a stream that has it. The rest of a \
                reserve is refunded, and a shortfall is a [debt](limiting.md#true-costs)"),
    ],
    others: &[
        meant("estimate max cost", "reserve"),
        meant("actual", "settle"),
        meant("fallback", "default"),
    ],
};
