//! The keys of `fair` of a limiter.

use super::{
    kind::Kind,
    spec::{Keys, elsewhere, key, map, meant},
};

pub(in crate::config) const FAIR: Keys = Keys {
    name: "fair",
    meaning: "The tenants that share a limiter, and their weights.",
    specs: &[
        key("by", Kind::Template).written("[template](#which-bucket-a-request-belongs-to)").required()
            .says("the tenant that a request belongs to, by the parts that a `key` may have. Requests without the part \
                are one tenant, `-`"),
        map("weights", 0..=1_024, &Kind::Number { least: 1, most: 1_000 }).written("map of names and numbers, 1 to 1000").otherwise("`1` for each")
            .says("the weights of tenants, at most 1024: while several wait, one of weight 4 gets four times the slots \
                of one of weight 1"),
    ],
    others: &[
        meant("key tenant", "by"),
        meant("weight", "weights"),
        elsewhere("priority", "it belongs to the route, as in `priority: high`"),
        elsewhere("priorities", "each route has its own, as in `priority: high`"),
    ],
};
