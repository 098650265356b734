//! Reads `limiters`, in their short and their long form, and makes the rules of each.

use super::{
    rates::{WrittenRate, is_auto},
    rule_keys::uses,
    rules::{NoRule, Rule},
};
use crate::{
    algorithm::{Algorithm, Concurrency, fair::Floors},
    config::{
        keys::{LIMITER, RuleKind},
        limiter::{AutoRule, FailurePolicy, LimiterConfig},
        reader::{ConfigReader, ConfigSection, Field, join},
        settings::StoreConfig,
        yaml::{self, YamlNode, YamlValue},
    },
    store::OnLoss,
};
use std::sync::Arc;

impl ConfigReader {
    /// Reads all limiters. A limiter with a mistake has no algorithm, and routes may still refer to it.
    pub(super) fn limiters(
        &mut self,
        root: &ConfigSection<'_>,
        store: &StoreConfig,
    ) -> Vec<LimiterConfig> {
        let Some(field) = root.get("limiters") else { return Vec::new() };
        // Routes may name limiters that this mistake hides.
        self.has_others |= !matches!(field.node.value, YamlValue::Map(_));
        if let YamlValue::List(items) = &field.node.value {
            let cure = match items.first().map(|item| &item.value) {
                Some(YamlValue::Map(keys)) if keys.iter().any(|own| own.key.name == "name") => {
                    "write `NAME:` in place of `- name: NAME`"
                }
                _ => "take the `-` before them away",
            };
            self.note_at(&field, format!("must be a map of `NAME: RATE` lines; {cure}"));
            return Vec::new();
        }
        let Some(section) = self.map(&field) else { return Vec::new() };
        let named = section.entries.iter();
        named.map(|own| self.limiter(&section.path, &own.key, &own.node, store)).collect()
    }

    fn limiter(
        &mut self,
        path: &str,
        key: &yaml::Key,
        node: &YamlNode,
        store: &StoreConfig,
    ) -> LimiterConfig {
        let field = Field { path: join(path, &key.name), node };
        self.name(&field.path, key);
        if node.is_null() {
            self.note(key.place, &field.path, "is missing its rate, as in `search: 5/s`");
            return self.limiter_in(&key.name, &ConfigSection::empty(&LIMITER), store);
        }
        let (section, rate) = match &node.value {
            YamlValue::Map(_) => {
                let named = |key: &str| uses(&field, key);
                let section = self.section_with(&field, &LIMITER, named);
                let section = section.unwrap_or_else(|| ConfigSection::empty(&LIMITER));
                let rate = section.get("rate");
                (section, rate)
            }
            // The short form: a rate or a list of them, and nothing else.
            _ => {
                let path = field.path.clone();
                let empty = ConfigSection::empty(&LIMITER);
                (ConfigSection { path, place: node.place, ..empty }, Some(field))
            }
        };
        let mut limiter = self.limiter_in(&key.name, &section, store);
        let kind = match section.get("algorithm") {
            Some(field) => self.scalar(&field, RuleKind::parse),
            None => Some(RuleKind::TokenBucket),
        };
        // The keys that a limiter may have depend on its algorithm, so without one none is checked.
        let Some(kind) = kind else { return limiter };
        self.rules(&section, rate, kind, &mut limiter);
        limiter
    }

    /// Reads the keys of a limiter that do not depend on its algorithm.
    fn limiter_in(
        &mut self,
        name: &str,
        section: &ConfigSection<'_>,
        store: &StoreConfig,
    ) -> LimiterConfig {
        let (on_failure, on_loss) = match store {
            StoreConfig::Memory => (FailurePolicy::Share, OnLoss::Close),
            StoreConfig::Redis { on_failure, on_loss, .. } => (*on_failure, *on_loss),
        };
        LimiterConfig {
            name: name.to_owned(),
            algorithms: Vec::new(),
            rates: Vec::new(),
            auto: None,
            learn: None,
            calendar: None,
            key: self.read(section, "key"),
            key_rates: Arc::default(),
            rates_from: None,
            unfit_rows: Arc::default(),
            fair: self.fair(section),
            floors: Floors::default(),
            has_turns: false,
            scope: self.read_or_default(section, "scope"),
            mode: self.read_or_default(section, "mode"),
            on_failure: self.read(section, "on_failure").unwrap_or(on_failure),
            on_loss: self.read(section, "on_loss").unwrap_or(on_loss),
            group: String::new(),
            spread: false,
        }
    }

    /// Makes one rule for each rate of a limiter. After a mistake it has none.
    fn rules(
        &mut self,
        section: &ConfigSection<'_>,
        rate: Option<Field<'_>>,
        kind: RuleKind,
        limiter: &mut LimiterConfig,
    ) {
        let before = self.mistakes.len();
        let misused = self.misused(section, kind);
        let learns = rate.as_ref().is_some_and(is_auto);
        let rule = match self.rule(section, kind) {
            // A burst at an unknown rate is refused where an even flow is not.
            Some(Rule::TokenBucket { burst: None }) if learns => {
                Some(Rule::TokenBucket { burst: Some(1) })
            }
            rule => rule,
        };
        let rates = self.rates_for(section, rate.as_ref(), kind, misused, limiter);
        let Some(rule) = rule.filter(|_| self.mistakes.len() == before) else { return };
        let rule = self.with_calendar(section, rule, &rates, limiter);
        if self.mistakes.len() > before {
            return;
        }
        if let Rule::Concurrency { max, lease } = rule {
            match Concurrency::new(max, lease) {
                Some(rule) => {
                    limiter.algorithms.push(rule.into());
                    self.floors(section, limiter);
                }
                None => self.note(
                    section.place,
                    &section.path,
                    "cannot be counted exactly; use a smaller `max` or a shorter `lease`",
                ),
            }
            return;
        }
        for written in rates {
            self.rule_at(section, &rule, written, limiter);
        }
        self.auto_margin(section, limiter);
        self.learn(section, limiter);
        self.key_rates(section, kind, &rule, limiter);
        self.floors(section, limiter);
        self.rates_from(section, kind, &rule, limiter);
        if self.mistakes.len() > before {
            limiter.key_rates = Arc::default();
            limiter.rates_from = None;
            limiter.algorithms.clear();
            limiter.rates.clear();
            limiter.auto = None;
            limiter.learn = None;
            limiter.calendar = None;
        }
    }

    /// Adds the rule at a rate.
    fn rule_at(
        &mut self,
        section: &ConfigSection<'_>,
        rule: &Rule,
        WrittenRate { rate, node }: WrittenRate<'_>,
        limiter: &mut LimiterConfig,
    ) {
        match rule.at(rate) {
            Ok(algorithm) => match at_most(algorithm, limiter.auto) {
                Some(algorithm) => {
                    limiter.algorithms.push(algorithm.into());
                    limiter.rates.push(rate);
                }
                None => {
                    let reason = "cannot be counted exactly up to `max`; use a smaller `burst`";
                    self.note(node.place, &section.path, reason);
                }
            },
            Err(NoRule { key, reason }) => {
                let place = section.get(key).map_or(node.place, |field| field.node.place);
                self.note(place, &section.path, reason);
            }
        }
    }
}

/// The rule at the highest automatic rate, or as it is; `None` if it cannot be counted so.
fn at_most(algorithm: Algorithm, auto: Option<AutoRule>) -> Option<Algorithm> {
    let Some(AutoRule::Rate { max, .. }) = auto else { return Some(algorithm) };
    algorithm.at_rate(max.nanohertz())
}
