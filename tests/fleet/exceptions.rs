//! By how much a history may exceed a law, and why: each is a function with its formula.

use crate::{
    controls::TIMEOUT,
    history::{Fault, Gateway, History, Limiter, MS, Micros, SECOND, Weather, What},
};
use paceway::{
    algorithm::Algorithm,
    limit::micros,
    store::{OnFailure, health::SLOWEST},
};

/// A task without a margin may wake so much later without asking again.
const SLACK: Micros = 100 * MS;
/// One with a smaller margin may be so late.
const LEAST_SLACK: Micros = 5 * MS;
/// Timers count in ms, on both sides of a wait.
const TIMERS: Micros = 2 * MS;

/// Between the grant on the store's clock and the call's arrival: the way of the answer, and how late a task may wake.
/// Two grants come closer together by this at most.
pub(crate) fn lateness(history: &History, limiter: &Limiter) -> Micros {
    let way = history.gateways.iter().map(|it| it.delay.max(MS) + it.jitter).max().unwrap_or(0);
    let stands_still = history.faults.iter().any(|fault| matches!(fault.what, What::Stall(_)));
    let slack = match limiter.rule.margin() {
        0 => SLACK,
        margin => margin.max(LEAST_SLACK),
    };
    // An answer that is held up on its way is waited for so long.
    let held_up = if history.faults.is_empty() { 0 } else { longest_timeout(history) };
    // Who has its permits takes a place when their instant has come: that is one call more, behind the one under way.
    let with_places = history.routes.iter().any(|route| {
        let rules = || route.limiters.iter().map(|limiter| &history.limiters[*limiter]);
        rules().any(|it| it.rule.lease().is_some()) && rules().any(|it| it.rule == limiter.rule)
    });
    let calls = if with_places { 5 } else { 1 };
    calls * way.max(held_up) + TIMERS + if stands_still { slack } else { 0 }
}

/// Permits beyond a rule, however long a history is.
pub(crate) fn excess(history: &History, limiter: usize) -> i64 {
    match history.weather {
        Weather::Calm => 0,
        Weather::Slow => at_the_start(history, limiter) + answers_too_late(history, limiter),
        Weather::Rough => {
            let steps = clock_steps(history, limiter);
            let outages =
                history.faults.iter().map(|fault| change_of_who_decides(history, limiter, fault));
            let late = answers_too_late(history, limiter);
            at_the_start(history, limiter) + late + steps + outages.sum::<i64>()
        }
    }
}

/// A gateway that has not heard how many there are takes the whole for its share: one burst each.
fn at_the_start(history: &History, limiter: usize) -> i64 {
    let Limiter { rule, on_failure, .. } = &history.limiters[limiter];
    let others = history.gateways.len() as i64 - 1;
    if history.is_told {
        return 0;
    }
    if matches!(on_failure, OnFailure::Share { .. }) { others * rule.limit() } else { 0 }
}

/// A gateway whose round trip varies beyond the time-out decides now and then by its share until that is charged, while
/// others have the whole: a share of the burst, and of the rate for 200 ms and the round trips of a charge.
fn answers_too_late(history: &History, limiter: usize) -> i64 {
    let Limiter { rule, on_failure, count, period } = &history.limiters[limiter];
    let is_late = |it: &&Gateway| {
        2 * (it.delay.max(MS) + it.jitter) + TIMERS > micros(TIMEOUT) || it.lost > 0
    };
    let late = history.gateways.iter().filter(is_late).count() as i64;
    let gateways = history.gateways.len() as i64;
    let flows = (200 * MS + 6 * micros(TIMEOUT)) * count / period;
    let share = (rule.limit() + flows) / gateways + 1;
    if matches!(on_failure, OnFailure::Share { .. }) { late * share } else { 0 }
}

