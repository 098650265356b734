//! The debt of one limiter: the permits that this gateway granted and the shared state does not know of. It is taken for a
//! charge, and restored if that charge failed.

use super::state::LocalState;
use crate::{
    algorithm::{Level, Micros, Rule, concurrency::Ticket},
    store::{
        Check, Checks,
        failover::grants::{Grants, charges},
    },
};
use std::sync::Arc;

/// The permits of one limiter that are to be charged to the shared state.
#[derive(Debug)]
pub(in crate::store::failover) struct Debt {
    /// The check with the whole rule.
    pub(in crate::store::failover) check: Check,
    /// One request per charge: for permits of a rate, or for the concurrency permit of a ticket.
    pub(in crate::store::failover) asks: Vec<(Checks, Option<Ticket>)>,
    /// How many permits that are, for the log.
    pub(in crate::store::failover) count: i64,
    before: (Level, Micros),
    grants: Grants,
}

// === impl LocalState ===

impl LocalState {
    /// Takes the debts of the keys that `is_meant` selects; see [`LocalStore::debts`](super::LocalStore::debts).
    pub(super) fn debts(&mut self, is_meant: impl Fn(&str) -> bool, closing: bool) -> Vec<Debt> {
        let now = self.now();
        let meant = self.limiters.iter_mut().filter(|(key, _)| is_meant(key));
        let keys: Vec<Arc<str>> = meant
            .map(|(key, limiter)| {
                limiter.closing = closing;
                key.clone()
            })
            .collect();
        keys.iter().filter_map(|key| self.debt(key, now)).collect()
    }

    /// Takes the debt of one limiter; `None` if it has none.
    pub(super) fn debt(&mut self, key: &Arc<str>, now: Micros) -> Option<Debt> {
        let limiter = self.limiters.get(key)?;
        let share = self.share(&limiter.check, key.clone());
        let level = self.level(&share, now);
        let limiter = self.limiters.get_mut(key)?;
        let before = limiter.known;
        let whole = limiter.check.clone();
        let mut debt = Debt {
            check: whole.clone(),
            asks: Vec::new(),
            count: 0,
            before,
            grants: Grants::default(),
        };
        match &share.algorithm {
            Rule::Permits(rule) => {
                let (tickets, new) = limiter.permits.due(now + rule.lease());
                let checks: Checks = [Check { enforce: false, ..whole }].into();
                let asks = tickets.into_iter().map(|ticket| (checks.clone(), Some(ticket)));
                (debt.asks, debt.count) = (asks.collect(), new);
            }
            Rule::Rate(rate) => {
                let owed = rate.owed(level, before.0.after(now - before.1));
                let taken = limiter.grants.take(rate, now, |ahead| owed - ahead);
                debt.count = taken.due.iter().map(|due| due.permits).sum();
                let charges = charges(&whole, &taken.due).into_iter();
                debt.asks = charges.map(|ask| (ask, None)).collect();
                (debt.grants, limiter.known) = (taken.grants, (level, now));
            }
        }
        (!debt.asks.is_empty()).then_some(debt)
    }

    /// Restores a debt whose charge failed. This gateway decides the limiter again until the debt is paid.
    pub(super) fn restore(&mut self, debt: &Debt) {
        let Some(limiter) = self.limiters.get_mut(&debt.check.key) else { return };
        (limiter.known, limiter.closing) = (debt.before, false);
        limiter.grants.put_back(&debt.grants);
        let tickets = debt.asks.iter().filter_map(|(_, ticket)| *ticket);
        tickets.for_each(|ticket| limiter.permits.restore(ticket));
    }
}
