//! The steps that change or show one state of the memory store: every entry except a decision that takes no block.

use super::{MemoryStore, OpenedState, wants};
use crate::{
    algorithm::{
        Gate, Grant, Level, Micros, OpenRule, concurrency,
        gate::{GateChange, Remainder},
        reserve::{self, Part},
        token_bucket::BlockAsk,
    },
    store::{Check, Checks, Decision, Pause, Reply},
};
use smallvec::SmallVec;

impl MemoryStore {
    /// Decides a request of one limiter, and takes a block if the limiter gives one.
    pub(super) fn decide_with_block_at(
        &self,
        now: Micros,
        checks: &Checks,
        budget: Micros,
        ask: BlockAsk,
    ) -> Reply {
        let check = &checks[0];
        let print = self.print(&check.key);
        let mut shard = self.lock(print);
        let mut opened = self.open(&mut shard, check, print, now);
        let (reserved, usable) = reserve::decide_with_block(opened.want(check), budget, ask);
        let decision = Decision::new(reserved);
        let taken = decision.parts.first().is_some_and(|part| part.at >= 0);
        self.put(&mut shard, check, opened, taken, now);
        match usable {
            Some(usable) => Reply::Block { decision, usable },
            None => Reply::Decision(decision),
        }
    }

    /// Gives a request other permits in place of `parts`, within the budget.
    pub(super) fn move_up_at(
        &self,
        now: Micros,
        checks: &Checks,
        budget: Micros,
        parts: &[Part],
    ) -> Decision {
        let mut shards = self.lock_all(checks);
        let mut opened = self.open_all(&mut shards, checks, now);
        let before: SmallVec<[OpenRule; 2]> =
            opened.iter().map(|state| state.open.clone()).collect();
        let gates: SmallVec<[_; 2]> = opened.iter().map(|state| state.gate.clone()).collect();
        let mut is_given = opened.iter().all(OpenedState::takes_back);
        for ((check, state), part) in checks.iter().zip(&mut opened).zip(parts) {
            is_given = is_given && (part.at < 0 || state.refund(part.grant, check.cost));
        }
        let decided =
            is_given.then(|| reserve::decide(&mut wants(checks, &mut opened), budget, None));
        let decision = decided.map(Decision::new).filter(|decision| decision.admitted);
        if decision.is_none() {
            for (state, (open, gate)) in opened.iter_mut().zip(before.into_iter().zip(gates)) {
                (state.open, state.gate) = (open, gate);
            }
        }
        let decision = decision.unwrap_or_else(|| Decision::kept(opened[0].level()));
        self.put_all(&mut shards, checks, opened, |_| decision.admitted, now);
        decision
    }

    /// Gives the permits of `grant` back to the limiter, or hands a concurrency permit to the next request in the queue.
    pub(super) fn refund_at(&self, now: Micros, check: &Check, grant: Grant) -> Reply {
        let mut is_of_gate = false;
        let changed = self.change(now, check, |opened| {
            let given = opened.open.refund(grant, check.cost);
            is_of_gate = opened.refund_gate(grant, check.cost);
            given
        });
        match changed {
            (_, true) => Reply::HandedOver,
            (given, false) => Reply::Done(given || is_of_gate),
        }
    }

    /// Renews the lease of a concurrency permit. Returns whether `grant` still has it.
    pub(super) fn renew_at(&self, now: Micros, check: &Check, grant: Grant) -> bool {
        let renew = |OpenedState { open, .. }: &mut OpenedState| {
            open.leases().is_some_and(|leases| leases.renew(grant))
        };
        self.change(now, check, renew).0
    }

    /// Forgets a state, as if no request had used it. Returns whether there was one.
    pub(super) fn forget_at(&self, now: Micros, check: &Check) -> bool {
        if check.is_lease() {
            let forget = |OpenedState { open, .. }: &mut OpenedState| {
                open.leases().is_some_and(concurrency::Open::forget)
            };
            return self.change(now, check, forget).0;
        }
        let print = self.print(&check.key);
        let mut shard = self.lock(print);
        let before = shard.len();
        let was_paused = shard.remove_gate(print);
        let (gone, is_kept) = self.vacate(&mut shard, print, check, now);
        self.count(before, shard.len());
        gone || is_kept || was_paused
    }

    /// Changes a state. Returns whether it did change, and whether a waiting request was woken.
    fn change(
        &self,
        now: Micros,
        check: &Check,
        change: impl FnOnce(&mut OpenedState) -> bool,
    ) -> (bool, bool) {
        let print = self.print(&check.key);
        let mut shard = self.lock(print);
        let mut opened = self.open(&mut shard, check, print, now);
        let changed = change(&mut opened);
        let called = self.put(&mut shard, check, opened, changed, now);
        drop(shard);
        let has_called = !called.is_empty();
        self.call(called);
        (changed, has_called)
    }

    /// Returns the level of a limiter, and changes nothing.
    pub(super) fn look_at(&self, now: Micros, check: &Check) -> Level {
        let mut level = Level::default();
        self.change(now, check, |opened| {
            level = opened.level();
            false
        });
        level
    }

    /// Lowers the level of a limiter, and returns it.
    pub(super) fn lower_at(&self, now: Micros, check: &Check, told: Remainder) -> Level {
        let (mut level, mut recalls) = (Level::default(), false);
        self.change(now, check, |opened| {
            let mut has_changed = false;
            match opened.open.rate().filter(|_| told.span > 0) {
                Some(open) => {
                    let change = Gate::remaining(opened.gate.as_deref(), open, now, told);
                    if let Some(change) = change {
                        opened.gate = check.open_gate(Some(change.gate), now).map(Box::new);
                        recalls = change.recalls;
                    }
                }
                None => {
                    let lower = |open| reserve::lower(open, told.permits.max(0));
                    has_changed = opened.open.rate_mut().is_some_and(lower);
                }
            }
            level = opened.level();
            has_changed
        });
        if recalls {
            self.shared.pauses.learn_count(&check.key, told.span);
        }
        level
    }

    /// Charges permits that were used already. Returns how many the state does not take yet.
    pub(super) fn charge_at(&self, now: Micros, check: &Check) -> i64 {
        let mut left = check.cost;
        self.change(now, check, |opened| {
            left = opened.open.rate_mut().map_or(left, |open| reserve::charge(open, check.cost));
            left < check.cost
        });
        left
    }

    /// Pauses a limiter, and returns its level.
    pub(super) fn pause_at(&self, now: Micros, check: &Check, pause: Pause) -> Level {
        let (refusal, mut level) = (pause.refusal(check), Level::default());
        self.change(now, check, |opened| {
            if let Some(leases) = opened.open.leases() {
                leases.pause(Gate::new(now, refusal.span, refusal.status));
            } else if let Some(rule) = check.algorithm.as_rate() {
                let GateChange { gate, .. } =
                    Gate::refused(opened.gate.as_deref(), now, refusal, rule);
                opened.gate = check.open_gate(Some(gate), now).map(Box::new);
            }
            level = opened.level();
            // The state of a rate does not change.
            false
        });
        level
    }
}
