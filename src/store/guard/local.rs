//! Decisions of this gateway alone: each limiter by its share of the rule, from the level that was last known. And what
//! they took, so that it can be charged to the state that all share when that is there again.

use super::{
    slots::{Slots, charges},
    unasked,
};
use crate::{
    algorithm::{
        Algorithm, Concurrency, Grant, Level, MAX_BUDGET, Micros,
        concurrency::Ticket,
        reserve::{Part, Parts},
    },
    store::{
        Check, Checks, Decision, Entry, OnFailure, Reply, Share, Source,
        calls::Calls,
        health::{Clock, Health, Holder},
        memory::MemoryStore,
    },
};
use ahash::RandomState;
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// Limiters and keys with a state of their own; those beyond share one for each limiter.
const MAX_ACCOUNTS: usize = 65_536;
/// Pieces in which permits are taken at most, each as much as the limiter can grant at once.
const PIECES: usize = 256;
/// More places than anybody holds.
const ANY_PLACES: i64 = 1 << 40;

/// Nothing as long as the store decides.
#[derive(Debug, Default)]
pub(super) struct Local {
    book: Mutex<Option<Book>>,
    /// Whether there is one; asked for each decision.
    is_open: AtomicBool,
    /// Those of all workers have joined it.
    calls: Arc<Calls>,
}

#[derive(Debug)]
struct Book {
    states: MemoryStore,
    clock: Clock,
    /// How many share each rule: the largest number since this gateway began to decide.
    gateways: i64,
    accounts: HashMap<Arc<str>, Account, RandomState>,
}

/// Of one limiter, or one of its keys.
#[derive(Debug)]
struct Account {
    /// With the whole rule.
    check: Check,
    /// The part of its level that the shared state has, too, and when it stood so.
    known: (Level, Micros),
    /// What was given since.
    slots: Slots,
    /// Who holds a place, and whether the shared state knows.
    places: BTreeMap<Holder, bool>,
    /// The shared state decides again: only what was taken last is to be charged yet.
    closing: bool,
}

/// What is to be charged to the shared state.
#[derive(Debug)]
pub(super) struct Due {
    key: Arc<str>,
    /// One request each: permits, or a place of the ticket.
    pub(super) asks: Vec<(Checks, Option<Ticket>)>,
    /// Permits and places.
    pub(super) count: i64,
    before: (Level, Micros),
    slots: Slots,
}

/// The shared state decides again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IsBack;

/// Whether a gateway decides it by itself.
pub(super) fn is_own(check: &Check) -> bool {
    matches!(check.on_failure, OnFailure::Share { .. } | OnFailure::Whole)
}

// === impl Local ===

