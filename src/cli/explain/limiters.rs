//! Describes what each limiter of a request does: its rule, the cost of the request, and the bucket that is charged.

use crate::{
    algorithm::{MAX_BUDGET, Rule, fair::Priority},
    config::{
        AutoRule, Charge, Config, FailurePolicy, LimiterConfig, Mode, Scope, StoreConfig,
        priority_name,
    },
    key::{self, Cost, Parts, Reserve},
    plan::per_second,
    store::OnLoss,
};
use jiff::Timestamp;
use serde::Serialize;

/// A limiter that a request is charged to.
#[derive(Debug, Serialize)]
pub(super) struct ExplainedLimiter {
    pub(super) name: String,
    /// `route`, or `upstream` if only the upstream of the route names it.
    pub(super) of: &'static str,
    /// The algorithm with its values, such as `token_bucket 5/s, burst 10`.
    pub(super) rule: String,
    pub(super) mode: &'static str,
    /// Whether the gateway asks it about this request.
    pub(super) asked: bool,
    /// The permits that the request takes; `None` if the request names a cost that cannot be paid.
    pub(super) cost: Option<i64>,
    /// The reason of the 400 for a cost that cannot be paid, or a part that can be read in several ways.
    pub(super) refused: Option<String>,
    /// The origin of the cost: a template, or nothing for a number.
    #[serde(skip)]
    origin: String,
    /// The key of its bucket; `None` if one bucket is for all.
    pub(super) key: Option<String>,
    /// The names of its states in the store, one for each rate.
    pub(super) states: Vec<String>,
    /// The tenant that the request is at a limiter with `fair`, and its weight there.
    pub(super) tenant: Option<String>,
    pub(super) weight: Option<i64>,
    /// The priority of the request at a limiter whose requests take turns.
    pub(super) priority: Option<&'static str>,
    #[serde(skip)]
    scope: Scope,
    /// Its behaviour while the store is away; `None` for a store that never is.
    pub(super) without_store: Option<String>,
}

// === impl ExplainedLimiter ===

impl ExplainedLimiter {
    pub(super) fn of(
        config: &Config,
        charge: &Charge,
        of: &'static str,
        priority: Priority,
        parts: &Parts<'_>,
    ) -> Self {
        let limiter = &config.limiters[charge.limiter];
        let is_on = limiter.mode != Mode::Off;
        let key = limiter.key.as_ref().map(|template| template.fill(parts)).transpose();
        let limiter = &*limiter.of_key(key.as_ref().ok().and_then(|key| key.as_deref()));
        let cost =
            if is_on { charge.cost.of(parts, limiter.capacity(), &limiter.name) } else { Ok(1) };
        let prefix = match &config.store {
            StoreConfig::Memory => "paceway",
            StoreConfig::Redis { prefix, .. } => prefix,
        };
        let turn = limiter.turn(priority, parts);
        let refused = [cost.as_ref().err(), key.as_ref().err(), turn.as_ref().err()];
        let refused = refused.into_iter().flatten().next().filter(|_| is_on).cloned();
        let (key, turn) = (key.ok().flatten(), turn.ok().flatten());
        let states = 0..limiter.algorithms.len();
        let states = states
            .map(|part| limiter.state_names(prefix, Some("INSTANCE"), part).of(key.as_deref()));
        let shared = turn.as_ref().filter(|_| limiter.fair.is_some());
        Self {
            tenant: shared.map(|turn| key::shown(&turn.tenant)),
            weight: shared.map(|turn| turn.weight),
            priority: turn.as_ref().map(|turn| priority_name(turn.priority)),
            name: limiter.name.clone(),
            of,
            rule: rule(limiter),
            mode: limiter.mode.name(),
            asked: is_on && cost.as_ref().is_ok_and(|cost| *cost > 0),
            origin: origin(charge),
            states: states.collect(),
            scope: limiter.scope,
            without_store: without_store(config, limiter),
            cost: cost.ok(),
            refused,
            key,
        }
    }

    /// The rule, the cost and the mode, in one line.
    pub(super) fn line(&self) -> String {
        let cost = match (&self.refused, self.cost) {
            (Some(reason), _) => format!("400: {reason}"),
            (None, cost) => format!("cost {}", cost.unwrap_or_default()),
        };
        let mode = match (self.mode, self.cost) {
            ("observe", _) => ", only observes",
            ("off", _) => ", off",
            (_, Some(0)) => ", not asked",
            _ => "",
        };
        format!("{}: {}, {cost}{}{mode}", self.name, self.rule, self.origin)
    }

