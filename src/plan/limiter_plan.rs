//! A limiter made ready for requests: the names of its states, its checks, and what the gateway knows of it.

mod costs;
mod demand;

use super::{
    former_states::{FormerState, Renamed, SLACK, UsedStates},
    learned_limits::LearnedLimits,
    learned_reserves::LearnedReserves,
    previous::Previous,
    shared_margin::SharedMargin,
};
use crate::{
    algorithm::{Level, Rule, fair::Priority, nanohertz::Nanohertz},
    answer::{Policy, Quota},
    config::{self, Config, Mode, Rate},
    key::{Parts, StateNames},
    limit::{duration, micros},
    metrics::{LimiterMetrics, QuotaMetrics},
    store::Check,
};
use demand::Demand;
use std::{
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};
use tokio::time::Instant;

/// A limiter with the values that do not depend on a request.
pub struct LimiterPlan {
    /// The limiter as it is configured.
    pub limiter: config::LimiterConfig,
    /// The description that a refused caller receives, for each rate of the limiter and for each former state.
    pub policies: Vec<Policy>,
    /// The check of one permit of a limiter without a key, for each of its rates and for each former state.
    pub checks: Vec<Check>,
    /// The check of one permit of a key with another rate, for each rate in `key_rates` of the limiter.
    key_checks: Vec<Check>,
    /// The names of its states, for each of its rates and for each former state.
    names: Vec<StateNames>,
    /// The states from before a change, which requests still ask.
    pub(super) former: Vec<FormerState>,
    /// Whether the last change forgot permits that still count.
    pub(crate) forgets: bool,
    /// Its margin, if that is learned.
    margin: Option<Arc<SharedMargin>>,
    /// The costs of its calls, if a route reserves what it has learned.
    pub(crate) reserves: Option<Arc<LearnedReserves>>,
    /// The rates that answers have named, if these count.
    pub learned: Option<Arc<LearnedLimits>>,
    /// Whether its rule may be another one for each request.
    changes: bool,
    /// The most that its requests can ask of it.
    demand: Demand,
    /// The requests of this gateway that wait for this limiter at the moment.
    pub waiting: Arc<AtomicUsize>,
    /// The handles of its metrics.
    pub metrics: LimiterMetrics,
}

// === impl LimiterPlan ===

impl LimiterPlan {
    /// Makes the limiter with index `i` of `config` ready. It takes over from the limiter of its name in the previous plan.
    pub(super) fn new(
        i: usize,
        config: &Config,
        [prefix, instance]: [&str; 2],
        previous: &Previous<'_>,
    ) -> Self {
        let (limiter, is_used) = (&config.limiters[i], Demand::of(i, config));
        let policy = |quota| Policy { name: limiter.name.clone(), quota };
        let policies = limiter.algorithms.iter().enumerate().map(|(i, rule)| {
            let rate = limiter.rates.get(i).copied();
            policy(rate.map_or(Quota::Concurrency(rule.limit()), Quota::Rate))
        });
        let is_one = limiter.key.is_none() && limiter.mode != Mode::Off;
        let names = 0..limiter.algorithms.len();
        let names = names.map(|rate| limiter.state_names(prefix, Some(instance), rate));
        let names: Vec<_> = names.collect();
        let checks = is_used.checks(limiter, &names);
        let mut metrics = LimiterMetrics::new(&limiter.name, is_one, !limiter.rates.is_empty());
        let key = limiter.margin_name(prefix, instance);
        let before = previous.limiter(&limiter.name).map(|(plan, i)| &plan.limiters[i]);
        let is_cluster = config.store.is_cluster();
        let renamed = Renamed { limiter, names: &names, is_cluster };
        let used = previous.used_states(&limiter.name);
        let (former, forgets) = used.map(|used| renamed.former(used)).unwrap_or_default();
        let now: Vec<_> = former.iter().map(|state| renamed.rule_of(state)).collect();
        let known = before.and_then(|before| before.margin.as_ref());
        let margin = SharedMargin::new(limiter, key);
        let charges = config.routes.iter().flat_map(|route| &route.limiters);
        let mut own = charges.filter(|charge| charge.limiter == i);
        let reserves = own
            .any(|charge| charge.cost.learns())
            .then(|| LearnedReserves::new(limiter.cost_names(prefix, instance)));
        let learned = limiter.learn.map(|_| {
            let known = before.and_then(|before| before.learned.as_ref());
            LearnedLimits::new(limiter.limits_name(prefix, instance), known)
        });
        describe(limiter, &mut metrics);
        let mut plan = Self {
            limiter: limiter.clone(),
            changes: margin.is_some() || learned.is_some(),
            learned,
            margin: margin.map(|margin| margin.taking_over(known)),
            reserves: reserves
                .map(|own| own.taking_over(before.and_then(|before| before.reserves.as_ref()))),
            demand: is_used,
            policies: policies.collect(),
            key_checks: is_used.key_checks(limiter, checks.first()),
            checks,
            names,
            former: Vec::new(),
            forgets,
            waiting: before.map(|before| before.waiting.clone()).unwrap_or_default(),
            metrics,
        };
        plan.rename_taken(&former, &now, [prefix, instance]);
        for &rate in now.iter().flatten() {
            // The former state knows what the one that the rate has now cannot know.
            let counts = |before: &Self| before.counts(&plan.names[rate], &limiter.rates[rate]);
            plan.checks[rate].enforce &= before.is_none_or(counts);
        }
        former.into_iter().zip(now).for_each(|(state, rate)| plan.ask_former(state, rate));
        plan
    }

