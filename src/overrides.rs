//! Overrides by operators: the store keeps them for all gateways, each gateway reads them twice a second and applies them until
//! they end. A gateway without the store keeps those that it knows.

mod table;

pub use table::{MOST_OVERRIDES, Overridden, Override, OverrideTable, Rates};

use crate::{
    algorithm::Micros,
    answer::end,
    config::{ConfigEdit, StoreConfig},
    key::{StateNames, shown},
    learn,
    limit::duration,
    live::{Live, ReloadError},
    log::{Permit, Throttle},
    store::{LimiterHold, Note, NoteChange, StoreAdmin, StoreError},
};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};

/// How often the table is read. A change by another gateway takes effect within this time and that of a call.
const PERIOD: Duration = Duration::from_millis(500);
/// How long a store may take for the table.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the start waits for the table, so that the first request is decided by it.
const START: Duration = Duration::from_millis(500);
const SECOND: Micros = 1_000_000;
/// How often a change is tried when other gateways change the table at the same moment.
const ATTEMPTS: usize = 8;

/// The overrides as this gateway knows and applies them.
pub struct Overrides {
    live: Arc<Live>,
    store: Arc<dyn StoreAdmin>,
    key: Arc<str>,
    known: Mutex<KnownTable>,
    /// Held while a change is applied, so that changes follow each other.
    applied: tokio::sync::Mutex<Applied>,
    changed: Notify,
}

/// The table as the store had it last.
struct KnownTable {
    text: Option<Arc<str>>,
    table: OverrideTable,
    /// The store's clock at an instant of ours.
    now: Micros,
    at: Instant,
}

/// The parts of the table that are in use.
#[derive(Default)]
struct Applied {
    table: OverrideTable,
    /// The plan's configuration has these values; `None` after an error, so that they are tried again.
    edits: Option<Vec<ConfigEdit>>,
    holds: Vec<(Vec<StateNames>, Micros)>,
}

/// Why an override cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// The configuration would be invalid, as `paceway check` says.
    #[error("{0}")]
    Invalid(String),
    /// There are [`MOST_OVERRIDES`] already.
    #[error("there are {MOST_OVERRIDES} overrides already; remove some")]
    Full,
    /// The store holds a text that this version cannot read.
    #[error(
        "the overrides in the store are not readable for this version of Paceway; the key `PREFIX:overrides` of the \
         store has them, and deleting it removes them"
    )]
    Unreadable,
    /// Other gateways changed the table at each attempt.
    #[error("other gateways change the overrides at this moment; try again")]
    Contended,
    /// The store gave no answer, so that the override may be set or not.
    #[error(
        "{0}; the store keeps the overrides: `/limiters` shows later whether this one was changed"
    )]
    Store(#[from] StoreError),
}

/// An override that an operator sets.
#[derive(Debug, Clone)]
pub struct NewOverride {
    /// Its values; the end follows from `span`.
    pub change: Override,
    /// How long it lasts.
    pub span: Duration,
}

/// An override that is in use.
#[derive(Debug, Clone)]
pub struct OverrideInForce {
    /// Its values.
    pub change: Override,
    /// The time that is left of it, µs.
    pub left: Micros,
}

// === impl Overrides ===

impl Overrides {
    /// Reads the overrides and applies them, and keeps doing so on the current runtime.
    pub async fn begin(live: Arc<Live>, store: Arc<dyn StoreAdmin>) -> Arc<Self> {
        let key = match &live.plan().config.store {
            StoreConfig::Memory => "paceway:overrides".into(),
            StoreConfig::Redis { prefix, .. } => format!("{prefix}:overrides").into(),
        };
        let table = OverrideTable::default();
        let known = Mutex::new(KnownTable { text: None, table, now: 0, at: Instant::now() });
        let (applied, changed) = Default::default();
        let own = Arc::new(Self { live, store, key, known, applied, changed });
        drop(timeout(START, own.read()).await);
        own.apply().await;
        tokio::spawn(own.clone().keep());
        own
    }

