//! The steps of requests that take turns at a limiter, in the memory store. The order of turns is `algorithm/fair`'s.

mod floors;

use super::{
    MemoryStore, OpenedState, locked::LockedShards, shard::Shard, stored_state::Print, wants,
};
use crate::{
    algorithm::{
        MAX_BUDGET, Micros, RuleState,
        concurrency::Ticket,
        fair::{
            Place, Queue, Turns,
            queue::{Chain, Confirmed, Effects, MAX_WAITING, Newcomer, Refused, Slot, like},
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
use std::sync::Arc;

impl MemoryStore {
    /// Decides a request that takes its turn at the limiter of check `q`. The parts of its states are locked.
    #[cold]
    pub(super) fn decide_in_turn(
        &self,
        mut shards: LockedShards<'_>,
        now: Micros,
        checks: &Checks,
        q: usize,
        budget: Micros,
        ticket: Ticket,
    ) -> Decision {
        let mut opened = self.open_all(&mut shards, checks, now);
        let print = opened[q].print;
        let lost = self.loss(&checks[q]).map_or(0, |loss| loss.at);
        let kept = shards.of(q).queues.remove(&print).filter(|queue| queue.born() >= lost);
        let mut queue = kept.unwrap_or_else(|| Box::new(Queue::new(now.max(lost))));
        queue.close_until(pauses_end(checks, &opened));
        queue.keep_back(checks[q].floors);
        queue.forget_overdue(now);
        let mut effects = Effects::default();
        let mut changed = false;
        for booking in queue.lapse(now) {
            changed |= opened[q].refund(booking.grant, booking.cost);
        }
        changed |= opened[q].fill(&mut queue, now, &mut effects);
        let budget = budget.min(MAX_BUDGET);
        let asked = AskedInTurn { checks, q, budget, ticket, like: &like_of(checks, q) };
        if let Some(turn) = &checks[q].turn
            && let Some(own) = queue.claim(now + budget, turn, asked.like)
        {
            changed |= opened[q].refund(own.grant, own.cost);
        }
        let (mut decision, chain) = decide(&mut wants(checks, &mut opened), &queue, now, asked);
        let taken: SmallVec<[bool; 2]> = decision.parts.iter().map(|part| part.at >= 0).collect();
        if decision.admitted && decision.wait > 0 {
            wait(&mut queue, now, asked, &mut decision, &chain, &mut effects);
        } else if let Some(back) = book(&mut queue, now, asked, &decision, &mut opened[q]) {
            (decision.retry_after, changed) = (back, true);
        }
        changed |= opened[q].fill(&mut queue, now, &mut effects);
        if queue.is_empty() {
            for booking in queue.lapse(now) {
                changed |= opened[q].refund(booking.grant, booking.cost);
            }
        }
        let is_taken = |i: usize| taken.get(i).copied().unwrap_or_default() || changed && i == q;
        let called = self.put_all(&mut shards, checks, opened, is_taken, now);
        keep(shards.of(q), print, queue);
        drop(shards);
        self.call(called);
        self.apply(now, checks, effects);
        decision
    }

    /// Decides whether a request with this place is sent in its slot or yields it.
    pub(super) fn confirm_at(&self, now: Micros, checks: &Checks, place: Place) -> Decision {
        let q = of_queue(checks).unwrap_or_default();
        if checks.iter().any(|check| check.floor() > 0) {
            self.keep_floors(now, checks, q, place);
        }
        let confirmed =
            self.step(now, checks, q, |queue, effects| queue.confirm(now, place.0, effects));
        let mut decision = Decision::gone(q, self.look_at(now, &checks[q]));
        match confirmed.unwrap_or(Confirmed::Gone) {
            Confirmed::Gone => {}
            Confirmed::Waits(at) => {
                // It may have moved up since.
                let at =
                    self.in_queue(&checks[q], |queue| queue.at(place.0)).flatten().unwrap_or(at);
                decision.waits(checks, q, (at - now).max(0), place);
            }
            Confirmed::Sent(slot) => decision.is_sent(checks, slot.at - now, &slot.grants),
        }
        decision
    }

    /// Removes a request from the queue; false if it did not wait.
    pub(super) fn leave_at(&self, now: Micros, checks: &Checks, place: Place) -> bool {
        let q = of_queue(checks).unwrap_or_default();
        self.step(now, checks, q, |queue, effects| queue.leave(now, place.0, effects)) == Some(true)
    }

    /// Works on the queue of check `q`, refunds what no request has any more, and gives that to requests that wait.
    fn step<T>(
        &self,
        now: Micros,
        checks: &Checks,
        q: usize,
        work: impl FnOnce(&mut Queue, &mut Effects) -> T,
    ) -> Option<T> {
        let mut effects = Effects::default();
        let closed_until = self.closed_until(now, checks);
        let (done, has_room, lapsed) = self.in_queue(&checks[q], |queue| {
            queue.close_until(closed_until);
            queue.keep_back(checks[q].floors);
            effects.lapsed = queue.lapse(now);
            let done = work(queue, &mut effects);
            let lapsed = if queue.is_empty() { queue.lapse(now) } else { Vec::new() };
            (done, queue.has_room(), lapsed)
        })?;
        self.apply(now, checks, effects);
        if has_room {
            self.fill(now, &checks[q]);
        }
        self.apply(now, checks, Effects { lapsed, ..Effects::default() });
        Some(done)
    }

    /// The end of the pauses of the limiters whose permits a waiting request has; 0 if none was paused lately.
    fn closed_until(&self, now: Micros, checks: &Checks) -> Micros {
        let rates = checks.iter().filter(|check| is_rate(check));
        let gates = rates.filter_map(|check| {
            let print = self.print(&check.key);
            self.lock(print).open_gate(print, check, now)
        });
        gates.map(|gate| gate.gate().until).max().unwrap_or(0)
    }

    /// Gives free permits to the requests that wait for the last slots.
    fn fill(&self, now: Micros, check: &Check) {
        let mut effects = Effects::default();
        let print = self.print(&check.key);
        let mut shard = self.lock(print);
        let mut opened = self.open(&mut shard, check, print, now);
        let print = opened.print;
        let mut changed = false;
        if let Some(mut queue) = shard.queues.remove(&print) {
            changed = opened.fill(&mut queue, now, &mut effects);
            keep(&mut shard, print, queue);
        }
        let called = self.put(&mut shard, check, opened, changed, now);
        drop(shard);
        self.call(called);
        self.call(effects.notified.into_iter().map(Ticket::of_holder).collect());
    }

    /// The tenants of a limiter, those with the most waiting requests first.
    pub(super) fn tenants_of(&self, check: &Check) -> Vec<TenantLevel> {
        let known = if check.is_lease() {
            self.in_waiters(check, levels)
        } else {
            self.in_queue(check, |queue| levels(queue.turns()))
        };
        let mut known = known.unwrap_or_default();
        TenantLevel::sort(&mut known);
        known.truncate(MAX_TENANTS);
        known
    }

    /// Reads the turns at a concurrency limiter; `None` if no request waits there.
    fn in_waiters<T>(&self, check: &Check, read: impl Fn(&Turns) -> T) -> Option<T> {
        let own = self.print(&check.key);
        let shard = self.lock(own);
        let shared = check.overflow.as_ref().map(|shared| self.print(shared));
        let mut prints = [Some(own), shared].into_iter().flatten();
        prints.find_map(|print| match shard.kept(print)? {
            RuleState::Permits(state) => state.turns().map(&read),
            RuleState::Rate(_) => None,
        })
    }

    /// Works on the queue of a limiter; `None` if no request waits there.
    pub(super) fn in_queue<T>(
        &self,
        check: &Check,
        work: impl FnOnce(&mut Queue) -> T,
    ) -> Option<T> {
        let own = self.print(&check.key);
        let mut shard = self.lock(own);
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
        let q = of_queue(checks).unwrap_or_default();
        for booking in effects.lapsed {
            self.refund_at(now, &checks[q].clone().with_cost(booking.cost), booking.grant);
        }
        for slot in effects.refunds {
            let rates = checks.iter().filter(|check| is_rate(check));
            for (check, grant) in rates.zip(slot.grants) {
                self.refund_at(now, check, grant);
            }
        }
        self.call(effects.notified.into_iter().map(Ticket::of_holder).collect());
    }
}

fn levels(turns: &Turns) -> Vec<TenantLevel> {
    let known = turns.known().map(|tenant| TenantLevel {
        tenant: tenant.name.clone(),
        weight: tenant.weight,
        priority: tenant.priority,
        waiting: tenant.waiting as u64,
        granted: tenant.granted.unsigned_abs(),
        lead: tenant.lead,
    });
    known.collect()
}

// === impl OpenedState ===

impl OpenedState {
    /// Gives free permits to the requests that wait for the last slots; returns whether the state has changed.
    fn fill(&mut self, queue: &mut Queue, now: Micros, effects: &mut Effects) -> bool {
        if !self.takes_back() {
            return false;
        }
        let Self { open, gate, .. } = self;
        let fill = |open| queue.has_room() && queue.fill(now, open, gate.as_deref_mut(), effects);
        open.rate_mut().is_some_and(fill)
    }
}

/// A request that asks: its checks, the index of the one whose queue it joins, its budget, its ticket, and the text by which
/// it is alike to others.
#[derive(Clone, Copy)]
struct AskedInTurn<'a> {
    checks: &'a Checks,
    q: usize,
    budget: Micros,
    ticket: Ticket,
    like: &'a Arc<str>,
}

// === impl AskedInTurn ===

impl AskedInTurn<'_> {
    /// The longest wait of the request. In a full queue it cannot wait.
    fn most(&self, queue: &Queue) -> Micros {
        if queue.len() >= MAX_WAITING { self.budget.min(0) } else { self.budget }
    }

    /// Whether its slot came too late, so that other requests may make room for it.
    fn is_too_late(&self, queue: &Queue, decision: &Decision) -> bool {
        let most = self.most(queue);
        let has_lease = self.checks.iter().any(|check| check.is_lease() && check.enforce);
        !decision.admitted && decision.wait > most && most > 0 && !has_lease
    }
}

/// The end of the pauses of the limiters of a request whose permits a queue exchanges; 0 if none was paused lately.
fn pauses_end(checks: &[Check], opened: &[OpenedState]) -> Micros {
    let rates = checks.iter().zip(opened).filter(|(check, _)| is_rate(check));
    let ends = rates.filter_map(|(_, opened)| Some(opened.gate.as_ref()?.gate().until));
    ends.max().unwrap_or(0)
}

/// Decides by the rules. If the slot comes too late, other requests make room for it; returns those that have to move.
fn decide(
    wants: &mut [Want<'_>],
    queue: &Queue,
    now: Micros,
    asked: AskedInTurn<'_>,
) -> (Decision, Chain) {
    let decision = Decision::new(reserve::decide(wants, asked.most(queue), Some(asked.ticket)));
    if asked.is_too_late(queue, &decision) {
        let deadline = now + asked.budget;
        if let Some(chain) = queue.chain(now, deadline, asked.like, now + decision.wait, &[]) {
            let limit = queue.limit(&chain, deadline) - now;
            let moved = Decision::new(reserve::decide(wants, limit, Some(asked.ticket)));
            if moved.admitted {
                return (moved, chain);
            }
        }
    }
    (decision, Chain::new())
}

/// Books a turn for a request that is refused because of the limiter of its queue. Returns how much later its caller has to
/// come back, µs.
fn book(
    queue: &mut Queue,
    now: Micros,
    asked: AskedInTurn<'_>,
    decision: &Decision,
    opened: &mut OpenedState,
) -> Option<Micros> {
    let check = &asked.checks[asked.q];
    let turn = check.turn.as_ref()?;
    let is_its_own = decision.bound_by == asked.q && opened.gate.is_none();
    let refused = Refused {
        turn,
        like: asked.like,
        cost: check.cost,
        budget: asked.budget,
        retry_after: decision.retry_after,
    };
    let is_booked = is_its_own && asked.is_too_late(queue, decision);
    let open = opened.open.rate_mut().filter(|_| is_booked)?;
    queue.book(now, open, check.algorithm.as_rate()?, refused)
}

/// Lets an admitted request wait for its turn: the queue has its permits, and the decision names its place.
fn wait(
    queue: &mut Queue,
    now: Micros,
    AskedInTurn { checks, q, budget, ticket, like }: AskedInTurn<'_>,
    decision: &mut Decision,
    chain: &Chain,
    effects: &mut Effects,
) {
    let Some(turn) = &checks[q].turn else { return };
    let rates = checks.iter().zip(&decision.parts).filter(|(check, _)| is_rate(check));
    let grants = rates.map(|(_, part)| part.grant).collect();
    let newcomer = Newcomer {
        turn,
        cost: checks[q].cost,
        ticket: ticket.holder(),
        deadline: now + budget,
        like: like.clone(),
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

fn like_of(checks: &Checks, q: usize) -> Arc<str> {
    like(checks[q].cost, others(checks, q))
}

/// Keeps a queue in which requests wait.
fn keep(shard: &mut Shard, print: Print, queue: Box<Queue>) {
    if !queue.is_empty() {
        shard.queues.insert(print, queue);
    }
}

#[cfg(test)]
mod tests;
