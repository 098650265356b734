//! Decisions of this gateway alone. Each limiter enforces its share of the rule, from the level that was last known. The
//! permits that it grants are kept as a debt, which is charged to the shared state when that answers again.

mod debt;
mod limiter;
mod state;

pub(super) use debt::Debt;

use super::unasked;
use crate::{
    algorithm::{
        Micros, Rule,
        concurrency::Ticket,
        reserve::{Part, Parts},
    },
    store::{
        Alternative, Alternatives, Check, Checks, Decision, Entry, OnFailure, Pause, Reply, Share,
        Source, Way,
        calls::{self, Calls},
        health::Health,
    },
};
use parking_lot::Mutex;
use state::LocalState;
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// The decisions of all workers of this process without the store. It holds no state as long as the store decides.
#[derive(Debug, Default)]
pub(super) struct LocalStore {
    state: Mutex<Option<LocalState>>,
    /// Whether there is a state; every decision reads it.
    is_open: AtomicBool,
    /// The requests that wait for concurrency permits of this gateway, of all workers.
    calls: Arc<Calls>,
}

/// The shared state decides again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IsBack;

/// Whether a gateway decides this limiter by itself while the store is away.
pub(super) fn is_own(check: &Check) -> bool {
    matches!(check.on_failure, OnFailure::Share { .. } | OnFailure::Whole)
}

// === impl LocalStore ===