    /// The bucket of the request, with the names of its states in the store.
    pub(super) fn bucket(&self) -> String {
        let names = self.states.join(", ");
        let whose = match self.scope {
            Scope::Cluster => "",
            Scope::Instance => ", one for each gateway",
        };
        match &self.key {
            Some(key) => format!("key {key}, kept as {names}{whose}"),
            None => format!("one bucket for all, kept as {names}{whose}"),
        }
    }

    /// The turn of the request among those that wait, in a sentence; `None` where they are served first come, first served.
    pub(super) fn turn(&self) -> Option<String> {
        let priority = self.priority?;
        let tenant = self.tenant.as_ref().zip(self.weight);
        let tenant = tenant.map_or_else(String::new, |(tenant, weight)| {
            format!("tenant {tenant} of weight {weight}, ")
        });
        Some(format!("{tenant}priority {priority} among those that wait"))
    }
}

/// The algorithm with its values.
fn rule(limiter: &LimiterConfig) -> String {
    let rates: Vec<_> = limiter.rates.iter().map(ToString::to_string).collect();
    let rates = match (&*rates, limiter.auto) {
        ([start], Some(AutoRule::Rate { bounds, max })) => {
            let [min, max] = [bounds.min, max.nanohertz()].map(per_second);
            format!("auto from {start}, between {min}/s and {max}/s")
        }
        ([rate], _) => rate.clone(),
        (rates, _) => format!("[{}]", rates.join(", ")),
    };
    let facts = match limiter.algorithms.first() {
        None => return String::new(),
        Some(Rule::Permits(rule)) => {
            let lease = crate::limit::duration(rule.lease());
            return format!("concurrency, at most {} held, lease {lease:?}", rule.max());
        }
        Some(Rule::Rate(rule)) => rule.facts(),
    };
    let mut rule = format!("{} {rates}", facts.name);
    if facts.burst.is_some() {
        rule += &format!(", burst {}", limiter.capacity());
    }
    if let Some(calendar) = &limiter.calendar {
        let spread = if calendar.is_even() { ", spread even" } else { "" };
        rule += &format!(", resets {calendar}{spread}");
        if let Some(next) = calendar.next_reset(Timestamp::now()) {
            rule += &format!(" (next {next})");
        }
    }
    let margin = Some(facts.margin).filter(|margin| *margin > 0);
    let queue = Some(facts.longest_wait).filter(|longest| *longest < MAX_BUDGET);
    for (name, span) in [("margin", margin), ("a queue of", queue)] {
        if let Some(span) = span {
            rule += &format!(", {name} {:?}", crate::limit::duration(span));
        }
    }
    if let Some(AutoRule::Margin(_)) = limiter.auto {
        rule += ", margin auto";
    }
    if let Some(bounds) = limiter.learn {
        let [min, max] = [bounds.min, bounds.max].map(per_second);
        rule += &format!(", learned between {min}/s and {max}/s");
    }
    rule
}

/// The part of the request that has the cost.
fn origin(charge: &Charge) -> String {
    match &charge.cost {
        Cost::Fixed(_) => String::new(),
        Cost::FromRequest(sum) => format!(" ({sum})"),
        Cost::Reserved(reserved) => {
            let default = reserved.default.unwrap_or(1);
            let from = match &reserved.reserve {
                Reserve::Sum(sum) if sum.fixed().is_some() => String::new(),
                Reserve::Sum(sum) => format!(" from {sum}, default {default}"),
                Reserve::Learned => format!(" as learned, default {default}"),
            };
            let settle = reserved.settle.as_ref();
            let settle = settle.map_or_else(String::new, |cost| format!(", settled by {cost}"));
            format!(" (reserved{from}{settle})")
        }
    }
}

/// Describes what a limiter does while the store is away. `None` for the memory store, which never is.
fn without_store(config: &Config, limiter: &LimiterConfig) -> Option<String> {
    if config.store == StoreConfig::Memory || limiter.mode == Mode::Off {
        return None;
    }
    let what = match (limiter.on_failure, limiter.scope) {
        (FailurePolicy::Share, Scope::Instance) => "each gateway continues with the whole rule",
        (FailurePolicy::Share, Scope::Cluster) => {
            "each gateway enforces its share, the rule / gateways that live"
        }
        (FailurePolicy::Allow, _) => "it lets requests pass",
        (FailurePolicy::Reject, _) if limiter.mode == Mode::Observe => "it counts nothing",
        (FailurePolicy::Reject, _) => "503 store-unavailable",
    };
    let trust = match limiter.on_loss {
        OnLoss::Close => "",
        OnLoss::Trust => {
            "; on_loss trust: after a loss of states it continues with what the store has"
        }
    };
    Some(format!("on_failure {}: without the store {what}{trust}", limiter.on_failure.name()))
}
