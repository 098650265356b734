//! Writes limiters and decisions as the JSON of the admin pages. Never asks a store.

use super::Admin;
pub(super) use crate::services::permits::millis;
use crate::{
    algorithm::{Level, MAX_BUDGET, Micros, Rule},
    answer::{end, is_reason},
    config::{AutoRule, LimiterConfig, Mode, Rate},
    key,
    overrides::{Overridden, OverrideInForce, Rates},
    plan::{LimiterPlan, WorkingRate, per_second, rate_text, reason},
    store::{Check, Share, StoreError},
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{slice, sync::atomic::Ordering::Relaxed};

/// Why a limiter is closed after a loss of states.
pub(super) const LOST: &str = "the store has lost its states, or may have";

/// Writes the rates of a limiter, and the part of its rule that is learned. A limiter with a key learns a rate for each, and
/// shows the first one.
fn show_rates(state: &mut Value, limiter: &LimiterConfig, level: Option<Level>) {
    let rates: Vec<_> = limiter.rates.iter().map(ToString::to_string).collect();
    match &*rates {
        [] => {}
        [rate] => state["rate"] = rate.as_str().into(),
        rates => state["rate"] = rates.into(),
    }
    match (limiter.auto, limiter.rates.first()) {
        (Some(AutoRule::Rate { bounds, max }), Some(start)) => {
            let text = |rate| rate_text(rate, start);
            state["auto"] = json!({
                "start": text(bounds.start), "min": text(bounds.min), "max": text(max.nanohertz()),
            });
            show_found(state, limiter, level.unwrap_or_default());
        }
        (Some(AutoRule::Margin(_)), _) => {
            state["margin_ms"] = 0.0.into();
            state["auto"] = "margin".into();
        }
        _ => {}
    }
}

/// Writes the rate of a bucket that was found; nothing for a limiter whose rate is written.
pub(super) fn show_found(state: &mut Value, limiter: &LimiterConfig, level: Level) {
    if let (Some(bounds), Some(start)) = (limiter.bounds(), limiter.rates.first()) {
        let rate = if level.rate > 0 { level.rate } else { bounds.start };
        state["rate"] = rate_text(rate, start).into();
        state["rate_per_second"] = per_second(rate).into();
    }
}

/// Writes the rate that answers have named for a key.
pub(super) fn show_learned(state: &mut Value, plan: &LimiterPlan, key: Option<&str>) {
    if let (Some(rate), Some(start)) = (plan.learned_rate(key), plan.limiter.rates.first()) {
        state["rate"] = rate_text(rate, start).into();
        state["learned"] = true.into();
    }
}

/// Writes a limiter: its rule, its level, and the share that this gateway grants while the store does not decide. `checks` are
/// those of the bucket that the page shows.
pub(super) fn state(
    admin: &Admin,
    plan: &LimiterPlan,
    checks: &[Check],
    levels: Option<Result<Vec<Level>, StoreError>>,
) -> Value {
    let limiter = &*plan.limiter.of_key(plan.key_in(&checks[0].key).flatten());
    let each = match &levels {
        Some(Ok(each)) => each.clone(),
        _ => Vec::new(),
    };
    let level = levels.map(|each| each.map(tightest));
    let rule = &checks[0].algorithm;
    let mut state = json!({
        "name": limiter.name,
        "algorithm": rule.name(),
        "limit": limiter.algorithms.iter().map(Rule::limit).min(),
        "mode": limiter.mode.name(),
        "scope": limiter.scope.name(),
        "waiting": plan.waiting.load(Relaxed),
    });
    show_rates(&mut state, limiter, level.as_ref().and_then(|level| level.as_ref().ok()).copied());
    show_learned(&mut state, plan, plan.key_in(&checks[0].key).flatten());
    show_rule(&mut state, limiter, rule);
    show_pause(&mut state, admin, plan, checks, level.as_ref());
    show_working(&mut state, limiter.highest(), &each);
    let ends = plan.metrics.quota.as_ref().and_then(|_| admin.quotas.note(checks, &each));
    if let Some(left) = ends.and_then(|ends| ends.used_up) {
        state["used_up_ms"] = millis(left).into();
        state["used_up_at"] = end(left).into();
    }
    if let Some(left) = closed(admin, checks, level.as_ref()) {
        state["closed_ms"] = millis(left).into();
        state["closed_until"] = end(left).into();
        state["closed_reason"] = LOST.into();
    }
    show_override(&mut state, admin, &limiter.name, plan.key_in(&checks[0].key).flatten());
    let has_level = level.is_some();
    match level {
        Some(Ok(level)) => {
            show(&mut state, level);
            // The levels of former states follow those of its rates.
            if limiter.rates.len() > 1 {
                let rates = limiter.rates.iter().zip(&plan.checks).zip(each);
                let each = rates.map(|((rate, check), level)| rate_level(rate, check, level));
                state["levels"] = each.collect();
            }
        }
        Some(Err(error)) => state["error"] = error.to_string().into(),
        None => {}
    }
    show_store(&mut state, admin, plan, checks, has_level);
    state
}

/// Writes what limits a limiter while its store gives no decisions.
fn show_store(
    state: &mut Value,
    admin: &Admin,
    plan: &LimiterPlan,
    checks: &[Check],
    has_level: bool,
) {
    let limiter = &plan.limiter;
    if let Some(health) = &admin.health {
        // The store may still answer reads while its decisions fail, for example on a replica.
        if let Some(why) = checks.iter().find_map(|check| health.failure(&check.key)) {
            state["error"] = why.to_string().into();
        }
        state["on_failure"] = limiter.on_failure.name().into();
        state["on_loss"] = limiter.on_loss.name().into();
        if let Some(share) = share(admin, plan, checks, has_level) {
            state["share"] = share;
        }
    }
}

/// Writes what the configuration says of a limiter besides its rates.
fn show_rule(state: &mut Value, limiter: &LimiterConfig, rule: &Rule) {
    if let Some(facts) = rule.as_rate().map(|rate| rate.facts()) {
        if facts.burst.is_some() {
            state["burst"] = rule.capacity().into();
        }
        if facts.margin > 0 {
            state["margin_ms"] = millis(facts.margin).into();
        }
        if facts.longest_wait < MAX_BUDGET {
            state["longest_wait_ms"] = millis(facts.longest_wait).into();
        }
    }
    if let Some(calendar) = &limiter.calendar {
        state["resets"] = calendar.to_string().into();
        state["next_reset"] = calendar.next_reset(Timestamp::now()).into();
        if calendar.is_even() {
            state["spread"] = "even".into();
        }
    }
    if let Some(lease) = rule.lease() {
        state["lease_ms"] = (lease / 1000).into();
    }
    if !limiter.key_rates.is_empty() {
        state["rates"] = limiter.key_rates.len().into();
    }
    if let Some(template) = &limiter.key {
        state["key"] = template.text().into();
    }
    if let Some(fair) = &limiter.fair {
        state["fair"] = json!({ "by": fair.by.text(), "weights": fair.weights.len() });
    }
    let floors = [("high", limiter.floors.high), ("normal", limiter.floors.normal)];
    for (priority, floor) in floors {
        if let Some(floor) = floor {
            state["floors"][priority] = floor.of(limiter.most_permits()).into();
        }
    }
    if limiter.has_turns {
        state["turns"] = true.into();
    }
}

/// Writes the override of a limiter, and of one `key` of it, if it has one.
fn show_override(state: &mut Value, admin: &Admin, limiter: &str, key: Option<&str>) {
    let of = Overridden::Limiter(limiter);
    if let Some(own) = admin.overrides.of(of) {
        if own.change.pause {
            state["paused_ms"] = millis(own.left).into();
            state["paused_until"] = end(own.left).into();
            state["pause_reason"] = format!("an operator: {}", own.change.reason).into();
        }
        state["override"] = override_in_force(admin, of, &own);
    }
    let Some(key) = key else {
        let keys = admin.overrides.of_keys(limiter);
        let keys = keys.iter().map(|(key, own)| {
            let mut shown = override_in_force(admin, Overridden::Key { limiter, key }, own);
            shown["key"] = key::shown(key).into();
            shown
        });
        let keys: Vec<_> = keys.collect();
        if !keys.is_empty() {
            state["key_overrides"] = keys.into();
        }
        return;
    };
    let of = Overridden::Key { limiter, key };
    if let Some(own) = admin.overrides.of(of) {
        state["override"] = override_in_force(admin, of, &own);
    }
}

/// Writes the pause of a limiter. The page of one bucket shows its own pause, as the store has it; that of a limiter with a
/// key shows the longest pause that this gateway knows.
fn show_pause(
    state: &mut Value,
    admin: &Admin,
    plan: &LimiterPlan,
    checks: &[Check],
    level: Option<&Result<Level, StoreError>>,
) {
    let pauses = admin.store.pauses();
    let known = match level {
        Some(_) => checks.iter().filter_map(|check| pauses.get(&check.key)).max_by_key(|p| p.until),
        None => {
            let mut known = pauses.all();
            known.retain(|(state, _)| plan.key_in(state).is_some());
            known.last().map(|(_, pause)| *pause)
        }
    };
    let left = match level {
        Some(Ok(level)) => level.paused,
        _ => known.map_or(0, |pause| pause.left()),
    };
    let status = match level {
        Some(Ok(level)) if level.status > 0 => level.status,
        _ => known.map_or(0, |pause| pause.status),
    };
    if left > 0 {
        state["paused_ms"] = millis(left).into();
        state["paused_until"] = end(left).into();
        state["pause_reason"] = reason(status).into();
    }
}

/// The time in µs for which a limiter stays closed because the store has lost its states. The `level` of one bucket shows
/// whether an operator has reset it since.
pub(super) fn closed(
    admin: &Admin,
    checks: &[Check],
    level: Option<&Result<Level, StoreError>>,
) -> Option<Micros> {
    let left = checks.iter().filter_map(|check| admin.store.closed_for(check)).max()?;
    match level {
        Some(Ok(level)) if !is_reason(level.next, left) => None,
        _ => Some(left),
    }
}

/// Writes an override that has not ended.
pub(super) fn override_in_force(
    admin: &Admin,
    of: Overridden<'_>,
    OverrideInForce { change: own, left }: &OverrideInForce,
) -> Value {
    let mut shown = json!({
        "reason": own.reason,
        "by": own.by,
        "until": end(*left),
        "left_ms": millis(*left),
    });
    if let Some(rates) = &own.rate {
        shown["rate"] = match rates {
            Rates::One(rate) => rate.as_str().into(),
            Rates::Many(rates) => rates.clone().into(),
        };
    }
    if let Some(mode) = &own.mode {
        shown["mode"] = mode.as_str().into();
    }
    if own.pause {
        shown["pause"] = true.into();
    }
    if let Some(limiting) = &own.limiting {
        shown["limiting"] = limiting.as_str().into();
    }
    let unfit = admin.live.unfit();
    if let Some(unfit) = unfit.iter().find(|unfit| of.is_of(&unfit.edit)) {
        shown["applied"] = false.into();
        shown["why"] = unfit.shown().1.into();
    }
    shown
}

/// Writes the share of a limiter that this gateway grants without the store. `None` while the store decides.
fn share(admin: &Admin, plan: &LimiterPlan, checks: &[Check], has_level: bool) -> Option<Value> {
    let limiter = &plan.limiter;
    if limiter.mode == Mode::Off {
        return None;
    }
    let shares: Vec<Share> =
        checks.iter().map(|check| admin.store.share(check)).collect::<Option<_>>()?;
    let gateways = shares.first()?.gateways;
    let mut shown = json!({
        "gateways": gateways,
        "limit": shares.iter().map(|share| share.rule.limit()).min(),
    });
    let flows = shares[0].rule.window() == 0;
    let gateways = u64::try_from(gateways).unwrap_or(1);
    let rates = limiter.rates.iter().map(|rate| rate.share(gateways, flows).to_string());
    match &*rates.collect::<Vec<_>>() {
        [] => {}
        [rate] => shown["rate"] = rate.as_str().into(),
        rates => shown["rate"] = rates.into(),
    }
    if has_level {
        show(&mut shown, tightest(shares.iter().map(|share| share.level)));
    }
    Some(shown)
}

/// Writes the level of one rate of several.
fn rate_level(rate: &Rate, check: &Check, level: Level) -> Value {
    let mut shown = json!({ "rate": rate.to_string(), "limit": check.algorithm.limit() });
    show(&mut shown, level);
    show_working(&mut shown, slice::from_ref(rate), &[level]);
    shown
}

/// Writes the rate at which a bucket works below the written one, if refusals have lowered it: the slowest one of several.
pub(super) fn show_working(state: &mut Value, rates: &[Rate], each: &[Level]) {
    if let Some(working) = WorkingRate::of(rates, each) {
        state["working_rate"] = working.text().into();
        state["working_rate_per_second"] = working.per_second().into();
        state["working_since"] = end(-working.level.since).into();
        state["working_reason"] = reason(working.level.status).into();
    }
}

/// Writes a level.
pub(super) fn show(state: &mut Value, level: Level) {
    state["level"] = level.remaining.into();
    state["next_slot_ms"] = millis(level.next).into();
    state["reset_ms"] = millis(level.reset_after).into();
}

/// Combines the levels of several rates into the level that all of them allow.
pub(super) fn tightest(levels: impl IntoIterator<Item = Level>) -> Level {
    let mut all = Level { remaining: i64::MAX, ..Level::default() };
    for level in levels {
        all.remaining = all.remaining.min(level.remaining);
        all.next = all.next.max(level.next);
        all.reset_after = all.reset_after.max(level.reset_after);
        let is_slower = level.rate > 0 && (all.rate == 0 || level.rate < all.rate);
        if level.paused > all.paused || all.paused == 0 && is_slower {
            all.status = level.status;
        }
        all.paused = all.paused.max(level.paused);
        if is_slower {
            (all.rate, all.since) = (level.rate, level.since);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_working_rate_is_that_of_all_rates() {
        let full = Level { remaining: 9, ..Level::default() };
        let slow = Level { rate: 3, since: 30, status: 503, remaining: 4, ..full };
        let paused = Level { rate: 5, since: -20, status: 429, paused: 20, remaining: 0, ..full };
        assert_eq!(tightest([full, full]), full);
        for levels in [[full, slow, paused], [paused, slow, full], [slow, paused, full]] {
            let all = Level { rate: 3, since: 30, status: 429, paused: 20, remaining: 0, ..full };
            assert_eq!(tightest(levels), all);
        }
    }
}
