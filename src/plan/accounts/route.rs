//! The accounts as the requests of one route see them: which are open, which of them a request tries that was parked, and the
//! ways of a request, one for each. Parks none.

use super::{ASK_AGAIN, AccountsPlan, AllParked, tag_of};
use crate::{
    config::{self, Config},
    key::AccountNames,
    limit::{self, Admission, Reservation},
    store::{Alternative, Alternatives, Checks, Question, Store},
};
use std::{sync::Arc, time::Duration};

/// The accounts of the upstream of a route.
#[derive(Debug, Clone)]
pub(crate) struct RouteAccounts {
    pub(crate) plan: Arc<AccountsPlan>,
    /// The place of the hash tag of its states.
    tag: usize,
}

/// A set of accounts, by their indices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AccountSet(u64);

/// The right to try an account that was parked. Dropped, another call may try it.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) account: u8,
    _permit: Reservation,
}

/// The accounts that a request may use: all but those that are `closed`.
#[derive(Debug)]
pub(crate) struct OpenAccounts {
    pub(crate) closed: AccountSet,
    /// The right to try one that was parked.
    pub(crate) trial: Option<Trial>,
}

// === impl RouteAccounts ===

impl RouteAccounts {
    pub(in crate::plan) fn new(
        config: &Config,
        route: &config::Route,
        plan: Arc<AccountsPlan>,
    ) -> Self {
        let own = tag_of(config, route);
        let tag = plan.tags.iter().position(|tag| *tag == own).unwrap_or_default();
        Self { plan, tag }
    }

    /// The accounts that a request may not use now, those of `left` among them. An account that was parked before is open for one
    /// request, which gets the right to try it: first one whose address can be reached.
    ///
    /// # Errors
    ///
    /// [`AllParked`] if none is open.
    pub(crate) async fn closed(
        &self,
        store: &Arc<dyn Store>,
        left: AccountSet,
    ) -> Result<OpenAccounts, AllParked> {
        let plan = &self.plan;
        let mut closed = plan.closed(&**store, left);
        let mut gone = AccountSet::default();
        for (account, own) in plan.all.iter().enumerate() {
            if own.known.gone.lasts() {
                gone.add(account);
            }
        }
        let mut trial = None;
        for is_gone in [false, true] {
            for account in (0..plan.all.len()).filter(|account| gone.has(*account) == is_gone) {
                if plan.is_doubtful(account) && !closed.has(account) {
                    trial = match trial {
                        None => self.try_out(store, account).await,
                        some => some,
                    };
                    if trial.as_ref().is_none_or(|trial| usize::from(trial.account) != account) {
                        closed.add(account);
                    }
                }
            }
        }
        let reached = closed.with(gone);
        if !reached.is_all(plan.all.len()) {
            closed = reached;
        }
        if closed.is_all(plan.all.len()) {
            return Err(plan.all_parked(&**store));
        }
        Ok(OpenAccounts { closed, trial })
    }

    /// Asks for the right to try an account.
    async fn try_out(&self, store: &Arc<dyn Store>, account: usize) -> Option<Trial> {
        let own = &self.plan.all[account];
        if own.known.tried.lasts() {
            return None;
        }
        let checks: Checks = [own.parks.get(self.tag)?.clone()].into();
        if let Ok(Admission::Granted(permit)) = limit::ask(store, &checks, Duration::ZERO).await {
            return Some(Trial { account: u8::try_from(account).ok()?, _permit: permit });
        }
        own.known.tried.begin(ASK_AGAIN);
        None
    }

    /// The accounts that are parked by now, besides those that were `closed` before.
    pub(crate) fn closed_by_now(&self, store: &dyn Store, closed: AccountSet) -> AccountSet {
        let now = self.plan.closed(store, closed);
        if now.is_all(self.plan.all.len()) { closed } else { now }
    }

    /// The first account that is open.
    pub(crate) fn first(&self, closed: AccountSet) -> Option<u8> {
        self.plan.order.iter().copied().find(|account| !closed.has(usize::from(*account)))
    }
}

/// The question of a request that may be sent with each of these accounts, whose checks `checks` makes; `None` if nothing limits
/// it. A lone account costs what none costs.
///
/// # Errors
///
/// Those of `checks`.
pub(crate) fn question<'c, E>(
    accounts: &'c config::Accounts,
    mut checks: impl FnMut(AccountNames<'c>) -> Result<Option<Checks>, E>,
) -> Result<Option<Question>, E> {
    let mut ways = Vec::with_capacity(accounts.all.len());
    for (id, account) in (0..).zip(&accounts.all) {
        let Some(checks) = checks(account.names())? else { return Ok(None) };
        ways.push(Alternative { id, checks, after: limit::micros(account.after) });
    }
    Ok(Alternatives::new(ways).map(|ways| match ways.ways() {
        [only] => Question::Checks(only.checks.clone()),
        _ => Question::Ways(Arc::new(ways)),
    }))
}

/// The ways without those of closed accounts.
pub(crate) fn open_ways(all: &Arc<Alternatives>, closed: AccountSet) -> Arc<Alternatives> {
    if closed == AccountSet::default() {
        return all.clone();
    }
    let open = all.ways().iter().filter(|way| !closed.has(way.id.into()));
    Alternatives::new(open.cloned().collect()).map_or_else(|| all.clone(), Arc::new)
}

// === impl AccountSet ===

impl AccountSet {
    pub(crate) fn only(account: usize) -> Self {
        Self(1 << account)
    }

    pub(crate) fn add(&mut self, account: usize) {
        self.0 |= 1 << account;
    }

    pub(crate) fn has(self, account: usize) -> bool {
        self.0 >> account & 1 == 1
    }

    /// The accounts of both.
    pub(crate) fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    fn is_all(self, count: usize) -> bool {
        (0..count).all(|account| self.has(account))
    }
}
