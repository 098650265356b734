//! A reservation that moves to an earlier slot, because the call that had it has left. Law: it is never worse than before.
//! The call asks for the earlier permits while it has its own, and refunds these only after the store has granted others.

use super::{Admission, Reservation, ask::ask};
use crate::{
    algorithm::{
        fair::Place,
        reserve::{Part, Parts},
    },
    store::{Check, Checks, LEAST_GAIN, Opening, Source},
};
use smallvec::SmallVec;
use std::{future::pending, time::Duration};
use tokio::time::{Instant, timeout_at};

/// A call asks this long before an opening, and the time in addition that it takes to make its callee ready. An answer of
/// the store takes some ms; one that is still missing when the opening comes has cost a slot.
const ASK_AHEAD: Duration = Duration::from_millis(100);
/// If the next opening is nearer than [`ASK_AHEAD`], as many calls ask for it as for one: at 1000/s one answer after the
/// other would be too slow.
const AT_ONCE: usize = 2;

impl Reservation {
    /// Resolves shortly before a slot that has become free and comes earlier than this one. Never from `lead` before the
    /// instant on, when the call makes its callee ready.
    pub async fn near_opening(&self, lead: Duration) -> Opening {
        // The store itself moves the calls that take turns.
        let takes_turns = self.is_confirmed || self.place().is_some();
        let is_movable = self.source != Source::None && self.bound().enforce && !takes_turns;
        if is_movable && self.wait > lead + LEAST_GAIN {
            let openings = self.store.pauses().openings();
            let place = openings.enter(&self.bound().key, self.at);
            let opening = place.near_opening(lead + ASK_AHEAD);
            if let Ok(opening) = timeout_at(self.at - lead, opening).await {
                return opening;
            }
        }
        pending().await
    }

    /// Asks the store for permits at an earlier instant, and takes them instead of its own if it grants any; returns
    /// whether it did. `renewed` are the checks with the rules that hold by now, if these have changed. Concurrency permits
    /// are not concerned.
    pub async fn move_up(
        &mut self,
        opening: Opening,
        renewed: Option<Checks>,
        lead: Duration,
    ) -> bool {
        let checks = renewed.unwrap_or_else(|| self.checks.clone());
        let indices: SmallVec<[usize; 2]> =
            (0..checks.len()).filter(|i| !checks[*i].is_lease()).collect();
        let rates: Checks = indices.iter().map(|i| checks[*i].clone()).collect();
        let (store, was) = (self.store.clone(), self.at);
        if store.decides_alone(&checks) != (self.source == Source::Local) {
            // Another store would decide than the one that has the permits.
            return false;
        }
        let asked = async {
            let _turn = store.pauses().turn().await;
            let budget = (was - LEAST_GAIN).saturating_duration_since(Instant::now());
            ask(&store, &rates, budget).await
        };
        match timeout_at(was - lead, asked).await {
            Ok(Ok(Admission::Granted(earlier))) if self.is_after(&earlier) => {
                let next = Instant::now() + super::duration(earlier.level.next);
                let count = if next <= Instant::now() + ASK_AHEAD { AT_ONCE } else { 1 };
                let key = earlier.bound().key.clone();
                self.take_over(earlier, checks, &indices);
                store.pauses().openings().offer(&key, Opening::new(next), next, count);
                true
            }
            Ok(Ok(Admission::Refused(_))) => {
                if let Some(opening) = opening.refused() {
                    // Another call may cost less, or have fewer limiters.
                    store.pauses().openings().offer(&self.bound().key, opening, was, 1);
                }
                false
            }
            Ok(Ok(Admission::Granted(other))) => {
                other.refund_unseen();
                false
            }
            _ => false,
        }
    }

    /// Refunds the permits without an offer to other calls: these could only do the same.
    fn refund_unseen(mut self) {
        self.store.refund(self.source, &self.checks, &self.parts);
        self.spend();
    }

    /// Whether `earlier`, which the store of this reservation granted, comes before it.
    fn is_after(&self, earlier: &Self) -> bool {
        earlier.source == self.source && earlier.at < self.at
    }

    /// Refunds the permits of rates, and takes those of `earlier` in their place: its checks are those of `checks` at
    /// `indices`.
    fn take_over(&mut self, mut earlier: Self, checks: Checks, indices: &[usize]) {
        let mut old: Parts = self.parts.iter().map(|_| Part::NOTHING).collect();
        for (new, i) in earlier.parts.iter().zip(indices) {
            old[*i] = std::mem::replace(&mut self.parts[*i], *new);
        }
        self.store.refund(self.source, &self.checks, &old);
        self.offer(&old);
        (self.at, self.wait, self.level) = (earlier.at, earlier.wait, earlier.level);
        (self.bound_by, self.known) = (indices[earlier.bound_by], earlier.known);
        self.checks = checks;
        // Its permits are not refunded: they are those of this reservation now.
        earlier.spend();
    }

    /// Offers the slot of refunded `parts` to the calls that wait for later ones.
    pub(super) fn offer(&self, parts: &[Part]) {
        let rates = |(check, part): &(&Check, &Part)| {
            check.enforce && !check.is_lease() && part.at >= 0 && Place::of(part.grant).is_none()
        };
        for (check, _) in self.checks.iter().zip(parts).filter(rates) {
            self.store.pauses().openings().opened(&check.key, Opening::new(self.at));
        }
    }
}
