//! The loop over a request's limiters: all are charged at one common instant, or none is. Twin of
//! `reserve.lua`.

use super::{Grant, Level, MAX_BUDGET, Micros, Open};
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

/// What one limiter gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Enforcing: the common instant, µs from now. Observing: the instant that it would have said, -1
    /// when it would have refused.
    pub at: Micros,
    /// To give it back; meaningless when `at` is -1.
    pub grant: Grant,
}

/// Up to two limiters a request are kept in place.
pub type Parts = SmallVec<[Part; 2]>;

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// When all enforcing limiters can grant, µs from now.
    pub at: Micros,
    /// The limiter that made it so late; the first when none did.
    pub bound_by: usize,
    /// Of that limiter, after this request.
    pub level: Level,
    /// One per limiter when admitted; `None` when refused.
    pub parts: Option<Parts>,
}

/// Decides one request against all of its limiters (at least one).
///
/// An instant in the future leaves the time before it free for others: a limiter that could have granted
/// earlier keeps that room as a hole. A refusal changes nothing.
pub fn decide(wants: &mut [Want<'_>], budget: Micros) -> Reserved {
    let budget = budget.min(MAX_BUDGET);
    let (mut at, mut bound_by) = (0, 0);
    let mut starts: SmallVec<[i64; 2]> = smallvec::smallvec![0; wants.len()];
    let enforcing = wants.iter().filter(|want| want.enforce).count();
    loop {
        let mut later = false;
        for (i, want) in wants.iter().enumerate().filter(|(_, want)| want.enforce) {
            // Beyond the longest budget only the refusal is left to compute; the clamp keeps it exact.
            let (earliest, start) = want.open.earliest(at.min(MAX_BUDGET), want.cost);
            starts[i] = start;
            if earliest > at {
                (at, bound_by, later) = (earliest, i, true);
            }
        }
        if !later || enforcing == 1 {
            break;
        }
    }
    if at > budget {
        let level = wants[bound_by].open.level();
        return Reserved { at, bound_by, level, parts: None };
    }
    let parts = wants.iter_mut().zip(starts).map(|(want, start)| {
        if want.enforce {
            return Part { at, grant: want.open.take(start, want.cost) };
        }
        let (would, start) = want.open.earliest(0, want.cost);
        if would > budget {
            return Part { at: -1, grant: Grant::default() };
        }
        Part { at: would, grant: want.open.take(start, want.cost) }
    });
    let parts = Some(parts.collect());
    Reserved { at, bound_by, level: wants[bound_by].open.level(), parts }
}
