//! A request as its limiters see it: one attempt at the upstream, for which permits are taken. `limit::pace` drives it.

mod notes;
mod refusal;

use super::{Proxy, accounts::AttemptAccounts, outgoing::Received, record::Record};
use crate::{
    answer::Failure,
    limit::{self, Admission, AlwaysReady, Caller, Reservation, Waiter},
    metrics::Verdict,
    plan::{CheckOwner, RecentReason, RoutePolicy, Waiting},
    reads::{Lead, SlotKnown},
    store::{Alternatives, Check, Checks, Decision, Question, StoreError},
};
use notes::{Times, is_logged};
use std::{future::pending, sync::Arc, time::Duration};
use tokio::time::Instant;

/// An attempt to send a request, as the side that asks the limiters.
pub(crate) struct Attempt<'r, 'p> {
    proxy: &'r Proxy,
    record: &'r mut Record<'p>,
    /// Index of the route.
    route: usize,
    policy: &'r RoutePolicy,
    checks: &'r Checks,
    /// For each check its index among those of the route; `None` for the first attempt, which asks for all.
    indices: Option<&'r [usize]>,
    /// How long the request may wait for this attempt.
    budget: Duration,
    /// As many requests of the route wait as `max_waiting` allows: this one is only granted what it can have at once.
    is_at_max_waiting: bool,
    /// The end of the time that it may wait; set when it begins to.
    until: Option<Instant>,
    /// Counts it among those that wait, from its first wait on.
    waiting: Option<Waiting<'r>>,
    /// The drain is about to end: the next answer of the store is the last.
    is_last_call: bool,
    is_counted: bool,
    /// Tells identical reads that wait with this one which slot it has.
    lead: Option<&'r Lead>,
    /// The accounts with which it may be sent, if there are several.
    accounts: Option<AttemptAccounts<'r>>,
    /// The upstream's refusal of the attempt before, which is kept until this one waits for a slot that it was granted.
    refused: Option<&'r mut Option<Box<Received>>>,
}

// === impl Attempt ===

impl<'r, 'p> Attempt<'r, 'p> {
    /// The first attempt of a request, which may wait for `budget` from its first wait on.
    pub(crate) fn first(
        proxy: &'r Proxy,
        record: &'r mut Record<'p>,
        route: usize,
        policy: &'r RoutePolicy,
        checks: &'r Checks,
        budget: Duration,
    ) -> Self {
        record.traces_question();
        let is_at_max_waiting =
            !budget.is_zero() && proxy.0.plan.waiting.of(route) >= policy.max_waiting;
        let (until, waiting) = (None, None);
        let (indices, is_last_call, is_counted, refused) = (None, false, false, None);
        let (lead, accounts) = (None, None);
        Self {
            proxy,
            record,
            route,
            policy,
            checks,
            indices,
            budget,
            is_at_max_waiting,
            until,
            waiting,
            is_last_call,
            is_counted,
            lead,
            accounts,
            refused,
        }
    }

    /// Makes it the attempt of a read with which identical ones may wait.
    pub(super) fn leading(self, lead: Option<&'r Lead>) -> Self {
        Self { lead, ..self }
    }

    /// Makes it an attempt after another one of the same request. The budget has begun with the request, and the request may
    /// wait however many others do.
    pub(super) fn again(self) -> Self {
        let until = Some(self.record.started + self.budget);
        Self { is_at_max_waiting: false, until, ..self }
    }

    /// Makes it an attempt after a refusal by the upstream, which is freed when this one waits for a slot.
    pub(super) fn after_refusal(self, refused: &'r mut Option<Box<Received>>) -> Self {
        Self { refused: Some(refused), ..self }
    }

    /// Makes it an attempt that takes one of these accounts.
    pub(crate) fn among(self, accounts: Option<AttemptAccounts<'r>>) -> Self {
        Self { accounts, ..self }
    }

    /// Makes it an attempt with checks of these indices among those of the route.
    pub(super) fn with_indices(self, indices: &'r [usize]) -> Self {
        Self { indices: Some(indices), ..self }
    }

