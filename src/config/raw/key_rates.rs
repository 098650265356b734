//! Reads `rates` of a limiter: another rate for some of its keys.

use super::rules::Rule;
use crate::{
    config::{
        key_rates::{KeyRule, KeyedRates, MOST_PATTERNS},
        keys::{Kind, LIMITER, RuleKind},
        limiter::LimiterConfig,
        reader::{ConfigReader, ConfigSection, Field, join},
        unit::Rate,
        yaml::YamlEntry,
    },
    key::Template,
};
use std::sync::Arc;

impl ConfigReader {
    /// Reads the rates of some keys, each with the rule that the limiter would have at it.
    pub(super) fn key_rates(
        &mut self,
        section: &ConfigSection<'_>,
        kind: RuleKind,
        rule: &Rule,
        limiter: &mut LimiterConfig,
    ) {
        let Some(field) = section.get("rates") else { return };
        let Some(key) = self.key_of_rates(&field, limiter) else { return };
        let Some(names) = self.map(&field) else { return };
        let Kind::Map { most, .. } = LIMITER.kind_of("rates") else { return };
        if names.entries.len() as u64 > *most {
            let reason = format!("must have at most {most} names; `rates_from` takes more");
            return self.note_at(&field, reason);
        }
        let rates = Arc::make_mut(&mut limiter.key_rates);
        for YamlEntry { key: name, node } in names.entries {
            // A name that is a credential is quoted by no message.
            let said = if key.is_secret() { "***" } else { &name.name };
            let item = Field { path: join(&names.path, said), node };
            let Some(rate) =
                self.scalar(&item, |text| kind.read_rate(text, limiter.calendar.is_some()))
            else {
                continue;
            };
            let added = rates
                .rule_for(rate, rule)
                .and_then(|rule| rates.add_named(&key, &name.name, rule, MOST_PATTERNS));
            if let Err(reason) = added {
                self.note(name.place, &item.path, reason);
            }
        }
    }

    /// The key of a limiter whose keys may have other rates; `None` after a mistake.
    pub(super) fn key_of_rates(
        &mut self,
        field: &Field<'_>,
        limiter: &LimiterConfig,
    ) -> Option<Template> {
        let reason = match (&limiter.key, &limiter.auto, &limiter.rates[..]) {
            (None, ..) => {
                "needs a `key`, as in `key: \"{header.x-shop}\"`, whose values have the rates"
            }
            (_, Some(_), _) => {
                "cannot go with a rate or a margin that is learned; write both as numbers"
            }
            (.., [_, _, ..]) => {
                "needs a limiter with one `rate`; write a limiter for each of the list"
            }
            (Some(key), ..) => return Some(key.clone()),
        };
        self.note_at(field, reason);
        None
    }
}

// === impl KeyedRates ===

impl KeyedRates {
    /// The rate of a key with the rule of a limiter at it. Many keys have one rate.
    ///
    /// # Errors
    ///
    /// The reason why there is no such rule.
    pub(in crate::config) fn rule_for(&self, rate: Rate, rule: &Rule) -> Result<KeyRule, String> {
        let rule = self.rule_at(rate).map_or_else(|| rule.at(rate), Ok);
        rule.map(|rule| KeyRule { rate, rule }).map_err(|wrong| wrong.reason)
    }

    /// Sets the rate of a key or of a pattern as the user writes it. At most so many patterns.
    ///
    /// # Errors
    ///
    /// The reason why it cannot have the rate.
    pub(in crate::config) fn add_named(
        &mut self,
        key: &Template,
        name: &str,
        rule: KeyRule,
        patterns: usize,
    ) -> Result<(), String> {
        let is_pattern = name.contains('*');
        if is_pattern && key.is_secret() {
            let reason =
                "is a pattern, and the keys of this limiter are credentials, which are hashed";
            return Err(reason.into());
        }
        if is_pattern && self.patterns() >= patterns {
            return Err(format!("is one pattern too many; there may be {MOST_PATTERNS}"));
        }
        if self.add(key.canonical_name(name), rule) {
            Ok(())
        } else {
            Err("names a key that has a rate already".into())
        }
    }
}
