//! The keys of `floors` of a limiter.

use super::{
    kind::Kind,
    spec::{Keys, elsewhere, key},
};

pub(in crate::config) const FLOORS: Keys = Keys {
    name: "floors",
    meaning: "The permits that a limiter keeps back for requests of higher priorities.",
    specs: &[
        key("high", Kind::Fraction)
            .written(FLOOR)
            .otherwise("none")
            .says("the permits for requests of [priority](#routes) `high`"),
        key("normal", Kind::Fraction)
            .written(FLOOR)
            .otherwise("none")
            .says("the permits for requests of priority `normal` and `high`"),
    ],
    others: &[elsewhere(
        "low",
        "no request has a lower priority; write the permits that `high` or `normal` keep",
    )],
};

const FLOOR: &str = "number of permits, or percentage of all, 1% to 99%";
