//! A reservation whose slot can still be exchanged, because its limiter shares its slots fairly. Law: the call is made only
//! after the store has confirmed the slot.

use super::{Reservation, duration};
use crate::{
    algorithm::fair::{
        Place,
        queue::{AHEAD, LEASE},
    },
    store::Decision,
};
use std::{future::pending, time::Duration};
use tokio::time::{Instant, sleep_until};

/// A call that waits confirms at least this often, so that the store knows that its gateway lives. A third of the store's
/// [`LEASE`].
const TOUCH: Duration = Duration::from_micros(LEASE.unsigned_abs() / 3);
/// The time before its slot at which a call confirms.
const BEFORE: Duration = Duration::from_micros(AHEAD.unsigned_abs());

impl Reservation {
    /// The place in the queue of a limiter, until the slot is confirmed.
    pub(super) fn place(&self) -> Option<Place> {
        let given = self.parts.iter().filter(|part| part.at >= 0);
        given.filter_map(|part| Place::of(part.grant)).next()
    }

    /// Resolves when the slot has to be confirmed: shortly before it, or when the store says that the call has another one.
    /// Never for a reservation whose slot is certain.
    pub async fn turn_comes(&self) {
        let (Some(_), Some(callable)) = (self.place(), &self.ticket) else {
            return pending().await;
        };
        tokio::select! {
            biased;
            () = callable.notified() => {}
            () = sleep_until(self.confirms_at()) => {}
        }
    }

    /// When it confirms without a notification.
    fn confirms_at(&self) -> Instant {
        let decided = self.at - self.wait;
        let before = match self.wait.checked_sub(BEFORE) {
            Some(early) if !early.is_zero() => early,
            // The slot of a call that yielded a moment ago.
            _ => self.wait / 2,
        };
        decided + before.min(TOUCH)
    }

    /// Asks the store whether the call is sent in its slot. Afterwards the slot is certain, or another one. False if the call
    /// does not wait there any more, or if the store gave no answer: then it has to ask for everything again.
    pub async fn confirm(&mut self) -> bool {
        let Some(place) = self.place() else { return true };
        let decision = match self.store.confirm(&self.checks, place).get().await {
            Ok(decision) => decision,
            Err(error) => {
                tracing::debug!(%error, "a slot was not confirmed");
                return false;
            }
        };
        if decision.admitted {
            self.follow(&decision);
        }
        decision.admitted
    }

    /// Takes over the slot of a decision, and the permits if it is certain.
    fn follow(&mut self, decision: &Decision) {
        self.wait = duration(decision.wait);
        self.at = Instant::now() + self.wait;
        (self.level, self.is_confirmed) = (decision.level, true);
        for (own, new) in self.parts.iter_mut().zip(&decision.parts) {
            if new.at >= 0 {
                *own = *new;
            }
        }
    }
}
