//! The accounts of upstreams made ready for requests: which of them may be used now, and the ways of a request, one for each.
//!
//! An account that its vendor rejects is parked: a state of its own is paused in the store, so that all gateways know within
//! milliseconds. After the pause the state has one permit, for the call that tries the account.

mod known;
mod route;

pub(crate) use route::{AccountSet, OpenAccounts, RouteAccounts, Trial, open_ways, question};

use super::previous::Previous;
use crate::{
    algorithm::{Algorithm, TokenBucket},
    config::{self, Config},
    key::StateNames,
    limit,
    metrics::AccountMetrics,
    reads::Fingerprint,
    store::{Answer, Check, KnownPause, OnFailure, OnLoss, Pause, PauseVersion, Store},
};
use http::{HeaderName, HeaderValue};
use known::KnownAccount;
use parking_lot::RwLock;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How long a gateway waits until it asks again whether it may try an account that another call tries.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long an account whose address could not be reached is not used while others are open.
const GONE: Duration = Duration::from_secs(5);

/// The accounts of one upstream.
#[derive(Debug)]
pub(crate) struct AccountsPlan {
    pub(crate) all: Vec<AccountPlan>,
    /// The indices of all, in the order of their `after`.
    order: Vec<u8>,
    /// The headers that some account sets.
    pub(crate) names: Vec<HeaderName>,
    park_for: Duration,
    /// The hash tags of the states of its routes, in the order of [`AccountPlan::parks`].
    tags: Vec<String>,
    /// The pauses among which the accounts were looked for last. An account without doubts is parked by none of them.
    looked: RwLock<PauseVersion>,
}

/// One account.
#[derive(Debug)]
pub(crate) struct AccountPlan {
    /// The index of the upstream to whose addresses its calls are sent.
    pub(crate) upstream: usize,
    /// Its name as a header field.
    pub(crate) label: HeaderValue,
    pub(crate) metrics: AccountMetrics,
    /// The states by which it is parked, one for each hash tag.
    parks: Vec<Check>,
    /// Plans that follow each other share it.
    known: Arc<KnownAccount>,
}

/// All accounts of an upstream are parked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllParked {
    /// Until the first of them is tried again.
    pub(crate) left: Duration,
    /// A call tries one of them now.
    pub(crate) is_tried: bool,
}

// === impl AccountsPlan ===

impl AccountsPlan {
    /// The accounts of each upstream, by its index; `None` for one without.
    pub(super) fn of_all(
        config: &Config,
        prefix: &str,
        previous: &Previous<'_>,
    ) -> Vec<Option<Arc<Self>>> {
        let plan = |(i, upstream): (usize, &config::Upstream)| {
            let own = upstream.accounts.as_ref()?;
            let routes = config.routes.iter().filter(|route| route.upstream == i);
            let tags: BTreeSet<String> = routes.map(|route| tag_of(config, route)).collect();
            let tags: Vec<_> = tags.into_iter().collect();
            let before = previous.upstream(&upstream.name);
            let before = before.and_then(|(plan, i)| plan.accounts[i].clone());
            let mut order: Vec<u8> = (0..).take(own.all.len()).collect();
            order.sort_by_key(|account| own.all[usize::from(*account)].after);
            let all = own.all.iter().map(|account| {
                // Other credentials are another account, which the vendor has not rejected.
                let name = format!("{}/{}#{}", upstream.name, account.name, print_of(account));
                let names = tags.iter().map(|tag| StateNames::new(prefix, tag, b'T', "parked"));
                let parks =
                    names.filter_map(|names| park_check(names.of(Some(&name)), own.park_for));
                let parks: Vec<_> = parks.collect();
                let known = before.as_ref().and_then(|before| before.known(&parks));
                let known = known.unwrap_or_default();
                let metrics = AccountMetrics::new(&upstream.name, &account.name);
                let label = HeaderValue::from_str(&account.name);
                let label = label.unwrap_or_else(|_| HeaderValue::from_static("-"));
                // The account of this name may have had other credentials, which calls may still have.
                let former = before.iter().flat_map(|before| &before.all);
                let former = former.filter(|own| own.label == label);
                former
                    .filter(|own| !Arc::ptr_eq(&own.known, &known))
                    .for_each(|own| own.known.replace());
                metrics.parked.set(if known.is_doubtful() { 1.0 } else { 0.0 });
                AccountPlan { upstream: account.upstream, label, metrics, parks, known }
            });
            let (all, names, looked) = (all.collect(), own.names(), RwLock::default());
            Some(Arc::new(Self { all, order, names, park_for: own.park_for, tags, looked }))
        };
        config.upstreams.iter().enumerate().map(plan).collect()
    }

    /// The knowledge about the account that one of these states parks.
    fn known(&self, parks: &[Check]) -> Option<Arc<KnownAccount>> {
        let account = parks.iter().find_map(|check| self.parked_by(&check.key))?;
        Some(self.all[account].known.clone())
    }

    /// The states by which accounts are parked, of which the process reads the levels.
    pub(super) fn parks(&self) -> impl Iterator<Item = &Check> {
        self.all.iter().flat_map(|account| &account.parks)
    }

    /// The account that the state `key` parks, by its index.
    pub(super) fn parked_by(&self, key: &str) -> Option<usize> {
        let is_own = |check: &Check| &*check.key == key;
        self.all.iter().position(|account| account.parks.iter().any(is_own))
    }

