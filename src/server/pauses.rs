//! Reports the pauses of limiters in the log: one line when pauses begin, and one when they end. An answer that pauses several
//! limiters writes one line with all of them.

use crate::{
    algorithm::Level,
    answer::end,
    key,
    live::Live,
    log::{Permit, Throttle},
    plan::{ParkedAccount, Plan, WorkingRate},
    store::{Check, Pause, PauseEvent, PauseEvents, Store},
};
use std::{collections::BTreeSet, mem, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout_at};

/// Bounds the lines: a limiter with a key has a pause for each of its keys.
static BEGINS: Throttle = Throttle::new();
static ENDS: Throttle = Throttle::new();
static PARKED: Throttle = Throttle::new();
/// How long a line waits for the pauses that begin or end together with the first one.
const TOGETHER: Duration = Duration::from_millis(20);
/// The most limiters, and the most keys, that a line lists.
const MOST_NAMED: usize = 8;
/// How often a line asks for the level of a limiter until the store knows of the pause, and the time between.
const MOST_LOOKS: usize = 20;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The rates that a line names: the working ones, and the written ones in the same order.
#[derive(Debug, Default)]
struct LoweredRates {
    working: Vec<String>,
    written: Vec<String>,
}

/// The pauses that began, or ended, together.
#[derive(Debug, Default)]
struct PauseGroup {
    limiters: BTreeSet<String>,
    keys: BTreeSet<String>,
    /// The first of the states.
    states: Vec<Arc<str>>,
    /// The latest end, and the status of an answer that caused a pause.
    until: Option<Instant>,
    status: u16,
    is_ended_early: bool,
}

/// Writes lines about `events`, for as long as the process runs.
pub(super) async fn report(live: Arc<Live>, store: Arc<dyn Store>, mut events: PauseEvents) {
    let (mut began, mut ended) = (PauseGroup::default(), PauseGroup::default());
    let mut written_at = Instant::now();
    loop {
        let is_idle = began.limiters.is_empty() && ended.limiters.is_empty();
        // A due line does not wait for a row of events to end.
        let event = if is_idle {
            let first = events.next().await;
            written_at = Instant::now() + TOGETHER;
            Some(first)
        } else if Instant::now() >= written_at {
            None
        } else {
            timeout_at(written_at, events.next()).await.ok()
        };
        let plan = live.plan();
        let parked = event.as_ref().and_then(|event| plan.parked_account(event.key()));
        if let Some(parked) = parked {
            if let Some(PauseEvent::Began { until, status, .. }) = event {
                parked.plan.close(parked.account);
                log_parked(&parked, until, status);
            }
            continue;
        }
        match event {
            Some(PauseEvent::Began { key, until, status }) => {
                began.add(&plan, &key);
                began.until = began.until.max(Some(until));
                began.status = began.status.max(status);
            }
            Some(PauseEvent::Grew { key, until, status }) => {
                let (limiter, key) = shown(&plan, &key);
                let left = until.saturating_duration_since(Instant::now());
                let until = end(Pause::of(left, status).span);
                tracing::debug!(limiter, key, until, status, "a pause becomes longer");
            }
            Some(PauseEvent::Ended { key, is_over }) => {
                ended.add(&plan, &key);
                ended.is_ended_early |= !is_over;
            }
            None => {
                mem::take(&mut began).log_begin(&plan, &*store).await;
                mem::take(&mut ended).log_end();
            }
        }
    }
}

/// Logs that an account is not used any more.
fn log_parked(parked: &ParkedAccount<'_>, until: Instant, status: u16) {
    let Some(Permit { suppressed }) = PARKED.permit() else { return };
    let left = until.saturating_duration_since(Instant::now());
    let why = if status > 0 { "the upstream rejects it" } else { "an operator has parked it" };
    tracing::warn!(
        upstream = parked.upstream,
        account = parked.name,
        until = end(Pause::of(left, status).span),
        status = (status > 0).then_some(status),
        suppressed,
        "an account is parked: {why}"
    );
}

