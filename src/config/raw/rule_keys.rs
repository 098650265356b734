//! The keys of a limiter besides its rate: which algorithm has which, and their values.

use super::{
    rates::{WrittenRate, is_auto},
    rules::{Rule, micros},
};
use crate::{
    algorithm::Micros,
    config::{
        calendar::{Calendar, Spread},
        keys::{Choice, LIMITER, RuleKind},
        limiter::LimiterConfig,
        reader::{ConfigReader, ConfigSection, Field},
        yaml::{YamlEntry, YamlValue},
    },
};

impl ConfigReader {
    /// Notes a mistake for each key that belongs to another algorithm. Returns whether one is there.
    pub(super) fn misused(&mut self, section: &ConfigSection<'_>, kind: RuleKind) -> bool {
        let before = self.mistakes.len();
        let default = if section.get("algorithm").is_none() { ", the default" } else { "" };
        let has_auto_rate = section.get("rate").as_ref().is_some_and(is_auto);
        let has_bounds = has_auto_rate || section.get("learn").is_some();
        for key in LIMITER.specs {
            let is_right = match (key.rules, key.is_for_auto_rates) {
                // Without `rate: auto` these are another mistake.
                ([], _) => kind.has_auto_rate(),
                (_, true) if has_bounds && kind.has_auto_rate() => true,
                (rules, _) => rules.contains(&kind),
            };
            // A wrong `rate` is noted where rates are read.
            let Some(field) = section.get(key.name).filter(|_| !is_right && key.name != "rate")
            else {
                continue;
            };
            let all = RuleKind::CHOICES.iter().map(|(_, kind)| *kind);
            let names: Vec<_> = match key.rules {
                [] => all.filter(|kind| kind.has_auto_rate()).map(Choice::word).collect(),
                rules => rules.iter().map(|kind| kind.word()).collect(),
            };
            let reason = format!(
                "belongs to algorithm {}, and this limiter is a {}{default}",
                names.join(" or "),
                kind.word()
            );
            self.note_at(&field, reason);
        }
        self.mistakes.len() > before
    }

    /// Reads the keys that an algorithm has in addition to its rate.
    pub(super) fn rule(&mut self, section: &ConfigSection<'_>, kind: RuleKind) -> Option<Rule> {
        Some(match kind {
            RuleKind::TokenBucket => Rule::TokenBucket { burst: self.read(section, "burst") },
            RuleKind::SlidingWindow => Rule::SlidingWindow { margin: self.margin(section) },
            RuleKind::FixedWindow => Rule::FixedWindow { calendar: None },
            RuleKind::LeakyBucket => Rule::LeakyBucket {
                margin: self.margin(section),
                capacity: self.read(section, "capacity"),
            },
            RuleKind::WarmUp => {
                let cold_factor = self.read_by_or_default(section, "cold_factor", cold_factor);
                let warm_up = self.read_required(section, "warm_up", ", as in `warm_up: 4s`")?;
                Rule::WarmUp { warm_up: micros(warm_up), cold_factor }
            }
            RuleKind::Concurrency => {
                let lease = micros(self.read_or_default(section, "lease"));
                let max = self.read_required(section, "max", ", as in `max: 4`")?;
                Rule::Concurrency { max, lease }
            }
        })
    }

    /// Gives windows the instants of the calendar at which they begin, if the limiter has them.
    pub(super) fn with_calendar(
        &mut self,
        section: &ConfigSection<'_>,
        rule: Rule,
        rates: &[WrittenRate<'_>],
        limiter: &mut LimiterConfig,
    ) -> Rule {
        let Rule::FixedWindow { .. } = rule else { return rule };
        limiter.calendar = self.calendar(section, rates);
        Rule::FixedWindow { calendar: limiter.calendar.clone() }
    }

    fn calendar(
        &mut self,
        section: &ConfigSection<'_>,
        rates: &[WrittenRate<'_>],
    ) -> Option<Calendar> {
        let spread: Spread = self.read_or_default(section, "spread");
        let Some(field) = section.get("resets") else {
            if let Some(field) = section.get("spread").filter(|_| spread == Spread::Even) {
                let reason = "needs the end of the windows, as in `resets: \"00:00 UTC\"`";
                self.note_at(&field, reason);
            }
            return None;
        };
        match rates {
            [WrittenRate { rate, .. }] => self
                .scalar(&field, |text| Calendar::parse(text, rate.period))
                .map(|calendar| calendar.spread(spread)),
            _ => {
                let reason = "needs one `rate`; write a limiter for each of the list";
                self.note_at(&field, reason);
                None
            }
        }
    }

    fn margin(&mut self, section: &ConfigSection<'_>) -> Micros {
        // An automatic margin begins with none.
        let is_learned = section.get("margin").as_ref().is_some_and(is_auto);
        if is_learned { 0 } else { micros(self.read_or_default(section, "margin")) }
    }
}

/// Whether the limiter in `field` may have a key, as far as its algorithm is known.
pub(super) fn uses(field: &Field<'_>, key: &str) -> bool {
    let kind = match &field.node.value {
        YamlValue::Map(entries) => entries.iter().find(|own| own.key.name == "algorithm"),
        _ => None,
    };
    let kind = match kind {
        Some(own) => match &own.node.value {
            YamlValue::Scalar(scalar) => RuleKind::parse(&scalar.text).ok(),
            _ => None,
        },
        None => Some(RuleKind::TokenBucket),
    };
    let learns = match &field.node.value {
        YamlValue::Map(entries) => entries.iter().any(|YamlEntry { key, node }| {
            let rate = Field { path: String::new(), node };
            key.name == "rate" && is_auto(&rate)
        }),
        _ => false,
    };
    let Some(key) = LIMITER.specs.iter().find(|own| own.name == key) else { return true };
    let is_of = |kind: RuleKind| key.rules.contains(&kind);
    key.is_for_auto_rates && learns || kind.map_or(!key.rules.is_empty(), is_of)
}

fn cold_factor(text: &str) -> Result<f64, &'static str> {
    let reason = "must be a number above 1 and at most 100, as in 3 or 2.5";
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor = text.parse().ok().filter(|factor| digits && *factor > 1.0 && *factor <= 100.0);
    factor.ok_or(reason)
}
