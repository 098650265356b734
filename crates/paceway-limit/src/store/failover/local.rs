//! Decisions of this gateway alone: each limiter by its share of the rule, from the level that was last known. And what
//! they took, so that it can be charged to the state that all share when that is there again.

use super::{
    grants::{Grants, charges},
    permits::{Departure, Permits},
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
        calls::{self, Calls},
        health::{Clock, Health, Holder},
        memory::MemoryStore,
    },
};
use ahash::RandomState;
use parking_lot::Mutex;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

/// Limiters and keys with a state of their own; those beyond share one for each limiter.
const MAX_LIMITERS: usize = 65_536;
/// Pieces in which permits are taken at most, each as much as the limiter can grant at once.
const PIECES: usize = 256;

/// Nothing as long as the store decides.
#[derive(Debug, Default)]
pub(super) struct LocalStore {
    state: Mutex<Option<LocalState>>,
    /// Whether there is one; asked for each decision.
    is_open: AtomicBool,
    /// Those of all workers have joined it.
    calls: Arc<Calls>,
}

#[derive(Debug)]
struct LocalState {
    states: MemoryStore,
    clock: Clock,
    /// How many share each rule: the largest number since this gateway began to decide.
    gateways: i64,
    limiters: HashMap<Arc<str>, LocalLimiter, RandomState>,
}

/// Of one limiter, or one of its keys.
#[derive(Debug)]
struct LocalLimiter {
    /// With the whole rule.
    check: Check,
    /// The part of its level that the shared state has, too, and when it stood so.
    known: (Level, Micros),
    /// What was given since.
    grants: Grants,
    /// Who holds a place.
    permits: Permits,
    /// The shared state decides again: only what was taken last is to be charged yet.
    closing: bool,
}

/// What is to be charged to the shared state.
#[derive(Debug)]
pub(super) struct Debt {
    key: Arc<str>,
    /// One request each: permits, or a place of the ticket.
    pub(super) asks: Vec<(Checks, Option<Ticket>)>,
    /// Permits and places.
    pub(super) count: i64,
    before: (Level, Micros),
    grants: Grants,
}

/// The shared state decides again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IsBack;

/// Whether a gateway decides it by itself.
pub(super) fn is_own(check: &Check) -> bool {
    matches!(check.on_failure, OnFailure::Share { .. } | OnFailure::Whole)
}

// === impl LocalStore ===