// === impl PauseGroup ===

impl PauseGroup {
    fn add(&mut self, plan: &Plan, state: &Arc<str>) {
        let (limiter, key) = shown(plan, state);
        if self.states.len() < MOST_NAMED {
            self.states.push(state.clone());
        }
        if self.limiters.len() <= MOST_NAMED {
            self.limiters.insert(limiter.to_owned());
        }
        if self.keys.len() <= MOST_NAMED {
            self.keys.extend(key);
        }
    }

    async fn log_begin(self, plan: &Plan, store: &dyn Store) {
        let Some((limiter, key)) = self.names() else { return };
        let Some(Permit { suppressed }) = BEGINS.permit() else { return };
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.unwrap_or_default();
        let (until, pause_s) = (end(Pause::of(left, self.status).span), left.as_secs_f64());
        let mut why = match self.status {
            200..300 => "the upstream says that its quota is used up".to_owned(),
            _ => "the upstream refuses calls".to_owned(),
        };
        let lowered = LoweredRates::of(&self.states, plan, store).await;
        let [rate, written] = [&lowered.working, &lowered.written]
            .map(|rates| (!rates.is_empty()).then(|| rates.join(", ")));
        if let (Some(rate), Some(written)) = (&rate, &written) {
            why += &format!("; then the limiter works at {rate} of {written}");
        }
        let status = (self.status > 0).then_some(self.status);
        tracing::warn!(
            limiter,
            key,
            until,
            pause_s,
            status,
            rate,
            written,
            suppressed,
            "a pause begins: {why}"
        );
    }

    fn log_end(self) {
        let Some((limiter, key)) = self.names() else { return };
        let Some(Permit { suppressed }) = ENDS.permit() else { return };
        let by_operator = self.is_ended_early.then_some(true);
        tracing::info!(limiter, key, by_operator, suppressed, "a pause has ended");
    }

    /// The limiters and their keys, each as a list; `None` for an empty group.
    fn names(&self) -> Option<(String, Option<String>)> {
        let list = |names: &BTreeSet<String>| {
            let shown: Vec<_> = names.iter().take(MOST_NAMED).map(String::as_str).collect();
            let more = if names.len() > MOST_NAMED { ", ..." } else { "" };
            shown.join(", ") + more
        };
        let key = (!self.keys.is_empty()).then(|| list(&self.keys));
        (!self.limiters.is_empty()).then(|| (list(&self.limiters), key))
    }
}

// === impl LoweredRates ===

impl LoweredRates {
    /// Asks the store for the rates of these states that refusals have lowered.
    async fn of(states: &[Arc<str>], plan: &Plan, store: &dyn Store) -> Self {
        let mut all = Self::default();
        for state in states {
            let Some((limiter, key)) = plan.owner(state) else { continue };
            let rates = limiter.limiter.highest();
            let mut own =
                limiter.checks(key, 1).zip(rates).filter(|(check, _)| check.key == *state);
            let Some((check, rate)) = own.next() else { continue };
            let Some(level) = paused_level(store, &check).await else { continue };
            if let Some(working) = WorkingRate::of(std::slice::from_ref(rate), &[level]) {
                all.working.push(working.text());
                all.written.push(rate.to_string());
            }
        }
        all
    }
}

/// The level of a limiter whose pause has just begun. The store may learn of it a moment later than this process.
async fn paused_level(store: &dyn Store, check: &Check) -> Option<Level> {
    for _ in 0..MOST_LOOKS {
        let level = store.look(check).get().await.ok()?;
        if level.paused > 0 {
            return Some(level);
        }
        store.pauses().get(&check.key)?;
        sleep(LOOK_AGAIN).await;
    }
    None
}

/// The name of the limiter that a state belongs to, and its key. States hold secrets as hashes only.
fn shown<'a>(plan: &'a Plan, state: &'a str) -> (&'a str, Option<String>) {
    match plan.owner(state) {
        Some((plan, key)) => (&plan.limiter.name, key.map(key::shown)),
        None => (state, None),
    }
}
