//! The keys of `rates_from` of a limiter.

use super::{
    kind::Kind,
    spec::{HOUR, Keys, TENTH, duration, key, meant},
};

pub(in crate::config) const RATES_FROM: Keys = Keys {
    name: "rates_from",
    meaning: "A file or a query of a database with the rates of keys.",
    specs: &[
        key("file", Kind::File)
            .required()
            .but(", or `url` and `query`")
            .says("a map of keys and rates as in `rates`, in YAML or JSON"),
        key("url", Kind::Url)
            .otherwise("none")
            .says("the database, as in [`limits_from`](#limits_from)"),
        key("query", Kind::Text)
            .written("SQL")
            .otherwise("none")
            .says("the query, with the columns `key` and `rate`"),
        duration("every", TENTH..=HOUR)
            .default("5s")
            .says("the pause between two looks at the file, or two queries"),
    ],
    others: &[
        meant("sql", "query"),
        meant("interval", "every"),
        meant("database dsn", "url"),
        meant("path", "file"),
    ],
};
