//! The loop over a request's limiters: all are charged at one common instant, or none is. Twin of
//! `reserve.lua`.

use super::{
    Grant, Level, MAX_BUDGET, Micros, Open,
    concurrency::{RETRY, Ticket},
};
use smallvec::SmallVec;

/// One limiter of a request, opened.
#[derive(Debug)]
pub struct Want<'a> {
    /// Its state.
    pub open: &'a mut Open,
    /// Permits, 1 to the limiter's capacity.
    pub cost: i64,
    /// False for a limiter that only observes.
    pub enforce: bool,
}

/// Whoever has a place and waits no longer than this for permits, µs, keeps it for them: far shorter than a
/// [claim](super::concurrency::CLAIM). Given back at once, it would be asked for again together with permits that
/// others have reserved by then: 68 % of what a window of 20/s and 12 places allow with calls of 0.7 s.
const KEPT: Micros = 500_000;

/// What one limiter gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Enforcing: the common instant, µs from now. Observing: the instant that it would have said, or
    /// [`Part::NOTHING`] when it would have refused. A place is never taken for later: [`Part::NOT_YET`].
    pub at: Micros,
    /// To give it back; meaningless when `at` is negative.
    pub grant: Grant,
}

/// Up to two limiters a request are kept in place.
pub type Parts = SmallVec<[Part; 2]>;

/// The wait for a place that somebody else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// Until when, µs of the store's clock.
    pub deadline: Micros,
    /// When to ask again if nobody calls, µs from now.
    pub ask_after: Micros,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// When all enforcing limiters can grant, µs from now.
    pub at: Micros,
    /// When refused: how much later the same request is admitted, µs.
    pub retry_after: Micros,
    /// The limiter that made it so late, or whose queue is full; when none did, the one with the fewest permits left.
    pub bound_by: usize,
    /// Of that limiter, after this request.
    pub level: Level,
    /// One per limiter when admitted.
    pub parts: Option<Parts>,
    /// When it waits for a place; it has taken nothing.
    pub queued: Option<Queued>,
}

// === impl Part ===

impl Part {
    /// It would have refused.
    pub const NOTHING: Self = Self { at: -1, grant: Grant { whole: 0, ticks: 0, born: 0, aux: 0 } };
    /// To be asked for at the common instant.
    pub const NOT_YET: Self = Self { at: -2, ..Self::NOTHING };
}

