//! The laws of an upstream that refuses calls beyond a quota of its own.

use super::{Verdict, broken};
use crate::{
    exceptions::{KNOWN, known_remainder},
    history::{History, Limiter, MS, Micros, Quota, Route, SECOND},
    run::Record,
    upstream::SeenReport,
};
use paceway::algorithm::{Algorithm, Rule};
use std::{collections::BTreeMap, ops::Range};

/// The part of what the upstream and the limiter allow outside of pauses that calls use while their gateways learn how much that is,
/// in percent.
const USED: i64 = 40;

pub(super) fn is_kept_and_used(history: &History, record: &Record) -> Verdict {
    let Some(quota) = &history.quota else { return Ok(()) };
    remainders_are_kept(history, record)?;
    the_rate_is_kept(quota, record)?;
    the_quota_is_used(history, quota, record)
}

/// From the moment at which all gateways know what remains until the quota begins again, no more permits are used.
fn remainders_are_kept(history: &History, record: &Record) -> Verdict {
    for told in &record.reports {
        let SeenReport { at, left, .. } = told;
        let used: i64 = used(history, record, at + KNOWN..left.until).map(|(_, used)| used).sum();
        if used > known_remainder(history, record, told) {
            let how = format!("{used} permits were used from {} ms on, of {left:?}", at / MS);
            return broken("what remains is kept", how);
        }
    }
    Ok(())
}

/// With `learn: off` a refusal only pauses.
fn the_rate_is_kept(quota: &Quota, record: &Record) -> Verdict {
    if !quota.learns && record.lowered {
        return broken("`learn: off` keeps the rate", "a pause has lowered it".into());
    }
    Ok(())
}

/// Law 2 with refusals, permits that come back, and requests that leave.
fn the_quota_is_used(history: &History, quota: &Quota, record: &Record) -> Verdict {
    let (route, span) = (&history.routes[0], 2 * SECOND..history.load);
    let mut accepted = BTreeMap::new();
    for (at, used) in used(history, record, span.clone()) {
        let sum: &mut i64 = accepted.entry(quota.window(at)).or_default();
        if *sum + used <= quota.count {
            *sum += used;
        }
    }
    let used: i64 = accepted.values().sum();
    let lasts = span.end - span.start - paused(record, span);
    let calls = lasts / spacing(&history.limiters[0], route);
    let asked = lasts / route.every * (100 - i64::from(route.leave)) / 100;
    let (least, most) = (route.uses.start(), route.uses.end());
    let possible = (calls.min(asked) * (least + most) / 2).min(quota.count * lasts / quota.period);
    if quota.learns && used < possible * USED / 100 - quota.count {
        let how = format!("{used} permits, where {possible} are possible");
        return broken("the quota is used", how);
    }
    Ok(())
}

/// How long the upstream has refused calls within a span, by its answers.
fn paused(record: &Record, span: Range<Micros>) -> Micros {
    let mut pauses: Vec<_> = record.refusals.iter().map(|it| (it.at, it.until)).collect();
    pauses.sort_unstable();
    let (mut sum, mut known) = (0, span.start);
    for (at, until) in pauses {
        let (from, to) = (at.max(known), until.min(span.end));
        sum += (to - from).max(0);
        known = known.max(to);
    }
    sum
}

/// The time between two calls of a route that its limiter alone delays.
fn spacing(limiter: &Limiter, route: &Route) -> Micros {
    match limiter.rule {
        Rule::Rate(Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_)) => {
            (limiter.period + limiter.rule.margin()) / (limiter.count / route.cost)
        }
        _ => limiter.spacing(0) * route.cost,
    }
}

/// The calls that were sent within a span, each with its instant and the permits that it used.
fn used<'r>(
    history: &'r History,
    record: &'r Record,
    span: Range<Micros>,
) -> impl Iterator<Item = (Micros, i64)> + 'r {
    record.seen.iter().filter_map(move |seen| {
        let (at, _) = seen.sent.filter(|(at, _)| span.contains(at))?;
        Some((at, history.routes[seen.route].used(seen.number)))
    })
}
