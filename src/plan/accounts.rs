//! The accounts of upstreams made ready for requests: which of them may be used now, and the ways of a request, one for each.
//!
//! An account that its vendor rejects is parked: a state of its own is paused in the store, so that all gateways know within
//! milliseconds. After the pause the state has one permit, for the call that tries the account.

use super::previous::Previous;
use crate::{
    algorithm::{Algorithm, TokenBucket},
    config::{self, Config, StoreConfig},
    key::{AccountNames, StateNames},
    limit::{self, Admission, Reservation},
    metrics::AccountMetrics,
    reads::Fingerprint,
    store::{
        Alternative, Alternatives, Answer, Check, Checks, KnownPause, OnFailure, OnLoss, Pause,
        Store,
    },
};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How long a gateway waits until it asks again whether it may try an account that another call tries.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// How long an account whose address could not be reached is not used while others are open.
const GONE: Duration = Duration::from_secs(5);

/// The accounts of one upstream.
#[derive(Debug)]
pub(crate) struct AccountsPlan {
    pub(crate) all: Vec<AccountPlan>,
    /// The headers that some account sets.
    pub(crate) names: Vec<HeaderName>,
    park_for: Duration,
    /// The hash tags of the states of its routes, in the order of [`AccountPlan::parks`].
    tags: Vec<String>,
}

/// One account.
#[derive(Debug)]
pub(crate) struct AccountPlan {
    /// The index of the upstream to whose addresses its calls are sent.
    pub(crate) upstream: usize,
    pub(crate) after: Duration,
    /// Its name as a header field.
    pub(crate) label: HeaderValue,
    pub(crate) metrics: AccountMetrics,
    /// The states by which it is parked, one for each hash tag.
    parks: Vec<Check>,
    /// Plans that follow each other share it.
    known: Arc<KnownAccount>,
}