/// A store's clock that is set forward lets permits flow in for that time, a bucket's or a window's at most, while those
/// who wait are sent at the instants that they were promised; set back, the window of a clock comes again.
fn clock_steps(history: &History, limiter: usize) -> i64 {
    let Limiter { rule, count, period, .. } = &history.limiters[limiter];
    let wait = history.routes.iter().map(|route| route.budget).max().unwrap_or(0);
    let steps = history.faults.iter().filter(|fault| matches!(fault.what, What::Step(_)));
    steps.map(|_| 2 * rule.limit() + wait * count / period).sum()
}

/// A gateway that loses the store uses its share at once, and the others notice 2 s later: its share of a burst, and of
/// the rate for 2 s. When the store goes for all, each begins from a level that can be 1 s old, and when it comes back each
/// charges what the others do not know yet. A machine that stands still loses nothing but time.
fn change_of_who_decides(history: &History, limiter: usize, fault: &Fault) -> i64 {
    let Limiter { rule, count, period, on_failure } = &history.limiters[limiter];
    let changes = !matches!(fault.what, What::Step(_) | What::Flush | What::Stall(_));
    if !matches!(on_failure, OnFailure::Share { .. }) || !changes {
        return 0;
    }
    let gateways = history.gateways.len() as i64;
    let (concerned, flows) = match fault.what.gateway() {
        Some(_) => (1, 2 * SECOND * count / period),
        None => (gateways, SECOND * count / period),
    };
    let share = (rule.limit() + flows + gateways - 1) / gateways + 1;
    // Each spaces its own requests.
    let spaced = if let Algorithm::LeakyBucket(_) = rule { gateways } else { 0 };
    concerned * share + spaced
}

/// Places beyond `max`: a gateway that holds more than its share when the store goes keeps them while others fill up
/// theirs, for as long as those calls last; one for each at least.
pub(crate) fn places_beyond(history: &History, limiter: usize) -> i64 {
    let Limiter { rule, on_failure, .. } = &history.limiters[limiter];
    let is_away = |fault: &Fault| !matches!(fault.what, What::Flush | What::Step(_));
    let is_lossy = history.gateways.iter().any(|it| it.lost > 0);
    let outages =
        history.faults.iter().any(is_away) || history.weather == Weather::Slow || is_lossy;
    let shares = matches!(on_failure, OnFailure::Share { .. });
    // Whoever stands still cannot renew its leases, and its calls go on. A clock that is set forward ends leases.
    let lease = rule.lease().unwrap_or(0);
    let outlasts = |fault: &Fault| match fault.what {
        What::Stall(_) => 2 * fault.lasts > lease,
        What::Step(by) => 2 * by > lease,
        _ => false,
    };
    if history.faults.iter().any(outlasts) {
        return rule.limit();
    }
    // Who passes by `allow` takes no place, though the store granted its permits before it went.
    if outages && *on_failure == OnFailure::Allow {
        return i64::from(u32::MAX);
    }
    let gateways = history.gateways.len() as i64;
    let unknown = if history.is_told { 0 } else { (gateways - 1) * rule.limit() };
    if outages && shares { rule.limit().max(gateways).max(unknown) } else { 0 }
}

/// What an answer may take beyond the budget: the time-out for each time that the store is asked, and as long as the
/// gateway stands still.
pub(crate) fn answer_after(history: &History) -> Micros {
    let stalls = history.faults.iter().filter(|fault| matches!(fault.what, What::Stall(_)));
    let stalls: Micros = stalls.map(|fault| fault.lasts).sum();
    3 * longest_timeout(history) + TIMERS + stalls
}

/// The time-out follows the round trip: three of the slowest, 0.5 s at most. What is sent while nothing comes through is
/// answered when it ends.
fn longest_timeout(history: &History) -> Micros {
    let (least, most) = (micros(TIMEOUT), micros(SLOWEST));
    let way = history.gateways.iter().map(|it| it.delay.max(MS) + it.jitter).max().unwrap_or(0);
    let held_up = history.faults.iter().map(|fault| fault.lasts).max().unwrap_or(0);
    (3 * (2 * way + held_up)).clamp(least, most)
}
