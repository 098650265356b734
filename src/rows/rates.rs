//! The rows of `rates_from`: rates of single keys of a limiter, from a file or a database. Asks no database.

use super::{
    FollowedRows, IDLE, MAX_LINES, RowsFollower,
    database::{DatabaseError, DatabaseRow},
    source::{self, RowsError},
};
use crate::{
    config::{
        Config, LimiterConfig, MOST_RATES, RateRow, RateTables, RowsFrom, RowsSource, UnfitRow,
    },
    live::{Live, RowsStatus},
    metrics,
    plan::Plan,
};
use ::metrics::Gauge;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tokio::{task::JoinHandle, time::sleep};

/// The rates of the keys of one limiter.
struct RateRows {
    limiter: String,
    /// The rows as the source had them last, each with the former rate of its key.
    seen: Arc<[RateRow]>,
    /// The rows that were reported because the limiter cannot have them.
    reported: Arc<[UnfitRow]>,
    // A series ends with its handle.
    up: Gauge,
    used: Gauge,
    invalid: Gauge,
}

/// Reads the rates of all limiters once, and follows them on the current runtime.
pub(super) async fn begin(live: &Arc<Live>) {
    let mut followers = Vec::new();
    for name in limiters(&live.plan()) {
        let mut follower = RowsFollower::new(live, RateRows::of(&name));
        let loaded = tokio::spawn(async move {
            follower.load().await;
            follower
        });
        followers.push((name, loaded));
    }
    let mut tasks = HashMap::new();
    for (name, loaded) in followers {
        // Fails only if it panics, which the log shows.
        if let Ok(follower) = loaded.await {
            tasks.insert(name, tokio::spawn(follower.follow()));
        }
    }
    tokio::spawn(keep(live.clone(), tasks));
}

/// Begins a task for each limiter that a reload brings. One without rates ends its task itself.
async fn keep(live: Arc<Live>, mut tasks: HashMap<String, JoinHandle<()>>) {
    loop {
        sleep(IDLE).await;
        tasks.retain(|_, task| !task.is_finished());
        for name in limiters(&live.plan()) {
            tasks.entry(name).or_insert_with_key(|name| {
                let mut follower = RowsFollower::new(&live, RateRows::of(name));
                tokio::spawn(async move {
                    follower.load().await;
                    follower.follow().await;
                })
            });
        }
    }
}

/// The limiters whose rates come from elsewhere.
fn limiters(plan: &Plan) -> Vec<String> {
    let from = plan.config.limiters.iter().filter(|limiter| limiter.rates_from.is_some());
    from.map(|limiter| limiter.name.clone()).collect()
}

/// Reads the files of all limiters, and adds a sentence to `flaws` for each that cannot be used.
pub(super) fn read_files(config: &Config, flaws: &mut Vec<String>) -> RateTables {
    let mut tables = RateTables::new();
    for limiter in &config.limiters {
        let Some(from) = &limiter.rates_from else { continue };
        let RowsSource::File(path) = &from.from.source else { continue };
        let rows = source::content(path).and_then(|text| source::read::<RateRows>(path, &text));
        match rows {
            Ok(rows) => drop(tables.insert(limiter.name.clone(), rows.into())),
            Err(error) => flaws.push(format!("rates_from of {}: {error}", limiter.name)),
        }
    }
    tables
}

// === impl RowsFollower ===

impl RowsFollower<RateRows> {
    /// Follows the rates until a reload takes them away.
    async fn follow(mut self) {
        loop {
            self.pause().await;
            if !self.load().await {
                return;
            }
        }
    }
}

// === impl RateRows ===

impl RateRows {
    fn of(limiter: &str) -> Self {
        let labels = [limiter];
        Self {
            limiter: limiter.to_owned(),
            seen: Arc::default(),
            reported: Arc::default(),
            up: metrics::RATES_FROM_UP.level(&labels),
            used: metrics::RATES_FROM_ROWS.level(&labels),
            invalid: metrics::RATES_FROM_INVALID.level(&labels),
        }
    }

