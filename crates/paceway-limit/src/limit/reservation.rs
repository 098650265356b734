//! A grant that the call has not used yet: permits for one instant, and the concurrency permits that are held
//! until the call ends.

use super::{duration, lease};
use crate::{
    algorithm::{
        Grant, Level,
        concurrency::Ticket,
        reserve::{self, Part},
    },
    store::{
        Check, Checks, Covering, Decision, GrantedSlot, PauseVersion, Source, Store,
        batch::parts_of, calls::Callable,
    },
};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::AbortHandle,
    time::{Instant, sleep_until, timeout_at},
};

/// How late a task may wake for a reservation of limiters without a `margin` of their own. A machine that is suspended for
/// longer would send at once all calls that have piled up meanwhile.
const SLACK: Duration = Duration::from_millis(100);
/// A smaller `margin` is taken for 5 ms: timers count in ms.
const LEAST_SLACK: Duration = Duration::from_millis(5);

/// Permits that are granted for one instant. Dropped before it is spent, its permits are refunded; dropped later, its
/// concurrency permits are released.
#[derive(Debug)]
pub struct Reservation {
    pub(super) store: Arc<dyn Store>,
    pub(super) checks: Checks,
    pub(super) parts: reserve::Parts,
    /// The instant from which on the call may be made.
    pub at: Instant,
    /// The time from the decision to that instant; zero when the call may be made at once.
    pub wait: Duration,
    /// Index of the check whose limiter made it so late.
    pub bound_by: usize,
    /// The store that granted it (the shared one, or this process while that is away), which also takes the refund.
    pub source: Source,
    /// The way that was taken, for a call that can be made in several.
    pub way: Option<u8>,
    /// The pauses that were known when the store was asked.
    pub(super) known: PauseVersion,
    /// The same when it last asked for an earlier instant.
    pub(super) seen: PauseVersion,
    /// The level of the limiter of `bound_by` after the grant.
    pub level: Level,
    pub(super) spent: bool,
    /// The store has confirmed its slot, or given it another one, because it takes turns with other calls.
    pub(super) is_confirmed: bool,
    /// Holds the concurrency permits, by this number.
    pub(super) ticket: Option<Callable>,
    renewals: Vec<AbortHandle>,
    /// The concurrency permits of a reservation whose rate permits came later than the decision.
    pub(super) held: Option<Box<Reservation>>,
}

/// A concurrency permit that is held apart from its reservation.
#[derive(Debug, Clone)]
pub struct LeasedPermit {
    /// The check of its limiter.
    pub check: Check,
    /// The grant, by which it is renewed and released.
    pub grant: Grant,
}

// === impl LeasedPermit ===

impl LeasedPermit {
    /// Gives the permit back to the store that granted it: the one of `source`.
    pub fn release(self, store: &Arc<dyn Store>, source: Source) {
        let checks = [self.check].into();
        store.refund(source, &checks, &parts_of(&checks, Ticket::of(self.grant)));
    }
}

// === impl Reservation ===

impl Reservation {
    /// The reservation that `decision` granted to the holder of `ticket`. The pauses of `known` were known when it asked.
    #[inline(always)]
    pub(super) fn new(
        store: &Arc<dyn Store>,
        checks: Checks,
        decision: Decision,
        known: PauseVersion,
        ticket: Option<Callable>,
    ) -> Self {
        let wait = duration(decision.wait);
        let mut new = Self {
            store: store.clone(),
            checks,
            parts: decision.parts,
            at: Instant::now() + wait,
            wait,
            bound_by: decision.bound_by,
            source: decision.source,
            way: decision.chosen,
            known,
            seen: known,
            level: decision.level,
            spent: false,
            is_confirmed: false,
            ticket,
            renewals: Vec::new(),
            held: None,
        };
        if new.ticket.is_some() {
            let source = new.source;
            let leases = new.leases();
            new.renewals = leases
                .map(|(check, part)| lease::renew(store, source, check, part.grant))
                .collect();
        }
        new
    }

    /// Resolves `lead` before the instant: the time to make ready what the call needs.
    pub async fn wait_until(&self, lead: Duration) {
        if self.wait > lead {
            sleep_until(self.at - lead).await;
        }
    }

    /// Resolves at the instant.
    pub async fn wait_until_due(&self) {
        if !self.wait.is_zero() {
            sleep_until(self.at).await;
        }
    }

    /// Whether its instant is further in the past than its limiters' `margin` (100 ms without one). A call that is made
    /// so late could reach the upstream together with those of later reservations.
    pub fn is_late(&self) -> bool {
        let margins = self.checks.iter().map(|check| duration(check.algorithm.margin()));
        let margin = margins.filter(|margin| !margin.is_zero()).min();
        let slack = margin.map_or(SLACK, |margin| margin.max(LEAST_SLACK));
        self.at.elapsed() > slack
    }

