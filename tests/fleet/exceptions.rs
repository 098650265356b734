//! By how much a history may exceed a law, and why: each exception is a function with its formula.

use crate::{
    controls::TIMEOUT,
    history::{
        Fault, Gateway, History, Limiter, MS, Micros, Route, SECOND, UpstreamThrottle, Weather,
        What,
    },
    run::Record,
    upstream::{End, Seen, SeenRefusal, SeenReport},
};
use paceway::{
    algorithm::{Algorithm, Rule},
    limit::micros,
    store::{ABSENT, OnFailure, Source, health::SLOWEST},
};

/// A task whose limiters have no margin may wake this much later without asking again.
const SLACK: Micros = 100 * MS;
/// A task whose limiters have a smaller margin may still be this late.
const LEAST_SLACK: Micros = 5 * MS;
/// All gateways know of a pause, or of what remains of a quota, within this time.
pub(crate) const KNOWN: Micros = 100 * MS;
const NEVER: Micros = Micros::MAX / 2;
/// The error of timers, which count in ms, on both sides of a wait.
const TIMERS: Micros = 2 * MS;

/// The longest time between the granted instant, on the store's clock, and the call's arrival `at` the upstream: the
/// way of the answer, the calls for concurrency permits, and the late wake-up of the task.
pub(crate) fn lateness(history: &History, seen: &Seen, at: Micros, source: Source) -> Micros {
    let (gateway, route) = (&history.gateways[seen.gateway], &history.routes[seen.route]);
    let way = gateway.delay.max(MS) + gateway.jitter;
    let meanwhile = |fault: &&Fault| fault.at <= at && fault.at + fault.lasts >= seen.came;
    let faults = || history.faults.iter().filter(meanwhile);
    let of_this = |fault: &Fault| fault.what.gateway() == Some(seen.gateway);
    let stands_still = |fault: &Fault| of_this(fault) && matches!(fault.what, What::Stall(_));
    let holds_up = |fault: &Fault| of_this(fault) && matches!(fault.what, What::Silence(_));
    // An answer that is held up on its way is waited for until the time-out.
    let answer = match source {
        _ if faults().any(|it| stands_still(it) || holds_up(it)) => longest_timeout(history),
        Source::Shared => way,
        _ => 0,
    };
    let rules = || route.limiters.iter().map(|limiter| &history.limiters[*limiter].rule);
    let has_both = rules().any(|it| it.lease().is_some()) && rules().any(|it| it.lease().is_none());
    // Concurrency permits are taken when the instant has come, by a call after the one under way: this takes two round
    // trips, or the longest time that an answer is waited for.
    let has_no_answer = gateway.lost > 0 || faults().any(|it| it.lasts > 0);
    let places = match (has_both, has_no_answer) {
        (false, _) => 0,
        (true, false) => 4 * way,
        (true, true) => 2 * longest_timeout(history),
    };
    // A call that asks for an earlier slot shortly before its own has the one or the other, as the answer says.
    let gives_back = |it: &Route| it.leave > 0 || *it.uses.start() < it.cost;
    let is_refused = history.quota.is_some() || !history.throttles.is_empty();
    let is_calm = history.weather == Weather::Calm && !is_refused;
    // A request without a concurrency permit gives back those of its rates.
    let has_both_kinds = |it: &Route| {
        let is_lease = |it: &usize| history.limiters[*it].rule.lease().is_some();
        it.limiters.iter().any(is_lease) && !it.limiters.iter().all(is_lease)
    };
    let has_openings =
        !is_calm || history.routes.iter().any(|it| gives_back(it) || has_both_kinds(it));
    let turns = history.turns.is_some();
    let moves = match (has_openings, has_no_answer) {
        // A slot that comes soon may pass while the store confirms it, or gives it to another request.
        _ if turns => SLACK + 2 * way,
        (false, _) => 0,
        (true, false) => 4 * way,
        (true, true) => 2 * longest_timeout(history),
    };
    let slack = match rules().map(Rule::margin).filter(|margin| *margin > 0).min() {
        None => SLACK,
        Some(margin) => margin.max(LEAST_SLACK),
    };
    let wakes = if faults().any(stands_still) { slack } else { 0 };
    answer + places + moves + wakes + TIMERS
}

