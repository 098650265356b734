//! The file or the database that limiters or rates come from, as the configuration names it. Reads none.

use super::mistake::Mistake;
use std::{fmt, path::PathBuf, time::Duration};

/// Where rows come from: those of `limits_from`, which replace limiters of the file or add some, or those of `rates_from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsFrom {
    /// The file or the database.
    pub source: RowsSource,
    /// The pause between two looks at it.
    pub every: Duration,
}

/// A file or a database with rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsSource {
    /// A map of keys and rates, in YAML or JSON.
    File(PathBuf),
    /// A query of a database.
    Database {
        /// The database.
        url: DatabaseUrl,
        /// The query. Its columns are `name`, keys of a limiter, and `enabled`; or `key` and `rate`.
        query: String,
    },
}

/// A limiter that a route or an upstream names, and that neither the file nor a row of `limits_from` has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingLimiter {
    /// The name.
    pub name: String,
    /// The place that names it, and the reason why the name is unknown.
    pub mistake: Mistake,
}

/// The URL of a database. It may hold a password, which nothing shows.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    text: String,
    kind: DatabaseKind,
}

/// The protocol that a database speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
}

// === impl DatabaseUrl ===

impl DatabaseUrl {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// The reason, if the scheme is that of no database that is known. It does not quote the URL.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let kind = match text.split_once("://") {
            Some(("postgres" | "postgresql", _)) => DatabaseKind::Postgres,
            Some(("mysql" | "mariadb", _)) => DatabaseKind::MySql,
            _ => {
                return Err(
                    "is no URL of a database; write postgres://USER:PASSWORD@HOST/DATABASE, or mysql://...",
                );
            }
        };
        Ok(Self { text: text.to_owned(), kind })
    }

    /// The protocol of the database.
    pub fn kind(&self) -> DatabaseKind {
        self.kind
    }

    /// The URL with its password.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({:?}, ***)", self.kind)
    }
}
