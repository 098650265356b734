//! The connection to the database, and its rows as texts. Checks no value.

use super::{FollowedRows, source::RowsError};
use crate::config::{DatabaseKind, DatabaseUrl};
use futures_core::Stream;
use sqlx::{
    Column, ColumnIndex, ConnectOptions, Decode, MySqlConnection, PgConnection, Row, TypeInfo,
    mysql::MySqlConnectOptions, postgres::PgConnectOptions,
};
use std::{future::poll_fn, pin::Pin, str::FromStr, time::Duration};
use tokio::time::timeout;

/// The longest time for a connection, and for a query with all its rows.
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_COLUMNS: usize = 64;
/// The most bytes of a value. The longest key of a limiter is far below.
const MAX_VALUE: usize = 4096;

/// A connection to the database.
pub(super) enum Database {
    Postgres(Box<PgConnection>),
    MySql(Box<MySqlConnection>),
}

/// A row as texts; a value that is null is `None`.
pub(super) struct DatabaseRow<'r> {
    /// Its number, from 1.
    pub(super) number: usize,
    pub(super) columns: Vec<(&'r str, Option<String>)>,
}

/// Why the database gives no rows.
#[derive(Debug, thiserror::Error)]
pub(super) enum DatabaseError {
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error("it gave no answer within {PATIENCE:?}")]
    TooLate,
    #[error("the query has more than {0} rows")]
    TooMany(usize),
    #[error("the query has more than {MAX_COLUMNS} columns")]
    TooWide,
    #[error("the query has no column `{0}`")]
    NoColumn(&'static str),
    #[error("row {row}: {reason}")]
    Unreadable { row: usize, reason: String },
}

// === impl Database ===

impl Database {
    pub(super) async fn connect(url: &DatabaseUrl) -> Result<Self, DatabaseError> {
        let connect = async {
            Ok(match url.kind() {
                DatabaseKind::Postgres => {
                    let options = PgConnectOptions::from_str(url.reveal())?;
                    let options = options.application_name("paceway").disable_statement_logging();
                    Self::Postgres(Box::new(options.connect().await?))
                }
                DatabaseKind::MySql => {
                    let options = MySqlConnectOptions::from_str(url.reveal())?;
                    let options = options.disable_statement_logging();
                    Self::MySql(Box::new(options.connect().await?))
                }
            })
        };
        timeout(PATIENCE, connect).await.map_err(|_| DatabaseError::TooLate)?
    }

    /// Makes the query, and reads its rows as texts, in which form both databases send all values of such a query.
    pub(super) async fn rows<F: FollowedRows>(
        &mut self,
        query: &str,
    ) -> Result<Vec<F::Row>, RowsError> {
        let query = sqlx::raw_sql(query);
        let rows = async {
            match self {
                Self::Postgres(connection) => read::<_, F>(query.fetch(&mut **connection)).await,
                Self::MySql(connection) => read::<_, F>(query.fetch(&mut **connection)).await,
            }
        };
        timeout(PATIENCE, rows).await.map_err(|_| DatabaseError::TooLate)?
    }
}

type RowStream<'s, R> = Pin<Box<dyn Stream<Item = Result<R, sqlx::Error>> + Send + 's>>;

async fn read<R, F: FollowedRows>(mut rows: RowStream<'_, R>) -> Result<Vec<F::Row>, RowsError>
where
    R: Row,
    usize: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database>,
{
    let mut all = Vec::new();
    while let Some(row) = poll_fn(|cx| rows.as_mut().poll_next(cx)).await {
        if all.len() == F::MOST {
            return Err(DatabaseError::TooMany(F::MOST).into());
        }
        let row = row.map_err(DatabaseError::from)?;
        all.push(F::read(DatabaseRow::of(&row, all.len() + 1)?)?);
    }
    Ok(all)
}

// === impl DatabaseRow ===

impl<'r> DatabaseRow<'r> {
    fn of<R>(row: &'r R, number: usize) -> Result<Self, DatabaseError>
    where
        R: Row,
        usize: ColumnIndex<R>,
        for<'d> String: Decode<'d, R::Database>,
    {
        if row.columns().len() > MAX_COLUMNS {
            return Err(DatabaseError::TooWide);
        }
        let mut own = Self { number, columns: Vec::with_capacity(row.columns().len()) };
        for (i, column) in row.columns().iter().enumerate() {
            let text = row.try_get_unchecked::<Option<String>, _>(i)?;
            if text.as_ref().is_some_and(|text| text.len() > MAX_VALUE) {
                let column = column.name();
                let reason = format!("column {column} is longer than {MAX_VALUE} bytes");
                return Err(own.unreadable(reason));
            }
            let text = match (text, column.type_info().name()) {
                (Some(text), "BOOL") if text == "t" => Some("true".to_owned()),
                (Some(text), "BOOL") if text == "f" => Some("false".to_owned()),
                (text, _) => text,
            };
            own.columns.push((column.name(), text));
        }
        Ok(own)
    }

    /// The value of a column that each row must have.
    pub(super) fn required(&self, name: &'static str) -> Result<&str, DatabaseError> {
        let found = self.columns.iter().find(|(column, _)| *column == name);
        let (_, text) = found.ok_or(DatabaseError::NoColumn(name))?;
        text.as_deref().ok_or_else(|| self.unreadable(format!("column {name} is null")))
    }

    fn unreadable(&self, reason: String) -> DatabaseError {
        DatabaseError::Unreadable { row: self.number, reason }
    }
}
