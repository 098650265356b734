//! A limiter as the configuration describes it, and the names of its states in the store. Holds no state.

use super::{
    calendar::Calendar,
    fair::{FairSharing, no_tenant},
    key_rates::{KeyRule, KeyedRates},
    keys::Choice,
    rate_rows::{RatesFrom, UnfitRow},
    unit::Rate,
};
use crate::{
    algorithm::{
        Rule,
        auto_margin::AutoMargin,
        fair::{Floors, Priority},
        gate::Bounds,
        nanohertz::Nanohertz,
    },
    key::{Cost, Parts, StateNames, Template},
    store::{self, OnLoss, Turn},
};
use paceway_limit::rate::largest;
use std::{borrow::Cow, slice, sync::Arc, time::Duration};

/// A limiter under `limiters`: its rules, its buckets, and its behaviour without the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterConfig {
    /// The name in metrics, logs and the store.
    pub name: String,
    /// The rules, one for each rate. A concurrency limiter has one rule.
    pub algorithms: Vec<Rule>,
    /// The rates as the user writes them, the shortest period first, no period twice. A concurrency limiter has none.
    pub rates: Vec<Rate>,
    /// The part of the rule that is learned from the upstream's answers. With `rate: auto`, `rates` has the first one.
    pub auto: Option<AutoRule>,
    /// The bounds of rates that answers name, if these count.
    pub learn: Option<LimitBounds>,
    /// The instants at which its windows begin, if they are those of a calendar.
    pub calendar: Option<Calendar>,
    /// The template that assigns requests to buckets; `None` means one bucket for all requests.
    pub key: Option<Template>,
    /// The keys that have another rate.
    pub key_rates: Arc<KeyedRates>,
    /// Where more of these rates come from; `None` for nowhere.
    pub rates_from: Option<Arc<RatesFrom>>,
    /// The rows of `rates_from` that it cannot have.
    pub unfit_rows: Arc<[UnfitRow]>,
    /// The tenants that share its slots; `None` means first come, first served.
    pub fair: Option<FairSharing>,
    /// The permits that requests of lower priorities leave to those of higher ones.
    pub floors: Floors,
    /// Whether its waiting requests take turns, by `fair`, by the priorities of routes or by floors.
    pub has_turns: bool,
    /// The gateways that share its state: all of them, or none.
    pub scope: Scope,
    /// Whether it holds and refuses requests, only counts them, or does nothing.
    pub mode: Mode,
    /// Its behaviour while the store gives no decisions.
    pub on_failure: FailurePolicy,
    /// Its behaviour after the store has lost states, or may have.
    pub on_loss: OnLoss,
    /// The hash tag of its keys. Limiters that some request uses together have one tag in a Redis Cluster, where they need
    /// one slot for one call. With any other store it is the limiter's name.
    pub group: String,
    /// Whether each key has its own hash tag, so that a Cluster spreads the keys. Only for a limiter that is alone in its
    /// group.
    pub spread: bool,
}

/// The part of a rule that gateways learn from the answers of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoRule {
    /// `rate: auto`: the rate, within its bounds. The rule is that of the highest one.
    Rate {
        /// The first and the lowest rate.
        bounds: Bounds,
        /// The highest rate.
        max: Rate,
    },
    /// `margin: auto`: the margin.
    Margin(AutoMargin),
}

/// The lowest and the highest rate that `learn: limit` takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitBounds {
    /// The lowest rate.
    pub min: Nanohertz,
    /// The highest rate.
    pub max: Nanohertz,
}

/// The gateways that share the state of a limiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All gateways on one store share the state, so that the rule holds for all of them together.
    Cluster,
    /// Each gateway has its own state and grants the whole rule.
    Instance,
}

/// A limiter that a request is charged to, and the cost of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Charge {
    /// The limiter, as an index into [`Config::limiters`](super::settings::Config::limiters).
    pub limiter: usize,
    /// The permits that a request takes, at most the capacity of the limiter.
    pub cost: Cost,
}

/// Whether a limiter enforces its decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The limiter holds and refuses requests.
    Enforce,
    /// The limiter decides and counts, but never holds or refuses a request.
    Observe,
    /// The limiter is not asked.
    Off,
}