    fn limiter<'c>(&self, config: &'c Config) -> Option<&'c LimiterConfig> {
        config.limiters.iter().find(|limiter| limiter.name == self.limiter)
    }

    /// Gives each row whose rate is another one than before the last valid rate of its key.
    fn remember(&self, live: &Live, rows: &mut [RateRow]) {
        let plan = live.plan();
        let unfit = self.limiter(&plan.config).map(|limiter| limiter.unfit_rows.clone());
        let unfit: HashMap<usize, bool> =
            unfit.iter().flat_map(|all| all.iter()).map(|own| (own.row, own.has_former)).collect();
        let last = self.seen.iter().enumerate().filter_map(|(i, row)| match unfit.get(&i) {
            None => Some((row.key.as_str(), &row.rate)),
            Some(true) => Some((row.key.as_str(), row.former.as_ref()?)),
            Some(false) => None,
        });
        let last: HashMap<&str, &String> = last.collect();
        for row in rows {
            let former = last.get(row.key.as_str()).filter(|former| ***former != row.rate);
            row.former = former.map(|former| (*former).clone());
        }
    }

    fn is_seen(&self, rows: &[RateRow]) -> bool {
        let is_same = |(a, b): (&RateRow, &RateRow)| {
            a.key == b.key && a.rate == b.rate && a.number == b.number
        };
        rows.len() == self.seen.len() && rows.iter().zip(self.seen.iter()).all(is_same)
    }
}

impl FollowedRows for RateRows {
    type Row = RateRow;
    const MOST: usize = MOST_RATES;

    fn read(row: DatabaseRow<'_>) -> Result<RateRow, RowsError> {
        let (key, number) = (row.required("key")?.to_owned(), row.number);
        let rate = row.columns.into_iter().find(|(column, _)| *column == "rate");
        let (_, rate) = rate.ok_or(DatabaseError::NoColumn("rate"))?;
        // A key whose rate is null has that of the limiter.
        Ok(RateRow { key, rate: rate.unwrap_or_default(), former: None, number })
    }

    fn read_file(text: &str) -> Result<Vec<RateRow>, String> {
        RateRow::read_file(text)
    }

    fn source(&self, config: &Config) -> Option<RowsFrom> {
        Some(self.limiter(config)?.rates_from.as_ref()?.from.clone())
    }

    fn take(&mut self, live: &Live, mut rows: Vec<RateRow>) {
        rows.retain(|row| !row.rate.is_empty());
        if self.is_seen(&rows) {
            return;
        }
        self.remember(live, &mut rows);
        let rows: Arc<[RateRow]> = rows.into();
        let (limiter, count) = (&self.limiter, rows.len());
        let applied = live.apply(|parts| match count {
            0 => drop(parts.rates.remove(limiter)),
            _ => drop(parts.rates.insert(limiter.clone(), rows.clone())),
        });
        match applied {
            Ok(_) => {
                tracing::info!(limiter, rows = count, "rates_from: the rates of keys have changed");
                self.seen = rows;
            }
            Err(error) => {
                tracing::error!(limiter, %error, "rates_from: the rates cannot be used; all stay as they are");
            }
        }
    }

    /// Reports the rows that the limiter cannot have, once.
    fn report(&mut self, live: &Live, status: &mut RowsStatus) {
        let plan = live.plan();
        let unfit = self.limiter(&plan.config).map(|limiter| limiter.unfit_rows.clone());
        let unfit = unfit.unwrap_or_default();
        (status.rows, status.invalid) = (self.seen.len(), unfit.len());
        if unfit == self.reported {
            return;
        }
        let limiter = &self.limiter;
        let known: HashSet<&str> = self.reported.iter().map(|own| own.reason.as_str()).collect();
        let new = unfit.iter().filter(|own| !known.contains(own.reason.as_str()));
        for UnfitRow { reason, .. } in new.clone().take(MAX_LINES) {
            tracing::warn!(
                limiter,
                reason,
                "rates_from: a row is invalid; the last valid rate of its key stays"
            );
        }
        let more = new.count().saturating_sub(MAX_LINES);
        if more > 0 {
            tracing::warn!(limiter, more, "rates_from: further rows are invalid");
        }
        self.reported = unfit;
    }

    fn log_up(&self, rows: usize) {
        tracing::info!(limiter = self.limiter, rows, "rates_from: the rates of keys were read");
    }

    fn log_down(&self, error: &str) {
        let limiter = &self.limiter;
        tracing::warn!(limiter, error, "rates_from: no rates were read; all stay as they are");
    }

    fn show(&self, live: &Live, status: Option<&RowsStatus>) {
        let now = status.cloned().unwrap_or_default();
        self.up.set(f64::from(u8::from(now.up)));
        self.used.set(now.rows as f64);
        self.invalid.set(now.invalid as f64);
        live.set_rates_status(&self.limiter, status.cloned());
    }
}
