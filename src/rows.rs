//! Rows of databases and files: a task for each source asks for them again and again, and gives those that are valid to
//! [`Live`]. While the source is away, everything stays as it was.

mod accepted;
mod database;
mod limits;
mod rates;
mod source;

use crate::{
    config::{Config, RowsFrom},
    live::{Live, RowsStatus},
    throttle::Timestamp,
};
use database::DatabaseRow;
use limits::LimitRows;
use parking_lot::Mutex;
use source::{RowsError, RowsReader};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// How often a gateway looks whether a reload has brought a source.
const IDLE: Duration = Duration::from_secs(2);

/// The most lines that one change writes to the log.
const MAX_LINES: usize = 50;

/// The purpose of rows: limiters, or the rates of the keys of one limiter.
trait FollowedRows: Send + 'static {
    type Row: Send + 'static;
    /// The most rows.
    const MOST: usize;
    /// Reads a row of a database.
    fn read(row: DatabaseRow<'_>) -> Result<Self::Row, RowsError>;
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The place and the reason.
    fn read_file(text: &str) -> Result<Vec<Self::Row>, String>;
    /// The source that the configuration names; `None` for none.
    fn source(&self, config: &Config) -> Option<RowsFrom>;
    /// Applies the rows. Checks the whole configuration, which may take long.
    fn take(&mut self, live: &Live, rows: Vec<Self::Row>);
    /// Brings the numbers of rows into `status`, and reports what has changed.
    fn report(&mut self, live: &Live, status: &mut RowsStatus);
    /// Logs that the source gave `rows`, after it gave none.
    fn log_up(&self, rows: usize);
    /// Logs that the source gives no rows.
    fn log_down(&self, error: &str);
    /// Shows the state; `None` if the configuration names no source any more.
    fn show(&self, live: &Live, status: Option<&RowsStatus>);
}

/// A configuration with the rates of its files.
pub struct WithRates {
    /// The configuration.
    pub config: Config,
    /// A sentence for each mistake in the files.
    pub flaws: Vec<String>,
}

/// Follows the rows of one source.
struct RowsFollower<F> {
    live: Arc<Live>,
    reader: Option<RowsReader>,
    /// The source that `reader` reads.
    from: Option<RowsFrom>,
    status: RowsStatus,
    followed: Arc<Mutex<F>>,
}

/// Reads all rows once, and follows them on the current runtime, also after reloads.
pub(crate) async fn begin(live: &Arc<Live>) {
    let mut limits = RowsFollower::new(live, LimitRows::default());
    limits.load().await;
    tokio::spawn(async move {
        loop {
            limits.pause().await;
            limits.load().await;
        }
    });
    rates::begin(live).await;
}

/// The same configuration with the rates of its files, as a gateway would have them. No database is read.
pub fn with_files(config: Config) -> WithRates {
    let mut flaws = Vec::new();
    let tables = rates::read_files(&config, &mut flaws);
    let config = config.with_rates(&tables, &[]);
    for limiter in &config.limiters {
        let unfit = limiter.unfit_rows.iter().take(MAX_LINES);
        flaws.extend(unfit.map(|own| format!("rates_from of {}: {}", limiter.name, own.reason)));
    }
    WithRates { config, flaws }
}

// === impl RowsFollower ===

impl<F: FollowedRows> RowsFollower<F> {
    /// Follows what the configuration of `live` names.
    fn new(live: &Arc<Live>, followed: F) -> Self {
        let (live, followed) = (live.clone(), Arc::new(Mutex::new(followed)));
        Self { live, reader: None, from: None, status: RowsStatus::default(), followed }
    }

    /// Waits for the next look, or until a reload has brought another source.
    async fn pause(&self) {
        let end = Instant::now() + self.from.as_ref().map_or(IDLE, |from| from.every);
        while Instant::now() < end {
            sleep_until(end.min(Instant::now() + IDLE)).await;
            if self.followed.lock().source(&self.live.plan().config) != self.from {
                return;
            }
        }
    }

    /// Asks the source once, and applies what has changed. False if the configuration names none.
    async fn load(&mut self) -> bool {
        let from = self.followed.lock().source(&self.live.plan().config);
        if from != self.from {
            (self.reader, self.from) = (None, from);
        }
        let Some(from) = &self.from else {
            self.forget().await;
            return false;
        };
        let reader = self.reader.get_or_insert_with(|| RowsReader::new(&from.source));
        match reader.rows::<F>().await {
            Ok(rows) => {
                if let Some(rows) = rows {
                    if !self.status.up {
                        self.followed.lock().log_up(rows.len());
                    }
                    self.take(rows).await;
                }
                self.status.up = true;
                self.status.error = None;
                self.status.loaded = Some(Timestamp::now());
            }
            Err(error) => {
                self.reader = None;
                let error = error.to_string();
                if self.status.error.as_ref() != Some(&error) {
                    self.followed.lock().log_down(&error);
                }
                self.status.up = false;
                self.status.error = Some(error);
            }
        }
        self.show();
        true
    }

    /// Applies rows, off the runtime because the whole configuration is checked.
    async fn take(&self, rows: Vec<F::Row>) {
        let (live, followed) = (self.live.clone(), self.followed.clone());
        let done = spawn_blocking(move || followed.lock().take(&live, rows));
        // Fails only if it panics, which the log shows. All rows are read again then.
        drop(done.await);
    }

    fn show(&mut self) {
        let mut followed = self.followed.lock();
        followed.report(&self.live, &mut self.status);
        followed.show(&self.live, Some(&self.status));
    }

    /// Removes all rows, after a reload without the source.
    async fn forget(&mut self) {
        if self.status != RowsStatus::default() {
            self.take(Vec::new()).await;
            self.status = RowsStatus::default();
            self.followed.lock().show(&self.live, None);
        }
    }
}
