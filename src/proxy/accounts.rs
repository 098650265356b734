//! The account that a request is sent with: it is chosen with the slot, and left when the vendor rejects it, refuses the call, or
//! cannot be reached.

mod moves;

use crate::{
    answer::Failure,
    config, limit,
    metrics::MoveReason,
    plan::{AccountSet, AllParked, OpenAccounts, RouteAccounts, Trial, open_ways},
    store::{Alternatives, Checks, Entry, Question, Store},
    throttle::Condition,
    upstream::{Pool, Target, Upload, headers},
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header::HOST};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// The account in an answer.
pub(crate) static PACEWAY_ACCOUNT: HeaderName = HeaderName::from_static("paceway-account");

/// How often a call looks whether another one has tried the last account with success.
const TRIED: Duration = Duration::from_millis(50);

/// The accounts with which a request can be sent.
pub(crate) struct RequestAccounts<'h> {
    route: &'h RouteAccounts,
    config: &'h config::Accounts,
    /// The ways to send it, one for each account; `None` if nothing limits it.
    ways: Option<&'h Arc<Alternatives>>,
    /// Those that it may not use.
    closed: AccountSet,
    /// Those that it has left, and those that do not take calls which have failed as it has.
    left: AccountSet,
    /// The one that it uses.
    chosen: Option<u8>,
    /// The right to try one that was parked.
    trial: Option<Trial>,
    /// The target as the client wrote it, once it was changed for an address.
    uri: Option<Uri>,
}

/// The accounts as an attempt sees them.
#[derive(Clone, Copy)]
pub(crate) struct AttemptAccounts<'r> {
    route: &'r RouteAccounts,
    ways: &'r Arc<Alternatives>,
    closed: AccountSet,
}

/// The connections to the addresses of accounts.
#[derive(Clone, Copy)]
pub(crate) struct AccountPools<'r> {
    route: &'r RouteAccounts,
    pools: &'r [Pool],
    closed: AccountSet,
}

// === impl AttemptAccounts ===

impl<'r> AttemptAccounts<'r> {
    /// The ways that are open by now.
    pub(crate) fn open(self, store: &dyn Store) -> Arc<Alternatives> {
        open_ways(self.ways, self.route.closed_by_now(store, self.closed))
    }

    /// Resolves when an account is parked.
    pub(super) async fn closes(self, account: u8) {
        self.route.plan.closes(account.into()).await;
    }

    /// Whether an account is parked by now, and others are open.
    pub(super) fn is_closed(self, store: &dyn Store, account: u8) -> bool {
        self.route.closed_by_now(store, self.closed).has(account.into())
    }

    /// The ways of all accounts.
    pub(crate) fn ways(self) -> &'r Arc<Alternatives> {
        self.ways
    }
}

// === impl AccountPools ===

impl<'r> AccountPools<'r> {
    /// The connections to the addresses of an account.
    pub(super) fn of(self, account: u8) -> &'r Pool {
        &self.pools[self.route.plan.all[usize::from(account)].upstream]
    }

    /// Whether an account with other addresses than `upstream` is open.
    pub(super) fn has_other(self, upstream: &Pool) -> bool {
        let all = self.route.plan.all.iter().enumerate();
        let mut open = all.filter(|(i, _)| !self.closed.has(*i));
        open.any(|(_, account)| !std::ptr::eq(&self.pools[account.upstream], upstream))
    }
}

// === impl RequestAccounts ===

impl<'h> RequestAccounts<'h> {
    /// Finds the accounts that are open for a request which asks this question and may wait until then.
    ///
    /// # Errors
    ///
    /// [`Failure::AccountsParked`] if none is.
    pub(crate) async fn open(
        store: &Arc<dyn Store>,
        route: &'h RouteAccounts,
        config: &'h config::Accounts,
        question: Option<&'h Question>,
        until: Instant,
    ) -> Result<Self, Failure> {
        let opened = loop {
            match route.closed(store, AccountSet::default()).await {
                Ok(opened) => break opened,
                // The result of the call that tries one is near.
                Err(AllParked { is_tried: true, .. }) if Instant::now() + TRIED < until => {
                    sleep(TRIED).await;
                }
                Err(all) => return Err(parked(all)),
            }
        };
        let OpenAccounts { closed, trial } = opened;
        let ways = match question {
            Some(Question::Ways(ways)) => Some(ways),
            _ => None,
        };
        let chosen = if ways.is_none() { route.first(closed) } else { None };
        let left = AccountSet::default();
        Ok(Self { route, config, ways, closed, left, chosen, trial, uri: None })
    }