    /// Takes the permits of a call that a program or another proxy makes, and returns at the instant of the call.
    ///
    /// # Errors
    ///
    /// Those of [`limit::pace`].
    pub(crate) async fn pace(mut self) -> Result<Reservation, Failure> {
        let (store, checks) = (&self.proxy.0.store, self.checks);
        let paced = limit::pace(store, checks, &mut self, &mut AlwaysReady::default()).await;
        self.record.end_wait();
        paced.map(|(reservation, ())| reservation)
    }

    /// Asks once for the permits of a call whose instant comes within `budget`. The program waits for that itself.
    ///
    /// # Errors
    ///
    /// Those of [`Self::pace`], and [`Failure::QueueFull`] instead of a place in a queue.
    pub(crate) async fn promise(mut self, budget: Duration) -> Result<Reservation, Failure> {
        // A place in a queue is only of use to a call that waits.
        let budget = if self.checks.iter().any(Check::is_lease) { Duration::ZERO } else { budget };
        let store = &self.proxy.0.store;
        let question = self.ways().map_or_else(|| self.checks.into(), Question::Ways);
        let promised = match limit::ask(store, question, budget).await {
            Ok(Admission::Granted(reservation)) => match reservation.paused() {
                None => {
                    self.granted(&reservation);
                    Ok(reservation)
                }
                Some(covering) => {
                    drop(reservation);
                    Err(self.refused(Decision::paused(covering.index, covering.left())))
                }
            },
            Ok(Admission::Refused(decision)) => Err(self.refused(decision)),
            Ok(Admission::Queued(_)) => Err(Failure::QueueFull { retry_after: 0 }),
            Err(error) => Err(self.undecided(error)),
        };
        self.record.end_wait();
        promised
    }

    fn asks_again(&mut self) {
        self.record.traces_question();
        if let Some(lead) = self.lead {
            lead.asks();
        }
    }

    /// The index of a check among those of the route.
    fn index(&self, check: usize) -> usize {
        self.indices.map_or(check, |indices| indices[check])
    }

    /// Frees the refusal of the attempt before when this one waits for a slot, and not in a queue.
    fn forget_refusal(&mut self, slot: Option<Duration>) {
        if slot.is_some()
            && let Some(refused) = self.refused.take()
        {
            *refused = None;
        }
    }
}

/// The slot of a reservation.
fn slot_of(reservation: &Reservation) -> SlotKnown {
    SlotKnown { at: Some(reservation.at), bound_by: reservation.bound_by }
}

impl Caller for Attempt<'_, '_> {
    type Error = Failure;

    fn left(&self) -> Duration {
        match self.until {
            _ if self.is_last_call => Duration::ZERO,
            Some(until) => until.saturating_duration_since(Instant::now()),
            None if self.is_at_max_waiting => Duration::ZERO,
            None => self.budget,
        }
    }

    fn renewed(&self) -> Option<Checks> {
        let learns =
            |i: usize| self.proxy.0.plan.limiters[self.policy.limiter(self.index(i))].margin();
        (0..self.checks.len()).any(|i| learns(i).is_some()).then(|| {
            let renewed = self.checks.iter().enumerate().map(|(i, check)| {
                let CheckOwner { limiter, rate } = self.policy.owner(self.index(i));
                self.proxy.0.plan.limiters[limiter].renewed(check, rate)
            });
            renewed.collect()
        })
    }

    fn ways(&self) -> Option<Arc<Alternatives>> {
        Some(self.accounts?.open(&*self.proxy.0.store))
    }

    fn takes(&mut self, way: u8) {
        if let Some(accounts) = self.accounts {
            self.checks = accounts.ways().checks(Some(way));
            self.record.account = Some(way);
        }
    }

    async fn way_closes(&self) {
        match (self.accounts, self.record.account) {
            (Some(accounts), Some(own)) => accounts.closes(own).await,
            _ => pending().await,
        }
    }