/// Decides one request against all of its limiters (at least one); `ticket` is who asks where places are
/// held.
///
/// An instant in the future leaves the time before it free for others: a limiter that could have granted
/// earlier keeps that room as a hole. Places are taken only now: a request that must wait for a place takes no
/// permits, and one that must wait for permits alone asks for its places when their instant has come. A refusal
/// changes nothing.
pub fn decide(wants: &mut [Want<'_>], budget: Micros, ticket: Option<Ticket>) -> Reserved {
    let budget = budget.min(MAX_BUDGET);
    let mut starts: SmallVec<[i64; 2]> = smallvec::smallvec![0; wants.len()];
    let (at, mut bound_by) = common(wants, 0, &mut starts);
    let mut retry_after = (at - budget).max(0);
    if let Some((later, i)) = fitting_all_queues(wants, budget, retry_after) {
        (retry_after, bound_by) = (later, i);
    }
    let mut reserved =
        Reserved { at, retry_after, bound_by, level: Level::default(), parts: None, queued: None };
    if retry_after == 0 {
        let places = ticket.map_or(Places::Free, |ticket| places(wants, budget, at, ticket));
        match places {
            Places::Free => reserved.parts = Some(take(wants, &starts, at, budget, ticket)),
            Places::Wait(i, queued) => (reserved.bound_by, reserved.queued) = (i, Some(queued)),
            Places::None(i) => (reserved.bound_by, reserved.retry_after) = (i, RETRY),
        }
    }
    reserved.level = wants[reserved.bound_by].open.level();
    if wants.len() > 1 && at == 0 && reserved.parts.is_some() {
        tightest(wants, &mut reserved);
    }
    reserved
}

/// Of a request that nothing made wait: the limiter of permits that has the fewest left, of equals the first.
fn tightest(wants: &[Want<'_>], reserved: &mut Reserved) {
    if !wants[reserved.bound_by].is_permits() {
        return;
    }
    for (i, want) in wants.iter().enumerate().filter(|(_, want)| want.is_permits()) {
        let level = want.open.level();
        if level.remaining < reserved.level.remaining {
            (reserved.bound_by, reserved.level) = (i, level);
        }
    }
}

/// The first instant from `from` on at which all enforcing limiters can grant, and the one that made it so late.
fn common(wants: &[Want<'_>], from: Micros, starts: &mut [i64]) -> (Micros, usize) {
    let (mut at, mut bound_by) = (from, 0);
    let enforcing = wants.iter().filter(|want| want.is_permits()).count();
    loop {
        let mut later = false;
        for (i, want) in wants.iter().enumerate().filter(|(_, want)| want.is_permits()) {
            // Beyond the longest budget only the refusal is left to compute; the clamp keeps it exact.
            let (earliest, start) = want.open.earliest(at.min(MAX_BUDGET), want.cost);
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

/// Who would wait longer in a limiter alone than its queue allows is refused, too: the first instant from
/// `from` on that is none of these and within the budget, with the limiter that made it so late. `None` when it is
/// `from`.
fn fitting_all_queues(wants: &[Want<'_>], budget: Micros, from: Micros) -> Option<(Micros, usize)> {
    let (mut retry_after, mut bound_by) = (from, None);
    loop {
        let before = retry_after;
        for (i, want) in wants.iter().enumerate().filter(|(_, want)| want.is_permits()) {
            let excess = want.excess(retry_after);
            if excess > 0 {
                (retry_after, bound_by) = (retry_after + excess, Some(i));
            }
        }
        if retry_after == before {
            return bound_by.map(|i| (retry_after, i));
        }
        // Room that was there for the others may be past by then.
        let mut starts: SmallVec<[i64; 2]> = smallvec::smallvec![0; wants.len()];
        let (at, i) = common(wants, retry_after, &mut starts);
        if at - budget > retry_after {
            (retry_after, bound_by) = (at - budget, Some(i));
        }
    }
}

enum Places {
    Free,
    Wait(usize, Queued),
    None(usize),
}

/// Whether every limiter of places has one. If not, the request waits in the first queue that it must. Meanwhile it
/// holds no place that it was called to, nor while it waits for permits for long.
fn places(wants: &mut [Want<'_>], budget: Micros, at: Micros, ticket: Ticket) -> Places {
    let enforced = wants.iter_mut().enumerate().filter(|(_, want)| want.enforce);
    let mut leases: SmallVec<[_; 2]> =
        enforced.filter_map(|(i, want)| Some((i, want.open.leases()?))).collect();
    let taken = leases.iter().position(|(_, open)| !open.is_free(ticket));
    if taken.is_none() && at <= KEPT {
        return Places::Free;
    }
    for (_, open) in leases.iter_mut().filter(|(_, open)| open.is_free(ticket)) {
        open.give_back(ticket.grant(), 1);
    }
    match taken {
        None => Places::Free,
        Some(first) => {
            let (i, open) = &mut leases[first];
            let queued = (budget > 0).then(|| open.enqueue(ticket, budget)).flatten();
            queued.map_or(Places::None(*i), |queued| Places::Wait(*i, queued))
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
    let (enforce, cost) = (want.enforce, want.cost);
    if let Some(open) = want.open.leases() {
        return match ticket {
            Some(_) if enforce && at > 0 => Part::NOT_YET,
            Some(ticket) if enforce || ticket.is_held() || open.is_free(ticket) => {
                Part { at: 0, grant: open.hold_for(ticket) }
            }
            _ => Part::NOTHING,
        };
    }
    if enforce {
        return Part { at, grant: want.open.take(start, cost) };
    }
    let (would, start) = want.open.earliest(0, cost);
    match would > budget || want.excess(0) > 0 {
        true => Part::NOTHING,
        false => Part { at: would, grant: want.open.take(start, cost) },
    }
}

// === impl Want ===

impl Want<'_> {
    /// Counts permits and enforces.
    fn is_permits(&self) -> bool {
        self.enforce && !matches!(self.open, Open::Concurrency(_))
    }

    /// By how much who comes at `from` would wait longer in this limiter alone than its queue allows, µs.
    fn excess(&self, from: Micros) -> Micros {
        match self.open.longest_wait() {
            MAX_BUDGET => 0,
            longest => {
                let (earliest, _) = self.open.earliest(from.min(MAX_BUDGET), self.cost);
                (earliest - from - longest).max(0)
            }
        }
    }
}