/// How long after a refusal the gateway of `seen` may not know of it, so that it sends calls. A process that starts later
/// knows nothing, and neither does one that the store does not reach.
pub(crate) fn known_after(history: &History, refusal: &SeenRefusal, seen: &Seen) -> Micros {
    let ends =
        |fault: &Fault| fault.what.ends_a_gateway() && fault.what.gateway() == Some(seen.gateway);
    match (seen.gateway == refusal.gateway, history.weather) {
        (true, _) if history.faults.iter().any(ends) => NEVER,
        (true, _) => 0,
        (false, Weather::Calm) => KNOWN,
        (false, _) => NEVER,
    }
}

/// The permits of a call that the store counts when it decides at `to`. It learns what the call used beyond its reserve,
/// `cost`, as soon as the call has ended and its gateway has said so.
pub(crate) fn known_cost(history: &History, seen: &Seen, to: Micros, cost: i64) -> i64 {
    match &seen.ended {
        Some((at, End::Done)) if at + KNOWN <= to => history.routes[seen.route].used(seen.number),
        _ => cost,
    }
}

/// How much sooner than the refusals a pause may end: a store that has lost the pause, or whose clock was set, decides on its
/// last 100 ms. A clock that is set 200 ms ahead ends the store's pauses 200 ms early.
pub(crate) fn end_differs(history: &History) -> Micros {
    let differs = |fault: &Fault| {
        !matches!(fault.what, What::Cut(_) | What::Silence(_) | What::Stall(_) | What::Freeze)
    };
    let ahead = history.faults.iter().map(|fault| match fault.what {
        What::Step(by) => by.max(0),
        _ => 0,
    });
    match history.faults.iter().any(differs) {
        true => ahead.sum::<Micros>().max(KNOWN),
        false => 0,
    }
}

/// How many permits are used after an answer that says what remains. Other gateways have had answers at the same moment, and which
/// of them is the newest cannot be known. Nor does an answer know of the calls of other gateways that were under way, or of
/// the permits that these give back; permits flow until each gateway has told and learned the newest one. And other gateways
/// keep the slots that their requests wait for, each as long as it has no answer of its own.
pub(crate) fn known_remainder(history: &History, record: &Record, told: &SeenReport) -> i64 {
    let SeenReport { gateway, at, left } = told;
    let beside = record
        .reports
        .iter()
        .filter(|other| (*at..at + KNOWN).contains(&other.at) && other.left.until == left.until);
    let told = beside.map(|other| other.left.permits).max();
    let kept = record.seen.iter().filter_map(|seen| {
        let (sent, _) = seen.sent.filter(|(sent, _)| *sent < left.until)?;
        let is_over = seen.ended.as_ref().is_some_and(|(ended, _)| *ended <= at.max(&sent) - KNOWN);
        let is_under_way = sent < at + KNOWN && !is_over;
        let is_promised = sent >= at + KNOWN && seen.gateway != *gateway && seen.came < at + KNOWN;
        (is_under_way || is_promised).then(|| history.routes[seen.route].cost)
    });
    let flow = history.limiters.iter().map(|it| it.count * KNOWN / it.period).max().unwrap_or(0);
    told.unwrap_or(left.permits) + kept.sum::<i64>() + flow
}

/// For how long within a span a route is paused, with the time in which its first call after a pause comes.
pub(crate) fn paused(
    history: &History,
    route: usize,
    (from, until): (Micros, Micros),
    spacing: Micros,
) -> Micros {
    let of_route = history.throttles.iter().filter(|it| it.route == route);
    let span = |it: &UpstreamThrottle| (it.end().min(until) - it.at.max(from)).max(0);
    of_route.map(|it| span(it) + KNOWN + 2 * spacing).sum()
}