    async fn keep(self: Arc<Self>) {
        loop {
            let until_end = {
                let known = self.known.lock();
                let end = known.left().and_then(|left| left.first_end());
                end.map(|end| duration(end - known.now()))
            };
            let period = until_end.map_or(PERIOD, |left| left.min(PERIOD));
            tokio::select! {
                () = sleep(period) => {}
                () = self.changed.notified() => {}
            }
            if let Ok(Err(error)) = timeout(PATIENCE, self.read()).await {
                tracing::debug!(%error, "the overrides were not read");
            }
            self.apply().await;
        }
    }

    /// Reads the table. A store that has lost it, or its last changes, gets it back.
    async fn read(&self) -> Result<(), StoreError> {
        let asked = self.known.lock().now();
        let mut note = self.store.exchange(self.key.clone(), None).await?;
        for _ in 0..ATTEMPTS {
            let lost = self.known.lock().later_than(&note, asked);
            let Some(table) = lost else {
                self.learn(note.text, note.now);
                break;
            };
            // Another gateway may be about to do the same.
            let change = NoteChange { expected: note.text, text: table.text().into() };
            note = self.store.exchange(self.key.clone(), Some(change)).await?;
        }
        Ok(())
    }

    fn learn(&self, text: Option<Arc<str>>, now: Micros) {
        static LINES: Throttle = Throttle::new();
        let mut known = self.known.lock();
        (known.now, known.at) = (now, Instant::now());
        if known.text == text {
            return;
        }
        match text.as_deref().map_or(Some(OverrideTable::default()), OverrideTable::parse) {
            Some(table) => {
                (known.text, known.table) = (text, table);
                learn::look_again(&self.live.plan());
            }
            None => {
                if let Some(Permit { suppressed }) = LINES.permit() {
                    let key = &*self.key;
                    tracing::warn!(key, suppressed, "the overrides in the store are not readable");
                }
            }
        }
    }

    /// Applies the overrides that have not ended.
    async fn apply(&self) {
        let mut applied = self.applied.lock().await;
        let (table, now) = {
            let known = self.known.lock();
            (known.table.clone().without_ended(known.now()), known.now())
        };
        let edits = table.edits();
        if applied.edits.as_ref() != Some(&edits) {
            let is_new = !(applied.edits.is_none() && edits.is_empty());
            let live = self.live.clone();
            let wanted = edits.clone();
            let is_done = !is_new
                || spawn_blocking(move || apply_edits(&live, wanted)).await.unwrap_or(false);
            applied.edits = is_done.then_some(edits);
        }
        let plan = self.live.plan();
        let holds = table.limiters.iter().filter(|(_, own)| own.pause).filter_map(|(name, own)| {
            let plan = plan.limiters.iter().find(|plan| plan.limiter.name == *name)?;
            Some((plan.names().to_vec(), own.until))
        });
        let holds: Vec<_> = holds.collect();
        if applied.holds != holds {
            let own = holds.iter().cloned().map(|(names, until)| LimiterHold {
                is_its: Arc::new(move |state| names.iter().any(|own| own.key_in(state).is_some())),
                until: Instant::now() + duration(until - now),
            });
            self.store.pauses().hold(own.collect());
            applied.holds = holds;
        }
        log_changes(&applied.table, &table, now);
        applied.table = table;
    }

