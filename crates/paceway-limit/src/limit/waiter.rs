//! A call in the queue of a `concurrency` limiter, whose permits other calls hold.

use crate::store::{Check, Checks, Source, Store, batch::parts_of, calls::Callable};
use std::sync::Arc;
use tokio::time::{Instant, sleep_until};

/// The place of a call in the queue for a concurrency permit. Dropped, it leaves the queue.
#[derive(Debug)]
pub struct Waiter {
    pub(super) store: Arc<dyn Store>,
    pub(super) checks: Checks,
    pub(super) ticket: Option<Callable>,
    /// The instant at which it asks again without a message: the first lease may expire then, or its own time ends.
    pub(super) ask_at: Instant,
    /// The store that keeps the queue: the shared one, or this process while that is away.
    pub source: Source,
    /// Index of the check whose permits are all held.
    pub bound_by: usize,
    /// The way that was taken, for a call that can be made in several.
    pub way: Option<u8>,
    /// It has left this queue before, because another store was to decide, and that store gave no answer.
    pub(super) is_back: bool,
    /// How often it has got a permit of one limiter when another one had none, and waits for that one since.
    pub(super) moves: u32,
}

// === impl Waiter ===

impl Waiter {
    /// The waiter that a question becomes if its answer is a queue. It is made before the question, so that a caller that
    /// is dropped before the answer leaves the queue, too.
    pub(super) fn new(store: &Arc<dyn Store>, checks: &Checks, ticket: Callable) -> Self {
        Self {
            store: store.clone(),
            checks: checks.clone(),
            ticket: Some(ticket),
            ask_at: Instant::now(),
            source: Source::Shared,
            bound_by: 0,
            way: None,
            is_back: false,
            moves: 0,
        }
    }

    /// Resolves when it is worth asking again: a permit was handed to this waiter, a holder may have died without
    /// releasing its permit, or the waiter's time has ended and only the refusal is left.
    pub async fn notified(&self) {
        let Some(ticket) = &self.ticket else { return };
        tokio::select! {
            biased;
            () = ticket.notified() => {}
            () = sleep_until(self.ask_at) => {}
        }
    }

    /// The check whose permits are all held.
    pub fn bound(&self) -> &Check {
        &self.checks[self.bound_by]
    }

    /// The same place in the queue, for a call that asks for `checks` from now on.
    pub(super) fn for_all(mut self, checks: Checks, bound_by: usize) -> Self {
        let ticket = self.ticket.take();
        let (store, ask_at, source) = (self.store.clone(), self.ask_at, self.source);
        let (way, is_back, moves) = (None, false, 0);
        Self { store, checks, ticket, ask_at, source, bound_by, way, is_back, moves }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(Callable { ticket, .. }) = self.ticket.take()
            && ticket.deadline > 0
        {
            self.store.refund(self.source, &self.checks, &parts_of(&self.checks, ticket));
        }
    }
}