impl Local {
    pub(super) fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// Whether there is nothing that the shared state may not know.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_open.load(SeqCst)
    }

    /// Whether one of `checks` was decided here and the shared state has not been told: until then it would grant the
    /// same permits again.
    pub(super) fn decides(&self, checks: &Checks) -> bool {
        !self.is_empty() && self.book.lock().as_ref().is_some_and(|book| book.decides(checks))
    }

    /// The same for those whom the shared state was not asked for because it is away.
    ///
    /// # Errors
    ///
    /// It is back since that was seen, and has what was decided here. To begin anew, from what was known of it before it
    /// went, would grant that again.
    pub(super) fn decide_unasked(
        &self,
        health: &Health,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Result<Option<Decision>, IsBack> {
        if !checks.iter().any(is_own) {
            // No share of it is kept here, so none can begin anew.
            return Ok(None);
        }
        let mut book = self.book.lock();
        match health.is_closed() && !book.as_ref().is_some_and(|book| book.decides(checks)) {
            true => Err(IsBack),
            false => Ok(self.decide_in(&mut book, health, checks, budget, ticket)),
        }
    }

    /// Decides for those of `checks` that are to be decided here; `None` when there are none.
    pub(super) fn decide(
        &self,
        health: &Health,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Option<Decision> {
        // Without the lock of all workers where none of them is.
        if !checks.iter().any(is_own) {
            return None;
        }
        self.decide_in(&mut self.book.lock(), health, checks, budget, ticket)
    }

    /// For `checks` of which some are to be decided here.
    fn decide_in(
        &self,
        book: &mut Option<Book>,
        health: &Health,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Option<Decision> {
        let book = book.get_or_insert_with(|| Book::new(health, self.calls.clone()));
        // A heartbeat may bring a larger number while the store gives no decisions; a smaller one waits until it does.
        book.grow(health.gateways());
        if !self.is_open.swap(true, SeqCst) {
            health.wake.notify_one();
        }
        let now = book.clock.now();
        let own: Vec<usize> = (0..checks.len()).filter(|i| is_own(&checks[*i])).collect();
        let shares: Checks = own.iter().map(|i| book.account(health, &checks[*i], now)).collect();
        let entry = Entry::Decide { checks: shares.clone(), budget, ticket };
        let Some(Reply::Decision(mut decision)) = book.run(now, entry) else { return None };
        decision.source = Source::Local;
        if decision.admitted {
            let mut parts: Parts = checks.iter().map(unasked).collect();
            for ((i, share), part) in own.iter().zip(shares.iter()).zip(&decision.parts) {
                parts[*i] = *part;
                let Some(account) = book.accounts.get_mut(&share.key).filter(|_| part.at >= 0)
                else {
                    continue;
                };
                match ticket.filter(|_| share.is_lease()) {
                    Some(ticket) => {
                        account.places.insert((ticket.gateway, ticket.number), false);
                    }
                    None => {
                        let grant = (part.grant.whole, now + part.at);
                        account.slots.add(&share.algorithm, now, grant, share.cost);
                    }
                }
            }
            decision.parts = parts;
        }
        decision.bound_by = own[decision.bound_by];
        Some(decision)
    }

    /// By what `check` is decided here, and how full that is.
    pub(super) fn look(&self, health: &Health, check: &Check) -> Share {
        let shown = |book: &Book, known: Option<Level>| {
            let rule = book.share(check, check.key.clone());
            let now = book.clock.now();
            let gateways = match check.on_failure {
                OnFailure::Whole => 1,
                _ => book.gateways,
            };
            let level = known.unwrap_or_else(|| book.level(&rule, now));
            Share { gateways, rule: rule.algorithm, level }
        };
        if let Some(book) = &*self.book.lock()
            && book.accounts.contains_key(&check.key)
        {
            return shown(book, None);
        }
        // As it would begin.
        let book = Book::new(health, Arc::default());
        let account = book.begin(health, check.clone(), book.clock.now());
        shown(&book, Some(account.known.0))
    }

    /// Takes back what was decided here; returns the places that are the shared store's by now.
    pub(super) fn give_back(&self, checks: &Checks, parts: &[Part]) -> Option<Parts> {
        let mut charged: Parts = parts.iter().map(|_| Part::NOTHING).collect();
        let mut book = self.book.lock();
        for (i, (check, part)) in
            checks.iter().zip(parts).enumerate().filter(|(_, (_, part))| part.at >= 0)
        {
            let own = book.as_mut().and_then(|book| book.give_back(check, *part));
            if check.is_lease() && own != Some(false) {
                charged[i] = *part;
            }
        }
        charged.iter().any(|part| part.at >= 0).then_some(charged)
    }

    /// The places of the shared store that are left count here no longer.
    pub(super) fn leave(&self, checks: &Checks, parts: &[Part]) {
        if self.is_empty() {
            return;
        }
        if let Some(book) = &mut *self.book.lock() {
            let given = checks.iter().zip(parts).filter(|(check, _)| check.is_lease());
            for (check, part) in given.filter(|(_, part)| part.at >= 0) {
                book.give_back(check, *part);
            }
        }
    }

    /// Holds a place for another lease; whether it is held here and the shared store does not know of it.
    pub(super) fn renew(&self, check: &Check, grant: Grant) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some(book) = &mut *self.book.lock() else { return false };
        let ticket = Ticket::of(grant);
        let places = book.accounts.get(&check.key).map(|account| &account.places);
        let charged =
            places.and_then(|places| places.get(&(ticket.gateway, ticket.number)).copied());
        let Some(charged) = charged else { return false };
        let share = book.share(check, check.key.clone());
        let now = book.clock.now();
        let renewed = book.run(now, Entry::Renew { check: share, grant });
        renewed == Some(Reply::Done(true)) && !charged
    }

    /// What is to be charged to the shared state of the keys that `is_meant` means, and counts as charged from now on.
    /// `closing`: from now on that state decides.
    pub(super) fn due(&self, is_meant: impl Fn(&str) -> bool, closing: bool) -> Vec<Due> {
        let mut dues = self.due_unordered(is_meant, closing);
        // A table has another order in each process; what is charged first should not depend on it.
        dues.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        dues
    }

    fn due_unordered(&self, is_meant: impl Fn(&str) -> bool, closing: bool) -> Vec<Due> {
        let Some(book) = &mut *self.book.lock() else { return Vec::new() };
        let now = book.clock.now();
        let meant = book.accounts.iter_mut().filter(|(key, _)| is_meant(key));
        let keys: Vec<Arc<str>> = meant
            .map(|(key, account)| {
                account.closing = closing;
                key.clone()
            })
            .collect();
        keys.iter().filter_map(|key| book.due(key, now)).collect()
    }

    /// The lanes of all keys that are decided here, by what `lane` says.
    pub(super) fn lanes(&self, lane: impl Fn(&str) -> &str) -> HashSet<Box<str>> {
        let book = self.book.lock();
        let keys = book.iter().flat_map(|book| book.accounts.keys());
        keys.map(|key| lane(key).into()).collect()
    }

    /// Forgets who is closing and has paid; whether somebody may wait there for a place.
    pub(super) fn forget(&self) -> bool {
        let mut slot = self.book.lock();
        let Some(book) = &mut *slot else { return false };
        let now = book.clock.now();
        let closing = book.accounts.iter().filter(|(_, account)| account.closing);
        let closing: Vec<_> = closing.map(|(key, _)| key.clone()).collect();
        let mut places = false;
        for key in closing {
            match book.due(&key, now) {
                Some(due) => book.unpaid(&due),
                None => {
                    let account = book.accounts.remove(&key);
                    let check = account.map(|account| account.check);
                    places |= check.as_ref().is_some_and(Check::is_lease);
                    check.and_then(|check| book.run(now, Entry::Forget { check }));
                }
            }
        }
        if book.accounts.is_empty() {
            *slot = None;
            self.is_open.store(false, SeqCst);
        }
        places
    }

    /// The shared state has not got it.
    pub(super) fn unpaid(&self, due: &Due) {
        if let Some(book) = &mut *self.book.lock() {
            book.unpaid(due);
        }
    }
}

// === impl Book ===

impl Book {
    fn new(health: &Health, calls: Arc<Calls>) -> Self {
        Self {
            states: MemoryStore::calling(calls),
            clock: health.clock(),
            gateways: health.gateways(),
            accounts: HashMap::default(),
        }
    }

    /// More gateways share each rule than this one knew. What an account has granted by a larger share stays granted: a
    /// bucket of a smaller burst would begin full again, so its permits are taken from it.
    fn grow(&mut self, gateways: i64) {
        if gateways <= self.gateways {
            return;
        }
        let now = self.clock.now();
        let owes = |book: &Self, account: &Account| {
            let share = book.share(&account.check, account.check.key.clone());
            let owed = share.algorithm.owed(book.level(&share, now), Level::default());
            (share, owed)
        };
        let before: Vec<_> = self
            .accounts
            .iter()
            .map(|(key, account)| (key.clone(), owes(self, account).1))
            .collect();
        self.gateways = gateways;
        for (key, before) in before {
            let Some(account) = self.accounts.get(&key) else { continue };
            let (share, after) = owes(self, account);
            for checks in takes(&share, before - after) {
                self.run(now, Entry::Decide { checks, budget: MAX_BUDGET, ticket: None });
            }
        }
    }

    /// As [`Local::decides`].
    fn decides(&self, checks: &Checks) -> bool {
        let is_open = |account: &Account| !account.closing;
        checks.iter().any(|check| self.accounts.get(&check.key).is_some_and(is_open))
    }

    fn run(&self, now: Micros, entry: Entry) -> Option<Reply> {
        self.states.run_at(now, &[entry]).pop()
    }

    /// `check` as it is decided here, under `key`.
    fn share(&self, check: &Check, key: Arc<str>) -> Check {
        let algorithm = match check.on_failure {
            OnFailure::Share { period } => check.algorithm.share(self.gateways, period, check.cost),
            _ => check.algorithm,
        };
        Check { key, algorithm, overflow: None, ..check.clone() }
    }

    /// The same; begins an account for it if there is none.
    fn account(&mut self, health: &Health, check: &Check, now: Micros) -> Check {
        let is_full =
            self.accounts.len() >= MAX_ACCOUNTS && !self.accounts.contains_key(&check.key);
        let key = check.overflow.as_ref().filter(|_| is_full).unwrap_or(&check.key).clone();
        let share = self.share(check, key.clone());
        if !self.accounts.contains_key(&key) {
            let check = Check { key: key.clone(), cost: 1, overflow: None, ..check.clone() };
            let account = self.begin(health, check, now);
            self.accounts.insert(key, account);
        }
        share
    }

    /// As full as it was when the shared state was last heard of.
    fn begin(&self, health: &Health, check: Check, now: Micros) -> Account {
        let share = self.share(&check, check.key.clone());
        let mut places = BTreeMap::new();
        if let Some(lease) = check.algorithm.lease() {
            for (holder, left) in health.known.places(&check.key) {
                let rule = Concurrency::new(ANY_PLACES, left.clamp(1, lease));
                let Some(rule) = rule else { continue };
                let ticket = Ticket { gateway: holder.0, number: holder.1, deadline: 0 };
                let algorithm = Algorithm::Concurrency(rule);
                let checks = [Check { algorithm, enforce: true, ..check.clone() }].into();
                self.run(now, Entry::Decide { checks, budget: 0, ticket: Some(ticket) });
                places.insert(holder, true);
            }
        } else if let Some((level, ago)) = health.known.level(&check.key) {
            let level = level.after(i64::try_from(ago.as_micros()).unwrap_or(i64::MAX));
            let since = now - share.algorithm.since(level.reset_after);
            for permits in share.algorithm.begin(&check.algorithm, level) {
                for checks in takes(&share, permits) {
                    self.run(since, Entry::Decide { checks, budget: MAX_BUDGET, ticket: None });
                }
            }
        }
        let known = (self.level(&share, now), now);
        Account { check, known, slots: Slots::default(), places, closing: false }
    }

    fn level(&self, share: &Check, now: Micros) -> Level {
        match self.run(now, Entry::Look { check: share.clone() }) {
            Some(Reply::Level(level)) => level,
            _ => Level::default(),
        }
    }

    /// Whether the shared state knows of it, a place; `None` where it is not known here.
    fn give_back(&mut self, check: &Check, part: Part) -> Option<bool> {
        let has = |key: &Arc<str>| self.accounts.contains_key(key);
        let key = Some(&check.key).filter(|key| has(key)).or(check.overflow.as_ref())?.clone();
        let share = self.share(check, key);
        let charged = match check.is_lease() {
            true => {
                let ticket = Ticket::of(part.grant);
                let account = self.accounts.get_mut(&share.key)?;
                account.places.remove(&(ticket.gateway, ticket.number))
            }
            false => {
                let account = self.accounts.get_mut(&share.key)?;
                account.slots.give_back(&share.algorithm, part.grant.whole, share.cost);
                Some(false)
            }
        };
        self.run(self.clock.now(), Entry::GiveBack { check: share, grant: part.grant });
        // Who waits has no place yet, and waits here.
        Some(charged.unwrap_or(false))
    }

    /// What an account has taken that the shared state does not know.
    fn due(&mut self, key: &Arc<str>, now: Micros) -> Option<Due> {
        let account = self.accounts.get(key)?;
        let share = self.share(&account.check, key.clone());
        let level = self.level(&share, now);
        let account = self.accounts.get_mut(key)?;
        let before = account.known;
        let whole = account.check.clone();
        let mut due =
            Due { key: key.clone(), asks: Vec::new(), count: 0, before, slots: Slots::default() };
        if share.is_lease() {
            for (holder, charged) in account.places.iter_mut().filter(|(_, charged)| !**charged) {
                *charged = true;
                let ticket = Ticket { gateway: holder.0, number: holder.1, deadline: 0 };
                let checks = [Check { enforce: false, ..whole.clone() }].into();
                due.asks.push((checks, Some(ticket)));
                due.count += 1;
            }
        } else {
            let owed = share.algorithm.owed(level, before.0.after(now - before.1));
            let (slots, permits) = account.slots.take(&share.algorithm, now, |ahead| owed - ahead);
            due.count = permits.iter().map(|(_, permits)| permits).sum();
            due.asks = charges(&whole, &permits).into_iter().map(|ask| (ask, None)).collect();
            (due.slots, account.known) = (slots, (level, now));
        }
        (due.count > 0).then_some(due)
    }

    /// It is still due, and decided here.
    fn unpaid(&mut self, due: &Due) {
        let Some(account) = self.accounts.get_mut(&due.key) else { return };
        (account.known, account.closing) = (due.before, false);
        account.slots.put_back(&due.slots);
        for ticket in due.asks.iter().filter_map(|(_, ticket)| *ticket) {
            if let Some(charged) = account.places.get_mut(&(ticket.gateway, ticket.number)) {
                *charged = false;
            }
        }
    }
}

/// Requests, to be made in this order, that take so many permits from the fresh state of `check`. Each stands for what the
/// limiter grants at once: a window.
fn takes(check: &Check, permits: i64) -> impl Iterator<Item = Checks> + use<> {
    let check = Check { algorithm: check.algorithm.endless(), enforce: false, ..check.clone() };
    let (mut left, most) = (permits, check.algorithm.capacity());
    let costs = std::iter::from_fn(move || {
        let cost = left.min(most);
        left -= cost;
        (cost > 0).then_some(cost)
    });
    costs.take(PIECES).map(move |cost| [Check { cost, ..check.clone() }].into())
}
