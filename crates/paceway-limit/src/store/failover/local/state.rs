//! The states of the limiters that this gateway decides alone, executed by the native rules. Each begins as full as the
//! shared state was at its last report.

use super::limiter::LocalLimiter;
use crate::{
    algorithm::{
        Algorithm, Concurrency, Grant, Level, MAX_BUDGET, Micros, Rule,
        concurrency::Ticket,
        fair::{Floors, Priority},
        gate::Bounds,
        reserve::Part,
    },
    store::{
        Alternatives, Check, Checks, Entry, KnownPause, OnFailure, Pause, Reply, Share,
        calls::{self, Calls},
        failover::{
            grants::Grants,
            permits::{Departure, Permits, Synced},
        },
        health::{Health, StoreClock},
        memory::MemoryStore,
        settlement,
    },
};
use ahash::RandomState;
use std::{collections::HashMap, sync::Arc};

/// Limiters and keys with a state of their own. Further keys of a limiter share one state.
const MAX_LIMITERS: usize = 65_536;
/// The largest number of pieces in which permits are taken, each as large as the limiter can grant at once.
const PIECES: usize = 256;

#[derive(Debug)]
pub(super) struct LocalState {
    states: MemoryStore,
    clock: StoreClock,
    /// How many gateways share each rule: the largest number since this gateway began to decide.
    gateways: i64,
    pub(super) limiters: HashMap<Arc<str>, LocalLimiter, RandomState>,
}

// === impl LocalState ===

impl LocalState {
    pub(super) fn new(health: &Health, calls: Arc<Calls>) -> Self {
        Self {
            states: MemoryStore::calling(calls),
            clock: health.clock(),
            gateways: health.gateways(),
            limiters: HashMap::default(),
        }
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limiters.is_empty()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.limiters.keys()
    }

    pub(super) fn knows(&self, key: &str) -> bool {
        self.limiters.contains_key(key)
    }

    pub(super) fn limiter(&mut self, key: &str) -> Option<&mut LocalLimiter> {
        self.limiters.get_mut(key)
    }

