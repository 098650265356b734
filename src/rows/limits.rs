//! The rows of `limits_from`: limiters that replace those of the file, or add some. Asks no database.

use super::{FollowedRows, accepted::AcceptedRows, database::DatabaseRow, source::RowsError};
use crate::{
    config::{Config, LimitRow, RowsFrom},
    live::{Live, RowsStatus},
    metrics,
};

/// The limiters of a database.
#[derive(Default)]
pub(super) struct LimitRows {
    accepted: AcceptedRows,
    /// The limiters that were missing at the last look.
    missing: Vec<String>,
}

// === impl LimitRows ===

impl FollowedRows for LimitRows {
    type Row = LimitRow;
    const MOST: usize = 10_000;

    fn read(row: DatabaseRow<'_>) -> Result<LimitRow, RowsError> {
        let name = row.required("name")?.to_owned();
        let others = row.columns.into_iter().filter(|(column, _)| *column != "name");
        let columns = others.filter_map(|(column, text)| Some((column.to_owned(), text?)));
        Ok(LimitRow { name, columns: columns.collect() })
    }

    fn read_file(_: &str) -> Result<Vec<LimitRow>, String> {
        Err("is no database".into())
    }

    fn source(&self, config: &Config) -> Option<RowsFrom> {
        config.limits_from.clone()
    }

    fn take(&mut self, live: &Live, rows: Vec<LimitRow>) {
        self.accepted.take(live, rows);
    }

    /// Reports the limiters that routes name and that neither the file nor a row has, when they have changed.
    fn report(&mut self, live: &Live, status: &mut RowsStatus) {
        (status.rows, status.invalid) = (self.accepted.len(), self.accepted.invalid());
        let missing = live.missing();
        if missing != self.missing {
            let limiters = missing.join(", ");
            if missing.is_empty() {
                tracing::info!("limits_from: all limiters that the file names are there");
            } else {
                tracing::error!(
                    limiters,
                    "limits_from: neither the file nor a row has these limiters; requests of their routes get 503"
                );
            }
            self.missing = missing;
        }
    }

    fn log_up(&self, rows: usize) {
        tracing::info!(rows, "limits_from: the database answers");
    }

    fn log_down(&self, error: &str) {
        tracing::warn!(error, "limits_from: the database gives no limits; all stay as they are");
    }

    fn show(&self, live: &Live, status: Option<&RowsStatus>) {
        let now = status.cloned().unwrap_or_default();
        let missing = if status.is_some() { self.missing.len() } else { 0 };
        metrics::LIMITS_FROM_ROWS.level(&[]).set(now.rows as f64);
        metrics::LIMITS_FROM_INVALID.level(&[]).set(now.invalid as f64);
        metrics::LIMITS_FROM_MISSING.level(&[]).set(missing as f64);
        if status.is_some() {
            metrics::LIMITS_FROM_UP.level(&[]).set(f64::from(u8::from(now.up)));
            if let Some(at) = now.loaded.filter(|_| now.up) {
                metrics::LIMITS_FROM_LOADED.level(&[]).set(at.as_millisecond() as f64 / 1e3);
            } else {
                metrics::LIMITS_FROM_ERRORS.count(&[]).increment(1);
            }
        }
        live.set_limits_status(status.cloned());
    }
}
