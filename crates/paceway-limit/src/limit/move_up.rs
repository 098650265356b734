//! A reservation that moves to an earlier slot, because a call has left or used fewer permits than it had reserved. Law: an
//! answer of the store never makes its slot later. The store exchanges its permits in one step, or it keeps them; without an answer
//! both count as spent, and the call asks for everything again.

use super::{
    Admission, Reservation,
    ask::{ask, ask_instead},
};
use crate::{
    algorithm::{
        fair::Place,
        reserve::{Part, Parts},
    },
    store::{Check, Checks, LEAST_GAIN, Opening, Source, Store},
};
use smallvec::SmallVec;
use std::{future::pending, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};

/// A call asks this long before an opening, and the time in addition that it takes to make its callee ready. An answer of
/// the store takes some ms; one that is still missing when the opening comes has cost a slot.
const ASK_AHEAD: Duration = Duration::from_millis(100);
/// If the next opening is nearer than [`ASK_AHEAD`], as many calls ask for it as for one: at 1000/s one answer after the
/// other would be too slow.
const AT_ONCE: usize = 2;

/// The outcome for a call that has asked for an earlier slot.
pub(super) enum Moved {
    /// It has an earlier one.
    Up(Reservation),
    /// It keeps its own.
    Stays(Reservation),
    /// The store gave no answer, so that the call has to ask for everything again.
    Unknown(Arc<dyn Store>, Checks),
}

/// The places of the checks that count permits of a rate.
fn rates(checks: &Checks) -> SmallVec<[usize; 2]> {
    (0..checks.len()).filter(|i| !checks[*i].is_lease()).collect()
}

impl Reservation {
    /// Resolves shortly before a slot that has become free and comes earlier than this one. Never from `lead` before the
    /// instant on, when the call makes its callee ready.
    pub async fn near_opening(&self, lead: Duration) -> Opening {
        // The store itself moves the calls that take turns.
        if self.is_movable(lead) && !self.takes_turns() {
            let openings = self.store.pauses().openings();
            let place = openings.enter(&self.bound().key, self.at);
            let opening = place.near_opening(lead + ASK_AHEAD);
            if let Ok(opening) = timeout_at(self.at - lead, opening).await {
                return opening;
            }
        }
        pending().await
    }

    /// Whether it may have an earlier slot. The slot that the store has confirmed is near.
    pub(super) fn is_movable(&self, lead: Duration) -> bool {
        let is_certain = self.is_confirmed && !self.takes_turns();
        let is_granted = self.source != Source::None && self.bound().enforce;
        is_granted && !is_certain && self.wait > lead + LEAST_GAIN
    }

    /// Whether its slot can still be exchanged: then it asks again where another one would move up.
    pub(super) fn takes_turns(&self) -> bool {
        self.place().is_some()
    }

    /// Asks the store for permits at an earlier instant in place of its own: those of `opening`, or any since a limiter was
    /// freed. `renewed` are the checks with the rules that hold by now, if these have changed. Concurrency permits are not
    /// concerned.
    pub(super) async fn move_up(
        mut self,
        opening: Option<Opening>,
        renewed: Option<Checks>,
        lead: Duration,
    ) -> Moved {
        let checks = renewed.unwrap_or_else(|| self.checks.clone());
        let pauses = self.store.pauses();
        let asked = pauses.version();
        // A limiter that was freed knows nothing of the permits that an exchange would take back.
        let opening = opening.filter(|_| !pauses.freed_since(&self.checks, self.seen));
        self.seen = asked;
        let rules = |checks: &Checks| checks.iter().map(|check| check.algorithm).collect();
        let (own, new): (Vec<_>, Vec<_>) = (rules(&self.checks), rules(&checks));
        let (store, is_local) = (self.store.clone(), self.source == Source::Local);
        if store.decides_alone(&checks) != is_local {
            // Another store would decide than the one that has the permits.
            return Moved::Stays(self);
        }
        let Some(opening) = opening.filter(|_| !is_local && own == new) else {
            return self.take_beside_own(opening, checks, lead).await;
        };
        // A caller that leaves meanwhile gives back the permits that it has after the answer.
        let asked = tokio::spawn(self.exchange(opening, lead));
        asked.await.unwrap_or(Moved::Unknown(store, checks))
    }