    /// More gateways share each rule than this one knew. The permits that a limiter has granted by a larger share stay
    /// granted: a bucket with a smaller burst would start full again, so they are taken from it.
    pub(super) fn grow(&mut self, gateways: i64) {
        if gateways <= self.gateways {
            return;
        }
        let now = self.now();
        let owes = |state: &Self, limiter: &LocalLimiter| {
            let share = state.share(&limiter.check, limiter.check.key.clone());
            let owed = |rate: &Algorithm| rate.owed(state.level(&share, now), Level::default());
            let owed = share.algorithm.as_rate().map_or(0, owed);
            (share, owed)
        };
        let before: Vec<_> = self
            .limiters
            .iter()
            .map(|(key, limiter)| (key.clone(), owes(self, limiter).1))
            .collect();
        self.gateways = gateways;
        for (key, before) in before {
            let Some(limiter) = self.limiters.get_mut(&key) else { continue };
            if limiter.check.bounds.is_some() {
                // A rate that was found is one that fewer gateways shared. The next request brings a pause again.
                limiter.paused[0] = None;
                let check = limiter.check.clone();
                let share = self.share(&check, key.clone());
                self.run(now, Entry::Forget { check: share });
            }
            let Some(limiter) = self.limiters.get(&key) else { continue };
            let (share, after) = owes(self, limiter);
            for checks in takes(&share, before - after) {
                self.run(now, Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None });
            }
        }
    }

    /// See [`LocalStore::decides`](super::LocalStore::decides).
    pub(super) fn decides(&self, checks: &Checks) -> bool {
        let is_open = |limiter: &LocalLimiter| !limiter.closing;
        checks.iter().any(|check| self.limiters.get(&check.key).is_some_and(is_open))
    }

    /// The index of the best of several ways by the shares of this gateway.
    pub(super) fn earliest(
        &self,
        now: Micros,
        among: &Alternatives,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> usize {
        self.states.earliest_at(now, among, budget, ticket)
    }

    pub(super) fn run(&self, now: Micros, entry: Entry) -> Reply {
        self.states.execute_at(now, &entry)
    }

    /// How many gateways share the rule of `check`.
    fn sharing(&self, check: &Check) -> i64 {
        match check.on_failure {
            OnFailure::Whole => 1,
            _ => self.gateways,
        }
    }

    /// The check that decides `check` here, on the state named `key`: its algorithm is one gateway's share of the rule.
    pub(super) fn share(&self, check: &Check, key: Arc<str>) -> Check {
        let algorithm = match (check.algorithm, check.on_failure) {
            (Rule::Permits(whole), _) => {
                let permits = self.limiters.get(&key).map(|limiter| &limiter.permits);
                let (gateways, now) = (self.sharing(check), self.now());
                let rule = permits.map(|permits| permits.rule(&whole, gateways, now));
                rule.unwrap_or(whole).with_turns(false).into()
            }
            (Rule::Rate(whole), OnFailure::Share { period }) => {
                whole.share(self.gateways, period, check.cost).into()
            }
            (whole, _) => whole,
        };
        let bounds = check.bounds.as_ref().map(|bounds| {
            let begun = self.limiters.get(&key).and_then(|limiter| limiter.check.bounds.as_ref());
            begun.unwrap_or(bounds).share(self.sharing(check)).into()
        });
        // First come, first served: the tenants of one gateway are not those of all. Without its turn the priority is not known.
        let is_high = check.turn.as_ref().is_some_and(|turn| turn.priority == Priority::High);
        let floors = if is_high { Floors::default() } else { check.floors };
        Check { key, algorithm, bounds, overflow: None, turn: None, floors, ..check.clone() }
    }

    /// The share of `check`, as [`Self::share`]. The first request of a key begins its state.
    pub(super) fn begin(&mut self, health: &Health, check: &Check, now: Micros) -> Check {
        let is_full = self.limiters.len() >= MAX_LIMITERS && !self.knows(&check.key);
        let key = check.overflow.as_ref().filter(|_| is_full).unwrap_or(&check.key).clone();
        let is_new = !self.knows(&key);
        if is_new {
            let check = Check { key: key.clone(), cost: 1, overflow: None, ..check.clone() };
            let limiter = self.new_limiter(health, check, now);
            self.limiters.insert(key.clone(), limiter);
        }
        if check.enforce
            && let Some(pause) = health.pauses.get(&check.key)
        {
            self.pause(&key, pause, now);
        }
        if let Some(limiter) = self.limiters.get_mut(&key).filter(|_| check.is_lease()) {
            let whole = limiter.check.clone();
            let synced = limiter.sync(health, is_new, now);
            self.apply(&whole, synced, now);
        }
        self.share(check, key)
    }

    /// Pauses the limiter `key` here.
    #[cold]
    fn pause(&mut self, key: &Arc<str>, known: KnownPause, now: Micros) {
        let Some(limiter) = self.limiters.get_mut(key) else { return };
        if limiter.paused[0] == Some(known.until) {
            return;
        }
        limiter.paused[0] = Some(known.until);
        let check = limiter.check.clone();
        let share = self.share(&check, key.clone());
        let before = self.level(&share, now);
        self.run(now, Entry::Pause { check: share.clone(), pause: known.pause() });
        let after = self.level(&share, now);
        // The pause is no debt.
        if let Some(limiter) = self.limiters.get_mut(key) {
            let (level, at) = limiter.known;
            let mut level = level.after(now - at);
            level.next += after.next - before.next;
            level.reset_after += after.reset_after - before.reset_after;
            limiter.known = (level, now);
        }
    }

    /// See [`LocalStore::pauses`](super::LocalStore::pauses).
    pub(super) fn pauses(
        &mut self,
        health: &Health,
        is_meant: impl Fn(&str) -> bool,
    ) -> Vec<(Check, Pause)> {
        if health.pauses.is_empty() {
            return Vec::new();
        }
        let mut pauses = Vec::new();
        for (key, limiter) in self.limiters.iter_mut().filter(|(key, _)| is_meant(key)) {
            if let Some(known) = health.pauses.get(key).filter(|_| limiter.check.enforce)
                && limiter.paused[1] != Some(known.until)
            {
                limiter.paused[1] = Some(known.until);
                pauses.push((limiter.check.clone(), known.pause()));
            }
        }
        pauses
    }

    /// Enters the permits that the store has granted to this process, and removes those that are gone.
    fn apply(&self, whole: &Check, synced: Synced, now: Micros) {
        for (holder, left) in synced.new {
            let Rule::Permits(rule) = whole.algorithm else { continue };
            let Some(rule) = Concurrency::new(rule.max(), left.clamp(1, rule.lease())) else {
                continue;
            };
            let ticket = Ticket { deadline: Ticket::HELD, ..Ticket::of_holder(holder) };
            // A rule without permits notifies no waiting request; those wait for the rule of this gateway.
            let algorithm = rule.with_max(0).into();
            let checks = [Check { algorithm, enforce: false, ..whole.clone() }].into();
            self.run(now, Entry::Reserve { checks, budget: 0, ticket: Some(ticket) });
        }
        for holder in synced.gone {
            let grant = Ticket::of_holder(holder).grant();
            let check = self.share(whole, whole.key.clone());
            self.run(now, Entry::Refund { check, grant });
        }
    }

    /// A limiter whose state is as full as the shared one was at its last report, and whose rate is the one that was found.
    fn new_limiter(&self, health: &Health, mut check: Check, now: Micros) -> LocalLimiter {
        if let Some(bounds) = &mut check.bounds
            && let Some((Level { rate: start @ 1.., .. }, _)) = health.known.level(&check.key)
        {
            *bounds = Bounds { start, ..**bounds }.into();
        }
        let share = self.share(&check, check.key.clone());
        if let (Rule::Rate(rate), Rule::Rate(whole)) = (share.algorithm, check.algorithm)
            && let Some((level, ago)) = health.known.level(&check.key)
        {
            let level = level.after(i64::try_from(ago.as_micros()).unwrap_or(i64::MAX));
            let since = now - rate.since(level.reset_after);
            let past = Check { algorithm: rate.of_past_calls().into(), ..share.clone() };
            for permits in rate.begin(&whole, level) {
                for checks in takes(&past, permits) {
                    self.run(since, Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None });
                }
            }
        }
        let known = (self.level(&share, now), now);
        let (grants, permits) = (Grants::default(), Permits::default());
        LocalLimiter { check, known, grants, permits, closing: false, paused: [None; 2] }
    }

    pub(super) fn level(&self, share: &Check, now: Micros) -> Level {
        self.run(now, Entry::Look { check: share.clone() }).level().unwrap_or_default()
    }

    /// The share of `check` and its level, for the admin page.
    pub(super) fn shown(&self, check: &Check) -> Share {
        let rule = self.share(check, check.key.clone());
        let (gateways, level) = (self.sharing(check), self.level(&rule, self.now()));
        Share { gateways, rule: rule.algorithm, level }
    }

    /// The same for a limiter that no request has used during the outage. This state is dropped after it.
    pub(super) fn would_show(mut self, health: &Health, check: &Check) -> Share {
        let now = self.now();
        let one = Check { cost: 1, overflow: None, ..check.clone() };
        let mut limiter = self.new_limiter(health, one, now);
        if check.is_lease() {
            let held = health.known.permits.held(&check.key).into_iter();
            let asked = health.known.permits.asked(&check.key);
            limiter.silent_for(health, now);
            let synced =
                limiter.permits.sync(held.map(|(holder, left)| (holder, Some(left))), asked, now);
            self.limiters.insert(check.key.clone(), limiter);
            self.apply(check, synced, now);
        }
        self.shown(check)
    }

    /// When more can be known about the permits that other gateways hold, in µs from now.
    pub(super) fn known_after(&self, share: &Check, now: Micros) -> Option<Micros> {
        self.limiters.get(&share.key)?.permits.known_after(self.sharing(share), now)
    }

    /// The key of the limiter that counts `check`.
    fn key_of(&self, check: &Check) -> Option<Arc<str>> {
        let has = |key: &&Arc<str>| self.limiters.contains_key(*key);
        Some(&check.key).filter(has).or(check.overflow.as_ref().filter(has)).cloned()
    }

    /// Whether the refund concerns this gateway alone, so that the shared store does not receive it.
    pub(super) fn refund(&mut self, check: &Check, part: Part) -> bool {
        let Some(key) = self.key_of(check) else { return false };
        if check.is_lease() {
            return match self.leave(check, part.grant) {
                Some(is_shared) => !is_shared,
                None => {
                    // The request may still wait in the queue of this gateway.
                    let grant = calls::here(Ticket::of(part.grant)).grant();
                    let check = self.share(check, key);
                    self.run(self.now(), Entry::Refund { check, grant }) == Reply::Done(true)
                }
            };
        }
        let share = self.share(check, key);
        if let (Some(limiter), Rule::Rate(rate)) =
            (self.limiters.get_mut(&share.key), &share.algorithm)
        {
            limiter.grants.refund(rate, part.grant.whole, share.cost);
        }
        self.run(self.now(), Entry::Refund { check: share, grant: part.grant });
        true
    }

    /// Returns the permits of a grant beyond the first `used`. A limiter that the shared state decides again has charged
    /// them there.
    pub(super) fn settle(&mut self, check: &Check, part: Part, used: i64) {
        let Some(key) = self.key_of(check) else { return };
        let share = self.share(check, key);
        let Rule::Rate(rate) = share.algorithm else { return };
        let unused = rate.unused_part(part.grant, share.cost, used);
        let Some((grant, cost)) = unused.filter(|_| part.at >= 0) else { return };
        if let Some(limiter) = self.limiters.get_mut(&share.key) {
            limiter.grants.refund(&rate, part.grant.whole, cost);
        }
        self.run(self.now(), Entry::Refund { check: Check { cost, ..share }, grant });
    }

    /// Charges permits that were used already, whatever the level is.
    pub(super) fn owe(&mut self, health: &Health, check: &Check, permits: i64) {
        let now = self.now();
        let share = self.begin(health, check, now);
        let Rule::Rate(rate) = share.algorithm else { return };
        for entry in settlement::charges(&share, permits) {
            let [check] = entry.checks() else { return };
            let checks = [check.clone()].into();
            let entry = Entry::Reserve { checks, budget: MAX_BUDGET, ticket: None };
            let Reply::Decision(decision) = self.run(now, entry) else { return };
            if let Some(part) = decision.parts.first().filter(|part| part.at >= 0)
                && let Some(limiter) = self.limiters.get_mut(&share.key)
            {
                limiter.grants.add(&rate, now, *part, check.cost);
            }
        }
    }

    /// The call of a concurrency permit has ended. Returns whether the store receives a refund, and `None` if this gateway
    /// does not know the permit.
    pub(super) fn leave(&mut self, check: &Check, grant: Grant) -> Option<bool> {
        let (key, now) = (self.key_of(check)?, self.now());
        let limiter = self.limiters.get_mut(&key)?;
        let (inner, is_shared) =
            match limiter.permits.leave(Ticket::of(grant), limiter.closing, now) {
                Departure::Unknown => return None,
                Departure::Here(inner) => (inner, false),
                Departure::Both(inner) => (inner, true),
            };
        let grant = Ticket::of_holder(inner).grant();
        let check = self.share(check, key);
        self.run(now, Entry::Refund { check, grant });
        Some(is_shared)
    }

    /// See [`LocalStore::renew`](super::LocalStore::renew).
    pub(super) fn renew(&mut self, check: &Check, grant: Grant) -> bool {
        let (now, lease) = (self.now(), check.algorithm.lease().unwrap_or_default());
        let Some(limiter) = self.limiters.get_mut(&check.key) else { return false };
        let renewed = limiter.permits.renew(Ticket::of(grant), lease, now);
        let Some((permit, is_counted)) = renewed else { return false };
        let share = self.share(check, check.key.clone());
        let renewed = self.run(now, Entry::Renew { check: share, grant: permit.grant() });
        renewed == Reply::Done(true) && !is_counted
    }

    /// See [`LocalStore::forget`](super::LocalStore::forget).
    pub(super) fn forget_paid(&mut self, health: &Health, idle: impl Fn(&Check, &[Part])) -> bool {
        let now = self.now();
        let closing = self.limiters.iter().filter(|(_, limiter)| limiter.closing);
        let closing: Vec<_> = closing.map(|(key, _)| key.clone()).collect();
        let mut has_leases = false;
        for key in closing {
            if let Some(debt) = self.debt(&key, now) {
                self.restore(&debt);
                continue;
            }
            let Some(limiter) = self.limiters.remove(&key) else { continue };
            has_leases |= limiter.check.is_lease();
            health.known.permits.unfollow(&key);
            limiter.permits.idle().for_each(|parts| idle(&limiter.check, &parts));
            // The requests that wait here are notified, and ask the store: this gateway grants no more permits.
            self.run(now, Entry::Forget { check: limiter.check });
        }
        has_leases
    }
}

/// Requests, in this order, that take `permits` from the new state of `check`. Each takes as many as the limiter grants at
/// once, such as a window.
fn takes(check: &Check, permits: i64) -> impl Iterator<Item = Checks> + use<> {
    let rate = check.algorithm.as_rate().copied();
    let (check, mut left) = (Check { enforce: false, ..check.clone() }, permits);
    let takes = std::iter::from_fn(move || {
        let rate = rate?;
        let cost = left.min(rate.capacity());
        left -= cost;
        let check = || Check { algorithm: rate.facts().endless.into(), cost, ..check.clone() };
        (cost > 0).then(|| [check()].into())
    });
    takes.take(PIECES)
}