    /// Gives a state by its period to each rate whose name a `former` state has that is in use, until that one is free; `now`
    /// has the rate of each former state.
    fn rename_taken(
        &mut self,
        former: &[FormerState],
        now: &[Option<usize>],
        [prefix, instance]: [&str; 2],
    ) {
        for (state, rate) in former.iter().zip(now) {
            let taken = self.names.iter().position(|names| *names == state.names);
            let Some(place) = taken.filter(|place| Some(*place) != *rate) else { continue };
            let own = self.limiter.rates.get(place);
            self.names[place] = self.limiter.names(prefix, Some(instance), own);
            self.checks[place].key = self.names[place].of(None).into();
            self.checks[place].overflow = Some(self.names[place].of(Some("#overflow")).into());
        }
    }

    /// Whether the state of these names has all permits of a rate. A former state of that period has them, since requests
    /// ask it, too.
    fn counts(&self, names: &StateNames, rate: &Rate) -> bool {
        let enforces = self.limiter.mode == Mode::Enforce;
        let is_same = |own: &StateNames| own.of(None) == names.of(None);
        let is_former = |own: &FormerState| own.period == Some(rate.period) && is_same(&own.names);
        let mut rates = self.limiter.rates.iter().zip(self.names.iter().zip(&self.checks));
        self.former.iter().any(is_former)
            || rates.any(|(own, (own_names, check))| {
                own.period == rate.period && is_same(own_names) && (check.enforce || !enforces)
            })
    }

    /// Lets requests ask a state from before a change, by the rule that has its period now: the one with index `rate`.
    fn ask_former(&mut self, state: FormerState, rate: Option<usize>) {
        let rule = rate.map_or(state.check.algorithm, |rate| self.limiter.algorithms[rate]);
        let check = Check {
            algorithm: rule,
            enforce: self.limiter.mode == Mode::Enforce,
            horizon: rule.horizon(self.demand.wait, self.demand.cost),
            bounds: match rate {
                Some(_) => self.limiter.bounds().map(Arc::new),
                None => state.check.bounds.clone(),
            },
            blocks: false,
            ..state.check.clone()
        };
        let is_asked = state.is_asked && self.limiter.mode != Mode::Off;
        if is_asked && self.names.contains(&state.names) {
            return;
        }
        if is_asked {
            self.policies.push(rate.map_or(&state.policy, |rate| &self.policies[rate]).clone());
            self.checks.push(check);
            self.names.push(state.names.clone());
        }
        self.former.push(state);
    }

    /// The states in which its permits count.
    pub(super) fn used_states(&self) -> UsedStates {
        let own = self.own_states().filter(|_| self.limiter.mode != Mode::Off);
        let all = self.former.iter().cloned().chain(own).collect();
        UsedStates { limiter: self.limiter.clone(), wait: duration(self.demand.wait), all }.now()
    }