    /// Sets an override or removes it. Returns the one before. The other gateways follow
    /// within half a second and the time of a call.
    ///
    /// # Errors
    ///
    /// [`OverrideError`]. Only with [`OverrideError::Store`] may the override have been set.
    pub async fn set(
        &self,
        of: Overridden<'_>,
        new: Option<NewOverride>,
    ) -> Result<Option<Override>, OverrideError> {
        let asked = self.known.lock().now();
        let mut note = self.ask(None).await?;
        for _ in 0..ATTEMPTS {
            let mut table = self.table_in(&note, asked)?;
            let new = new.clone().map(|NewOverride { change, span }| {
                let until = note.now.saturating_add(whole(span));
                Override { until, ..change }
            });
            let before = table.set(of, new.clone());
            if before.is_none() && new.is_none() {
                return Ok(None);
            }
            if table.len() > MOST_OVERRIDES {
                return Err(OverrideError::Full);
            }
            if new.is_some() {
                let (live, edits) = (self.live.clone(), table.edits());
                let name = of.limiter().map(str::to_owned);
                let checked = spawn_blocking(move || live.check(edits, name.as_deref())).await;
                match checked {
                    Ok(checked) => checked.map_err(|error| invalid(&error, of.limiter()))?,
                    Err(error) => return Err(OverrideError::Invalid(error.to_string())),
                }
            }
            note = match self.write(note, table).await? {
                Some(note) => note,
                None => return Ok(before),
            };
        }
        Err(OverrideError::Contended)
    }

    /// Lets all gateways read what limiters have learned: this one has forgotten some of it. They follow within half a second and
    /// the time of a call.
    ///
    /// # Errors
    ///
    /// [`OverrideError`]. The others then follow when they read it anyway.
    pub async fn tell_forgotten(&self) -> Result<(), OverrideError> {
        let asked = self.known.lock().now();
        let mut note = self.ask(None).await?;
        for _ in 0..ATTEMPTS {
            let table = self.table_in(&note, asked)?;
            note = match self.write(note, table).await? {
                Some(note) => note,
                None => return Ok(()),
            };
        }
        Err(OverrideError::Contended)
    }

    /// The table of the store, or the one that it has lost.
    fn table_in(&self, note: &Note, asked: Micros) -> Result<OverrideTable, OverrideError> {
        let text = note.text.as_deref().unwrap_or("{}");
        let lost = self.known.lock().later_than(note, asked);
        let table = lost.or_else(|| OverrideTable::parse(text));
        Ok(table.ok_or(OverrideError::Unreadable)?.without_ended(note.now))
    }

    /// Writes a table in place of the one of `note`. Returns what another gateway has written instead.
    async fn write(
        &self,
        note: Note,
        mut table: OverrideTable,
    ) -> Result<Option<Note>, OverrideError> {
        // Later than any version that a gateway knows that has not read this change.
        table.version = note.now.max(table.version.saturating_add(1));
        let text: Arc<str> = table.text().into();
        let change = NoteChange { expected: note.text, text: text.clone() };
        let note = self.ask(Some(change)).await?;
        if note.text.as_ref() != Some(&text) {
            return Ok(Some(note));
        }
        self.learn(note.text, note.now);
        self.apply().await;
        // The next end may come sooner.
        self.changed.notify_one();
        Ok(None)
    }

    async fn ask(&self, change: Option<NoteChange>) -> Result<Note, StoreError> {
        let asked = self.store.exchange(self.key.clone(), change);
        timeout(PATIENCE, asked).await.unwrap_or(Err(StoreError::Timeout))
    }

    /// The overrides of single keys of a limiter that are in use, by key or pattern.
    pub fn of_keys(&self, limiter: &str) -> BTreeMap<String, OverrideInForce> {
        let known = self.known.lock();
        let now = known.now();
        let keys = known.table.keys.get(limiter).into_iter().flatten();
        let keys = keys.filter(|(_, own)| own.until > now);
        keys.map(|(key, own)| {
            let (change, left) = (own.clone(), own.until - now);
            (key.clone(), OverrideInForce { change, left })
        })
        .collect()
    }

    /// The override that is in use.
    pub fn of(&self, of: Overridden<'_>) -> Option<OverrideInForce> {
        let known = self.known.lock();
        let change = known.table.get(of)?;
        let left = change.until - known.now();
        (left > 0).then(|| OverrideInForce { change: change.clone(), left })
    }
}

