//! The connection to the database, and its rows as texts. Checks no value.

use crate::config::{DatabaseKind, DatabaseUrl, LimitRow};
use futures_core::Stream;
use sqlx::{
    Column, ColumnIndex, ConnectOptions, Decode, MySqlConnection, PgConnection, Row, TypeInfo,
    mysql::MySqlConnectOptions, postgres::PgConnectOptions,
};
use std::{future::poll_fn, pin::Pin, str::FromStr, time::Duration};
use tokio::time::timeout;

/// The longest time for a connection, and for a query with all its rows.
const PATIENCE: Duration = Duration::from_secs(5);
const MAX_ROWS: usize = 10_000;
const MAX_COLUMNS: usize = 64;
/// The most bytes of a value. The longest key of a limiter is far below.
const MAX_VALUE: usize = 4096;

/// A connection to the database.
pub(super) enum Database {
    Postgres(Box<PgConnection>),
    MySql(Box<MySqlConnection>),
}

/// Why the database gives no rows.
#[derive(Debug, thiserror::Error)]
pub(super) enum DatabaseError {
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error("it gave no answer within {PATIENCE:?}")]
    TooLate,
    #[error("the query has more than {MAX_ROWS} rows")]
    TooMany,
    #[error("the query has more than {MAX_COLUMNS} columns")]
    TooWide,
    #[error("the query has no column `name`")]
    NoName,
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
    pub(super) async fn rows(&mut self, query: &str) -> Result<Vec<LimitRow>, DatabaseError> {
        let query = sqlx::raw_sql(query);
        let rows = async {
            match self {
                Self::Postgres(connection) => read(query.fetch(&mut **connection)).await,
                Self::MySql(connection) => read(query.fetch(&mut **connection)).await,
            }
        };
        timeout(PATIENCE, rows).await.map_err(|_| DatabaseError::TooLate)?
    }
}

type RowStream<'s, R> = Pin<Box<dyn Stream<Item = Result<R, sqlx::Error>> + Send + 's>>;

async fn read<R>(mut rows: RowStream<'_, R>) -> Result<Vec<LimitRow>, DatabaseError>
where
    R: Row,
    usize: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database>,
{
    let mut all = Vec::new();
    while let Some(row) = poll_fn(|cx| rows.as_mut().poll_next(cx)).await {
        if all.len() == MAX_ROWS {
            return Err(DatabaseError::TooMany);
        }
        let row = limit_row(&row?, all.len() + 1)?;
        all.push(row);
    }
    Ok(all)
}

fn limit_row<R>(row: &R, number: usize) -> Result<LimitRow, DatabaseError>
where
    R: Row,
    usize: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database>,
{
    if row.columns().len() > MAX_COLUMNS {
        return Err(DatabaseError::TooWide);
    }
    let unreadable = |reason: String| DatabaseError::Unreadable { row: number, reason };
    let (mut name, mut columns) = (None, Vec::new());
    for (i, column) in row.columns().iter().enumerate() {
        let text = row.try_get_unchecked::<Option<String>, _>(i)?;
        if text.as_ref().is_some_and(|text| text.len() > MAX_VALUE) {
            let column = column.name();
            return Err(unreadable(format!("column {column} is longer than {MAX_VALUE} bytes")));
        }
        let text = match (text, column.type_info().name()) {
            (Some(text), "BOOL") if text == "t" => Some("true".to_owned()),
            (Some(text), "BOOL") if text == "f" => Some("false".to_owned()),
            (text, _) => text,
        };
        match column.name() {
            "name" => name = Some(text),
            column => columns.extend(text.map(|text| (column.to_owned(), text))),
        }
    }
    let name = name.ok_or(DatabaseError::NoName)?;
    let name = name.ok_or_else(|| unreadable("column name is null".into()))?;
    Ok(LimitRow { name, columns })
}