/// The error of timers, which count in ms, in histories where a gateway may decide alone.
pub(crate) fn clocks_differ(history: &History) -> Micros {
    if history.weather == Weather::Calm { 0 } else { TIMERS }
}

/// The time between two heartbeats of a gateway, after which others learn that it is absent.
const HEARTBEAT: Micros = 500 * MS;

/// Permits that may exceed a rule, however long a history is.
pub(crate) fn excess(history: &History, record: &Record, limiter: usize) -> i64 {
    match history.weather {
        Weather::Calm => resets(history, limiter),
        Weather::Slow => {
            at_the_start(history, record, limiter) + answers_too_late(history, record, limiter)
        }
        Weather::Rough | Weather::Apart => {
            let steps = clock_steps(history, limiter);
            let of_fault = |fault: &Fault| permits_of_two_deciders(history, record, limiter, fault);
            let outages = history.faults.iter().map(of_fault);
            let late = answers_too_late(history, record, limiter);
            at_the_start(history, record, limiter) + late + steps + outages.sum::<i64>()
        }
    }
}

/// A limiter that an operator resets grants a burst more, or a window; and a call whose slot is due within some ms keeps it.
fn resets(history: &History, limiter: usize) -> i64 {
    let is_of = |it: &&UpstreamThrottle| {
        it.ended.is_some() && history.routes[it.route].limiters.contains(&limiter)
    };
    let resets = history.throttles.iter().filter(is_of).count() as i64;
    resets * (history.limiters[limiter].rule.limit() + 1)
}

/// How long after the end of a pause all of the `waiting` requests are sent: all gateways know of the end, and each has its slot.
/// A window lets some of them pass only when it ends.
pub(crate) fn freed_within(history: &History, route: usize, waiting: i64) -> Micros {
    let slowest = |limiter: &usize| {
        let limiter = &history.limiters[*limiter];
        (waiting + 1) * limiter.spacing(0) + limiter.period + limiter.rule.margin()
    };
    let slots = history.routes[route].limiters.iter().map(slowest).max().unwrap_or(0);
    KNOWN + slots + longest_timeout(history)
}

/// A gateway that has not received the number of gateways takes the whole rule for its share: one burst for each.
fn at_the_start(history: &History, record: &Record, limiter: usize) -> i64 {
    let Limiter { rule, on_failure, .. } = &history.limiters[limiter];
    let others = history.gateways.len() as i64 - 1;
    // No fault begins before the numbers are known, unless a message is lost.
    let is_known = history.weather != Weather::Slow && record.lost.iter().all(|lost| *lost == 0);
    if history.is_told || is_known {
        return 0;
    }
    if matches!(on_failure, OnFailure::Share { .. }) { others * rule.limit() } else { 0 }
}

/// A gateway whose round trip varies beyond the time-out decides now and then by its share until that is charged, while
/// others have the whole rule: a share of the burst, and of the rate for 200 ms and the round trips of a charge. A
/// gateway does the same for each of its messages that is lost, in addition to the permits that were promised as far
/// ahead as requests wait.
fn answers_too_late(history: &History, record: &Record, limiter: usize) -> i64 {
    let Limiter { rule, on_failure, count, period } = &history.limiters[limiter];
    // A request waits for the call under way and for its own. The time-out follows round trips that do not vary.
    let is_late = |it: &&Gateway| {
        let way = it.delay.max(MS) + it.jitter;
        let calls = if it.jitter > 0 { 2 } else { 1 };
        calls * 2 * way + TIMERS > micros(TIMEOUT)
    };
    let late = history.gateways.iter().filter(is_late).count() as i64;
    let lost = record.lost.iter().sum::<i64>();
    let gateways = history.gateways.len() as i64;
    let lasts = 200 * MS + 6 * micros(TIMEOUT);
    let share = |lasts: Micros| (rule.limit() + lasts * count / period) / gateways + 1;
    if matches!(on_failure, OnFailure::Share { .. }) {
        late * share(lasts) + lost * share(lasts + ahead(history, limiter))
    } else {
        0
    }
}

