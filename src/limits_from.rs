//! Limiters from a database: a task asks for the rows again and again, and gives those that are valid to [`Live`]. While the
//! database is away, everything stays as it was.

mod accepted;
mod database;

use crate::{
    config::{LimitRow, LimitsFrom},
    live::{LimitsStatus, Live},
    metrics,
    throttle::Timestamp,
};
use accepted::AcceptedRows;
use database::{Database, DatabaseError};
use std::{sync::Arc, time::Duration};
use tokio::{task::spawn_blocking, time::sleep};

/// How often a gateway without `limits_from` looks whether a reload has brought one.
const IDLE: Duration = Duration::from_secs(2);

/// Follows the rows of a database.
pub struct LimitsFollower {
    live: Arc<Live>,
    database: Option<Database>,
    accepted: AcceptedRows,
    /// The setting that `database` belongs to.
    settings: Option<LimitsFrom>,
    status: LimitsStatus,
    /// The limiters that were missing at the last look.
    missing: Vec<String>,
}

// === impl LimitsFollower ===

impl LimitsFollower {
    /// Follows what the configuration of `live` names, also after reloads.
    pub fn new(live: Arc<Live>) -> Self {
        let (accepted, status) = (AcceptedRows::default(), LimitsStatus::default());
        Self { live, database: None, accepted, settings: None, status, missing: Vec::new() }
    }

    /// Asks the database for as long as the process runs.
    pub async fn follow(mut self) {
        loop {
            let pause = self.settings.as_ref().map_or(IDLE, |settings| settings.every);
            sleep(pause).await;
            self.load().await;
        }
    }

    /// Asks the database once, and applies what has changed. Returns at once if the configuration names none.
    pub async fn load(&mut self) {
        let settings = self.live.plan().config.limits_from.clone();
        if settings != self.settings {
            (self.database, self.settings) = (None, settings);
        }
        let Some(settings) = self.settings.clone() else { return self.forget().await };
        match self.rows(&settings).await {
            Ok(rows) => {
                if !self.status.up {
                    tracing::info!(rows = rows.len(), "limits_from: the database answers");
                }
                let at = Timestamp::now();
                metrics::LIMITS_FROM_LOADED.level(&[]).set(at.as_millisecond() as f64 / 1e3);
                self.accept(rows).await;
                self.status.up = true;
                self.status.error = None;
                self.status.loaded = Some(at);
            }
            Err(error) => {
                self.database = None;
                metrics::LIMITS_FROM_ERRORS.count(&[]).increment(1);
                let error = error.to_string();
                if self.status.error.as_ref() != Some(&error) {
                    tracing::warn!(
                        error,
                        "limits_from: the database gives no limits; all stay as they are"
                    );
                }
                self.status.up = false;
                self.status.error = Some(error);
            }
        }
        self.report_missing();
        metrics::LIMITS_FROM_UP.level(&[]).set(f64::from(u8::from(self.status.up)));
        self.show_rows();
        self.live.set_limits_status(Some(self.status.clone()));
    }

    async fn rows(&mut self, settings: &LimitsFrom) -> Result<Vec<LimitRow>, DatabaseError> {
        let database = match &mut self.database {
            Some(database) => database,
            None => self.database.insert(Database::connect(&settings.url).await?),
        };
        database.rows(&settings.query).await
    }

    /// Applies rows, off the runtime because the whole configuration is checked.
    async fn accept(&mut self, rows: Vec<LimitRow>) {
        let live = self.live.clone();
        let mut accepted = std::mem::take(&mut self.accepted);
        let done = spawn_blocking(move || {
            accepted.take(&live, rows);
            accepted
        });
        // Fails only if it panics, which the log shows. All rows are read again then.
        self.accepted = done.await.unwrap_or_default();
        self.status.rows = self.accepted.len();
        self.status.invalid = self.accepted.invalid();
    }

    /// Reports the limiters that routes name and that neither the file nor a row has, when they have changed.
    fn report_missing(&mut self) {
        let missing = self.live.missing();
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

    /// Shows how many rows there are, and how many limiters neither the file nor a row has.
    fn show_rows(&self) {
        metrics::LIMITS_FROM_ROWS.level(&[]).set(self.status.rows as f64);
        metrics::LIMITS_FROM_INVALID.level(&[]).set(self.status.invalid as f64);
        metrics::LIMITS_FROM_MISSING.level(&[]).set(self.missing.len() as f64);
    }

    /// Removes all rows, after a reload without `limits_from`.
    async fn forget(&mut self) {
        if self.accepted.len() > 0 || self.status != LimitsStatus::default() {
            self.accept(Vec::new()).await;
            self.status = LimitsStatus::default();
            self.missing = Vec::new();
            self.show_rows();
            self.live.set_limits_status(None);
        }
    }
}
