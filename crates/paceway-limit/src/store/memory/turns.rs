//! The steps of requests that take turns at a limiter, in the memory store. The order of turns is `algorithm/fair`'s.

use super::{MemoryStore, OpenedState, shard::Shard, stored_state::Print};
use crate::{
    algorithm::{
        MAX_BUDGET, Micros,
        concurrency::Ticket,
        fair::{
            Place, Queue,
            queue::{Chain, Confirmed, Effects, MAX_WAITING, Newcomer, Slot, like},
            turns::MAX_TENANTS,
        },
        reserve::{self, Part, Want},
    },
    store::{
        Check, Checks, Decision, TenantLevel,
        turn::{is_rate, of_queue, others},
    },
};
use smallvec::SmallVec;

impl MemoryStore {
    /// Decides a request that takes its turn at the limiter of check `q`.
    #[cold]
    pub(super) fn decide_in_turn(
        &self,
        now: Micros,
        checks: &Checks,
        q: usize,
        budget: Micros,
        ticket: Ticket,
    ) -> Decision {
        let mut shard = self.shard(&checks[q].key).lock();
        let mut opened: SmallVec<[OpenedState; 2]> = SmallVec::new();
        for check in checks.iter() {
            opened.push(self.open(&mut shard, check, now));
        }
        let print = opened[q].print;
        let lost = self.loss(&checks[q]).map_or(0, |loss| loss.at);
        let kept = shard.queues.remove(&print).filter(|queue| queue.born() >= lost);
        let mut queue = kept.unwrap_or_else(|| Box::new(Queue::new(now.max(lost))));
        queue.forget_overdue(now);
        let mut wants: SmallVec<[Want<'_>; 2]> = SmallVec::new();
        for (check, OpenedState { open, gate, .. }) in checks.iter().zip(&mut opened) {
            let gate = gate.as_deref_mut();
            wants.push(Want { open, cost: check.cost, enforce: check.enforce, gate });
        }
        let mut effects = Effects::default();
        let asked = (checks, q, budget.min(MAX_BUDGET), ticket);
        let (mut decision, chain) = decide(&mut wants, &queue, now, asked);
        drop(wants);
        let taken: SmallVec<[bool; 2]> = decision.parts.iter().map(|part| part.at >= 0).collect();
        if decision.admitted && decision.wait > 0 {
            wait(&mut queue, now, asked, (&mut decision, &chain), &mut effects);
        }
        let mut called = Vec::new();
        for (i, (check, opened)) in checks.iter().zip(opened).enumerate() {
            let taken = taken.get(i).copied().unwrap_or_default();
            called.append(&mut self.put(&mut shard, check, opened, taken, now));
        }
        keep(&mut shard, print, queue);
        drop(shard);
        self.call(called);
        self.apply(now, checks, effects);
        decision
    }

    /// Decides whether a request with this place is sent in its slot or yields it.
    pub(super) fn confirm_at(&self, now: Micros, checks: &Checks, place: Place) -> Decision {
        let mut effects = Effects::default();
        let q = of_queue(checks).unwrap_or_default();
        let confirmed = self
            .in_queue(&checks[q], |queue| queue.confirm(now, place.0, &mut effects))
            .unwrap_or(Confirmed::Gone);
        self.apply(now, checks, effects);
        let mut decision = Decision::gone(q, self.look_at(now, &checks[q]));
        match confirmed {
            Confirmed::Gone => {}
            Confirmed::Waits(at) => decision.waits(checks, q, (at - now).max(0), place),
            Confirmed::Sent(slot) => decision.is_sent(checks, slot.at - now, &slot.grants),
        }
        decision
    }

    /// Removes a request from the queue; false if it did not wait.
    pub(super) fn leave_at(&self, now: Micros, checks: &Checks, place: Place) -> bool {
        let mut effects = Effects::default();
        let q = of_queue(checks).unwrap_or_default();
        let left = self.in_queue(&checks[q], |queue| queue.leave(now, place.0, &mut effects));
        self.apply(now, checks, effects);
        left == Some(true)
    }

    /// The tenants of a limiter, those with the most waiting requests first.
    pub(super) fn tenants_of(&self, check: &Check) -> Vec<TenantLevel> {
        let known = self.in_queue(check, |queue| {
            let known = queue.turns().known();
            let level = known.map(|(priority, tenant, weight, waiting, granted)| TenantLevel {
                tenant: tenant.clone(),
                weight,
                priority,
                waiting: waiting as u64,
                granted: granted.unsigned_abs(),
            });
            level.collect()
        });
        let mut known: Vec<_> = known.unwrap_or_default();
        TenantLevel::sort(&mut known);
        known.truncate(MAX_TENANTS);
        known
    }

    /// Works on the queue of a limiter; `None` if no request waits there.
    fn in_queue<T>(&self, check: &Check, work: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let mut shard = self.shard(&check.key).lock();
        let own = self.print(&check.key);
        let shared = check.overflow.as_ref().map(|shared| self.print(shared));
        let has = |print: &Print| shard.queues.contains_key(print);
        let print = Some(own).filter(has).or(shared.filter(has))?;
        let lost = self.loss(check).map_or(0, |loss| loss.at);
        let mut queue = shard.queues.remove(&print).filter(|queue| queue.born() >= lost)?;
        let done = work(&mut queue);
        keep(&mut shard, print, queue);
        Some(done)
    }

    /// Notifies the requests that have other slots, and refunds slots that no request has.
    fn apply(&self, now: Micros, checks: &Checks, effects: Effects) {
        for slot in effects.refunds {
            let rates = checks.iter().filter(|check| is_rate(check));
            for (check, grant) in rates.zip(slot.grants) {
                self.refund_at(now, check, grant);
            }
        }
        let ticket = |(gateway, number)| Ticket { gateway, number, deadline: 0 };
        self.call(effects.notified.into_iter().map(ticket).collect());
    }
}

/// A request that asks: its checks, the index of the one whose queue it joins, its budget, and its ticket.
type Asked<'a> = (&'a Checks, usize, Micros, Ticket);

