//! The most that the routes of a configuration ask of a limiter, and the checks that follow from it.

use crate::{
    algorithm::{Algorithm, Micros, Rule},
    config::{Config, LimiterConfig, Mode, Rate},
    key::StateNames,
    limit::micros,
    path::PathRule,
    store::Check,
};
use std::sync::Arc;

/// The most that the routes can ask of a limiter. It bounds the permits that a loss of data can hide.
#[derive(Clone, Copy)]
pub(super) struct Demand {
    /// The longest wait of the requests that use it, µs.
    pub(super) wait: Micros,
    /// The greatest cost of a request that uses it, permits.
    pub(super) cost: i64,
    /// Whether an answer can return permits, by the true cost of its request.
    settles: bool,
}

// === impl Demand ===

impl Demand {
    /// The checks of one permit at each rate of a limiter, whose states have these names.
    pub(super) fn checks(&self, limiter: &LimiterConfig, names: &[StateNames]) -> Vec<Check> {
        let rules = limiter.algorithms.iter().zip(names).enumerate();
        let checks = rules.map(|(rate, (algorithm, names))| Check {
            enforce: limiter.mode == Mode::Enforce,
            horizon: algorithm.horizon(self.wait, self.cost),
            period: limiter.rates.get(rate).map_or(0, Rate::period_micros),
            bounds: limiter.bounds().map(Arc::new),
            on_loss: limiter.on_loss,
            // The name of a state that no request can have, because the hash of a long key has 32 digits. A descriptor may
            // bring a key to a limiter that has none.
            overflow: Some(names.of(Some("#overflow")).into()),
            on_failure: limiter.without_store(rate),
            blocks: self.leaves_blocks(limiter, algorithm),
            ..Check::new(names.of(None), *algorithm).with_floors(limiter.floors)
        });
        checks.collect()
    }

    /// The check of one permit at each rate that some keys have, where `plain` is that of all others.
    pub(super) fn key_checks(&self, limiter: &LimiterConfig, plain: Option<&Check>) -> Vec<Check> {
        let rules = limiter.key_rates.rules().iter().zip(plain.into_iter().cycle());
        let checks = rules.map(|(own, plain)| {
            let algorithm = Rule::Rate(own.rule);
            Check {
                algorithm,
                horizon: algorithm.horizon(self.wait, self.cost),
                period: own.rate.period_micros(),
                on_failure: limiter.without_store_at(own.rate),
                blocks: self.leaves_blocks(limiter, &algorithm),
                ..plain.clone()
            }
        });
        checks.collect()
    }

    /// The demand on the limiter with index `i`, over all routes of `config`.
    pub(super) fn of(i: usize, config: &Config) -> Self {
        let most = config.limiters[i].greatest_capacity();
        let mut all = Self { wait: 0, cost: 1, settles: false };
        for route in &config.routes {
            for charge in route.limiters.iter().filter(|charge| charge.limiter == i) {
                // `hits_addend` multiplies the cost of a descriptor.
                let fixed = charge.cost.fixed().filter(|_| route.path != PathRule::Descriptor);
                let cost = fixed.unwrap_or(most);
                let wait = micros(route.max_wait.max(route.max_wait_cap));
                let has_free = !config.upstreams[route.upstream].throttle.rules.free.is_empty();
                let settles = all.settles || has_free || charge.cost.settle().is_some();
                all = Self { wait: all.wait.max(wait), cost: all.cost.max(cost), settles };
            }
        }
        all
    }

    /// Whether gateways take permits in blocks by a rule of the limiter: from a fast bucket with a written rate that no request
    /// waits for in turns, because a turn is a decision of the store. Large costs and permits that come back would meet the blocks.
    pub(super) fn leaves_blocks(&self, limiter: &LimiterConfig, rule: &Rule) -> bool {
        let is_plain = limiter.mode == Mode::Enforce
            && !limiter.has_turns
            && limiter.bounds().is_none()
            && limiter.learn.is_none();
        is_plain
            && rule.as_rate().is_some_and(Algorithm::is_fast_bucket)
            && !self.settles
            && self.cost <= rule.capacity() / 4
    }
}