impl LocalStore {
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
        !self.is_empty() && self.state.lock().as_ref().is_some_and(|state| state.decides(checks))
    }

    /// The same for those whom the shared state was not asked for because it is away.
    ///
    /// # Errors
    ///
    /// It is back since that was seen, and has what was decided here. To begin anew, from what was known of it before it
    /// went, would grant that again.
    pub(super) fn reserve_unasked(
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
        let mut state = self.state.lock();
        match health.is_closed() && !state.as_ref().is_some_and(|state| state.decides(checks)) {
            true => Err(IsBack),
            false => Ok(self.reserve_in(&mut state, health, checks, budget, ticket)),
        }
    }

    /// Decides for those of `checks` that are to be decided here; `None` when there are none.
    pub(super) fn reserve(
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
        self.reserve_in(&mut self.state.lock(), health, checks, budget, ticket)
    }

    /// For `checks` of which some are to be decided here.
    fn reserve_in(
        &self,
        state: &mut Option<LocalState>,
        health: &Health,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Option<Decision> {
        let state = self.open(state, health);
        // A heartbeat may bring a larger number while the store gives no decisions; a smaller one waits until it does.
        state.grow(health.gateways());
        let now = state.clock.now();
        let own: Vec<usize> = (0..checks.len()).filter(|i| is_own(&checks[*i])).collect();
        let shares: Checks =
            own.iter().map(|i| state.share_for(health, &checks[*i], now)).collect();
        let ticket = ticket.map(calls::here);
        let entry = Entry::Reserve { checks: shares.clone(), budget, ticket };
        let Some(Reply::Decision(mut decision)) = state.run(now, entry) else { return None };
        decision.source = Source::Local;
        if let Some(queued) = &mut decision.queued {
            let bound = &shares[decision.bound_by];
            let places = state.limiters.get(&bound.key).map(|limiter| &limiter.permits);
            let gateways = state.sharing(bound);
            let after = places.and_then(|places| places.known_after(gateways, now));
            queued.ask_after = after.map_or(queued.ask_after, |after| after.min(queued.ask_after));
        }
        if decision.admitted {
            let mut parts: Parts = checks.iter().map(unasked).collect();
            for ((i, share), part) in own.iter().zip(shares.iter()).zip(&decision.parts) {
                parts[*i] = *part;
                let Some(limiter) = state.limiters.get_mut(&share.key).filter(|_| part.at >= 0)
                else {
                    continue;
                };
                match (ticket, &limiter.check.algorithm) {
                    (Some(ticket), Algorithm::Concurrency(whole)) => {
                        let place = limiter.permits.take(whole, ticket, now);
                        parts[*i].grant = place.grant();
                    }
                    _ => {
                        let grant = (part.grant.whole, now + part.at);
                        limiter.grants.add(&share.algorithm, now, grant, share.cost);
                    }
                }
            }
            decision.parts = parts;
        }
        decision.bound_by = own[decision.bound_by];
        Some(decision)
    }

    fn open<'b>(&self, state: &'b mut Option<LocalState>, health: &Health) -> &'b mut LocalState {
        let state = state.get_or_insert_with(|| LocalState::new(health, self.calls.clone()));
        if !self.is_open.swap(true, SeqCst) {
            health.wake.notify_one();
        }
        state
    }

    /// By what `check` is decided here, and how full that is.
    pub(super) fn look(&self, health: &Health, check: &Check) -> Share {
        let shown = |state: &LocalState| {
            let rule = state.share(check, check.key.clone());
            let now = state.clock.now();
            let gateways = state.sharing(check);
            let level = state.level(&rule, now);
            Share { gateways, rule: rule.algorithm, level }
        };
        if let Some(state) = &*self.state.lock()
            && state.limiters.contains_key(&check.key)
        {
            return shown(state);
        }
        // As it would begin.
        let mut state = LocalState::new(health, Arc::default());
        state.share_for(health, check, state.clock.now());
        shown(&state)
    }

    /// Takes back what was decided here; returns the places that are the shared store's by now.
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

    /// Permits of the shared store are left. Those that stay with this gateway are missing in what is returned, if any do.
    pub(super) fn leave(&self, health: &Health, checks: &Checks, parts: &[Part]) -> Option<Parts> {
        let is_away = !health.is_closed();
        let is_own_place = |check: &Check| check.is_lease() && is_own(check);
        if self.is_empty() && !(is_away && checks.iter().any(is_own_place)) {
            return None;
        }
        let mut state = self.state.lock();
        if is_away {
            // The next call is to take it over.
            let state = self.open(&mut state, health);
            let now = state.clock.now();
            let own = checks.iter().filter(|check| is_own_place(check));
            own.for_each(|check| drop(state.share_for(health, check, now)));
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

    /// Holds a place for another lease; whether it is held here and the shared store does not know of it.
    pub(super) fn renew(&self, check: &Check, grant: Grant) -> bool {
        if self.is_empty() {
            return false;
        }
        let Some(state) = &mut *self.state.lock() else { return false };
        let (now, lease) = (state.clock.now(), check.algorithm.lease().unwrap_or_default());
        let Some(limiter) = state.limiters.get_mut(&check.key) else { return false };
        let Some((place, is_counted)) = limiter.permits.renew(Ticket::of(grant), lease, now) else {
            return false;
        };
        let share = state.share(check, check.key.clone());
        let renewed = state.run(now, Entry::Renew { check: share, grant: place.grant() });
        renewed == Some(Reply::Done(true)) && !is_counted
    }

    /// What is to be charged to the shared state of the keys that `is_meant` means, and counts as charged from now on.
    /// `closing`: from now on that state decides.
    pub(super) fn debts(&self, is_meant: impl Fn(&str) -> bool, closing: bool) -> Vec<Debt> {
        let mut debts = self.debts_unordered(is_meant, closing);
        // A table has another order in each process; what is charged first should not depend on it.
        debts.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        debts
    }

    fn debts_unordered(&self, is_meant: impl Fn(&str) -> bool, closing: bool) -> Vec<Debt> {
        let Some(state) = &mut *self.state.lock() else { return Vec::new() };
        let now = state.clock.now();
        let meant = state.limiters.iter_mut().filter(|(key, _)| is_meant(key));
        let keys: Vec<Arc<str>> = meant
            .map(|(key, limiter)| {
                limiter.closing = closing;
                key.clone()
            })
            .collect();
        keys.iter().filter_map(|key| state.debt(key, now)).collect()
    }

    /// The lanes of all keys that are decided here, by what `lane` says.
    pub(super) fn lanes(&self, lane: impl Fn(&str) -> &str) -> HashSet<Box<str>> {
        let state = self.state.lock();
        let keys = state.iter().flat_map(|state| state.limiters.keys());
        keys.map(|key| lane(key).into()).collect()
    }

    /// Forgets who is closing and has paid; whether somebody may wait there for a place. `idle` hears of places that the
    /// shared store counts and nobody uses.
    pub(super) fn forget(&self, idle: impl Fn(&Check, &[Part])) -> bool {
        let mut slot = self.state.lock();
        let Some(state) = &mut *slot else { return false };
        let now = state.clock.now();
        let closing = state.limiters.iter().filter(|(_, limiter)| limiter.closing);
        let closing: Vec<_> = closing.map(|(key, _)| key.clone()).collect();
        let mut places = false;
        for key in closing {
            match state.debt(&key, now) {
                Some(due) => state.restore(&due),
                None => {
                    let Some(limiter) = state.limiters.remove(&key) else { continue };
                    places |= limiter.check.is_lease();
                    limiter.permits.idle().for_each(|parts| idle(&limiter.check, &parts));
                    // Who waits here is called, and asks the store: no place is given any more.
                    state.run(now, Entry::Forget { check: limiter.check });
                }
            }
        }
        if state.limiters.is_empty() {
            *slot = None;
            self.is_open.store(false, SeqCst);
        }
        places
    }

    /// The shared state has not got it.
    pub(super) fn restore(&self, due: &Debt) {
        if let Some(state) = &mut *self.state.lock() {
            state.restore(due);
        }
    }
}

// === impl LocalState ===

impl LocalState {
    fn new(health: &Health, calls: Arc<Calls>) -> Self {
        Self {
            states: MemoryStore::calling(calls),
            clock: health.clock(),
            gateways: health.gateways(),
            limiters: HashMap::default(),
        }
    }

    /// More gateways share each rule than this one knew. What an limiter has granted by a larger share stays granted: a
    /// bucket of a smaller burst would begin full again, so its permits are taken from it.
    fn grow(&mut self, gateways: i64) {
        if gateways <= self.gateways {
            return;
        }
        let now = self.clock.now();
        let owes = |state: &Self, limiter: &LocalLimiter| {
            let share = state.share(&limiter.check, limiter.check.key.clone());
            let owed = share.algorithm.owed(state.level(&share, now), Level::default());
            (share, owed)
        };
        let before: Vec<_> = self
            .limiters
            .iter()
            .map(|(key, limiter)| (key.clone(), owes(self, limiter).1))
            .collect();
        self.gateways = gateways;
        for (key, before) in before {
            let Some(limiter) = self.limiters.get(&key) else { continue };
            let (share, after) = owes(self, limiter);
            for checks in takes(&share, before - after) {
                self.run(now, Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None });
            }
        }
    }

    /// As [`LocalStore::decides`].
    fn decides(&self, checks: &Checks) -> bool {
        let is_open = |limiter: &LocalLimiter| !limiter.closing;
        checks.iter().any(|check| self.limiters.get(&check.key).is_some_and(is_open))
    }

    fn run(&self, now: Micros, entry: Entry) -> Option<Reply> {
        self.states.run_at(now, &[entry]).pop()
    }

    /// How many share the rule of `check`.
    fn sharing(&self, check: &Check) -> i64 {
        match check.on_failure {
            OnFailure::Whole => 1,
            _ => self.gateways,
        }
    }

    /// `check` as it is decided here, under `key`.
    fn share(&self, check: &Check, key: Arc<str>) -> Check {
        let algorithm = match (check.algorithm, check.on_failure) {
            (Algorithm::Concurrency(whole), _) => {
                let places = self.limiters.get(&key).map(|limiter| &limiter.permits);
                let (gateways, now) = (self.sharing(check), self.clock.now());
                let rule = places.map(|places| places.rule(&whole, gateways, now));
                Algorithm::Concurrency(rule.unwrap_or(whole))
            }
            (whole, OnFailure::Share { period }) => whole.share(self.gateways, period, check.cost),
            (whole, _) => whole,
        };
        Check { key, algorithm, overflow: None, ..check.clone() }
    }

    /// The same; begins an limiter for it if there is none.
    fn share_for(&mut self, health: &Health, check: &Check, now: Micros) -> Check {
        let is_full =
            self.limiters.len() >= MAX_LIMITERS && !self.limiters.contains_key(&check.key);
        let key = check.overflow.as_ref().filter(|_| is_full).unwrap_or(&check.key).clone();
        if !self.limiters.contains_key(&key) {
            let check = Check { key: key.clone(), cost: 1, overflow: None, ..check.clone() };
            let limiter = self.begin(health, check, now);
            self.limiters.insert(key.clone(), limiter);
        }
        if let Some(limiter) = self.limiters.get_mut(&key).filter(|_| check.is_lease()) {
            let whole = limiter.check.clone();
            let (new, gone) = limiter.hear(health, now);
            self.hear(&whole, new, gone, now);
        }
        self.share(check, key)
    }

    /// Permits that the store has given this process, and that it has lost.
    fn hear(&self, whole: &Check, new: Vec<(Holder, Micros)>, gone: Vec<Holder>, now: Micros) {
        for (holder, left) in new {
            let Algorithm::Concurrency(rule) = whole.algorithm else { continue };
            let Some(rule) = Concurrency::new(rule.max(), left.clamp(1, rule.lease())) else {
                continue;
            };
            let ticket = Ticket { gateway: holder.0, number: holder.1, deadline: Ticket::HELD };
            // Who waits is called when the rule says so, not now.
            let algorithm = Algorithm::Concurrency(rule.with_max(0));
            let checks = [Check { algorithm, enforce: false, ..whole.clone() }].into();
            self.run(now, Entry::Reserve { checks, budget: 0, ticket: Some(ticket) });
        }
        for holder in gone {
            let grant = Ticket { gateway: holder.0, number: holder.1, deadline: 0 }.grant();
            let check = self.share(whole, whole.key.clone());
            self.run(now, Entry::Refund { check, grant });
        }
    }

    /// As full as it was when the shared state was last heard of.
    fn begin(&self, health: &Health, check: Check, now: Micros) -> LocalLimiter {
        let share = self.share(&check, check.key.clone());
        if let Some((level, ago)) = health.known.level(&check.key).filter(|_| !check.is_lease()) {
            let level = level.after(i64::try_from(ago.as_micros()).unwrap_or(i64::MAX));
            let since = now - share.algorithm.since(level.reset_after);
            for permits in share.algorithm.begin(&check.algorithm, level) {
                for checks in takes(&share, permits) {
                    self.run(since, Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None });
                }
            }
        }
        let known = (self.level(&share, now), now);
        LocalLimiter {
            check,
            known,
            grants: Grants::default(),
            permits: Permits::default(),
            closing: false,
        }
    }

    fn level(&self, share: &Check, now: Micros) -> Level {
        match self.run(now, Entry::Look { check: share.clone() }) {
            Some(Reply::Level(level)) => level,
            _ => Level::default(),
        }
    }

    /// The key of the limiter that has `check`.
    fn key_of(&self, check: &Check) -> Option<Arc<str>> {
        let has = |key: &&Arc<str>| self.limiters.contains_key(*key);
        Some(&check.key).filter(has).or(check.overflow.as_ref().filter(has)).cloned()
    }

    /// Whether nobody else need be told.
    fn refund(&mut self, check: &Check, part: Part) -> bool {
        let Some(key) = self.key_of(check) else { return false };
        if check.is_lease() {
            return match self.leave(check, part.grant) {
                Some(is_told) => !is_told,
                None => {
                    // It waits here, or does no longer.
                    let grant = calls::here(Ticket::of(part.grant)).grant();
                    let check = self.share(check, key);
                    self.run(self.clock.now(), Entry::Refund { check, grant })
                        == Some(Reply::Done(true))
                }
            };
        }
        let share = self.share(check, key);
        if let Some(limiter) = self.limiters.get_mut(&share.key) {
            limiter.grants.refund(&share.algorithm, part.grant.whole, share.cost);
        }
        self.run(self.clock.now(), Entry::Refund { check: share, grant: part.grant });
        true
    }

    /// The call of a place has ended; whether the store is to be told. `None` if the place is not known here.
    fn leave(&mut self, check: &Check, grant: Grant) -> Option<bool> {
        let (key, now) = (self.key_of(check)?, self.clock.now());
        let limiter = self.limiters.get_mut(&key)?;
        let (inner, is_told) = match limiter.permits.leave(Ticket::of(grant), limiter.closing, now)
        {
            Departure::Unknown => return None,
            Departure::Here(inner) => (inner, false),
            Departure::Both(inner) => (inner, true),
        };
        let grant = Ticket { gateway: inner.0, number: inner.1, deadline: 0 }.grant();
        let check = self.share(check, key);
        self.run(now, Entry::Refund { check, grant });
        Some(is_told)
    }

    /// What an limiter has taken that the shared state does not know.
    fn debt(&mut self, key: &Arc<str>, now: Micros) -> Option<Debt> {
        let limiter = self.limiters.get(key)?;
        let share = self.share(&limiter.check, key.clone());
        let level = self.level(&share, now);
        let limiter = self.limiters.get_mut(key)?;
        let before = limiter.known;
        let whole = limiter.check.clone();
        let mut due = Debt {
            key: key.clone(),
            asks: Vec::new(),
            count: 0,
            before,
            grants: Grants::default(),
        };
        if share.is_lease() {
            let until = now + whole.algorithm.lease().unwrap_or_default();
            let (tickets, new) = limiter.permits.due(until);
            let checks: Checks = [Check { enforce: false, ..whole.clone() }].into();
            due.asks = tickets.into_iter().map(|ticket| (checks.clone(), Some(ticket))).collect();
            due.count = new;
        } else {
            let owed = share.algorithm.owed(level, before.0.after(now - before.1));
            let (slots, permits) = limiter.grants.take(&share.algorithm, now, |ahead| owed - ahead);
            due.count = permits.iter().map(|(_, permits)| permits).sum();
            due.asks = charges(&whole, &permits).into_iter().map(|ask| (ask, None)).collect();
            (due.grants, limiter.known) = (slots, (level, now));
        }
        (!due.asks.is_empty()).then_some(due)
    }

    /// It is still due, and decided here.
    fn restore(&mut self, due: &Debt) {
        let Some(limiter) = self.limiters.get_mut(&due.key) else { return };
        (limiter.known, limiter.closing) = (due.before, false);
        limiter.grants.put_back(&due.grants);
        let tickets = due.asks.iter().filter_map(|(_, ticket)| *ticket);
        tickets.for_each(|ticket| limiter.permits.restore(ticket));
    }
}

// === impl LocalLimiter ===

impl LocalLimiter {
    /// See [`Permits::hear`].
    fn hear(&mut self, health: &Health, now: Micros) -> (Vec<(Holder, Micros)>, Vec<Holder>) {
        let (known, key) = (&health.known, &self.check.key);
        let silence = i64::try_from(health.silent_for(key).as_micros()).unwrap_or(i64::MAX);
        let lease = self.check.algorithm.lease().unwrap_or_default();
        self.permits.silent_for(silence.min(lease), lease, now);
        self.permits.hear(&known.places(key), known.asked(key), now)
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