/// The behaviour of a limiter while the store gives no decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Each gateway enforces its share: the rule divided by the number of gateways.
    Share,
    /// Requests pass without a decision.
    Allow,
    /// Requests are refused with 503.
    Reject,
}

// === impl LimiterConfig ===

impl LimiterConfig {
    /// Whether the limiter counts the calls of each account, or of each quota of accounts, alone.
    pub fn is_of_accounts(&self) -> bool {
        self.key.as_ref().is_some_and(Template::names_account)
    }

    /// Returns the greatest cost in permits that the limiter can grant at once, for example the burst of a token bucket; to keys
    /// without a rate of their own.
    pub fn capacity(&self) -> i64 {
        self.algorithms.iter().map(Rule::capacity).min().unwrap_or(i64::MAX)
    }

    /// Returns the most permits that exist at one time.
    pub fn most_permits(&self) -> i64 {
        self.algorithms.iter().map(Rule::limit).min().unwrap_or(i64::MAX)
    }

    /// Returns the greatest cost in permits that the limiter can grant at once to each key.
    pub fn least_capacity(&self) -> i64 {
        let keys = self.key_rates.rules().iter().map(|own| own.rule.capacity());
        keys.fold(self.capacity(), i64::min)
    }

    /// Returns the greatest cost in permits that the limiter can grant at once to some key.
    pub fn greatest_capacity(&self) -> i64 {
        let keys = self.key_rates.rules().iter().map(|own| own.rule.capacity());
        keys.fold(self.capacity(), i64::max)
    }

