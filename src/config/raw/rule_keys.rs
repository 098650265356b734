//! The keys of a limiter besides its rate: which algorithm has which, and their values.

use super::{
    rates::is_auto,
    rules::{Kind, Rule, micros},
};
use crate::config::{
    keys::{LIMITER, algorithms_with},
    reader::{ConfigReader, ConfigSection, Field, positive, span},
    yaml::YamlValue,
};
use std::time::Duration;

const MAX_PERMITS: u64 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MILLISECOND: Duration = Duration::from_millis(1);

impl ConfigReader {
    /// Notes a mistake for each key that belongs to another algorithm. Returns whether one is there.
    pub(super) fn misused(&mut self, section: &ConfigSection<'_>, kind: Kind) -> bool {
        let before = self.mistakes.len();
        let default = if section.get("algorithm").is_none() { ", the default" } else { "" };
        let has_auto_rate = section.get("rate").as_ref().is_some_and(is_auto);
        for key in LIMITER.specs {
            let (key, Some(kinds)) = (key.name, kinds_of(key.name)) else { continue };
            // With `rate: auto`, `max` is the highest rate.
            let is_bound = key == "max" && has_auto_rate && kind.has_auto_rate();
            if let Some(field) = section.get(key).filter(|_| !kinds.contains(&kind) && !is_bound) {
                let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
                let reason = format!(
                    "belongs to algorithm {}, and this limiter is a {}{default}",
                    names.join(" or "),
                    kind.name()
                );
                self.note_at(&field, reason);
            }
        }
        self.mistakes.len() > before
    }

    /// Reads the keys that an algorithm has in addition to its rate.
    pub(super) fn rule(&mut self, section: &ConfigSection<'_>, kind: Kind) -> Option<Rule> {
        let extra = |text: &str| span(text, Duration::ZERO, HOUR);
        let margin = match kind {
            Kind::SlidingWindow | Kind::LeakyBucket => {
                match section.get("margin").as_ref().is_some_and(is_auto) {
                    // An automatic margin begins with none.
                    true => 0,
                    false => micros(self.get(section, "margin", Duration::ZERO, extra)),
                }
            }
            _ => 0,
        };
        Some(match kind {
            Kind::TokenBucket => {
                Rule::TokenBucket { burst: self.get(section, "burst", None, permits) }
            }
            Kind::SlidingWindow => Rule::SlidingWindow { margin },
            Kind::FixedWindow => Rule::FixedWindow,
            Kind::LeakyBucket => {
                let capacity = self.get(section, "capacity", None, permits);
                Rule::LeakyBucket { margin, capacity }
            }
            Kind::WarmUp => {
                let cold_factor = self.get(section, "cold_factor", 3.0, cold_factor);
                let field = self.required(section, "warm_up", ", as in `warm_up: 4s`")?;
                let warm_up = self.scalar(&field, |text| span(text, MILLISECOND, HOUR))?;
                Rule::WarmUp { warm_up: micros(warm_up), cold_factor }
            }
            Kind::Concurrency => {
                let lease = |text: &str| span(text, Duration::from_secs(1), DAY);
                let lease = self.get(section, "lease", Duration::from_secs(60), lease);
                let field = self.required(section, "max", ", as in `max: 4`")?;
                let max = self.scalar(&field, permits)??;
                Rule::Concurrency { max, lease: micros(lease) }
            }
        })
    }
}

/// Whether the limiter in `field` may have a key, as far as its algorithm is known.
pub(super) fn uses(field: &Field<'_>, key: &str) -> bool {
    let kind = match &field.node.value {
        YamlValue::Map(entries) => entries.iter().find(|(key, _)| key.name == "algorithm"),
        _ => None,
    };
    let kind = match kind {
        Some((_, node)) => match &node.value {
            YamlValue::Scalar(scalar) => Kind::parse(&scalar.text).ok(),
            _ => None,
        },
        None => Some(Kind::TokenBucket),
    };
    let learns = match &field.node.value {
        YamlValue::Map(entries) => entries.iter().any(|(key, node)| {
            let rate = Field { path: String::new(), node };
            key.name == "rate" && is_auto(&rate)
        }),
        _ => false,
    };
    if matches!(key, "start" | "min") || (key == "max" && learns) {
        return learns;
    }
    match (kind, kinds_of(key)) {
        (Some(Kind::Concurrency), None) => key != "rate",
        (Some(kind), Some(kinds)) => kinds.contains(&kind),
        _ => true,
    }
}

/// The algorithms that have a key, as its description says; `None` for a key that all of them have, or all with a rate.
fn kinds_of(key: &str) -> Option<Vec<Kind>> {
    let algorithms = algorithms_with(key);
    let named = |kind: &Kind| algorithms.contains(&format!("`{}`", kind.name()));
    let all = || Kind::NAMED.into_iter().map(|(_, kind)| kind);
    match algorithms {
        text if text.is_empty() || text.starts_with("all but") => None,
        "those with `rate: auto`" => Some(all().filter(|kind| kind.has_auto_rate()).collect()),
        _ => Some(all().filter(named).collect()),
    }
}

fn permits(text: &str) -> Result<Option<i64>, String> {
    let permits = positive(text, MAX_PERMITS)?;
    i64::try_from(permits).map(Some).map_err(|_| "is too large".into())
}

fn cold_factor(text: &str) -> Result<f64, &'static str> {
    let reason = "must be a number above 1 and at most 100, as in 3 or 2.5";
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor = text.parse().ok().filter(|factor| digits && *factor > 1.0 && *factor <= 100.0);
    factor.ok_or(reason)
}
