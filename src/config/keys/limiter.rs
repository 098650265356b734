//! The keys of a limiter.

use super::{
    FAIR, FLOORS, RATES_FROM,
    kind::Kind,
    rule_kind::RuleKind::{
        self, Concurrency, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket, WarmUp,
    },
    spec::{
        COST, DAY, HOUR, Keys, MILLISECOND, SECOND, choice, duration, elsewhere, key, map, meant,
        number, replaced, section, words,
    },
};
use crate::config::calendar::Spread;
use crate::config::limiter::{FailurePolicy, Mode, Scope};
use crate::store::OnLoss;
use std::time::Duration;

pub(in crate::config) const LIMITER: Keys = Keys {
    name: "limiter",
    meaning: "A quota.",
    specs: &[
        choice::<RuleKind>("algorithm").default("token_bucket")
            .says("how the quota is kept, see [which for which quota](limiters/README.md). `token_bucket`: permits flow \
                in at a constant rate, and up to `burst` are kept. `sliding_window`: at most COUNT in any window of a \
                PERIOD. `fixed_window`: at most COUNT in each window of the store's clock. `leaky_bucket`: one after the \
                other, evenly spaced. `warm_up`: a rate that rises from cold to full while it is used. `concurrency`: at \
                most `max` at a time"),
        key("rate", Kind::Rate).or(&[AUTO, Kind::List { least: 1, most: 8, of: &Kind::Rate }], ", rates, or `auto`").required()
            .of(&RATES)
            .says("COUNT requests of cost 1 in a PERIOD. A list for `token_bucket`, `sliding_window` and `fixed_window`. \
                `auto`, for `token_bucket`, `sliding_window` and `leaky_bucket`: the rate is \
                [learned](limiting.md#rates-and-margins-that-are-learned) from the upstream's refusals"),
        key("start", Kind::Rate).required()
            .of(&[]).of_auto_rates()
            .says("the rate before anything is known. While it is used, it doubles in six of its PERIODs"),
        key("min", Kind::Rate).otherwise("a hundredth of `start` or `rate`")
            .of(&[]).of_auto_rates()
            .says("the lowest rate"),
        key("resets", Kind::Text).written("time and zone").otherwise("counted from 1970")
            .of(&[FixedWindow])
            .says("when the windows of a rate per hour, day, week or month \
                [begin](limiters/fixed_window.md#windows-of-the-calendar), such as `00:00 America/Los_Angeles`, `mon 09:00 UTC`, \
                `day 15 00:00 UTC`"),
        choice::<Spread>("spread").default("none")
            .of(&[FixedWindow])
            .says("`even`: what is left of a window flows evenly until its end. With `resets`"),
        number("burst", 1..=1_000_000_000).otherwise("COUNT of the rate; `1` with `rate: auto`")
            .of(&[TokenBucket])
            .says("permits that an idle limiter keeps, so the most that can pass at once. A bucket that would take more \
                than 70 years to fill is an error. Not with a list, where each rate's burst is its own COUNT"),
        duration("margin", Duration::ZERO..=HOUR).or(&[AUTO], ", or `auto`").default("0")
            .of(&[SlidingWindow, LeakyBucket])
            .says("extra spacing for delay that varies on the way to the upstream. `auto`: \
                [learned](limiting.md#rates-and-margins-that-are-learned) from the times of answers and from refusals"),
        number("capacity", 1..=1_000_000_000).otherwise("as many as the wait budget allows")
            .of(&[LeakyBucket])
            .says("permits that may queue"),
        duration("warm_up", MILLISECOND..=HOUR).required()
            .of(&[WarmUp])
            .says("the time from cold to the full rate"),
        key("cold_factor", Kind::Fraction).written("number above 1, at most 100, also `2.5`").default("3")
            .of(&[WarmUp])
            .says("how many times slower than the full rate a cold limiter is"),
        number("max", 1..=1_000_000_000).or(&[Kind::Rate], "; a rate").required().but("; a thousand times `start`, ten times `rate`")
            .of(&[Concurrency]).of_auto_rates()
            .says("how many requests may be under way at a time; with `rate: auto` or `learn` the highest rate"),
        duration("lease", SECOND..=DAY).default("60s")
            .of(&[Concurrency])
            .says("how long the permits of a gateway that died stay taken"),
        key("key", Kind::Template).written("[template](#which-bucket-a-request-belongs-to)").otherwise("one bucket for all")
            .says("the bucket that a request belongs to: text and parts of the request, such as `{client_ip}`, \
                `{client_ip/64}`, `{path.NAME}`, `{path.NAME:int}`, `{header.NAME}`, `{query.NAME}`, `{body./POINTER}` \
                or `{segment.N}`, joined"),
        map("rates", 0..=10_000, &Kind::Rate).written("map of names and rates").otherwise("one rate for all keys")
            .of(&RATES)
            .says("another rate for some keys, such as `{ acme: 20/s, \"plus-*\": 10/s }`: the rate of its name, or else of \
                the longest pattern (`*` is any text) that a key has. With a `key` and one rate"),
        section("rates_from", &RATES_FROM, "[map](#rates_from)")
            .of(&RATES)
            .says("a file or a query with more such rates, as many as 100000, which replace those of `rates`. Changes take \
                effect without a reload"),
        words("learn", || vec!["limit"]).otherwise("nothing")
            .of(&[TokenBucket, LeakyBucket])
            .says("`limit`: each key has the [rate that the upstream's answers \
                name](limiting.md#rates-and-margins-that-are-learned), from `min` to `max`, and `rate` until then"),
        section("fair", &FAIR, "[tenants and weights](fair.md)").otherwise("first come, first served")
            .says("the tenants that share the slots, or the permits of `concurrency`, while several of them wait, such \
                as `{ by: \"{header.x-team}\", weights: { checkout: 4 } }`. With a `key`, they share each bucket"),
        section("floors", &FLOORS, "[permits that stay](fair.md#floors)").otherwise("none")
            .of(&[TokenBucket, SlidingWindow, FixedWindow, Concurrency])
            .says("the permits that requests of lower priorities leave to those of higher ones, such as `{ high: 20% }`: the \
                last fifth is for `priority: high`"),
        choice::<Scope>("scope").default("cluster")
            .says("`instance`: each gateway has the quota for itself, whatever the store"),
        choice::<Mode>("mode").default("enforce")
            .says("`observe` decides and counts, but never holds or refuses; `off` does nothing. `false`, which tools of \
                YAML 1.1 make of `off`, means the same"),
        choice::<FailurePolicy>("on_failure").otherwise("that of the store")
            .says("the behaviour of this limiter [while the store is away](operation.md#when-redis-is-away). If a \
                request has several limiters, the strictest counts"),
        choice::<OnLoss>("on_loss").otherwise("that of the store")
            .says("the behaviour of this limiter [after the store has lost \
                states](operation.md#when-redis-loses-states), or may have: `close` counts lost states as used up, \
                `trust` continues with what the store has"),
    ],
    others: &[
        meant("type kind", "algorithm"),
        meant("limit", "rate max"),
        meant("fallback failure_mode", "on_failure"),
        replaced("period window interval per", "rate", PERIOD),
        replaced("rps qps tps per_second", "rate", EACH_SECOND),
        replaced("rpm per_minute", "rate", EACH_MINUTE),
        replaced("rph per_hour", "rate", "write `rate: <5>/h`"),
        replaced("rpd per_day", "rate", "write `rate: <5>/d`"),
        meant("quota", "rate"),
        elsewhere("max_wait max_wait_cap max_waiting", WAIT),
        elsewhere("cost", COST),
        elsewhere("priority", "it belongs to the route, as in `priority: high`"),
        elsewhere("weights weight", WEIGHTS),
        meant("floor reserved guaranteed", "floors"),
        meant("fairness", "fair"),
    ],
};

/// The rules with a rate.
const RATES: [RuleKind; 5] = [TokenBucket, SlidingWindow, FixedWindow, LeakyBucket, WarmUp];
const AUTO: Kind = Kind::Word(|| vec!["auto"]);

const EACH_SECOND: &str = "write `rate: <5>/s`";
const EACH_MINUTE: &str = "write `rate: <5>/min`";
const PERIOD: &str = "a period is a part of the rate, as in `rate: 5/s`";
const WEIGHTS: &str =
    "weights are written `fair: { by: \"{header.x-team}\", weights: { NAME: 4 } }`";
const WAIT: &str = "it belongs to the route";
