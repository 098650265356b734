//! A limiter as configured, and the names of its states. Holds none.

use super::Rate;
use crate::{
    algorithm::Algorithm,
    key::{Cost, StateNames, Template},
    store,
};
use std::time::Duration;

/// A named limiter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limiter {
    /// Name in metrics, logs and the store.
    pub name: String,
    /// The rules, one for each rate; of a concurrency limiter the only one.
    pub algorithms: Vec<Algorithm>,
    /// As the user says them, the shortest period first, none twice; a concurrency limiter has none.
    pub rates: Vec<Rate>,
    /// Which bucket a request belongs to; `None`: one for all.
    pub key: Option<Template>,
    /// Who shares its state.
    pub scope: Scope,
    /// Whether it holds, counts, or does nothing.
    pub mode: Mode,
    /// What it does while the store gives no decisions.
    pub on_failure: OnFailure,
    /// The hash tag of its keys. Limiters that some request uses together carry the same one in a Redis Cluster (one
    /// slot, one call) and in memory (one lock). On one Redis server it is the limiter's own name.
    pub group: String,
    /// Its keys have tags of their own, so that a cluster spreads them: it is alone in its group.
    pub spread: bool,
}

/// Who shares the state of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All gateways on one store.
    Cluster,
    /// Nobody: each gateway has its own.
    Instance,
}

/// A limiter that a request is charged to, and for how much.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Charge {
    /// Index into [`Config::limiters`](super::Config::limiters).
    pub limiter: usize,
    /// At most the limiter's capacity.
    pub cost: Cost,
}

/// What a limiter does with its decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Holds and refuses.
    Enforce,
    /// Decides and counts, never holds or refuses.
    Observe,
    /// Nothing.
    Off,
}

/// What a limiter does while the store gives no decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// Each gateway enforces its share.
    Share,
    /// Requests pass.
    Allow,
    /// Requests are refused.
    Reject,
}

// === impl Limiter ===

impl Limiter {
    /// The greatest cost that it can ever grant, permits.
    pub fn capacity(&self) -> i64 {
        let capacity = |algorithm: &Algorithm| match algorithm {
            Algorithm::Concurrency(_) => 1,
            rule => rule.capacity(),
        };
        self.algorithms.iter().map(capacity).min().unwrap_or(i64::MAX)
    }

    /// The names of its states in the store: of the rate with index `part`, in gateway `instance`. All states that one
    /// request needs have one hash tag.
    pub fn state_names(&self, prefix: &str, instance: Option<&str>, part: usize) -> StateNames {
        let mut name = self.name.clone();
        if part > 0 {
            name.push_str(&format!("/{part}"));
        }
        if let (Scope::Instance, Some(instance)) = (self.scope, instance) {
            name.push('@');
            name.push_str(instance);
        }
        let letter = self.algorithms.first().map_or(b'-', Algorithm::letter);
        let names = StateNames::new(prefix, &self.group, letter, &name);
        if self.spread { names.spread() } else { names }
    }

    /// What the rule of the rate with index `part` does then: of a limiter that nobody shares all is its own.
    pub fn without_store(&self, part: usize) -> store::OnFailure {
        let period = self.rates.get(part).map_or(Duration::MAX, |rate| rate.period);
        match (self.on_failure, self.scope) {
            (OnFailure::Share, Scope::Cluster) => store::OnFailure::Share {
                period: i64::try_from(period.as_micros()).unwrap_or(i64::MAX),
            },
            (OnFailure::Share, Scope::Instance) => store::OnFailure::Whole,
            (OnFailure::Allow, _) => store::OnFailure::Allow,
            (OnFailure::Reject, _) => store::OnFailure::Reject,
        }
    }

    /// Rates that can never bind, each with one that is always stricter.
    pub(super) fn idle_rates(&self) -> impl Iterator<Item = (Rate, Rate)> {
        self.rates.iter().filter_map(|rate| {
            let mut others = self.rates.iter().filter(|other| other.period != rate.period);
            let stricter = others.find(|other| other.implies(rate))?;
            Some((*rate, *stricter))
        })
    }
}

// === impl Scope ===

impl Scope {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Instance => "instance",
        }
    }
}

// === impl OnFailure ===

impl OnFailure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Share, Self::Allow, Self::Reject];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::Allow => "allow",
            Self::Reject => "reject",
        }
    }
}

// === impl Mode ===

impl Mode {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}
