//! The laws that hold for every history, judged by the calls that the upstream and the callers saw. Each exception from
//! a law is a function in `exceptions.rs`, with its formula and its reason.

mod key_rates;
mod quota;
mod turns;

use crate::{
    exceptions::{
        clocks_differ, end_differs, excess, freed_within, known_after, known_cost, lateness,
        paused, places_beyond,
    },
    history::{History, Limiter, MS, Micros, SECOND, Scene, Weather},
    run::Record,
    upstream::{End, Seen},
};
use paceway::{
    algorithm::{Algorithm, Rule},
    store::{OnFailure, Source},
};

/// The name of a law that a history broke, and a description with instants and numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) law: &'static str,
    pub(crate) how: String,
}

type Verdict = Result<(), Broken>;

/// Checks a history against all laws, and returns the first one that it breaks.
pub(crate) fn judge(history: &History, record: &Record) -> Verdict {
    for limiter in 0..history.limiters.len() {
        for key in 0..3 {
            never_too_many(history, record, limiter, key)?;
        }
    }
    for (route, _) in history.routes.iter().enumerate() {
        never_idle(history, record, route)?;
    }
    nothing_is_sent_in_a_pause(history, record)?;
    lives_count_once(history, record)?;
    others_get_unused_permits(history, record)?;
    debts_are_paid(history, record)?;
    the_end_of_a_pause_wakes(history, record)?;
    quota::is_kept_and_used(history, record)?;
    turns::are_taken(history, record)?;
    key_rates::are_kept_and_used(history, record)?;
    for seen in &record.seen {
        the_store_decides(history, seen)?;
        nobody_waits_in_vain(history, seen)?;
        never_early_nor_late(history, seen)?;
    }
    match record.left_over.first() {
        Some(how) => broken("nothing is left over", how.clone()),
        None => Ok(()),
    }
}

fn broken(law: &'static str, how: String) -> Verdict {
    Err(Broken { law, how })
}

/// The calls that a limiter let through with a key, each with its instant and its cost.
fn calls<'r>(
    history: &'r History,
    record: &'r Record,
    limiter: usize,
    key: i64,
) -> impl Iterator<Item = (&'r Seen, Micros, i64)> {
    let is_of = move |seen: &&Seen| {
        seen.key == key && history.routes[seen.route].limiters.contains(&limiter)
    };
    record.seen.iter().filter(is_of).filter_map(move |seen| {
        // A request that passes by `allow` is not limited.
        let passes = history.limiters[limiter].on_failure == OnFailure::Allow;
        let (at, _) = seen.sent.filter(|(_, source)| !passes || *source == Source::Shared)?;
        let route = &history.routes[seen.route];
        // The part of a cost beyond its reserve is known after the call.
        Some((seen, at, route.cost.min(route.used(seen.number))))
    })
}

/// Law 1, for each limiter over all gateways, by the instants that were granted. [`never_early_nor_late`] bounds how
/// far the arrivals at the upstream may differ from these.
fn never_too_many(history: &History, record: &Record, number: usize, key: i64) -> Verdict {
    if !history.key_rates.is_empty() {
        // A law of that scene is stricter.
        return Ok(());
    }
    let limiter = &history.limiters[number];
    if limiter.rule.lease().is_some() {
        return never_too_many_places(history, record, number, key);
    }
    let mut sent: Vec<_> =
        calls(history, record, number, key).map(|(seen, _, cost)| (seen.granted, cost)).collect();
    sent.sort_unstable_by_key(|((_, latest), _)| *latest);
    let (late, extra) = (clocks_differ(history), excess(history, record, number));
    for ((from, _), _) in &sent {
        let mut count = 0;
        for ((_, to), cost) in sent.iter().filter(|((earliest, _), _)| earliest >= from) {
            count += cost;
            let most = most_between(limiter, *from, *to, late, *cost) + extra;
            if count > most {
                let (from, to) = (*from as f64 / 1e3, *to as f64 / 1e3);
                let how = format!(
                    "limiter {number}, key {key}: {count} permits from {from} to {to} ms, where {most} are allowed ({extra} of them as an exception)"
                );
                return broken("never too many", how);
            }
        }
    }
    Ok(())
}

