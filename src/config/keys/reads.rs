//! The keys of `share` and `revalidate`: reads that cost no permit.

use super::{
    kind::Kind,
    spec::{Keys, list, meant, size},
};

pub(in crate::config) const SHARE: Keys = Keys {
    name: "share",
    meaning: "How identical reads that wait become one call.",
    specs: &[
        list("by", 0..=32, &Kind::Text).written("list of headers").otherwise("`[accept, accept-encoding, accept-language]`")
            .says("the headers in which identical requests agree, besides `Authorization`, `Cookie` and all that name \
                credentials or callers"),
    ],
    others: &[meant("headers key keys vary", "by")],
};

pub(in crate::config) const REVALIDATE: Keys = Keys {
    name: "revalidate",
    meaning: "How answers are kept that the vendor is asked to confirm.",
    specs: &[
        size("memory", 64 << 10..=64 << 30).default("64MiB")
            .says("the bytes of all kept answers; the one that was used longest ago leaves first. An answer may have an \
                eighth of them"),
    ],
    others: &[meant("size max_size bytes", "memory")],
};