/// Decides by the rules. If the slot comes too late, other requests make room for it; returns those that have to move.
fn decide(
    wants: &mut [Want<'_>],
    queue: &Queue,
    now: Micros,
    (checks, q, budget, ticket): Asked<'_>,
) -> (Decision, Chain) {
    let budget = if queue.len() >= MAX_WAITING { budget.min(0) } else { budget };
    let decision = Decision::new(reserve::decide(wants, budget, Some(ticket)));
    let has_lease = checks.iter().any(|check| check.is_lease() && check.enforce);
    if !decision.admitted && decision.wait > budget && budget > 0 && !has_lease {
        let like = like(checks[q].cost, others(checks, q));
        let deadline = now + budget;
        if let Some(chain) = queue.chain(now, deadline, &like, now + decision.wait, &[]) {
            let limit = queue.limit(&chain, deadline) - now;
            let moved = Decision::new(reserve::decide(wants, limit, Some(ticket)));
            if moved.admitted {
                return (moved, chain);
            }
        }
    }
    (decision, Chain::new())
}

/// Lets an admitted request wait for its turn: the queue has its permits, and the decision names its place.
fn wait(
    queue: &mut Queue,
    now: Micros,
    (checks, q, budget, ticket): Asked<'_>,
    (decision, chain): (&mut Decision, &Chain),
    effects: &mut Effects,
) {
    let Some(turn) = &checks[q].turn else { return };
    let rates = checks.iter().zip(&decision.parts).filter(|(check, _)| is_rate(check));
    let grants = rates.map(|(_, part)| part.grant).collect();
    let newcomer = Newcomer {
        turn: (&turn.tenant, turn.weight, turn.priority),
        cost: checks[q].cost,
        ticket: (ticket.gateway, ticket.number),
        deadline: now + budget,
        like: like(checks[q].cost, others(checks, q)),
    };
    let slot = Slot { at: now + decision.wait, grants };
    let (number, at) = queue.join(now, newcomer, chain, slot, effects);
    let observed: SmallVec<[Part; 2]> = decision.parts.clone();
    decision.waits(checks, q, at - now, Place(number));
    for (part, (old, check)) in decision.parts.iter_mut().zip(observed.iter().zip(checks.iter())) {
        if !is_rate(check) {
            *part = *old;
        }
    }
}

/// Keeps a queue in which requests wait.
fn keep(shard: &mut Shard, print: Print, queue: Box<Queue>) {
    if !queue.is_empty() {
        shard.queues.insert(print, queue);
    }
}