    /// A call is late, too, whose account was parked since.
    fn is_late(&self, reservation: &Reservation) -> bool {
        let is_parked = |accounts: AttemptAccounts<'_>| {
            let own = self.record.account.filter(|_| reservation.way.is_some());
            own.is_some_and(|own| accounts.is_closed(&*self.proxy.0.store, own))
        };
        reservation.is_late() || self.accounts.is_some_and(is_parked)
    }

    fn granted(&mut self, reservation: &Reservation) {
        self.sees(if reservation.wait.is_zero() { "pass" } else { "wait" }, reservation);
        if let Some(lead) = self.lead {
            lead.waits(slot_of(reservation));
        }
        if !self.is_counted {
            self.is_counted = true;
            if self.indices.is_none() {
                self.bind(reservation.bound_by);
            }
            self.count(reservation);
        }
    }

    fn queued(&mut self, waiter: &Waiter) {
        if is_logged() {
            let times = Times::default();
            self.log("queue", waiter.bound(), waiter.bound_by, waiter.source, times);
        }
        self.trace("queue", Some(waiter.bound_by), Some(waiter.source));
        if let Some(lead) = self.lead {
            lead.waits(SlotKnown { at: None, bound_by: waiter.bound_by });
        }
        if !self.is_counted {
            self.is_counted = true;
            let limiter = self.policy.limiter(self.index(waiter.bound_by));
            self.bind(waiter.bound_by);
            self.count_verdict(limiter, Verdict::Wait, waiter.source);
        }
    }

    fn refused(&mut self, decision: Decision) -> Failure {
        let check = decision.bound_by;
        self.trace("refuse", Some(check), Some(decision.source));
        let failure = self.refusal(decision);
        self.note(Some(check), RecentReason::refused(&failure));
        failure
    }

    fn undecided(&mut self, error: StoreError) -> Failure {
        let route = &self.proxy.0.plan.config.routes[self.route].name;
        tracing::debug!(route, %error, "undecided");
        self.trace("undecided", None, None);
        let failure = Failure::Store(error);
        self.note(None, RecentReason::refused(&failure));
        failure
    }

    fn waits(&mut self, bound_by: usize, time: Option<Duration>) -> Result<(), Failure> {
        // A second attempt that was late and can be made at once does not wait.
        let is_at_once = self.indices.is_some() && time.is_some_and(|time| time.is_zero());
        if self.waiting.is_some() || is_at_once {
            self.forget_refusal(time);
            return Ok(());
        }
        let limiter = self.policy.limiter(self.index(bound_by));
        let plan = &self.proxy.0.plan;
        self.waiting = Waiting::enter(plan, self.route, limiter, self.policy.max_waiting);
        if self.waiting.is_none() {
            let retry_after = limit::micros(time.unwrap_or_default());
            let failure = Failure::QueueFull { retry_after };
            self.note(Some(bound_by), RecentReason::refused(&failure));
            return Err(failure);
        }
        self.note(Some(bound_by), time.map_or(RecentReason::Permit, RecentReason::Slot));
        self.forget_refusal(time);
        let now = Instant::now();
        self.until.get_or_insert(now + self.budget);
        self.bind(bound_by);
        self.record.waits_since.get_or_insert(now);
        Ok(())
    }

    fn moved(&mut self, reservation: &Reservation) {
        self.sees("move", reservation);
        if let Some(lead) = self.lead {
            lead.waits(slot_of(reservation));
        }
    }

    fn late(&mut self, reservation: &Reservation) {
        let limiter = self.policy.limiter(self.index(reservation.bound_by));
        self.proxy.0.plan.limiters[limiter].metrics.late.increment(1);
        self.asks_again();
    }

    fn paused(&mut self, _: &Reservation) {
        self.asks_again();
    }

    /// At the last call no time is left to wait: the request gets its permit with the next answer, or 503.
    async fn notified(&mut self, waiter: &Waiter) -> Result<(), Failure> {
        if self.is_last_call {
            return Err(Failure::Draining { retry_after: 0 });
        }
        tokio::select! {
            biased;
            () = waiter.notified() => {}
            () = self.proxy.0.drain.last_call() => self.is_last_call = true,
        }
        self.record.traces_question();
        Ok(())
    }

    /// A request whose instant comes after the end of the drain is answered at once.
    async fn interrupted(&self, due: Instant) -> Failure {
        self.proxy.0.drain.ends_before(due).await;
        let left = due.saturating_duration_since(Instant::now());
        Failure::Draining { retry_after: limit::micros(left) }
    }
}
