//! Shares what the calls of a limiter cost with the other gateways: a task for each limiter with `reserve: learned`. No
//! request waits for it.

use super::{ATTEMPTS, EVERY, PATIENCE, START, UNUSED};
use crate::{
    key::CostModel,
    plan::{CostReport, KeyCosts, LearnedReserves, Plan},
    store::{NoteChange, StoreAdmin, StoreError},
};
use std::{collections::HashMap, sync::Arc};
use tokio::time::{sleep, timeout};

/// The most texts that are read in one round.
const ROUND: usize = 64;

/// Reads the costs of all limiters without a key that learn them, and keeps reading and writing on the current runtime.
pub(super) async fn begin(plan: &Plan, store: &Arc<dyn StoreAdmin>) {
    for limiter in &plan.limiters {
        let Some(reserves) = &limiter.reserves else { continue };
        if limiter.limiter.key.is_none() {
            drop(timeout(START, report(&reserves.of(None), store)).await);
        }
        tokio::spawn(keep(reserves.clone(), store.clone()));
    }
}

/// Forgets the costs of a key: its calls reserve the default again.
///
/// # Errors
///
/// [`StoreError`] when the store gave no answer.
pub(crate) async fn forget(
    costs: &KeyCosts,
    store: &Arc<dyn StoreAdmin>,
) -> Result<(), StoreError> {
    let text: Arc<str> = CostModel::default().text().into();
    let mut note = store.exchange(costs.note.clone(), None).await?;
    for _ in 0..ATTEMPTS {
        if note.text.as_ref().is_none_or(|now| *now == text) {
            break;
        }
        let change = NoteChange { expected: note.text, text: text.clone() };
        note = store.exchange(costs.note.clone(), Some(change)).await?;
    }
    costs.forget();
    Ok(())
}

/// Ends the tasks of limiters that `plan` has no more, and begins those that `before` did not have.
pub(super) fn follow(plan: &Plan, before: &Plan, store: &Arc<dyn StoreAdmin>) {
    let all = |plan: &Plan| -> HashMap<_, _> {
        let learned = plan.limiters.iter().filter_map(|limiter| limiter.reserves.as_ref());
        learned.map(|reserves| (Arc::as_ptr(reserves), reserves.clone())).collect()
    };
    let (new, old) = (all(plan), all(before));
    old.iter().filter(|(own, _)| !new.contains_key(*own)).for_each(|(_, own)| own.replaced());
    for (own, reserves) in new {
        if !old.contains_key(&own) {
            tokio::spawn(keep(reserves, store.clone()));
        }
    }
}

/// Reports until a plan without these costs replaces the present one.
async fn keep(reserves: Arc<LearnedReserves>, store: Arc<dyn StoreAdmin>) {
    while !reserves.is_replaced() {
        tokio::select! {
            () = sleep(EVERY) => {}
            () = reserves.wake.notified() => {}
        }
        let mut left = ROUND;
        for costs in reserves.all() {
            if left > 0 && report(&costs, &store).await {
                left -= 1;
            }
        }
    }
}

/// Brings the answers of this gateway into the shared text of a key, and the text into the gateway. False if there was nothing
/// to do.
async fn report(costs: &KeyCosts, store: &Arc<dyn StoreAdmin>) -> bool {
    let Some(report) = costs.report(UNUSED) else { return false };
    let text = timeout(PATIENCE, exchange(&costs.note, &report, store)).await;
    let text = text.ok().and_then(Result::ok).flatten();
    costs.reported(report, text);
    true
}

/// The text with the answers of a report; `None` if they are not in it.
async fn exchange(
    key: &Arc<str>,
    report: &CostReport,
    store: &Arc<dyn StoreAdmin>,
) -> Result<Option<Arc<str>>, StoreError> {
    let mut note = store.exchange(key.clone(), None).await?;
    for _ in 0..ATTEMPTS {
        let Some(text) = report.next(note.text.as_ref()) else { return Ok(note.text) };
        let change = NoteChange { expected: note.text, text: text.clone() };
        note = store.exchange(key.clone(), Some(change)).await?;
        if note.text.as_ref() == Some(&text) {
            return Ok(note.text);
        }
    }
    Ok(None)
}
