//! The step of a request whose slot comes, at a limiter that keeps permits back: it is decided once more, by what is left.

use super::{keep, pauses_end};
use crate::{
    algorithm::{
        Grant, Micros, OpenRate,
        fair::{
            Place, Priority, Queue,
            queue::{Chain, DueCall, Effects, Slot},
        },
        reserve::{self, Want},
    },
    store::{
        Check, Checks,
        memory::{MemoryStore, OpenedState},
        turn::is_rate,
    },
};
use smallvec::SmallVec;

// === impl MemoryStore ===

impl MemoryStore {
    /// Decides a request whose slot comes once more, from the permits that are left by now: it may not be sent below a floor.
    pub(super) fn keep_floors(&self, now: Micros, checks: &Checks, q: usize, place: Place) {
        let mut shards = self.lock_all(checks);
        let mut opened = self.open_all(&mut shards, checks, now);
        let (print, mut effects) = (opened[q].print, Effects::default());
        let lost = self.loss(&checks[q]).map_or(0, |loss| loss.at);
        let kept = shards.of(q).queues.remove(&print).filter(|queue| queue.born() >= lost);
        let mut is_decided = false;
        if let Some(mut queue) = kept {
            queue.close_until(pauses_end(checks, &opened));
            for booking in queue.lapse(now) {
                is_decided |= opened[q].refund(booking.grant, booking.cost);
            }
            let own = checks[q].turn.as_ref().map_or(Priority::Normal, |turn| turn.priority);
            let due = queue.due(now, place.0, own).filter(|due| {
                checks.iter().any(|check| check.kept_from(due.priority) > 0)
                    && opened.iter().all(OpenedState::takes_back)
            });
            if let Some(due) = due.filter(|due| !is_kept_late(due, now, checks, &opened)) {
                decide_again(&mut queue, now, checks, &mut opened, place, due, &mut effects);
                is_decided = true;
            }
            if queue.is_empty() {
                for booking in queue.lapse(now) {
                    is_decided |= opened[q].refund(booking.grant, booking.cost);
                }
            }
            keep(shards.of(q), print, queue);
        }
        let is_taken = |i: usize| is_decided && is_rate(&checks[i]);
        let called = self.put_all(&mut shards, checks, opened, is_taken, now);
        drop(shards);
        self.call(called);
        self.apply(now, checks, effects);
    }
}

/// Whether a request that confirms after its slot is sent with the permits of that slot, because those of the floors are left
/// beside them. If it took others, of the present instant, a window would have none for the slots of the next one.
fn is_kept_late(due: &DueCall, now: Micros, checks: &Checks, opened: &[OpenedState]) -> bool {
    let rates = checks.iter().zip(opened).filter(|(check, _)| is_rate(check));
    let is_left = |check: &Check, opened: &OpenedState, grant: Grant| {
        let (Some(open), kept) = (opened.open.rate(), check.kept_from(due.priority)) else {
            return true;
        };
        let is_free = || match opened.gate.as_deref() {
            Some(gate) => gate.earliest(open, 0, 1, kept - 1).0 <= 0,
            None => open.earliest(0, 1, kept - 1).0 <= 0,
        };
        kept <= 0 || !open.binds(grant, check.cost, due.slot.at) || is_free()
    };
    let mut rates = rates.zip(&due.slot.grants);
    due.slot.at < now && rates.all(|((check, opened), grant)| is_left(check, opened, *grant))
}

/// Gives a request the permits of its instant in place of its own, or a later slot if too few would be left, or none.
fn decide_again(
    queue: &mut Queue,
    now: Micros,
    checks: &Checks,
    opened: &mut [OpenedState],
    place: Place,
    due: DueCall,
    effects: &mut Effects,
) {
    let DueCall { slot, deadline, like, priority } = due;
    let from = (slot.at - now).max(0);
    let mut wants: SmallVec<[Want<'_>; 2]> = SmallVec::new();
    // One that only observes has counted the request.
    let rates = checks.iter().zip(opened).filter(|(check, _)| is_rate(check));
    for ((check, opened), grant) in rates.zip(slot.grants) {
        let binds = opened.open.rate().is_none_or(|open| open.binds(grant, check.cost, slot.at));
        let kept = if binds { check.kept_from(priority) } else { 0 };
        opened.refund(grant, check.cost);
        wants.push(Want { kept, ..opened.want(check) });
    }
    let mut decide = |limit: Micros| {
        let reserved = reserve::decide_from(&mut wants, from, limit.max(from), None);
        let grants = reserved.parts.map(|parts| parts.iter().map(|part| part.grant).collect());
        (now + reserved.at, grants)
    };
    let (mut chain, (mut at, mut grants)) = (Chain::new(), decide(deadline - now));
    if grants.is_none()
        && let Some(moved) = queue.chain(now, deadline, &like, at, &[place.0])
    {
        let limit = queue.limit(&moved, deadline);
        (chain, (at, grants)) = (moved, decide(limit - now));
    }
    match grants {
        Some(grants) => queue.displace(now, place.0, &chain, Slot { at, grants }, effects),
        None => queue.dismiss(place.0),
    }
}