    /// Takes permits at an earlier instant in place of its own, in one step of the store: a window may have no room for both.
    /// Without a turn before its own slot is near it keeps that one.
    async fn exchange(mut self, opening: Opening, lead: Duration) -> Moved {
        let indices = rates(&self.checks);
        let checks: Checks = indices.iter().map(|i| self.checks[*i].clone()).collect();
        let parts: Parts = indices.iter().map(|i| self.parts[*i]).collect();
        let store = self.store.clone();
        let answer = {
            let _place = store.pauses().count_waiting(&self.checks, self.at);
            let turn = timeout_at(self.at - lead, store.pauses().turn()).await;
            let Ok(_turn) = turn else { return Moved::Stays(self) };
            let budget = (self.at - LEAST_GAIN).saturating_duration_since(Instant::now());
            ask_instead(&store, checks, &parts, budget).await
        };
        match answer {
            Ok(Admission::Granted(earlier)) => {
                let all = self.checks.clone();
                let old = self.take_over(earlier, all, &indices);
                self.pass_on(&old);
                Moved::Up(self)
            }
            Err(error) if !error.is_unasked() => {
                // It has the one permits or the others: both count as spent.
                indices.iter().for_each(|i| self.parts[*i] = Part::NOTHING);
                Moved::Unknown(self.store.clone(), self.checks.clone())
            }
            _ => self.stays(Some(opening)),
        }
    }

    /// Takes permits at an earlier instant while it has its own, and refunds these afterwards: the permits of a share, those of
    /// a rule that has changed since, and those of a limiter that was freed. Such a limiter grants its slot to another call,
    /// too, so that permits for the same instant are as welcome.
    async fn take_beside_own(
        mut self,
        opening: Option<Opening>,
        checks: Checks,
        lead: Duration,
    ) -> Moved {
        let (indices, store, was) = (rates(&checks), self.store.clone(), self.at);
        let _place = store.pauses().count_waiting(&self.checks, self.at);
        let asked = async {
            let _turn = store.pauses().turn().await;
            let latest = if opening.is_some() { was - LEAST_GAIN } else { was };
            let checks: Checks = indices.iter().map(|i| checks[*i].clone()).collect();
            ask(&store, &checks, latest.saturating_duration_since(Instant::now())).await
        };
        match timeout_at(was - lead, asked).await {
            Ok(Ok(Admission::Granted(other)))
                if other.source == self.source && (other.at < was || opening.is_none()) =>
            {
                let before = self.checks.clone();
                let old = self.take_over(other, checks, &indices);
                self.store.refund(self.source, &before, &old);
                self.pass_on(&old);
                if self.at < was { Moved::Up(self) } else { Moved::Stays(self) }
            }
            Ok(Ok(Admission::Refused(_))) => self.stays(opening),
            Ok(Ok(Admission::Granted(other))) => {
                other.refund_unseen();
                Moved::Stays(self)
            }
            _ => Moved::Stays(self),
        }
    }

    /// Offers the opening to another call, which may cost less or have fewer limiters.
    fn stays(self, opening: Option<Opening>) -> Moved {
        if let Some(opening) = opening.and_then(Opening::refused) {
            let openings = self.store.pauses().openings();
            openings.offer(&self.bound().key, opening, self.at, 1);
        }
        Moved::Stays(self)
    }

    /// Offers the slot that it has left, `old`, and the next one that is free.
    fn pass_on(&self, old: &[Part]) {
        self.offer(old);
        let now = Instant::now();
        // The permits of others who wait may be all that leaves no room now.
        let next = if self.wait.is_zero() { now } else { now + super::duration(self.level.next) };
        let count = if next <= Instant::now() + ASK_AHEAD { AT_ONCE } else { 1 };
        self.store.pauses().openings().offer(&self.bound().key, Opening::new(next), next, count);
    }

    /// Refunds the permits without an offer to other calls: these could only do the same.
    fn refund_unseen(mut self) {
        self.store.refund(self.source, &self.checks, &self.parts);
        self.spend();
    }

    /// Takes the permits of `earlier` in place of those of rates, which it returns: the checks of `earlier` are those of `checks`
    /// at `indices`.
    fn take_over(&mut self, mut earlier: Self, checks: Checks, indices: &[usize]) -> Parts {
        let mut old: Parts = self.parts.iter().map(|_| Part::NOTHING).collect();
        for (new, i) in earlier.parts.iter().zip(indices) {
            old[*i] = std::mem::replace(&mut self.parts[*i], *new);
        }
        self.checks = checks;
        (self.at, self.wait, self.level) = (earlier.at, earlier.wait, earlier.level);
        (self.bound_by, self.known) = (indices[earlier.bound_by], earlier.known);
        // Its permits are not refunded: they are those of this reservation now.
        earlier.spend();
        old
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