/// The most permits that the rule allows from one instant to another, both included, when granted calls may arrive
/// `late` µs later and the last of them costs `last` permits.
fn most_between(limiter: &Limiter, from: Micros, to: Micros, late: Micros, last: i64) -> i64 {
    let Limiter { rule, count, period, .. } = limiter;
    let span = to - from + late;
    match rule {
        Rule::Rate(Algorithm::SlidingWindow(_)) => {
            // The number of windows that the span needs, each half open.
            count * (span / (period + rule.margin()) + 1)
        }
        Rule::Rate(Algorithm::FixedWindow(_)) => {
            count * (to.div_euclid(*period) - (from - late).div_euclid(*period) + 1)
        }
        // The bucket is charged after the grant, so the first grant needs no room.
        Rule::Rate(Algorithm::LeakyBucket(_)) => last + span / (period / count + rule.margin()),
        // Calls are made at whole microseconds. With 48/s the slots are not, so the first call may be a third of one late.
        _ => rule.capacity() + (span + i64::from(period % count != 0)) * count / period,
    }
}

fn never_too_many_places(history: &History, record: &Record, number: usize, key: i64) -> Verdict {
    let mut changes = Vec::new();
    for (seen, from, _) in calls(history, record, number, key) {
        let until = seen.ended.as_ref().map_or(Micros::MAX, |(at, _)| *at);
        changes.extend([(from, 1), (until, -1)]);
    }
    // At one instant, calls end before others begin.
    changes.sort_unstable();
    let most = history.limiters[number].rule.limit() + places_beyond(history, number);
    let mut held = 0;
    for (at, change) in changes {
        held += change;
        if held > most {
            let how = format!(
                "limiter {number}, key {key}: {held} calls at {} ms, where {most} are allowed",
                at as f64 / 1e3
            );
            return broken("never too many places", how);
        }
    }
    Ok(())
}

/// Law 2, for histories without faults in which requests always wait: at least 99 % of the rule is used.
fn never_idle(history: &History, record: &Record, number: usize) -> Verdict {
    let route = &history.routes[number];
    // A limiter whose period is longer than the history never binds.
    let binds = |limiter: &&Limiter| limiter.period <= history.load;
    let limiters = || route.limiters.iter().map(|it| &history.limiters[*it]).filter(binds);
    let each = |limiter: &Limiter| match limiter.rule {
        // A window holds whole requests only.
        Rule::Rate(Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_)) => {
            (limiter.period + limiter.rule.margin()) / (limiter.count / route.cost)
        }
        _ => limiter.spacing(route.hold) * route.cost,
    };
    let spacing = limiters().map(each).max().unwrap_or(SECOND);
    let longest = limiters().map(|limiter| limiter.period).max().unwrap_or(SECOND);
    let waits = route.budget >= 2 * longest && route.leave == 0 && route.keys == 1;
    let has_places = limiters().any(|limiter| limiter.rule.lease().is_some());
    let is_saturated = route.every * 140 <= spacing * 100;
    let has_all = history.scene.serves_all();
    if history.weather != Weather::Calm || !waits || !is_saturated || has_places || !has_all {
        return Ok(());
    }
    let (from, until) = (2 * SECOND, history.load);
    let paused = paused(history, number, (from, until), spacing);
    let within = |seen: &&Seen| {
        seen.route == number && seen.sent.is_some_and(|(at, _)| (from..until).contains(&at))
    };
    let count = record.seen.iter().filter(within).count() as i64;
    let windows = limiters().map(|limiter| limiter.count).max().unwrap_or(0) / route.cost;
    let pauses = 1 + history.throttles.len() as i64;
    let least = (until - from - paused) * 99 / 100 / spacing - 1 - pauses * windows;
    if count < least {
        let how = format!(
            "route {number}: {count} calls in {} s, where at least {least} are possible",
            (until - from) / SECOND
        );
        return broken("never idle", how);
    }
    Ok(())
}

/// After the upstream has refused a call, no gateway that knows of it sends another one before the refusals end: the
/// gateway of that call at once, the others as soon as they know of the pause.
fn nothing_is_sent_in_a_pause(history: &History, record: &Record) -> Verdict {
    for refusal in &record.refusals {
        let of_same = |seen: &&Seen| (seen.route, seen.key) == (refusal.route, refusal.key);
        for seen in record.seen.iter().filter(of_same) {
            let known = refusal.at + known_after(history, refusal, seen);
            let Some((at, _)) = seen.sent.filter(|(at, _)| *at > known) else { continue };
            if at < history.freed(refusal.route, refusal.until) - end_differs(history) {
                return broken("nothing is sent in a pause", format!("{seen}; {refusal:?}"));
            }
        }
    }
    Ok(())
}

/// Law 19: the lives of one gateway, however many it has, are one gateway for the others.
fn lives_count_once(history: &History, record: &Record) -> Verdict {
    let most = history.gateways.len();
    let is_more = usize::try_from(record.counted).is_ok_and(|counted| counted > most);
    if matches!(history.scene, Scene::IdleLoop | Scene::BusyLoop) && is_more {
        let how = format!("{} gateways are counted, where {most} are", record.counted);
        return broken("lives count once", how);
    }
    Ok(())
}

