//! Shares what the calls of a limiter cost with the other gateways: a task for each limiter with `reserve: learned`. No
//! request waits for it.

use super::{EVERY, Followed, PATIENCE, START, UNUSED, followed, revise};
use crate::{
    key::CostModel,
    plan::{KeyCosts, LearnedReserves, Plan},
    store::{Note, StoreAdmin, StoreError},
};
use std::sync::Arc;
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

/// Writes the answers that no report has brought to the store.
pub(super) async fn finish(plan: &Plan, store: &Arc<dyn StoreAdmin>) {
    for reserves in plan.limiters.iter().filter_map(|limiter| limiter.reserves.as_ref()) {
        end(reserves, store).await;
    }
}

async fn end(reserves: &LearnedReserves, store: &Arc<dyn StoreAdmin>) {
    for costs in reserves.all().iter().filter(|costs| costs.has_news()) {
        report(costs, store).await;
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
    let nothing: Arc<str> = CostModel::default().text().into();
    revise(store, &costs.note, |note| note.text.as_ref().map(|_| nothing.clone())).await?;
    costs.forget();
    Ok(())
}

/// Ends the tasks of limiters that `plan` has no more, and begins those that `before` did not have.
pub(super) fn follow(plan: &Plan, before: &Plan, store: &Arc<dyn StoreAdmin>) {
    let Followed { gone, new } = followed(plan, before, |limiter| limiter.reserves.as_ref());
    gone.iter().for_each(|reserves| reserves.replaced());
    for reserves in new {
        tokio::spawn(keep(reserves, store.clone()));
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
    end(&reserves, &store).await;
}

/// Brings the answers of this gateway into the shared text of a key, and the text into the gateway. False if there was nothing
/// to do.
async fn report(costs: &KeyCosts, store: &Arc<dyn StoreAdmin>) -> bool {
    let Some(report) = costs.report(UNUSED) else { return false };
    let next = |note: &Note| report.next(note.text.as_ref());
    let note = timeout(PATIENCE, revise(store, &costs.note, next)).await;
    let text = note.ok().and_then(Result::ok).flatten().and_then(|note| note.text);
    costs.reported(report, text);
    true
}