/// Gives the configuration these values. Returns false if that was not possible, so that it is tried again.
fn apply_edits(live: &Live, edits: Vec<ConfigEdit>) -> bool {
    static LINES: Throttle = Throttle::new();
    let warn = |error: &ReloadError| {
        if let Some(Permit { suppressed }) = LINES.permit() {
            tracing::warn!(%error, suppressed, "the overrides cannot be applied");
        }
    };
    live.apply(|parts| parts.overrides = edits).inspect_err(warn).is_ok()
}

/// The mistakes of a configuration, without places in a file that the operator has not written. Those of the limiter come
/// first.
fn invalid(error: &ReloadError, limiter: Option<&str>) -> OverrideError {
    let ReloadError::Config(error) = error else {
        return OverrideError::Invalid(error.to_string());
    };
    let own = limiter.map(|name| format!("limiters.{name}"));
    let mut mistakes: Vec<_> = error.mistakes.iter().collect();
    mistakes.sort_by_key(|mistake| own.as_ref().is_none_or(|own| !mistake.path.starts_with(own)));
    let said: Vec<_> =
        mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.reason)).collect();
    OverrideError::Invalid(said.join("; "))
}

/// Writes a line for each override that begins, changes or ends.
fn log_changes(before: &OverrideTable, after: &OverrideTable, now: Micros) {
    let is_same = |a: &Override, b: &Override| {
        // A store that has lost the table gets it back with ends on its own clock.
        let until = if (a.until - b.until).abs() < SECOND { a.until } else { b.until };
        *a == Override { until, ..b.clone() }
    };
    let known = |of, own| before.get(of).is_some_and(|before| is_same(before, own));
    for (of, own) in after.all().filter(|(of, own)| !known(*of, own)) {
        let (limiter, key) = (of.limiter(), of.key().map(shown));
        let (change, until) = (own.change(), end(own.until - now));
        let Override { by, reason, .. } = own;
        tracing::warn!(limiter, key, change, by, reason, until, "an override takes effect");
    }
    for (of, own) in before.all().filter(|(of, _)| after.get(*of).is_none()) {
        let (limiter, key) = (of.limiter(), of.key().map(shown));
        let (change, is_over) = (own.change(), own.until <= now);
        tracing::warn!(limiter, key, change, by = own.by, is_over, "an override has ended");
    }
}

// === impl KnownTable ===

impl KnownTable {
    /// The store's clock now, by ours since the last reading.
    fn now(&self) -> Micros {
        self.now.saturating_add(whole(self.at.elapsed()))
    }

    /// The table that the store has lost, with ends on its clock: the store has none, or that of a gateway that has not read
    /// the last changes, such as one that was frozen while an override was removed. An empty table says that, too. A clock
    /// that is before the instant at which it was `asked` was set back by, say, an hour: without new ends each override would
    /// last an hour longer, or begin again.
    fn later_than(&self, note: &Note, asked: Micros) -> Option<OverrideTable> {
        let now = self.now();
        let mut known = self.table.clone().without_ended(now);
        let is_lost = match note.text.as_deref() {
            None => !known.is_empty() || known.version > 0,
            text if text == self.text.as_deref() => {
                note.now + SECOND < asked && !self.table.is_empty()
            }
            // A gateway that writes no version may have changed anything.
            Some(text) => (1..known.version).contains(&OverrideTable::parse(text)?.version),
        };
        known.all_mut().for_each(|own| own.until += note.now - now);
        is_lost.then_some(known)
    }

    /// The overrides that have not ended; `None` if there are none.
    fn left(&self) -> Option<OverrideTable> {
        let left = self.table.clone().without_ended(self.now());
        (!left.is_empty()).then_some(left)
    }
}

/// A span in µs, however long: `limit::micros` ends at the longest wait of a request.
fn whole(span: Duration) -> Micros {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