    /// Notes that an account was parked, here or by another gateway.
    pub(crate) fn doubt(&self, account: usize) {
        let own = &self.all[account];
        if own.known.doubt() {
            own.metrics.parked.set(1.0);
        }
    }

    /// Notes that an account was parked just now: the calls that wait with it ask again.
    pub(crate) fn close(&self, account: usize) {
        self.doubt(account);
        self.all[account].known.closes.notify_waiters();
    }

    /// Resolves when an account is parked.
    pub(crate) async fn closes(&self, account: usize) {
        self.all[account].known.closes.notified().await;
    }

    /// Parks an account on all gateways: for `span`, or for as long as the configuration says. The status is that of the answer
    /// which rejects it; 0 for an operator.
    pub(crate) fn park(
        &self,
        store: &dyn Store,
        account: usize,
        span: Option<Duration>,
        status: u16,
    ) {
        for asked in self.ask_to_park(store, account, span, status) {
            tokio::spawn(async move {
                if let Err(error) = asked.get().await {
                    tracing::debug!(%error, "the store did not confirm that an account is parked");
                }
            });
        }
    }

    /// The same, and returns the answers of the store.
    pub(crate) fn ask_to_park(
        &self,
        store: &dyn Store,
        account: usize,
        span: Option<Duration>,
        status: u16,
    ) -> Vec<Answer<()>> {
        let span = span.unwrap_or(self.park_for);
        let parks = self.all[account].parks.iter().map(|check| {
            let pause = Pause::keeping_rate(Pause::of(span, status).span, status);
            store.pauses().learn_first(check, pause);
            store.pause(&[check.clone()].into(), pause)
        });
        let asked = parks.collect();
        self.close(account);
        asked
    }

    /// Lets an account be used again, because a call with it has succeeded.
    pub(crate) fn trust(&self, account: usize) -> Vec<Check> {
        let own = &self.all[account];
        if own.known.trust() {
            own.metrics.parked.set(0.0);
        }
        own.parks.clone()
    }

    /// Notes that the address of an account could not be reached.
    pub(crate) fn lose(&self, account: usize) {
        self.all[account].known.gone.begin(GONE);
    }

    /// Whether an account may have been parked.
    pub(crate) fn is_doubtful(&self, account: usize) -> bool {
        self.all[account].known.is_doubtful()
    }

    /// How long an account stays parked, if it is.
    fn parked_for(&self, store: &dyn Store, account: usize) -> Option<Duration> {
        self.pause_of(store, account).map(|known| limit::duration(known.left()))
    }

    /// The pause by which an account is parked, if it is.
    pub(crate) fn pause_of(&self, store: &dyn Store, account: usize) -> Option<KnownPause> {
        let pauses = store.pauses();
        let known = self.all[account].parks.iter().filter_map(|check| pauses.get(&check.key));
        known.max_by_key(|known| known.until)
    }

    /// The end of the first park, for a request that finds no account open.
    pub(crate) fn all_parked(&self, store: &dyn Store) -> AllParked {
        let parked = (0..self.all.len()).map(|account| self.parked_for(store, account));
        let (parked, open): (Vec<_>, Vec<_>) = parked.partition(Option::is_some);
        let left = parked.into_iter().flatten().min().unwrap_or(ASK_AGAIN);
        AllParked { left, is_tried: !open.is_empty() }
    }

    /// The accounts that are parked now, besides those of `left_out`.
    fn closed(&self, store: &dyn Store, left_out: AccountSet) -> AccountSet {
        let (mut closed, pauses) = (left_out, store.pauses());
        if pauses.is_empty() {
            return closed;
        }
        // It is read before the table, so that a pause which begins meanwhile is looked for by the next request.
        let version = pauses.version();
        let is_new = *self.looked.read() != version;
        for account in 0..self.all.len() {
            let may_be_parked = is_new || self.is_doubtful(account);
            if may_be_parked && self.parked_for(store, account).is_some() {
                self.doubt(account);
                closed.add(account);
            }
        }
        if is_new {
            *self.looked.write() = version;
        }
        closed
    }
}

/// The print of the credentials and the address of an account. It is a part of names of states, so it says too little to try
/// credentials by it.
fn print_of(account: &config::Account) -> String {
    let mut of = Fingerprint::new([account.url().unwrap_or_default().as_bytes()]);
    for (name, value) in &account.headers {
        of.add(name.as_str().as_bytes());
        of.add(value.as_bytes());
    }
    of.end().shortened()
}

/// The hash tag of the states that requests of a route have.
fn tag_of(config: &Config, route: &config::Route) -> String {
    let first = route.limiters.first().filter(|_| config.store.is_cluster());
    first.map_or("accounts", |charge| &config.limiters[charge.limiter].group).to_owned()
}

/// The check of the one call that tries an account after it was parked.
fn park_check(key: String, park_for: Duration) -> Option<Check> {
    let period = i64::try_from(park_for.as_micros()).ok()?.max(1);
    // The configuration allows a day at most, for which there is a rule.
    let rule = Algorithm::TokenBucket(TokenBucket::new(1, period, 1)?);
    Some(Check::new(key, rule).with_on_failure(OnFailure::Whole).with_on_loss(OnLoss::Trust))
}

#[cfg(test)]
mod tests;