    /// The states of its rates, each until its permits count no more.
    fn own_states(&self) -> impl Iterator<Item = FormerState> {
        let now = Instant::now();
        (0..self.limiter.algorithms.len()).map(move |i| {
            let check = self.renewed(&self.checks[i], i);
            let algorithm = check.algorithm;
            let horizon = algorithm.horizon(self.demand.wait, self.demand.cost);
            let rate = self.limiter.rates.get(i).copied();
            let policy = Policy {
                name: self.limiter.name.clone(),
                quota: rate.map_or(Quota::Concurrency(algorithm.limit()), Quota::Rate),
            };
            FormerState {
                check: Check { horizon, ..check },
                names: self.names[i].clone(),
                policy,
                period: rate.map(|rate| rate.period),
                until: now + duration(horizon + algorithm.window()) + SLACK,
                is_asked: false,
            }
        })
    }

    /// The instant from which a former state is not asked any more; `None` if none is.
    pub(super) fn former_until(&self) -> Option<Instant> {
        self.former.iter().map(|state| state.until).min()
    }

    /// The names of its states, for each of its rates and for each former state.
    pub(crate) fn names(&self) -> &[StateNames] {
        &self.names
    }

    /// The key of a state in the store, if it is a state of this limiter.
    pub(crate) fn key_in<'n>(&self, state: &'n str) -> Option<Option<&'n str>> {
        self.names.iter().find_map(|names| names.key_in(state))
    }

    /// The checks of `cost` permits of the bucket `filled`, one for each rate of the limiter.
    pub fn checks(&self, filled: Option<&str>, cost: i64) -> impl Iterator<Item = Check> {
        let all = self.checks.iter().zip(&self.names).enumerate();
        let own = self.limiter.algorithms.len();
        all.map(move |(rate, (check, names))| {
            // A former state may hold less.
            let cost = if rate < own { cost } else { cost.min(check.algorithm.capacity()) };
            let key = match filled {
                None => check.key.clone(),
                filled => names.of(filled).into(),
            };
            let overflow = check.overflow.clone().filter(|_| filled.is_some());
            let bounds = check.bounds.clone();
            let rule =
                filled.filter(|_| rate == 0).and_then(|key| self.limiter.key_rates.find(key));
            let check = rule.map_or(check, |rule| &self.key_checks[rule]);
            let check = Check { key, cost, bounds, overflow, turn: None, ..*check };
            if !self.changes {
                check
            } else if self.learned.is_none() {
                self.renewed(&check, rate)
            } else if rate == 0 && rule.is_none() {
                self.learned_check(check, filled)
            } else {
                check
            }
        })
    }

    /// The checks of `cost` permits at another rate, as a descriptor of Envoy may name it. They have states of their own, so
    /// that no rate counts what another one granted. A rate that a rule cannot count leaves the rule as it is.
    #[cold]
    pub(crate) fn checks_at(&self, rate: Rate, filled: Option<&str>, cost: i64) -> Vec<Check> {
        let filled = format!("{}@{rate}", filled.unwrap_or_default());
        let count = i64::try_from(rate.count).unwrap_or(i64::MAX);
        let period = rate.period_micros();
        let Demand { wait, cost: most, .. } = self.demand;
        let at = |check: Check| {
            let rate = check.algorithm.as_rate();
            let rate = rate.and_then(|rate| rate.with_rate(count, period, rate.facts().margin));
            let algorithm = rate.map_or(check.algorithm, Rule::Rate);
            let blocks = self.demand.leaves_blocks(&self.limiter, &algorithm);
            let horizon = algorithm.horizon(wait, most);
            Check { algorithm, horizon, period, blocks, bounds: None, ..check }
        };
        self.checks(Some(&filled), cost).map(at).collect()
    }

    /// Gives the checks of a request at this limiter the turn of the request, if it has one here.
    ///
    /// # Errors
    ///
    /// A message for the caller, if its tenant can be read in several ways.
    #[cold]
    pub(super) fn take_turns(
        &self,
        checks: &mut [Check],
        priority: Priority,
        parts: &Parts<'_>,
    ) -> Result<(), String> {
        let turn = self.limiter.turn(priority, parts)?;
        checks.iter_mut().for_each(|check| check.turn.clone_from(&turn));
        Ok(())
    }

    /// The check with the rule of the rate with index `i` that holds now.
    #[cold]
    pub(crate) fn renewed(&self, check: &Check, i: usize) -> Check {
        let margin = self.margin.as_ref().filter(|_| i < self.limiter.algorithms.len());
        let algorithm = margin.map_or(check.algorithm, |margin| margin.algorithm(i).into());
        let Demand { wait, cost, .. } = self.demand;
        Check { algorithm, horizon: algorithm.horizon(wait, cost), ..check.clone() }
    }

    /// The check at the rate that answers have named for the key.
    #[cold]
    fn learned_check(&self, check: Check, key: Option<&str>) -> Check {
        let Some(rate) = self.named_rate(key) else { return check };
        let rule = check.algorithm.as_rate().and_then(|rule| rule.at_rate(rate));
        // The bounds make a rule, and so does each rate between them.
        let algorithm = rule.map_or(check.algorithm, Rule::Rate);
        let Demand { wait, cost, .. } = self.demand;
        let one = Duration::from_nanos(1_000_000_000_000_000_000 / rate.max(1).unsigned_abs());
        let on_failure = self.limiter.without_store_at(Rate { count: 1, period: one });
        let horizon = algorithm.horizon(wait, cost);
        Check { algorithm, horizon, on_failure, ..check }
    }

    /// The rate that answers have named for a key without a written one; `None` if none has.
    pub(crate) fn learned_rate(&self, key: Option<&str>) -> Option<Nanohertz> {
        let is_written = key.is_some_and(|key| self.limiter.key_rates.find(key).is_some());
        if is_written { None } else { self.named_rate(key) }
    }

    fn named_rate(&self, key: Option<&str>) -> Option<Nanohertz> {
        let (learned, bounds) = (self.learned.as_ref()?, self.limiter.learn?);
        Some(learned.rate_of(key)?.clamp(bounds.min, bounds.max))
    }

    /// The check of one permit for each of its rates, with the rules that hold now. Those of a limiter with a key name no
    /// state.
    pub fn current(&self) -> Vec<Check> {
        self.checks(None, 1).collect()
    }

    /// Its margin, if that is learned.
    pub fn margin(&self) -> Option<&Arc<SharedMargin>> {
        self.margin.as_ref()
    }

    /// The description that a refused caller receives, for the rate with index `i` at this `level` of the state `key`: that of the
    /// rate that holds now.
    pub(crate) fn policy(&self, i: usize, key: &str, level: Level) -> Policy {
        let policy = self.policies[i].clone();
        if !self.limiter.key_rates.is_empty()
            && let Some(rate) = self.key_rate(self.names[i].key_in(key).flatten())
        {
            return Policy { quota: Quota::Rate(rate), ..policy };
        }
        if let (Some(learned), Some(start)) =
            (self.learned_rate(self.names[i].key_in(key).flatten()), self.limiter.rates.first())
        {
            return Policy { quota: found_quota(learned, *start), ..policy };
        }
        let start = self.limiter.rates.first().filter(|_| level.rate > 0);
        match start.filter(|_| self.limiter.bounds().is_some()) {
            Some(start) => Policy { quota: found_quota(level.rate, *start), ..policy },
            None => policy,
        }
    }
}