    /// The pause of a limiter that covers the instant, so that the call must not be made. A pause counts that was learned
    /// after the grant, or that the store has lost.
    pub fn paused(&self) -> Option<Covering> {
        let pauses = self.store.pauses();
        if pauses.is_quiet_since(self.known) {
            return None;
        }
        pauses.covering(&self.checks, self.slot())
    }

    /// Resolves when a pause covers the instant, see [`Self::paused`]; with `None` when a limiter was freed, so that an earlier
    /// slot may be had. That never from `lead` before the instant on, when the call makes its callee ready.
    pub async fn until_paused(&self, lead: Duration) -> Option<Covering> {
        let covered = |seen| self.store.pauses().covered(&self.checks, self.slot(), seen);
        if self.is_movable(lead)
            && let Ok(change) = timeout_at(self.at - lead, covered(Some(self.seen))).await
        {
            return change;
        }
        covered(None).await
    }

    fn slot(&self) -> GrantedSlot {
        let (decided, is_behind) = (self.at - self.wait, self.is_after_pause());
        GrantedSlot { at: self.at, asked: self.known, decided, is_behind }
    }

    /// The limiters that granted it, with the rules by which they did.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Whether the instant comes after a pause of its limiters, as the decision says.
    pub fn is_after_pause(&self) -> bool {
        self.level.paused > 0
    }

    /// Whether it has all that was asked for. Concurrency permits are taken only when the instant of the others has come,
    /// so a reservation that waits does not have them yet.
    pub fn is_complete(&self) -> bool {
        self.held.is_some() || !self.parts.contains(&Part::NOT_YET)
    }

    /// Whether it has to be kept until the call has ended, because it holds concurrency permits.
    pub fn is_lease(&self) -> bool {
        self.held.is_some() || self.leases().next().is_some()
    }

    /// The checks of a second attempt of the call, each with its index among all checks. The concurrency permits of the
    /// first attempt are kept for it, so only the others are asked for.
    pub fn for_another_attempt(&self) -> (Checks, Vec<usize>) {
        let rates = self.checks.iter().enumerate().filter(|(_, check)| !check.is_lease());
        let (indices, checks): (_, Vec<Check>) = rates.map(|(i, check)| (i, check.clone())).unzip();
        (checks.into(), indices)
    }

    /// Uses the permits: the call is made now, and they are not refunded.
    pub fn spend(&mut self) {
        self.spent = true;
    }

    /// Refunds the permits after all, because nothing of the call was sent.
    pub fn refund(mut self) {
        self.spent = false;
    }

    /// Uses the permits for a call that is made elsewhere, so that its end is not known here. Each concurrency permit stays
    /// held until its lease expires, or until it is released or renewed through the store. Returns these permits.
    pub fn leave(mut self) -> Vec<LeasedPermit> {
        self.hand_over()
    }

    /// As [`Self::leave`], and keeps the right to [refund](Self::refund) or [settle](Self::settlement) the permits of rates.
    pub fn hand_over(&mut self) -> Vec<LeasedPermit> {
        // The holder renews them from now on.
        self.renewals.drain(..).for_each(|renewal| renewal.abort());
        self.ticket = None;
        let mut left = self.held.take().map_or_else(Vec::new, |held| held.leave());
        let own = self.leases();
        left.extend(
            own.map(|(check, part)| LeasedPermit { check: check.clone(), grant: part.grant }),
        );
        let own = self.parts.iter_mut().zip(self.checks.iter());
        own.filter(|(_, check)| check.is_lease()).for_each(|(part, _)| *part = Part::NOTHING);
        self.spent = true;
        left
    }

    /// The check whose limiter made it so late.
    pub fn bound(&self) -> &Check {
        &self.checks[self.bound_by]
    }

    /// The parts that the limiters granted, in the order of the checks.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn leases(&self) -> impl Iterator<Item = (&Check, &Part)> {
        let parts = self.checks.iter().zip(&self.parts);
        parts.filter(|(check, part)| check.is_lease() && part.at >= 0)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.renewals.iter().for_each(AbortHandle::abort);
        if !self.spent {
            self.store.refund(self.source, &self.checks, &self.parts);
            self.offer(&self.parts);
            // The concurrency permit that it got from the queue, and kept while it waited for the others.
            if let Some(Callable { ticket, .. }) = self.ticket.take()
                && ticket.deadline > 0
                && self.leases().next().is_none()
            {
                self.store.refund(self.source, &self.checks, &parts_of(&self.checks, ticket));
            }
        } else if self.leases().next().is_some() {
            let mut parts = self.parts.clone();
            let spent =
                parts.iter_mut().zip(self.checks.iter()).filter(|(_, check)| !check.is_lease());
            spent.for_each(|(part, _)| *part = Part::NOTHING);
            self.store.refund(self.source, &self.checks, &parts);
        }
    }
}