/// The permits of a rule in `lasts` µs: those of whole windows, where a window is granted at once.
fn flows_in(rule: &Rule, lasts: Micros, count: i64, period: Micros) -> i64 {
    match rule {
        Rule::Rate(Algorithm::FixedWindow(_) | Algorithm::SlidingWindow(_)) => {
            (lasts + period - 1) / period * count
        }
        _ => lasts * count / period,
    }
}

/// How far ahead permits of a limiter are promised: the longest budget of the routes that use it, µs.
fn ahead(history: &History, limiter: usize) -> Micros {
    let users = history.routes.iter().filter(|route| route.limiters.contains(&limiter));
    users.map(|route| route.budget).max().unwrap_or(0)
}

/// If the store's clock is set forward, permits flow in for that time, those of a bucket or a window at most, while
/// waiting requests are sent at the instants that they were promised. If it is set back, the window of a clock comes
/// again.
fn clock_steps(history: &History, limiter: usize) -> i64 {
    let Limiter { rule, count, period, .. } = &history.limiters[limiter];
    let wait = history.routes.iter().map(|route| route.budget).max().unwrap_or(0);
    let steps = history.faults.iter().filter(|fault| matches!(fault.what, What::Step(_)));
    steps.map(|_| 2 * rule.limit() + wait * count / period).sum()
}

/// How long after the end of an outage the other gateways learn that one is back: it connects again within 0.2 s, charges
/// for 0.4 s, and its next heartbeat says so.
const RETURN: Micros = SECOND;

/// A gateway that loses the store uses its share at once. The others leave it that share when they learn that it is
/// absent, 1.5 s and a heartbeat later, and the permits that they have promised by then, as far ahead as requests wait,
/// stay promised: its share of a burst, and of the rate for that time. The same holds for a gateway that stalled,
/// because it answered nothing meanwhile. A fault that is over sooner needs no more than its own time and the return. A
/// gateway that starts during its outage is not in the set of gateways (seed
/// 7199), so the others leave it nothing until it is back. When all gateways lose the store, each begins from a level that
/// can be 1 s old, and when the store comes back each charges permits that the others do not know yet.
fn permits_of_two_deciders(
    history: &History,
    record: &Record,
    limiter: usize,
    fault: &Fault,
) -> i64 {
    let Limiter { rule, count, period, on_failure } = &history.limiters[limiter];
    let changes = !matches!(fault.what, What::Step(_) | What::Flush);
    if !matches!(on_failure, OnFailure::Share { .. }) || !changes {
        return 0;
    }
    let gateways = history.gateways.len() as i64;
    let way = history.gateways.iter().map(|it| it.delay.max(MS) + it.jitter).max().unwrap_or(0);
    let (concerned, flows) = match fault.what.gateway() {
        Some(gateway) => {
            let start = history.gateways[gateway].start;
            let noticed = micros(ABSENT) + HEARTBEAT + 2 * way + TIMERS;
            let unnoticed = if start + 2 * way >= fault.at {
                fault.at + fault.lasts - start + RETURN
            } else if seems_dead(record, fault) {
                fault.lasts + RETURN
            } else {
                noticed.min(fault.lasts + RETURN)
            };
            (1, flows_in(rule, unnoticed + ahead(history, limiter), *count, *period))
        }
        None => (gateways, SECOND * count / period),
    };
    let share = (rule.limit() + flows + gateways - 1) / gateways + 1;
    // Each gateway spaces its own requests.
    let spaced = if let Rule::Rate(Algorithm::LeakyBucket(_)) = rule { gateways } else { 0 };
    concerned * share + spaced + raised_shares(history, limiter, fault, concerned)
}

