//! The loop over a request's limiters: all of them are charged at one common instant, or none is. Twin of
//! `reserve.lua`.

mod adjust;
mod way;

use super::{
    Grant, Level, MAX_BUDGET, Micros, Open, OpenRate, OpenRule,
    concurrency::{Queued, RETRY, Ticket},
    gate::OpenGate,
    token_bucket::BlockAsk,
};
pub use adjust::{charge, lower};
use smallvec::SmallVec;
pub use way::{Offer, earliest_way, offer};

/// One limiter of a request, with its opened state and the permits that the request asks of it.
#[derive(Debug)]
pub struct Want<'a> {
    /// The opened state of the limiter, which a grant changes.
    pub open: &'a mut OpenRule,
    /// The permits that the request costs, from 1 to the limiter's capacity.
    pub cost: i64,
    /// False for a limiter that only observes: it counts the request and never delays or refuses it.
    pub enforce: bool,
    /// The gate of the limiter, if one is paused or was not long ago. It does not concern a limiter that only
    /// observes.
    pub gate: Option<&'a mut OpenGate>,
    /// The permits that the request has to leave to requests of higher priorities.
    pub kept: i64,
}

/// A limiter of a rate, as it delays a request.
struct AskedRate<'w> {
    open: &'w Open,
    cost: i64,
    /// The gate, if the limiter enforces it.
    gate: Option<&'w OpenGate>,
    kept: i64,
}

/// A request that is granted a concurrency permit keeps it while it waits for rate permits, if that wait is
/// at most this long, µs. The time is far below a [claim](super::concurrency::CLAIM). If the permit were
/// returned at once, the request would ask for it again together with rate permits that others have reserved
/// by then: with a window of 20/s, 12 concurrency permits and calls of 0.7 s, only 68 % of the allowed calls
/// were made.
const KEPT: Micros = 500_000;

/// The share of one limiter in the decision on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The instant of the grant, µs from now. An enforcing limiter has the common instant of the request. An
    /// observing limiter has the instant that it would have enforced, or [`Part::NOTHING`] when it would have
    /// refused. A concurrency permit is never taken for later: then it is [`Part::NOT_YET`].
    pub at: Micros,
    /// The grant for a refund; meaningless when `at` is negative.
    pub grant: Grant,
}

/// The parts of a request in the order of its limiters. Up to two of them need no allocation.
pub type Parts = SmallVec<[Part; 2]>;

/// The decision on a request: granted at an instant, waiting in a queue, or refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The first instant at which all enforcing limiters can grant the request, µs from now.
    pub at: Micros,
    /// How much later the same request would be admitted, µs; 0 unless it is refused.
    pub retry_after: Micros,
    /// The index of the limiter that delays the request most, or whose queue is full. If none delays it, the
    /// index of the limiter with the fewest permits left.
    pub bound_by: usize,
    /// How full that limiter is after this request.
    pub level: Level,
    /// One part for each limiter when the request is admitted; `None` otherwise.
    pub parts: Option<Parts>,
    /// The wait in the queue of a concurrency limiter; the request has taken no permits then.
    pub queued: Option<Queued>,
}

// === impl Part ===

impl Part {
    /// The part of an observing limiter that would have refused the request.
    pub const NOTHING: Self = Self { at: -1, grant: Grant { whole: 0, ticks: 0, born: 0, aux: 0 } };
    /// The part of a concurrency limiter that the request asks again at the common instant.
    pub const NOT_YET: Self = Self { at: -2, ..Self::NOTHING };
}