impl LocalStore {
    pub(super) fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// Whether the shared state knows of all permits that this gateway granted.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_open.load(SeqCst)
    }

    /// Whether this gateway decided one of `checks` and has not charged it to the shared state yet, which would grant the
    /// same permits again until then.
    pub(super) fn decides(&self, checks: &Checks) -> bool {
        !self.is_empty() && self.state.lock().as_ref().is_some_and(|state| state.decides(checks))
    }

    /// Decides a request by the best of these `ways`; `None` when no limiter of it is decided here. If it `is_unasked`, the store was
    /// not asked because it is away.
    ///
    /// # Errors
    ///
    /// [`IsBack`] when the store, which was not asked, answers again since the caller looked, and has been charged. A new local state
    /// would start from the level before the outage, and grant the same permits twice.
    pub(super) fn decide(
        &self,
        health: &Health,
        ways: &[Way<'_>],
        budget: Micros,
        ticket: Option<Ticket>,
        is_unasked: bool,
    ) -> Result<Option<Decision>, IsBack> {
        // Without such a limiter, the request does not wait for the lock that all workers share.
        if !ways.iter().any(|way| way.checks.iter().any(is_own)) {
            return Ok(None);
        }
        let mut slot = self.state.lock();
        let decides = |state: &LocalState| ways.iter().any(|way| state.decides(way.checks));
        if is_unasked && health.is_closed() && !slot.as_ref().is_some_and(decides) {
            return Err(IsBack);
        }
        let state = self.open(&mut slot, health);
        // A late heartbeat may report more gateways during the outage. A smaller number counts after it.
        state.grow(health.gateways());
        let now = state.now();
        let way = match ways {
            [only] => only,
            _ => {
                let shares = (0..).zip(ways).map(|(id, way)| {
                    let own = way.checks.iter().filter(|check| is_own(check));
                    let checks = own.map(|check| state.begin(health, check, now)).collect();
                    Alternative { id, checks, after: way.after }
                });
                let shares = Alternatives::new(shares.collect());
                let ticket = ticket.map(calls::here);
                &ways[shares.map_or(0, |own| state.earliest(now, &own, budget, ticket))]
            }
        };
        let decision = reserve_in(state, health, way.checks, budget, ticket);
        Ok(decision.map(|decision| Decision { chosen: way.id, ..decision }))
    }

    fn open<'b>(&self, state: &'b mut Option<LocalState>, health: &Health) -> &'b mut LocalState {
        let state = state.get_or_insert_with(|| LocalState::new(health, self.calls.clone()));
        if !self.is_open.swap(true, SeqCst) {
            health.wake.notify_one();
        }
        state
    }

    /// The share by which this gateway decides `check`, and how full that is. Changes nothing.
    pub(super) fn look(&self, health: &Health, check: &Check) -> Share {
        if let Some(state) = &*self.state.lock()
            && state.knows(&check.key)
        {
            return state.shown(check);
        }
        // No request has used it during the outage, so this is the share that the first one would find.
        LocalState::new(health, Arc::default()).would_show(health, check)
    }

    /// Begins the limiters of `checks` that are decided here while the store is away, with the pauses that are known, so that
    /// the recovery writes these to the store.
    pub(super) fn pause(&self, health: &Health, checks: &Checks) {
        let own = || checks.iter().filter(|check| check.enforce && is_own(check));
        let mut state = self.state.lock();
        if health.is_closed() || own().next().is_none() {
            return;
        }
        let state = self.open(&mut state, health);
        let now = state.now();
        own().for_each(|check| drop(state.begin(health, check, now)));
    }

    /// The pauses of the limiters that `is_meant` selects, which the store does not know of. They count as known to it from
    /// now on.
    pub(super) fn pauses(
        &self,
        health: &Health,
        is_meant: impl Fn(&str) -> bool,
    ) -> Vec<(Check, Pause)> {
        let mut state = self.state.lock();
        state.as_mut().map(|state| state.pauses(health, is_meant)).unwrap_or_default()
    }

    /// Refunds what this gateway granted. Returns the concurrency permits that the shared state counts by now.
    pub(super) fn refund(&self, checks: &Checks, parts: &[Part]) -> Option<Parts> {
        let mut charged: Parts = parts.iter().map(|_| Part::NOTHING).collect();
        let mut state = self.state.lock();
        for (i, (check, part)) in
            checks.iter().zip(parts).enumerate().filter(|(_, (_, part))| part.at >= 0)
        {
            let is_kept = state.as_mut().is_some_and(|state| state.refund(check, *part));
            if check.is_lease() && !is_kept {
                charged[i] = *part;
            }
        }
        charged.iter().any(|part| part.at >= 0).then_some(charged)
    }

    /// Returns the permits that a request did not use which this gateway granted.
    pub(super) fn settle(&self, check: &Check, part: Part, used: i64) {
        if let Some(state) = &mut *self.state.lock() {
            state.settle(check, part, used);
        }
    }

    /// Charges permits that a request used beyond those that it had reserved. False when the shared state decides `check`,
    /// which then has to be charged.
    pub(super) fn owe(&self, health: &Health, check: &Check, permits: i64) -> bool {
        if !is_own(check) || (health.is_closed() && self.is_empty()) {
            return false;
        }
        let mut state = self.state.lock();
        let is_decided = state.as_ref().is_some_and(|state| state.knows(&check.key));
        if health.is_closed() && !is_decided {
            return false;
        }
        let state = self.open(&mut state, health);
        state.grow(health.gateways());
        state.owe(health, check, permits);
        true
    }

    /// A call that holds permits of the shared store has ended. Returns the parts to refund there, without the permits that
    /// stay with this gateway for later calls; `None` if none does.
    pub(super) fn leave(&self, health: &Health, checks: &Checks, parts: &[Part]) -> Option<Parts> {
        let is_away = !health.is_closed();
        let is_own_lease = |check: &Check| check.is_lease() && is_own(check);
        if self.is_empty() && !(is_away && checks.iter().any(is_own_lease)) {
            return None;
        }
        let mut state = self.state.lock();
        if is_away {
            // The next call is to take the permit over, so this gateway has to know of it.
            let state = self.open(&mut state, health);
            let now = state.now();
            let own = checks.iter().filter(|check| is_own_lease(check));
            own.for_each(|check| drop(state.begin(health, check, now)));
        }
        let state = state.as_mut()?;
        let mut left: Parts = parts.iter().copied().collect();
        for (check, part) in checks.iter().zip(&mut left) {
            if check.is_lease() && part.at >= 0 && state.leave(check, part.grant) == Some(false) {
                *part = Part::NOTHING;
            }
        }
        Some(left)
    }

    /// Extends the lease of a permit that this gateway granted. True if the shared store does not count that permit, so
    /// that it need not be renewed there.
    pub(super) fn renew(&self, check: &Check, grant: crate::algorithm::Grant) -> bool {
        !self.is_empty()
            && self.state.lock().as_mut().is_some_and(|state| state.renew(check, grant))
    }

    /// The debts of the keys that `is_meant` selects, which count as charged from now on. `closing`: the shared state
    /// decides these keys from now on.
    pub(super) fn debts(&self, is_meant: impl Fn(&str) -> bool, closing: bool) -> Vec<Debt> {
        let mut state = self.state.lock();
        let mut debts =
            state.as_mut().map(|state| state.debts(is_meant, closing)).unwrap_or_default();
        // A hash table has another order in each process. The order of charges should not depend on it.
        debts.sort_unstable_by(|a, b| a.check.key.cmp(&b.check.key));
        debts
    }

    /// The lanes of all keys that are decided here, as `lane` names them.
    pub(super) fn lanes(&self, lane: impl Fn(&str) -> &str) -> HashSet<Box<str>> {
        let state = self.state.lock();
        let keys = state.iter().flat_map(LocalState::keys);
        keys.map(|key| lane(key).into()).collect()
    }

    /// Forgets the limiters that are closing and have no debt. Returns whether requests may wait there for a concurrency
    /// permit. `idle` receives the permits that the shared store counts and no call uses.
    pub(super) fn forget(&self, health: &Health, idle: impl Fn(&Check, &[Part])) -> bool {
        let mut slot = self.state.lock();
        let Some(state) = &mut *slot else { return false };
        let has_leases = state.forget_paid(health, idle);
        if state.is_empty() {
            *slot = None;
            self.is_open.store(false, SeqCst);
        }
        has_leases
    }

    /// The shared state did not receive the charge, so the debt is open again.
    pub(super) fn restore(&self, debt: &Debt) {
        if let Some(state) = &mut *self.state.lock() {
            state.restore(debt);
        }
    }
}

