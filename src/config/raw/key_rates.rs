//! Reads `rates` of a limiter: another rate for some of its keys.

use super::rules::Rule;
use crate::config::{
    key_rates::{KeyRule, MOST_PATTERNS},
    keys::{Kind, LIMITER, RuleKind},
    limiter::LimiterConfig,
    reader::{ConfigReader, ConfigSection, Field, join},
    yaml::YamlEntry,
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
        let key = match (&limiter.key, &limiter.auto, &limiter.rates[..]) {
            (None, ..) => {
                Err("needs a `key`, as in `key: \"{header.x-shop}\"`, whose values have the rates")
            }
            (_, Some(_), _) => {
                Err("cannot go with a rate or a margin that is learned; write both as numbers")
            }
            (.., [_, _, ..]) => {
                Err("needs a limiter with one `rate`; write a limiter for each of the list")
            }
            (Some(key), ..) => Ok(key.clone()),
        };
        let key = match key {
            Ok(key) => key,
            Err(reason) => return self.note_at(&field, reason),
        };
        let Some(names) = self.map(&field) else { return };
        let Kind::Map { most, .. } = LIMITER.kind_of("rates") else { return };
        if names.entries.len() as u64 > *most {
            return self.note_at(&field, format!("must have at most {most} names"));
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
            let added = match rule.at(rate) {
                Ok(_) if key.is_secret() && name.name.contains('*') => Err(
                    "is a pattern, and the keys of this limiter are credentials, which are hashed"
                        .into(),
                ),
                Ok(_) if name.name.contains('*') && rates.patterns() >= MOST_PATTERNS => {
                    Err(format!("is one pattern too many; there may be {MOST_PATTERNS}"))
                }
                Ok(rule) if rates.add(key.canonical_name(&name.name), KeyRule { rate, rule }) => {
                    Ok(())
                }
                Ok(_) => Err("names a key that has a rate already".into()),
                Err(wrong) => Err(wrong.reason),
            };
            if let Err(reason) = added {
                self.note(name.place, &item.path, reason);
            }
        }
    }
}
