//! `limiters`: their rules, in short and in long form.

use super::LIMITER;
use crate::{
    algorithm::{Algorithm, TokenBucket},
    config::{
        Limiter, Mode, Rate,
        reader::{Field, NOT_YET, Reader, Section, join, positive, suggest},
        unit,
        yaml::{self, Node, Value},
    },
};
use std::time::Duration;

const LATER_ALGORITHMS: &[&str] =
    &["sliding_window", "fixed_window", "leaky_bucket", "warm_up", "concurrency"];

impl Reader {
    pub(super) fn limiters(&mut self, root: &Section<'_>) -> Vec<Limiter> {
        let Some(section) = root.get("limiters").and_then(|field| self.map(&field)) else {
            return Vec::new();
        };
        let named = section.entries.iter();
        named.map(|(key, node)| self.limiter(&section.path, key, node)).collect()
    }

    fn limiter(&mut self, path: &str, key: &yaml::Key, node: &Node) -> Limiter {
        self.name(&join(path, &key.name), key);
        let stand_in = Rate { count: 1, period: Duration::from_secs(1) };
        let bucket = |rate: Rate, burst: u64| {
            let micros = i64::try_from(rate.period.as_micros()).ok()?;
            TokenBucket::new(i64::try_from(rate.count).ok()?, micros, i64::try_from(burst).ok()?)
        };
        let mut limiter = Limiter {
            name: key.name.clone(),
            algorithm: Algorithm::TokenBucket(TokenBucket::ONE_A_SECOND),
            rate: stand_in,
            mode: Mode::Enforce,
            group: String::new(),
        };
        let field = Field { path: join(path, &key.name), node };
        let (rate, burst) = match &node.value {
            Value::Scalar(_) | Value::Broken => (self.scalar(&field, unit::rate), None),
            Value::List(_) => {
                self.note_at(&field, format!("a list of rates is {NOT_YET}"));
                return limiter;
            }
            Value::Map(_) => {
                let Some(section) = self.section(&field, &LIMITER) else { return limiter };
                let modes =
                    [("enforce", Mode::Enforce), ("observe", Mode::Observe), ("off", Mode::Off)];
                limiter.mode = self.one_of(&section, "mode", &modes).unwrap_or(Mode::Enforce);
                self.get(&section, "algorithm", (), |name| match name {
                    "token_bucket" => Ok(()),
                    name if LATER_ALGORITHMS.contains(&name) => Err(format!("is {NOT_YET}")),
                    name => {
                        Err(suggest(name, LATER_ALGORITHMS.iter().copied().chain(["token_bucket"]))
                            .map_or("is no algorithm; use token_bucket".into(), |hint| {
                                format!("is no algorithm; {hint}")
                            }))
                    }
                });
                let burst = section.get("burst");
                let burst = burst.and_then(|field| {
                    let burst = self.scalar(&field, |text| positive(text, 1_000_000_000))?;
                    Some((burst, field))
                });
                (self.rate(&section), burst)
            }
        };
        let Some(rate) = rate else { return limiter };
        limiter.rate = rate;
        let permits = burst.as_ref().map_or(rate.count, |(burst, _)| *burst);
        match bucket(rate, permits) {
            Some(rule) => limiter.algorithm = Algorithm::TokenBucket(rule),
            None => {
                let place = burst.as_ref().map_or(node.place, |(_, field)| field.node.place);
                let reason = format!(
                    "a bucket of {permits} takes more than 70 years to fill at {rate}; lower `burst`"
                );
                self.note(place, &field.path, reason);
            }
        }
        limiter
    }

    fn rate(&mut self, section: &Section<'_>) -> Option<Rate> {
        let Some(field) = section.get("rate") else {
            self.note(section.place, &join(&section.path, "rate"), "is missing, as in `rate: 5/s`");
            return None;
        };
        if let Value::List(_) = field.node.value {
            self.note_at(&field, format!("a list of rates is {NOT_YET}"));
            return None;
        }
        self.scalar(&field, unit::rate)
    }
}