/// Law 2 with refunds: calls use 85 % of a rule while requests wait that reserve more than they use.
fn others_get_unused_permits(history: &History, record: &Record) -> Verdict {
    if history.scene != Scene::Settled {
        return Ok(());
    }
    let Limiter { count, period, .. } = &history.limiters[0];
    let from = history.last_request();
    let sent = || calls(history, record, 0, 0).filter(|(_, at, _)| *at >= from);
    let until = sent().map(|(_, at, _)| at).max().unwrap_or(from);
    let used: i64 = sent().map(|(_, _, cost)| cost).sum();
    // A window may begin or end within the span.
    let least = (until - from) * count / period * 85 / 100 - count;
    if used < least {
        let how = format!("{used} permits until {} ms, of {least} at least", until / MS);
        return broken("others get the permits that are not used", how);
    }
    Ok(())
}

/// Law 1 with debts: no call is sent while the calls before it have used, as far as their gateways had said so by then, what the rule
/// allows.
fn debts_are_paid(history: &History, record: &Record) -> Verdict {
    if history.scene != Scene::Owed {
        return Ok(());
    }
    let sent: Vec<_> = calls(history, record, 0, 0).collect();
    for (first, ..) in &sent {
        for (last, ..) in &sent {
            let (from, to) = (first.granted.0, last.granted.1);
            let before = sent.iter().filter(|(seen, ..)| {
                seen.granted.0 >= from && (seen.granted.1, seen.number) < (to, last.number)
            });
            let known: i64 =
                before.map(|(seen, _, cost)| known_cost(history, seen, to, *cost)).sum();
            let own = history.routes[last.route].cost;
            let most = most_between(&history.limiters[0], from, to, 0, own);
            if from < to && known + own > most {
                let (from, to) = (from as f64 / 1e3, to as f64 / 1e3);
                let how = format!(
                    "{known} permits are known to be used from {from} ms on, before {last} for {to} ms, where {most} are allowed"
                );
                return broken("debts are paid", how);
            }
        }
    }
    Ok(())
}

/// Law 18: an operator ends a pause, and the requests that wait are sent as soon as the rule allows all of them. Those of a
/// gateway go in the order in which they came; the order between gateways is that of their calls.
fn the_end_of_a_pause_wakes(history: &History, record: &Record) -> Verdict {
    for throttle in &history.throttles {
        let Some(ended) = throttle.ended else { continue };
        let waits = |seen: &&Seen| {
            let is_over = seen.ended.as_ref().is_some_and(|(at, _)| *at <= ended);
            seen.route == throttle.route && seen.came <= ended && !is_over
        };
        let waiting: Vec<_> = record.seen.iter().filter(waits).collect();
        let latest = ended + freed_within(history, throttle.route, waiting.len() as i64);
        for seen in waiting {
            if seen.sent.is_none_or(|(at, _)| at > latest) {
                return broken("the end of a pause wakes", format!("{seen}; ended at {ended}"));
            }
        }
    }
    Ok(())
}

/// A store that answers in time decides every call, however many requests wait, leave or ask again.
fn the_store_decides(history: &History, seen: &Seen) -> Verdict {
    let is_decided = seen.sent.is_none_or(|(_, source)| source == Source::Shared);
    if history.weather != Weather::Calm || is_decided {
        return Ok(());
    }
    broken("the store decides", seen.to_string())
}

/// A call arrives at the instant that was granted, or later by the way of the answer and the effects of its gateway's
/// faults.
fn never_early_nor_late(history: &History, seen: &Seen) -> Verdict {
    let Some((at, source)) = seen.sent else { return Ok(()) };
    let late = lateness(history, seen, at, source);
    if (seen.granted.0 - MS..=seen.granted.1 + late).contains(&at) {
        return Ok(());
    }
    broken("never early nor late", format!("{seen}; at most {} ms late", late as f64 / 1e3))
}

/// Law 3: each request has an answer within the budget and the time-outs, and no request was promised a slot that is
/// too late.
fn nobody_waits_in_vain(history: &History, seen: &Seen) -> Verdict {
    let route = &history.routes[seen.route];
    let answered = match (&seen.sent, &seen.ended) {
        (_, Some((_, End::InVain))) => return broken("no request waits in vain", seen.to_string()),
        (_, Some((_, End::Cut))) => return Ok(()),
        (Some((at, _)), _) => *at,
        (None, Some((at, _))) => *at,
        (None, None) => return broken("every request has an answer", seen.to_string()),
    };
    let most = route.budget + crate::exceptions::answer_after(history);
    if answered - seen.came > most {
        return broken(
            "every request has an answer in time",
            format!("{seen}; at most {} ms", most / MS),
        );
    }
    Ok(())
}