/// A gateway that had granted nothing when its connections end is taken for a dead one: the others leave it nothing, and it
/// grants its share for as long as it has no store.
fn seems_dead(record: &Record, fault: &Fault) -> bool {
    let What::Cut(gateway) = fault.what else { return false };
    let had_granted = |seen: &Seen| {
        seen.gateway == gateway && seen.sent.is_some_and(|(at, _)| at < fault.at - KNOWN)
    };
    !record.seen.iter().any(had_granted)
}

/// A gateway's share of a window is never too small for one request, so a limiter of 4 permits lets each of three
/// gateways take a request of 2 permits in each window, 6 in sum (seed 33659). The others leave it only its third.
fn raised_shares(history: &History, limiter: usize, fault: &Fault, concerned: i64) -> i64 {
    let Limiter { rule, count, period, .. } = &history.limiters[limiter];
    if rule.window() == 0 {
        return 0;
    }
    let users = history.routes.iter().filter(|route| route.limiters.contains(&limiter));
    let cost = users.map(|route| route.cost).max().unwrap_or(1);
    let gateways = history.gateways.len() as i64;
    let beyond = (gateways * cost - count).max(0);
    let windows = (fault.lasts + RETURN + ahead(history, limiter)) / period + 2;
    (concerned * beyond * windows + gateways - 1) / gateways
}

/// Calls beyond `max`: a gateway that holds more than its share when the outage begins keeps its permits while others
/// fill up their shares, for as long as those calls last; at least one for each gateway.
pub(crate) fn places_beyond(history: &History, limiter: usize) -> i64 {
    let Limiter { rule, on_failure, .. } = &history.limiters[limiter];
    let is_away =
        |fault: &Fault| !matches!(fault.what, What::Flush | What::Step(_) | What::Loop(..));
    let is_lossy = history.gateways.iter().any(|it| it.lost > 0);
    let outages =
        history.faults.iter().any(is_away) || history.weather == Weather::Slow || is_lossy;
    let shares = matches!(on_failure, OnFailure::Share { .. });
    // A stalled gateway cannot renew its leases, and its calls run on. A clock that is set forward ends leases.
    let lease = rule.lease().unwrap_or(0);
    let outlasts = |fault: &Fault| match fault.what {
        What::Stall(_) => 2 * fault.lasts > lease,
        What::Step(by) => 2 * by > lease,
        _ => false,
    };
    if history.faults.iter().any(outlasts) {
        return rule.limit();
    }
    // A request whose rate permits the store granted before the outage, and which passes by `allow` then, takes no
    // concurrency permit.
    let has_rates = history.routes.iter().any(|route| {
        let is_rate = |other: &usize| history.limiters[*other].rule.lease().is_none();
        route.limiters.contains(&limiter) && route.limiters.iter().any(is_rate)
    });
    if outages && has_rates && *on_failure == OnFailure::Allow {
        return i64::from(u32::MAX);
    }
    let gateways = history.gateways.len() as i64;
    let unknown = if history.is_told { 0 } else { (gateways - 1) * rule.limit() };
    if outages && shares { rule.limit().max(gateways).max(unknown) } else { 0 }
}

/// How much longer than the budget an answer may take: the time-out for each time that the store is asked, and the time
/// for which the gateway stalls.
pub(crate) fn answer_after(history: &History) -> Micros {
    let stalls = history.faults.iter().filter(|fault| matches!(fault.what, What::Stall(_)));
    let stalls: Micros = stalls.map(|fault| fault.lasts).sum();
    3 * longest_timeout(history) + TIMERS + stalls
}

/// The longest time-out of a call. It follows the round trip: three of the slowest, 0.5 s at most. Messages that are
/// sent during a silence are answered when the silence ends.
fn longest_timeout(history: &History) -> Micros {
    let (least, most) = (micros(TIMEOUT), micros(SLOWEST));
    let way = history.gateways.iter().map(|it| it.delay.max(MS) + it.jitter).max().unwrap_or(0);
    let held_up = history.faults.iter().map(|fault| fault.lasts).max().unwrap_or(0);
    (3 * (2 * way + held_up)).clamp(least, most)
}
