//! Reports the limiters that a loss of states closes in the log: one line for each of them.

use crate::{
    algorithm::Rule,
    answer::end,
    live::Live,
    plan::{LimiterPlan, Plan},
    store::{Store, StoreAdmin, health::Health},
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// The most lines about one loss: a configuration can have thousands of limiters.
const LINES: usize = 16;
/// A limiter that reopens within a second is worth no line.
const LEAST: i64 = 1_000_000;
/// A server that loses states again and again causes lines at most this often.
const PAUSE: Duration = Duration::from_secs(10);

/// Writes the lines for as long as the process runs.
pub(super) async fn report(live: Arc<Live>, store: Arc<dyn StoreAdmin>, health: Arc<Health>) {
    let mut found = health.losses.found();
    while found.changed().await.is_ok() {
        let next = Instant::now() + PAUSE;
        let plan = live.plan();
        let mut closed = closed(&plan, &*store);
        let more = closed.len().saturating_sub(LINES);
        closed.truncate(LINES);
        for (limiter, left) in closed {
            tracing::warn!(
                limiter = limiter.limiter.name,
                until = end(left),
                closed_s = left as f64 / 1e6,
                key = limiter.limiter.key.as_ref().map(|key| key.text()),
                "a limiter is closed, because its states were lost; {}, and `on_loss: trust` keeps it open after the next \
                 loss",
                reopening(limiter)
            );
        }
        if more > 0 {
            tracing::warn!(more, "more limiters are closed; `/limiters` lists them");
        }
        drop(plan);
        sleep_until(next).await;
    }
}

/// Says how a closed limiter opens again. A concurrency limiter cannot be reset: its lost holders may still call the upstream
/// until their leases have ended.
fn reopening(limiter: &LimiterPlan) -> &'static str {
    match limiter.limiter.algorithms.first() {
        Some(Rule::Permits(_)) => "it opens when its `lease` has passed",
        _ => "`DELETE /limiters/NAME` reopens it",
    }
}

/// The limiters that are closed for a second or more, those that stay closed for longest first, with the µs that are left.
fn closed<'p>(plan: &'p Plan, store: &(impl Store + ?Sized)) -> Vec<(&'p LimiterPlan, i64)> {
    let left = |limiter: &LimiterPlan| {
        limiter.current().iter().filter_map(|check| store.closed_for(check)).max()
    };
    let all = plan.enforcing().filter_map(|limiter| Some((limiter, left(limiter)?)));
    let mut all: Vec<_> = all.filter(|(_, left)| *left >= LEAST).collect();
    all.sort_by_key(|(_, left)| std::cmp::Reverse(*left));
    all
}
