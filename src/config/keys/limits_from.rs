//! The keys of `limits_from`.

use super::spec::{Keys, key, meant};

pub(in crate::config) const LIMITS_FROM: Keys = Keys {
    name: "limits_from",
    meaning: "A query of a database whose rows replace limiters of the file, or add some.",
    rules: r##""required": ["url", "query"]"##,
    specs: &[
        key("url", "URL")
            .default("required")
            .means("`postgres://USER:PASSWORD@HOST/DATABASE` or `mysql://...` (MariaDB as well), with the parameters of \
                   its kind, such as `?sslmode=verify-full&sslrootcert=ca.pem` or `?ssl-mode=VERIFY_IDENTITY`")
            .schema(r##""type": "string",
"pattern": "^(postgres|postgresql|mysql|mariadb)://|\\$\\{",
"examples": ["postgres://paceway:${DB_PASSWORD}@db/limits"]"##),
        key("query", "SQL")
            .default("required")
            .means("the query. Its columns are `name`, keys of a limiter, and `enabled`; at most 10000 rows")
            .schema(r##""type": "string",
"minLength": 1,
"examples": ["select name, rate, burst, enabled from limits"]"##),
        key("every", "duration, 100ms to 1h")
            .default("`5s`")
            .means("the pause between two queries")
            .schema(r##""$ref": "#/$defs/duration""##),
    ],
    others: &[
        meant(&["sql"], &["query"]),
        meant(&["interval"], &["every"]),
        meant(&["database", "dsn"], &["url"]),
    ],
};