    /// The accounts for an attempt; `None` if nothing limits the request.
    pub(crate) fn for_attempt(&self) -> Option<AttemptAccounts<'h>> {
        Some(AttemptAccounts { route: self.route, ways: self.ways?, closed: self.closed })
    }

    /// The connections to their addresses.
    pub(super) fn pools<'p>(&self, pools: &'p [Pool]) -> AccountPools<'p>
    where
        'h: 'p,
    {
        AccountPools { route: self.route, pools, closed: self.closed }
    }

    /// The account that it uses.
    pub(crate) fn chosen(&self) -> Option<u8> {
        self.chosen
    }

    /// The question to the limiters of that account.
    pub(super) fn checks(&self) -> Option<&'h Checks> {
        self.ways.map(|ways| ways.checks(self.chosen))
    }

    /// Uses an account from now on. The right to try another one is given back.
    pub(crate) fn take(&mut self, account: Option<u8>) {
        if self.ways.is_some() {
            self.chosen = account.or(self.chosen);
        }
        let chosen = self.chosen;
        self.trial.take_if(|trial| Some(trial.account) != chosen);
    }

    /// The same for a request that was sent before.
    pub(super) fn take_again(&mut self, account: Option<u8>) {
        let is_open = |own: u8| !self.closed.has(own.into());
        if self.ways.is_some() && account != self.chosen && self.chosen.is_some_and(is_open) {
            self.count_move(MoveReason::Refused);
        }
        self.take(account);
    }

    /// Leaves the account that cannot be reached, and all with the same addresses. Returns whether others are open.
    pub(super) fn leave_unreachable(&mut self) -> bool {
        let all = &self.route.plan.all;
        let Some(own) = self.chosen else { return false };
        let own = all[usize::from(own)].upstream;
        let mut same_address = AccountSet::default();
        let same = all.iter().enumerate().filter(|(_, account)| account.upstream == own);
        same.for_each(|(i, _)| {
            same_address.add(i);
            self.route.plan.lose(i);
        });
        self.leave_out(same_address);
        self.count_move(MoveReason::Unreachable);
        self.leave()
    }

    /// Uses none of these accounts from now on.
    fn leave_out(&mut self, accounts: AccountSet) {
        (self.closed, self.left) = (self.closed.with(accounts), self.left.with(accounts));
    }

    /// Leaves the account for one of the others. Returns whether one is open.
    fn leave(&mut self) -> bool {
        self.trial = None;
        if let Some(own) = self.chosen {
            self.leave_out(AccountSet::only(own.into()));
        }
        let first = self.route.first(self.closed);
        if self.ways.is_none() {
            self.chosen = first.or(self.chosen);
        }
        first.is_some()
    }

    /// Looks for an account that waits to be tried, for a request that has left the one which it had the right to try.
    ///
    /// # Errors
    ///
    /// [`Failure::AccountsParked`] if there is none that it has not left.
    async fn try_another(&mut self, store: &Arc<dyn Store>) -> Result<(), Failure> {
        let opened = self.route.closed(store, self.left).await;
        let OpenAccounts { closed, trial } = opened.map_err(parked)?;
        let Some(first) = self.route.first(closed) else {
            return Err(parked(self.route.plan.all_parked(&**store)));
        };
        (self.closed, self.trial) = (closed, trial);
        if self.ways.is_none() {
            self.chosen = Some(first);
        }
        Ok(())
    }

    /// Counts a request that leaves its account.
    pub(super) fn count_move(&self, reason: MoveReason) {
        if let Some(own) = self.chosen {
            self.route.plan.all[usize::from(own)].metrics.moved(reason);
        }
    }

    /// Counts a request that is sent.
    pub(super) fn count_sent(&self) {
        if let Some(own) = self.chosen {
            self.route.plan.all[usize::from(own)].metrics.requests.increment(1);
        }
    }

    /// Adds the headers of the account, which are its credentials.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        let own = self.chosen.and_then(|own| self.config.all.get(usize::from(own)));
        for (name, value) in own.iter().flat_map(|account| &account.headers) {
            headers.insert(name, value.clone());
        }
    }

    /// The headers that some account sets.
    pub(crate) fn names(&self) -> &'h [HeaderName] {
        &self.route.plan.names
    }

    /// Its name as a header field.
    pub(crate) fn label(&self) -> Option<&'h HeaderValue> {
        Some(&self.route.plan.all[usize::from(self.chosen?)].label)
    }

    /// The index of the upstream with its addresses.
    pub(super) fn upstream(&self) -> Option<usize> {
        Some(self.route.plan.all[usize::from(self.chosen?)].upstream)
    }

    /// Keeps the target as the client wrote it.
    pub(super) fn keep_uri(&mut self, uri: &Uri) {
        self.uri = Some(uri.clone());
    }

    /// Gives a request of a client the credentials of its account, and no others.
    pub(super) fn sign(&self, request: &mut Request<Upload>) {
        // Some programs take `X_Api_Key` for `X-Api-Key`.
        headers::remove_alike(request.headers_mut(), self.names());
        self.sign_again(request);
    }

    /// The same for a request that was sent with another account.
    fn sign_again(&self, request: &mut Request<Upload>) {
        let headers = request.headers_mut();
        for name in self.names() {
            headers.remove(name);
        }
        self.add_headers(headers);
    }

    /// Makes a request that was sent with another account one for this account at `target`.
    pub(super) fn readdress(
        &self,
        request: &mut Request<Upload>,
        target: &Target,
        preserves_host: bool,
    ) {
        self.sign_again(request);
        if !preserves_host {
            request.headers_mut().insert(HOST, target.host.clone());
        }
        if let Some(own) = &self.uri {
            let below = Target::uri_below(&target.base, own.path_and_query());
            *request.uri_mut() = below.unwrap_or_else(|| own.clone());
        }
    }

    /// Whether the status of an answer may say that the request has to leave its account.
    pub(super) fn concerns(&self, status: StatusCode) -> bool {
        let is_tried = self.trial.is_some();
        let says = |condition: &Condition| condition.has_status(status);
        is_tried || self.config.park.when.iter().any(says) || self.spills(status)
    }

    /// Whether another account takes calls that were answered with this status.
    fn spills(&self, status: StatusCode) -> bool {
        let others = self.config.all.iter().enumerate();
        let mut others = others.filter(|(i, _)| self.chosen.map(usize::from) != Some(*i));
        others.any(|(_, account)| account.on.iter().any(|class| class.has(status)))
    }

    /// Closes all accounts but those that take calls which were answered with this status.
    fn spill(&mut self, status: StatusCode) {
        let mut others = AccountSet::default();
        for (i, account) in self.config.all.iter().enumerate() {
            if !account.on.iter().any(|class| class.has(status)) {
                others.add(i);
            }
        }
        self.leave_out(others);
    }

    /// Parks the account for all requests of all gateways.
    fn park(&self, store: &dyn Store, status: StatusCode) {
        if let Some(own) = self.chosen {
            self.route.plan.park(store, own.into(), None, status.as_u16());
        }
    }

    /// Sees that the vendor has accepted the account.
    fn succeed(&mut self, store: &Arc<dyn Store>) {
        let Some(trial) = self.trial.take() else { return };
        for check in self.route.plan.trust(trial.account.into()) {
            store.pauses().end(&check.key);
            let asked = store.execute(Entry::Forget { check });
            tokio::spawn(async move { drop(asked.get().await) });
        }
    }
}

/// The failure of a request for which no account is open.
fn parked(AllParked { left, .. }: AllParked) -> Failure {
    Failure::AccountsParked { retry_after: limit::micros(left) }
}