/// The knowledge about an account, besides the pauses of its states.
#[derive(Debug, Default)]
struct KnownAccount {
    /// It was parked, and no call has succeeded since.
    is_doubtful: AtomicBool,
    /// Until then another call tries it.
    tried_until: Mutex<Option<Instant>>,
    /// Until then its address counts as one that cannot be reached.
    gone_until: Mutex<Option<Instant>>,
    /// Notified when it is parked.
    closes: Notify,
}

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
        let is_cluster =
            matches!(&config.store, StoreConfig::Redis { url, .. } if url.is_cluster());
        let plan = |(i, upstream): (usize, &config::Upstream)| {
            let own = upstream.accounts.as_ref()?;
            let routes = config.routes.iter().filter(|route| route.upstream == i);
            let tags: BTreeSet<String> =
                routes.map(|route| tag_of(config, route, is_cluster)).collect();
            let tags: Vec<_> = tags.into_iter().collect();
            let before = previous.upstream(&upstream.name);
            let before = before.and_then(|(plan, i)| plan.accounts[i].clone());
            let all = own.all.iter().map(|account| {
                // Other credentials are another account, which the vendor has not rejected.
                let name = format!("{}/{}#{}", upstream.name, account.name, print_of(account));
                let names = tags.iter().map(|tag| StateNames::new(prefix, tag, b'T', "parked"));
                let parks =
                    names.filter_map(|names| park_check(names.of(Some(&name)), own.park_for));
                let parks: Vec<_> = parks.collect();
                let known = before.as_ref().and_then(|before| before.known(&parks));
                let label = HeaderValue::from_str(&account.name);
                AccountPlan {
                    upstream: account.upstream,
                    after: account.after,
                    label: label.unwrap_or_else(|_| HeaderValue::from_static("-")),
                    metrics: AccountMetrics::new(&upstream.name, &account.name),
                    parks,
                    known: known.unwrap_or_default(),
                }
            });
            let (all, names) = (all.collect(), own.names());
            Some(Arc::new(Self { all, names, park_for: own.park_for, tags }))
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
        if !own.known.is_doubtful.swap(true, Relaxed) {
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
        own.known.is_doubtful.store(false, Relaxed);
        *own.known.tried_until.lock() = None;
        own.metrics.parked.set(0.0);
        own.parks.clone()
    }

    /// Notes that the address of an account could not be reached.
    pub(crate) fn lose(&self, account: usize) {
        *self.all[account].known.gone_until.lock() = Some(Instant::now() + GONE);
    }

    fn is_gone(&self, account: usize) -> bool {
        self.all[account].known.gone_until.lock().is_some_and(|until| until > Instant::now())
    }

    /// Whether an account may have been parked.
    pub(crate) fn is_doubtful(&self, account: usize) -> bool {
        self.all[account].known.is_doubtful.load(Relaxed)
    }

    /// How long an account stays parked, if it is.
    pub(crate) fn parked_for(&self, store: &dyn Store, account: usize) -> Option<Duration> {
        self.pause_of(store, account).map(|known| limit::duration(known.left()))
    }

    /// The pause by which an account is parked, if it is.
    pub(crate) fn pause_of(&self, store: &dyn Store, account: usize) -> Option<KnownPause> {
        let pauses = store.pauses();
        let known = self.all[account].parks.iter().filter_map(|check| pauses.get(&check.key));
        known.max_by_key(|known| known.until)
    }

    /// The accounts that are parked now, and those that are tried by other calls, besides those of `left_out`.
    fn closed(&self, store: &dyn Store, left_out: AccountSet) -> AccountSet {
        let mut closed = left_out;
        if store.pauses().is_empty() {
            return closed;
        }
        for account in 0..self.all.len() {
            if self.parked_for(store, account).is_some() {
                self.doubt(account);
                closed.add(account);
            }
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
fn tag_of(config: &Config, route: &config::Route, is_cluster: bool) -> String {
    let first = route.limiters.first().filter(|_| is_cluster);
    first.map_or("accounts", |charge| &config.limiters[charge.limiter].group).to_owned()
}

/// The check of the one call that tries an account after it was parked.
fn park_check(key: String, park_for: Duration) -> Option<Check> {
    let period = i64::try_from(park_for.as_micros()).ok()?.max(1);
    // The configuration allows a day at most, for which there is a rule.
    let rule = Algorithm::TokenBucket(TokenBucket::new(1, period, 1)?);
    Some(Check::new(key, rule).with_on_failure(OnFailure::Whole).with_on_loss(OnLoss::Trust))
}

// === impl RouteAccounts ===

impl RouteAccounts {
    pub(super) fn new(config: &Config, route: &config::Route, plan: Arc<AccountsPlan>) -> Self {
        let is_cluster =
            matches!(&config.store, StoreConfig::Redis { url, .. } if url.is_cluster());
        let own = tag_of(config, route, is_cluster);
        let tag = plan.tags.iter().position(|tag| *tag == own).unwrap_or_default();
        Self { plan, tag }
    }

    /// The accounts that a request may not use now, besides those of `left_out`. An account that was parked before is open for
    /// one request, which gets the right to try it.
    ///
    /// # Errors
    ///
    /// [`AllParked`] if none is open.
    pub(crate) async fn closed(
        &self,
        store: &Arc<dyn Store>,
        left_out: AccountSet,
    ) -> Result<OpenAccounts, AllParked> {
        let plan = &self.plan;
        let mut closed = plan.closed(&**store, left_out);
        let mut trial = None;
        for account in 0..plan.all.len() {
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
        let mut reached = closed;
        for account in 0..plan.all.len() {
            if plan.is_gone(account) {
                reached.add(account);
            }
        }
        if !reached.is_all(plan.all.len()) {
            closed = reached;
        }
        if closed.is_all(plan.all.len()) {
            let left = (0..plan.all.len()).map(|account| plan.parked_for(&**store, account));
            let is_parked = |account| plan.parked_for(&**store, account).is_some();
            let is_tried = (0..plan.all.len()).any(|account| !is_parked(account));
            let left = left.flatten().min().unwrap_or(ASK_AGAIN);
            return Err(AllParked { left, is_tried });
        }
        Ok(OpenAccounts { closed, trial })
    }

    /// Asks for the right to try an account.
    async fn try_out(&self, store: &Arc<dyn Store>, account: usize) -> Option<Trial> {
        let known = &self.plan.all[account].known;
        let now = Instant::now();
        if known.tried_until.lock().is_some_and(|until| until > now) {
            return None;
        }
        let checks: Checks = [self.plan.all[account].parks.get(self.tag)?.clone()].into();
        if let Ok(Admission::Granted(permit)) = limit::ask(store, &checks, Duration::ZERO).await {
            return Some(Trial { account: u8::try_from(account).ok()?, _permit: permit });
        }
        *known.tried_until.lock() = Some(now + ASK_AGAIN);
        None
    }

    /// The accounts that are parked by now, besides those that were `closed` before.
    pub(crate) fn closed_by_now(&self, store: &dyn Store, closed: AccountSet) -> AccountSet {
        let now = self.plan.closed(store, closed);
        if now.is_all(self.plan.all.len()) { closed } else { now }
    }

    /// The first account that is open.
    pub(crate) fn first(&self, closed: AccountSet) -> Option<u8> {
        let open = self.plan.all.iter().enumerate().filter(|(i, _)| !closed.has(*i));
        let first = open.min_by_key(|(_, account)| account.after)?;
        u8::try_from(first.0).ok()
    }
}

/// The ways of a request for each of these accounts, whose checks `checks` makes; `None` if nothing limits it.
///
/// # Errors
///
/// Those of `checks`.
pub(crate) fn ways<'c, E>(
    accounts: &'c config::Accounts,
    mut checks: impl FnMut(AccountNames<'c>) -> Result<Option<Checks>, E>,
) -> Result<Option<Arc<Alternatives>>, E> {
    let mut ways = Vec::with_capacity(accounts.all.len());
    for (id, account) in (0..).zip(&accounts.all) {
        let Some(checks) = checks(account.names())? else { return Ok(None) };
        ways.push(Alternative { id, checks, after: limit::micros(account.after) });
    }
    Ok(Alternatives::new(ways).map(Arc::new))
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
    pub(crate) fn add(&mut self, account: usize) {
        self.0 |= 1 << account;
    }

    pub(crate) fn has(self, account: usize) -> bool {
        self.0 >> account & 1 == 1
    }

    fn is_all(self, count: usize) -> bool {
        (0..count).all(|account| self.has(account))
    }
}
