//! The keys of `limits_from`.

use super::{
    kind::Kind,
    spec::{HOUR, Keys, TENTH, duration, key, meant},
};

pub(in crate::config) const LIMITS_FROM: Keys = Keys {
    name: "limits_from",
    meaning: "A query of a database whose rows replace limiters of the file, or add some.",
    specs: &[
        key("url", Kind::Url).required()
            .says("`postgres://USER:PASSWORD@HOST/DATABASE` or `mysql://...` (MariaDB as well), with the parameters of \
                its kind, such as `?sslmode=verify-full&sslrootcert=ca.pem` or `?ssl-mode=VERIFY_IDENTITY`"),
        key("query", Kind::Text).written("SQL").required()
            .says("the query. Its columns are `name`, keys of a limiter, and `enabled`; at most 10000 rows"),
        duration("every", TENTH..=HOUR).default("5s")
            .says("the pause between two queries"),
    ],
    others: &[
        meant("sql", "query"),
        meant("interval", "every"),
        meant("database dsn", "url"),
    ],
};
