//! Calls that can be made in several ways: when they ask for all of them again, and when they leave one for another.

use super::{
    Waiter,
    ask::{Admission, ask},
    service::{Callee, Caller},
};
use crate::store::{Question, Store, StoreError};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// How often a call that waits for a concurrency permit looks for another way in which it can be made.
const LOOK: Duration = Duration::from_millis(200);

/// The question of a call that asks for everything again; `None` if it is the one of before.
pub(super) fn question<C: Caller>(caller: &C) -> Option<Question> {
    match caller.ways() {
        Some(among) => Some(Question::Ways(among)),
        None => caller.renewed().map(Question::Checks),
    }
}

/// The answer to a call that may have asked for one of its ways alone: where that one is refused, all are asked.
pub(super) async fn among_all<C: Caller>(
    caller: &C,
    store: &Arc<dyn Store>,
    answer: Result<Admission, StoreError>,
) -> Result<Admission, StoreError> {
    match (answer, caller.ways()) {
        (Ok(Admission::Refused(_)), Some(among)) => {
            Box::pin(ask(store, &among, caller.left())).await
        }
        (answer, _) => answer,
    }
}

/// Waits in a queue for a concurrency permit until the place is worth asking again for: then `None`. A call that can be made in
/// several ways looks for a free permit of another one meanwhile, and leaves the queue of a limiter that is paused.
pub(super) async fn other_way<C: Caller>(
    caller: &mut C,
    waiter: &Waiter,
) -> Result<Option<Admission>, C::Error> {
    loop {
        if caller.ways().is_none() {
            caller.notified(waiter).await?;
            return Ok(None);
        }
        tokio::select! {
            biased;
            done = caller.notified(waiter) => return done.map(|()| None),
            () = sleep(LOOK) => {}
        }
        let Some(among) = caller.ways() else { continue };
        let is_paused = waiter.store.pauses().get(&waiter.bound().key).is_some();
        let budget = if is_paused { caller.left() } else { Duration::ZERO };
        match ask(&waiter.store, &among, budget).await {
            Ok(other @ Admission::Granted(_)) => return Ok(Some(other)),
            Ok(other @ Admission::Queued(_)) => return Ok(Some(other)),
            Ok(Admission::Refused(_)) | Err(_) => {}
        }
    }
}

/// Shows the way that the store has taken, if there are several.
pub(super) fn take_way<C: Caller, M: Callee>(caller: &mut C, callee: &mut M, way: Option<u8>) {
    if let Some(way) = way {
        caller.takes(way);
        callee.takes(way);
    }
}