/// A rate that was found, as callers read it: whole permits in the period of `start`, or in a longer one.
fn found_quota(rate: Nanohertz, start: Rate) -> Quota {
    let permits = i128::from(rate) * i128::from(micros(start.period)) / 1_000_000_000_000_000;
    Quota::Rate(match u64::try_from(permits) {
        Ok(count @ 1..) => Rate { count, ..start },
        _ => {
            let period = 1_000_000_000_000_000 / rate.max(1).unsigned_abs();
            Rate { count: 1, period: Duration::from_micros(period) }
        }
    })
}

/// Sets the gauges that say what the limiter grants by its configuration.
fn describe(limiter: &config::LimiterConfig, metrics: &mut LimiterMetrics) {
    let has_quota = metrics.available.is_some() && limiter.algorithms.iter().any(Rule::has_reset);
    metrics.quota = has_quota.then(|| QuotaMetrics::new(&limiter.name));
    let per_second = |rate: &Rate| rate.count as f64 / rate.period.as_secs_f64();
    let slowest = limiter.rates.iter().min_by(|a, b| per_second(a).total_cmp(&per_second(b)));
    if let (Some(rate), Some(gauge), Some(period)) = (slowest, &metrics.rate, &metrics.period) {
        gauge.set(per_second(rate));
        period.set(rate.period.as_secs_f64());
    }
    // A rate that is found grants one by one.
    let one = limiter.bounds().map(|_| 1);
    let capacity = one.or_else(|| limiter.algorithms.iter().map(Rule::limit).min());
    metrics.capacity.set(capacity.unwrap_or_default() as f64);
}

#[cfg(test)]
mod tests;