/// Decides one request against all of its limiters (at least one). `ticket` identifies the request where a
/// limiter counts concurrency permits.
///
/// An instant in the future leaves the time before it free for other requests: a limiter that could have
/// granted earlier keeps that room as a hole. Concurrency permits are taken only for now. A request that has
/// to wait for one takes no rate permits, and a request that has to wait for rate permits asks for its
/// concurrency permits when their instant has come. A refusal changes nothing.
pub fn decide(wants: &mut [Want<'_>], budget: Micros, ticket: Option<Ticket>) -> Reserved {
    decide_from(wants, 0, budget, ticket)
}

/// Decides one request as [`decide`] does, for an instant that comes no earlier than `from`, µs from now.
pub fn decide_from(
    wants: &mut [Want<'_>],
    from: Micros,
    budget: Micros,
    ticket: Option<Ticket>,
) -> Reserved {
    let budget = budget.min(MAX_BUDGET);
    let mut starts: SmallVec<[i64; 2]> = smallvec::smallvec![0; wants.len()];
    let (at, mut bound_by) = common(wants, from, &mut starts);
    let mut retry_after = (at - budget).max(0);
    if let Some((later, i)) = fitting_all_queues(wants, budget, retry_after) {
        (retry_after, bound_by) = (later, i);
    }
    let mut reserved =
        Reserved { at, retry_after, bound_by, level: Level::default(), parts: None, queued: None };
    if retry_after == 0 {
        let concurrent =
            ticket.map_or(Concurrent::Free, |ticket| concurrent(wants, budget, at, ticket));
        match concurrent {
            Concurrent::Free => reserved.parts = Some(take(wants, &starts, at, budget, ticket)),
            Concurrent::Queued(i, queued) => {
                (reserved.bound_by, reserved.queued) = (i, Some(queued))
            }
            Concurrent::Full(i, retry) => (reserved.bound_by, reserved.retry_after) = (i, retry),
        }
    }
    reserved.level = wants[reserved.bound_by].level();
    if wants.len() > 1 && at == 0 && reserved.parts.is_some() {
        tightest(wants, &mut reserved);
    }
    reserved
}

/// Decides one request against one limiter, and takes a block for it and the next ones if the limiter gives one: then the
/// second value says for how long from now its first permits can be used, µs. A paused limiter gives none.
pub fn decide_with_block(
    want: Want<'_>,
    budget: Micros,
    ask: BlockAsk,
) -> (Reserved, Option<Micros>) {
    if let OpenRule::Rate(Open::TokenBucket(open)) = &mut *want.open
        && want.enforce
        && want.gate.as_ref().is_none_or(|gate| gate.is_idle())
        && let Some((grant, usable)) = open.take_block(want.cost, ask)
    {
        let (level, parts) = (open.level(), Some(smallvec::smallvec![Part { at: 0, grant }]));
        let (retry_after, bound_by, queued) = (0, 0, None);
        return (Reserved { at: 0, retry_after, bound_by, level, parts, queued }, Some(usable));
    }
    (decide(&mut [want], budget, None), None)
}

/// Binds a request that no limiter delayed to the rate limiter that has the fewest permits left; among equals
/// to the first.
fn tightest(wants: &[Want<'_>], reserved: &mut Reserved) {
    if wants[reserved.bound_by].enforced_rate().is_none() {
        return;
    }
    for (i, rate) in enforced_rates(wants) {
        let level = rate.level();
        if level.remaining < reserved.level.remaining {
            (reserved.bound_by, reserved.level) = (i, level);
        }
    }
}

/// The limiters that enforce a rate, with their indices.
fn enforced_rates<'w>(wants: &'w [Want<'_>]) -> impl Iterator<Item = (usize, AskedRate<'w>)> {
    wants.iter().enumerate().filter_map(|(i, want)| Some((i, want.enforced_rate()?)))
}

/// The first instant from `from` on at which all enforcing rate limiters can grant, and the limiter that made
/// it so late.
fn common(wants: &[Want<'_>], from: Micros, starts: &mut [i64]) -> (Micros, usize) {
    if let [want] = wants {
        // Most requests have one limiter, whose instant has to suit no other.
        let Some(rate) = want.enforced_rate() else { return (from, 0) };
        let (earliest, start) = rate.earliest(from.min(MAX_BUDGET));
        starts[0] = start;
        return (earliest.max(from), 0);
    }
    let (mut at, mut bound_by) = (from, 0);
    let enforcing = enforced_rates(wants).count();
    loop {
        let mut later = false;
        for (i, rate) in enforced_rates(wants) {
            // Later than the longest budget only the time of the refusal is computed; the clamp keeps it
            // exact.
            let (earliest, start) = rate.earliest(at.min(MAX_BUDGET));
            starts[i] = start;
            if earliest > at {
                (at, bound_by, later) = (earliest, i, true);
            }
        }
        if !later || enforcing <= 1 {
            return (at, bound_by);
        }
    }
}

/// A request that would wait in one limiter alone for longer than that limiter's queue allows is refused,
/// too. Returns the first instant from `from` on at which no queue is too long and which is within the
/// budget, with the limiter that made it so late; `None` when that instant is `from`.
fn fitting_all_queues(wants: &[Want<'_>], budget: Micros, from: Micros) -> Option<(Micros, usize)> {
    let (mut retry_after, mut bound_by) = (from, None);
    loop {
        let before = retry_after;
        for (i, rate) in enforced_rates(wants) {
            let excess = rate.excess(retry_after);
            if excess > 0 {
                (retry_after, bound_by) = (retry_after + excess, Some(i));
            }
        }
        if retry_after == before {
            return bound_by.map(|i| (retry_after, i));
        }
        // The room of the other limiters may be past at the later instant.
        let mut starts: SmallVec<[i64; 2]> = smallvec::smallvec![0; wants.len()];
        let (at, i) = common(wants, retry_after, &mut starts);
        if at - budget > retry_after {
            (retry_after, bound_by) = (at - budget, Some(i));
        }
    }
}

/// Whether the concurrency limiters of a request have a permit for it.
enum Concurrent {
    Free,
    Queued(usize, Queued),
    /// No permit is free, or it is free too late; with the wait until the next try, µs.
    Full(usize, Micros),
}

/// Whether every concurrency limiter has a free permit. If one has none, the request waits in the first such
/// queue. While it waits there, or for more than [`KEPT`] for rate permits, it holds no concurrency permit
/// that it was notified of. A paused limiter has no free permit, not even for a request that was notified.
fn concurrent(wants: &mut [Want<'_>], budget: Micros, at: Micros, ticket: Ticket) -> Concurrent {
    let enforced = wants.iter_mut().enumerate().filter(|(_, want)| want.enforce);
    let mut leases: SmallVec<[_; 2]> =
        enforced.filter_map(|(i, want)| Some((i, want.open.leases()?))).collect();
    let taken = leases.iter().position(|(_, open)| open.is_paused() || !open.is_free(ticket));
    if taken.is_none() && at <= KEPT {
        return Concurrent::Free;
    }
    for (_, open) in &mut leases {
        // A request that waits in the queue of a paused limiter keeps its place.
        if if open.is_paused() { open.holds(ticket) } else { open.is_free(ticket) } {
            open.refund(ticket.grant());
        }
    }
    match taken {
        None => Concurrent::Free,
        Some(first) => {
            let (i, open) = &mut leases[first];
            let queued = (budget > 0).then(|| open.enqueue(ticket, budget)).flatten();
            match queued {
                Some(queued) => Concurrent::Queued(*i, queued),
                None if open.is_paused() => {
                    // It must not be notified when the pause ends: it is refused now.
                    open.refund(ticket.grant());
                    let retry = if open.has_room() { 1 } else { RETRY };
                    Concurrent::Full(*i, open.paused().max(retry))
                }
                None => Concurrent::Full(*i, RETRY),
            }
        }
    }
}

fn take(
    wants: &mut [Want<'_>],
    starts: &[i64],
    at: Micros,
    budget: Micros,
    ticket: Option<Ticket>,
) -> Parts {
    let mut parts = Parts::new();
    for (want, start) in wants.iter_mut().zip(starts) {
        parts.push(take_one(want, *start, at, budget, ticket));
    }
    parts
}

fn take_one(
    want: &mut Want<'_>,
    start: i64,
    at: Micros,
    budget: Micros,
    ticket: Option<Ticket>,
) -> Part {
    let Want { open, cost, enforce, gate, kept } = want;
    let (enforce, cost) = (*enforce, *cost);
    if let Some(open) = open.leases() {
        return match ticket {
            Some(_) if enforce && at > 0 => Part::NOT_YET,
            Some(ticket) if enforce || ticket.is_held() || open.is_free(ticket) => {
                Part { at: 0, grant: open.hold_for(ticket) }
            }
            _ => Part::NOTHING,
        };
    }
    let Some(open) = open.rate_mut() else { return Part::NOTHING };
    if enforce {
        let grant = match gate {
            Some(gate) => gate.take(open, start, cost, at),
            None => open.take(start, cost),
        };
        if at > 0 {
            open.promise(at, start, *kept);
        }
        return Part { at, grant };
    }
    let asked = AskedRate { open, cost, gate: None, kept: 0 };
    let (would, start) = asked.earliest(0);
    if would > budget || asked.excess(0) > 0 {
        Part::NOTHING
    } else {
        Part { at: would, grant: open.take(start, cost) }
    }
}

// === impl Want ===

impl Want<'_> {
    /// The limiter if it enforces a rate.
    fn enforced_rate(&self) -> Option<AskedRate<'_>> {
        let open = self.open.rate().filter(|_| self.enforce)?;
        let gate = self.gate.as_deref();
        Some(AskedRate { open, cost: self.cost, gate, kept: self.kept })
    }

    /// How full the limiter is, with its gate if that concerns the request.
    fn level(&self) -> Level {
        match self.enforced_rate() {
            Some(rate) => rate.level(),
            None if self.enforce => self.open.level(),
            None => Level { paused: 0, status: 0, ..self.open.level() },
        }
    }
}

// === impl AskedRate ===

impl AskedRate<'_> {
    /// The [`OpenRate::earliest`] of the limiter with its gate.
    fn earliest(&self, from: Micros) -> (Micros, i64) {
        match self.gate {
            Some(gate) => gate.earliest(self.open, from, self.cost, self.kept),
            None => self.open.earliest(from, self.cost, self.kept),
        }
    }

    /// The [`OpenRate::level`] of the limiter with its gate.
    fn level(&self) -> Level {
        match self.gate {
            Some(gate) => gate.level(self.open),
            None => self.open.level(),
        }
    }

    /// By how much a request that comes at `from` would wait longer in this limiter alone than its queue
    /// allows, µs. The wait for the end of a pause is no wait in the queue.
    fn excess(&self, from: Micros) -> Micros {
        match self.open.facts().longest_wait {
            MAX_BUDGET => 0,
            longest => {
                let (earliest, _) = self.earliest(from.min(MAX_BUDGET));
                let paused = self.gate.map_or(0, OpenGate::paused);
                if earliest - from.max(paused) > longest { earliest - from - longest } else { 0 }
            }
        }
    }
}
