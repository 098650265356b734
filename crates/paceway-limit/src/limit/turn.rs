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
use std::{future::pending, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// One of the calls that wait at a limiter confirms at least this often, so that the store knows that their gateway lives: a
/// fifth of the store's [`LEASE`].
const TOUCH: Duration = Duration::from_micros(LEASE.unsigned_abs() / 5);
/// The time before its slot at which a call confirms.
const BEFORE: Duration = Duration::from_micros(AHEAD.unsigned_abs());

impl Reservation {
    /// The place in the queue of a limiter, until the slot is confirmed.
    pub(super) fn place(&self) -> Option<Place> {
        self.queue().map(|(place, _)| place)
    }

    /// The place with the key of the limiter in whose queue it is.
    fn queue(&self) -> Option<(Place, &Arc<str>)> {
        let (i, place) = Place::among(&self.parts)?;
        Some((place, &self.checks[i].key))
    }

    /// Resolves when the slot has to be confirmed: shortly before it, when the store has to know that its gateway lives, or
    /// when the store says that the call has another one. Never for a reservation whose slot is certain.
    pub async fn turn_comes(&self) {
        let (Some((_, key)), Some(callable)) = (self.queue(), &self.ticket) else {
            return pending().await;
        };
        let mut at = self.confirms_at();
        loop {
            tokio::select! {
                biased;
                () = callable.notified() => return,
                () = sleep_until(at) => {}
            }
            if self.at.saturating_duration_since(Instant::now()) <= BEFORE {
                return;
            }
            // The sign of one call is enough for all of its gateway.
            match callable.sign_due(key, TOUCH) {
                Some(due) => at = due.min(self.at - BEFORE),
                None => return,
            }
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

    /// Asks the store whether the call is sent in its slot. Afterwards the slot is certain, or another one. False if the
    /// call does not wait there any more, or if the store gave no answer shortly before the slot: then it has to ask for
    /// everything again. It must not be sent without an answer: gateways that reach the store may have given its slot to
    /// another call. Long before the slot it keeps its place without an answer, and asks later: the store may be back by
    /// then.
    pub async fn confirm(&mut self) -> bool {
        let Some(place) = self.place() else { return true };
        let decision = match self.store.confirm(&self.checks, place).get().await {
            Ok(decision) => decision,
            Err(error) => {
                tracing::debug!(%error, "a slot was not confirmed");
                self.wait = self.at.saturating_duration_since(Instant::now());
                return self.wait > BEFORE;
            }
        };
        if decision.admitted {
            self.follow(&decision);
        }
        decision.admitted
    }

    /// Takes over the slot of a decision, and the permits if it is certain.
    fn follow(&mut self, decision: &Decision) {
        let now = Instant::now();
        self.wait = duration(decision.wait);
        // The slot has passed if the message that it came earlier was late.
        let late = now.checked_sub(duration(decision.wait.saturating_neg()));
        self.at = late.unwrap_or(now) + self.wait;
        (self.level, self.is_confirmed) = (decision.level, true);
        for (own, new) in self.parts.iter_mut().zip(&decision.parts) {
            if new.at >= 0 {
                *own = *new;
            }
        }
    }
}