/// Decides a request by those of its limiters that are decided here; `None` when there are none.
fn reserve_in(
    state: &mut LocalState,
    health: &Health,
    checks: &Checks,
    budget: Micros,
    ticket: Option<Ticket>,
) -> Option<Decision> {
    let now = state.now();
    let own: Vec<usize> = (0..checks.len()).filter(|i| is_own(&checks[*i])).collect();
    if own.is_empty() {
        return None;
    }
    let shares: Checks = own.iter().map(|i| state.begin(health, &checks[*i], now)).collect();
    let ticket = ticket.map(calls::here);
    let entry = Entry::Reserve { checks: shares.clone(), budget, ticket };
    let Reply::Decision(mut decision) = state.run(now, entry) else { return None };
    decision.source = Source::Local;
    if let Some(queued) = &mut decision.queued {
        let after = state.known_after(&shares[decision.bound_by], now);
        queued.ask_after = after.map_or(queued.ask_after, |after| after.min(queued.ask_after));
    }
    if decision.admitted {
        health.note_grant();
        let mut parts: Parts = checks.iter().map(unasked).collect();
        for ((i, share), part) in own.iter().zip(shares.iter()).zip(&decision.parts) {
            parts[*i] = *part;
            let Some(limiter) = state.limiter(&share.key).filter(|_| part.at >= 0) else {
                continue;
            };
            match (&limiter.check.algorithm, &share.algorithm) {
                (Rule::Permits(whole), _) => {
                    let Some(ticket) = ticket else { continue };
                    let permit = limiter.permits.take(whole, ticket, now);
                    parts[*i].grant = permit.grant();
                }
                (_, Rule::Rate(rate)) => {
                    limiter.grants.add(rate, now, *part, share.cost);
                }
                _ => {}
            }
        }
        decision.parts = parts;
    }
    decision.bound_by = own[decision.bound_by];
    Some(decision)
}
