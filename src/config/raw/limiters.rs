//! Reads `limiters`, in their short and their long form, and makes the rules of each.

use super::{rates::is_auto, rule_keys::uses, rules::Rule};
use crate::{
    algorithm::{Algorithm, Concurrency, auto_rate::AutoRate},
    config::{
        keys::{LIMITER, RuleKind},
        limiter::{AutoRule, FailurePolicy, LimiterConfig, Mode, Scope},
        reader::{ConfigReader, ConfigSection, Field, join},
        settings::StoreConfig,
        yaml::{self, YamlNode, YamlValue},
    },
    key::Template,
    store::OnLoss,
};

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
                Some(YamlValue::Map(keys)) if keys.iter().any(|(key, _)| key.name == "name") => {
                    "write `NAME:` in place of `- name: NAME`"
                }
                _ => "take the `-` before them away",
            };
            self.note_at(&field, format!("must be a map of `NAME: RATE` lines; {cure}"));
            return Vec::new();
        }
        let policies = match store {
            StoreConfig::Memory => (FailurePolicy::Share, OnLoss::Close),
            StoreConfig::Redis { on_failure, on_loss, .. } => (*on_failure, *on_loss),
        };
        let Some(section) = self.map(&field) else { return Vec::new() };
        let named = section.entries.iter();
        named.map(|(key, node)| self.limiter(&section.path, key, node, policies)).collect()
    }

    fn limiter(
        &mut self,
        path: &str,
        key: &yaml::Key,
        node: &YamlNode,
        (on_failure, on_loss): (FailurePolicy, OnLoss),
    ) -> LimiterConfig {
        self.name(&join(path, &key.name), key);
        let mut limiter = LimiterConfig {
            name: key.name.clone(),
            algorithms: Vec::new(),
            rates: Vec::new(),
            auto: None,
            key: None,
            fair: None,
            has_turns: false,
            scope: Scope::Cluster,
            mode: Mode::Enforce,
            on_failure,
            on_loss,
            group: String::new(),
            spread: false,
        };
        let field = Field { path: join(path, &key.name), node };
        if node.is_null() {
            self.note(key.place, &field.path, "is missing its rate, as in `search: 5/s`");
            return limiter;
        }
        let (section, rate) = match &node.value {
            YamlValue::Map(_) => {
                let named = |key: &str| uses(&field, key);
                let Some(section) = self.section_with(&field, &LIMITER, named) else {
                    return limiter;
                };
                let rate = section.get("rate");
                (section, rate)
            }
            // The short form: a rate or a list of them, and nothing else.
            _ => {
                let (path, place) = (field.path.clone(), node.place);
                (ConfigSection { path, place, entries: &[], meant: Vec::new() }, Some(field))
            }
        };
        let modes = [("enforce", Mode::Enforce), ("observe", Mode::Observe), ("off", Mode::Off)];
        limiter.mode = self.one_of(&section, "mode", &modes).unwrap_or(Mode::Enforce);
        let scopes = [("cluster", Scope::Cluster), ("instance", Scope::Instance)];
        limiter.scope = self.one_of(&section, "scope", &scopes).unwrap_or(Scope::Cluster);
        limiter.on_failure = self.on_failure(&section).unwrap_or(on_failure);
        limiter.on_loss = self.on_loss(&section).unwrap_or(on_loss);
        limiter.key = self.get(&section, "key", None, |text| Template::parse(text).map(Some));
        limiter.fair = self.fair(&section);
        let kind = match section.get("algorithm") {
            Some(field) => self.scalar(&field, RuleKind::parse),
            None => Some(RuleKind::TokenBucket),
        };
        // The keys that a limiter may have depend on its algorithm, so without one none is checked.
        let Some(kind) = kind else { return limiter };
        self.rules(&section, rate, kind, &mut limiter);
        limiter
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
        let rates = self.rates_for(section, rate.as_ref(), (kind, misused), limiter);
        let Some(rule) = rule.filter(|_| self.mistakes.len() == before) else { return };
        if let Rule::Concurrency { max, lease } = rule {
            match Concurrency::new(max, lease) {
                Some(rule) => limiter.algorithms.push(rule.into()),
                None => self.note(
                    section.place,
                    &section.path,
                    "cannot be counted exactly; use a smaller `max` or a shorter `lease`",
                ),
            }
            return;
        }
        for (rate, node) in rates {
            match rule.at(rate) {
                Ok(algorithm) if learns && !has_bounds(&algorithm, limiter.auto) => {
                    let reason =
                        "cannot be counted exactly between `min` and `max`; use a smaller `burst`";
                    self.note(node.place, &section.path, reason);
                }
                Ok(algorithm) => {
                    limiter.algorithms.push(algorithm.into());
                    limiter.rates.push(rate);
                }
                Err((key, reason)) => {
                    let place = section.get(key).map_or(node.place, |field| field.node.place);
                    self.note(place, &section.path, reason);
                }
            }
        }
        self.auto_margin(section, limiter);
        if self.mistakes.len() > before {
            limiter.algorithms.clear();
            limiter.rates.clear();
            limiter.auto = None;
        }
    }
}

/// Whether the rule can be counted at the lowest and at the highest automatic rate.
fn has_bounds(algorithm: &Algorithm, auto: Option<AutoRule>) -> bool {
    let Some(AutoRule::Rate(AutoRate { min, max, .. })) = auto else { return false };
    algorithm.at_rate(min, 1).is_some() && algorithm.at_rate(max, 1).is_some()
}