    /// Returns the limiter as a key has it: with the rate of that key.
    pub fn of_key(&self, key: Option<&str>) -> Cow<'_, Self> {
        match key.and_then(|key| self.key_rates.find(key)) {
            None => Cow::Borrowed(self),
            Some(rule) => {
                let KeyRule { rate, rule } = self.key_rates.rules()[rule];
                let key_rates = Arc::default();
                let (algorithms, rates) = (vec![rule.into()], vec![rate]);
                Cow::Owned(Self { algorithms, rates, key_rates, ..self.clone() })
            }
        }
    }

    /// Returns the turn of a request among those that wait; `None` if the limiter serves them first come, first served.
    ///
    /// # Errors
    ///
    /// Those of [`Template::fill`].
    pub fn turn(&self, priority: Priority, parts: &Parts<'_>) -> Result<Option<Turn>, String> {
        let Some(fair) = self.fair.as_ref().filter(|_| self.has_turns) else {
            return Ok(self.turn_of_all(priority));
        };
        let tenant = fair.tenant(parts)?;
        let weight = fair.weight(&tenant);
        Ok(Some(Turn::new(tenant, weight, priority)))
    }

    /// Returns the turn of every request of this priority; `None` if turns depend on more, or if there are none.
    pub fn turn_of_all(&self, priority: Priority) -> Option<Turn> {
        let is_shared = self.has_turns && self.fair.is_none();
        is_shared.then(|| Turn::new(no_tenant(), 1, priority))
    }

    /// Returns the names of the states in the store for the rate with index `part`. `instance` is the gateway's id, which is
    /// part of the names with `scope: instance`. All states that one request needs in a Cluster have one hash tag.
    ///
    /// One rate of a list has the name that it would have alone: that of the longest period up to a second, or else that of
    /// the shortest. The others have their periods appended, so that a rate which is added or removed renames few others.
    pub fn state_names(&self, prefix: &str, instance: Option<&str>, part: usize) -> StateNames {
        let is_short = |rate: &Rate| rate.period <= Duration::from_secs(1);
        let is_plain = part == self.rates.iter().rposition(is_short).unwrap_or(0);
        self.names(prefix, instance, self.rates.get(part).filter(|_| !is_plain))
    }

    /// Returns the names of the states of a rate by its period; those of the limiter alone for `None`.
    pub fn names(&self, prefix: &str, instance: Option<&str>, rate: Option<&Rate>) -> StateNames {
        let mut name = self.name.clone();
        if let Some(rate) = rate {
            let (number, unit) = largest(rate.period);
            name.push_str(&format!("/{number}{unit}"));
        }
        if let (Scope::Instance, Some(instance)) = (self.scope, instance) {
            name.push('@');
            name.push_str(instance);
        }
        let letter = self.algorithms.first().map_or(b'-', Rule::letter);
        let names = StateNames::new(prefix, &self.group, letter, &name);
        if self.spread { names.spread() } else { names }
    }

    /// Returns what the rule of the rate with index `part` does while the store gives no decisions. With `scope: instance`
    /// the gateway continues with the whole rule, because no other gateway shares it.
    pub fn without_store(&self, part: usize) -> store::OnFailure {
        let period = match self.auto {
            // A share is at least the lowest rate.
            Some(AutoRule::Rate { bounds, .. }) => {
                Duration::from_nanos(1_000_000_000_000_000_000 / bounds.min.max(1).unsigned_abs())
            }
            _ => self.rates.get(part).map_or(Duration::MAX, |rate| rate.period),
        };
        self.without_store_in(period)
    }

    /// The same for keys with a rate of their own.
    pub fn without_store_at(&self, rate: Rate) -> store::OnFailure {
        self.without_store_in(rate.period)
    }

    fn without_store_in(&self, period: Duration) -> store::OnFailure {
        match (self.on_failure, self.scope) {
            (FailurePolicy::Share, Scope::Cluster) => store::OnFailure::Share {
                period: i64::try_from(period.as_micros()).unwrap_or(i64::MAX),
            },
            (FailurePolicy::Share, Scope::Instance) => store::OnFailure::Whole,
            (FailurePolicy::Allow, _) => store::OnFailure::Allow,
            (FailurePolicy::Reject, _) => store::OnFailure::Reject,
        }
    }

    /// The highest rates, the shortest period first: those of the file, or `max` of `rate: auto`.
    pub fn highest(&self) -> &[Rate] {
        match &self.auto {
            Some(AutoRule::Rate { max, .. }) => slice::from_ref(max),
            _ => &self.rates,
        }
    }

    /// The bounds of `rate: auto`.
    pub fn bounds(&self) -> Option<Bounds> {
        match self.auto {
            Some(AutoRule::Rate { bounds, .. }) => Some(bounds),
            _ => None,
        }
    }

    /// Returns the key under which gateways share the margin that they have learned, such as `paceway:{search}:A:search`.
    pub fn margin_name(&self, prefix: &str, instance: &str) -> String {
        self.learned_names(prefix, instance, b'A').of(None)
    }

    /// Returns the key under which gateways share the rates that answers have named, such as `paceway:{seller}:N:seller`.
    pub fn limits_name(&self, prefix: &str, instance: &str) -> String {
        self.learned_names(prefix, instance, b'N').of(None)
    }

    /// Returns the keys under which gateways share the costs that they have learned, such as `paceway:{tokens}:R:tokens:acme`.
    pub fn cost_names(&self, prefix: &str, instance: &str) -> StateNames {
        self.learned_names(prefix, instance, b'R')
    }

    fn learned_names(&self, prefix: &str, instance: &str, letter: u8) -> StateNames {
        let mut name = self.name.clone();
        if self.scope == Scope::Instance {
            name.push('@');
            name.push_str(instance);
        }
        // A change of the routes changes the group, and the limiter must not forget what it has learned then.
        StateNames::new(prefix, &self.name, letter, &name)
    }

    /// Lists the rates that can never bind, each with one that is always stricter: `10/s` never binds beside `60/min`.
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
    /// The value of `scope` in the configuration.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl Choice for Scope {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("cluster", Self::Cluster), ("instance", Self::Instance)];
}

// === impl FailurePolicy ===

impl FailurePolicy {
    /// The value of `on_failure` in the configuration.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl Choice for FailurePolicy {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("share", Self::Share), ("allow", Self::Allow), ("reject", Self::Reject)];
}

impl Choice for OnLoss {
    const CHOICES: &'static [(&'static str, Self)] = &Self::NAMED;
}

// === impl Mode ===

impl Mode {
    /// The value of `mode` in the configuration.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl Choice for Mode {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("enforce", Self::Enforce), ("observe", Self::Observe), ("off", Self::Off)];
}
