//! Shares the rates that answers name with the other gateways: a task for each limiter with `learn: limit`. No request waits
//! for it.

use super::{EVERY, Followed, PATIENCE, START, UNUSED, followed, revise};
use crate::{
    plan::{LearnedLimits, Plan},
    store::{StoreAdmin, StoreError},
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};

/// How often a text is read that requests use. It may have 100 KB.
const LOOK: Duration = Duration::from_secs(3);

/// Reads the rates of all limiters that learn them, and keeps reading and writing on the current runtime.
pub(super) async fn begin(plan: &Plan, store: &Arc<dyn StoreAdmin>) {
    for limits in plan.limiters.iter().filter_map(|limiter| limiter.learned.as_ref()) {
        drop(timeout(START, report(limits, store)).await);
        tokio::spawn(keep(limits.clone(), store.clone()));
    }
}

/// Writes the rates that no report has brought to the store.
pub(super) async fn finish(plan: &Plan, store: &Arc<dyn StoreAdmin>) {
    let all = plan.limiters.iter().filter_map(|limiter| limiter.learned.as_ref());
    for limits in all {
        end(limits, store).await;
    }
}

async fn end(limits: &LearnedLimits, store: &Arc<dyn StoreAdmin>) {
    if limits.has_news() {
        drop(timeout(PATIENCE, report(limits, store)).await);
    }
}

/// Ends the tasks of limiters that `plan` has no more, and begins those that `before` did not have.
pub(super) fn follow(plan: &Plan, before: &Plan, store: &Arc<dyn StoreAdmin>) {
    let Followed { gone, new } = followed(plan, before, |limiter| limiter.learned.as_ref());
    gone.iter().for_each(|limits| limits.replaced());
    for limits in new {
        tokio::spawn(keep(limits, store.clone()));
    }
}

/// Forgets the rate of a key, or of all keys: they have the rate of the limiter again.
///
/// # Errors
///
/// [`StoreError`] when the store gave no answer.
pub(crate) async fn forget(
    limits: &LearnedLimits,
    key: Option<&str>,
    store: &Arc<dyn StoreAdmin>,
) -> Result<(), StoreError> {
    limits.forget(key);
    revise(store, &limits.note, |note| LearnedLimits::without(note, key)).await?;
    Ok(())
}

/// Reports until a plan without these rates replaces the present one.
async fn keep(limits: Arc<LearnedLimits>, store: Arc<dyn StoreAdmin>) {
    let mut looked: Option<Instant> = None;
    while !limits.is_replaced() {
        let is_older = |age| looked.is_none_or(|looked| looked.elapsed() >= age);
        let is_due = is_older(UNUSED) || is_older(LOOK) && limits.is_asked();
        if limits.is_stale() || is_due || limits.has_news() {
            drop(timeout(PATIENCE, report(&limits, &store)).await);
            looked = Some(Instant::now());
        }
        // Answers that differ all the time are no reason to write more often.
        tokio::select! {
            () = sleep(EVERY) => {}
            () = limits.wake.notified() => {}
        }
    }
    // An operator's rate may have replaced them for a time.
    end(&limits, &store).await;
}

/// Brings the rates that answers named here into the shared text, and the text into the gateway.
async fn report(limits: &LearnedLimits, store: &Arc<dyn StoreAdmin>) -> Result<(), StoreError> {
    let asked = Instant::now();
    if let Some(note) = revise(store, &limits.note, |note| limits.next(note)).await? {
        limits.know(&note, asked);
    }
    Ok(())
}
