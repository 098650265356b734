//! Reads the rates of a limiter: one, a list of them, or `auto` with its bounds; and `margin: auto`.

use super::rules::micros;
use crate::{
    algorithm::{
        auto_margin::AutoMargin,
        gate::Bounds,
        nanohertz::{MAX_RATE, MIN_RATE},
    },
    config::{
        keys::{Choice, LIMITER, RuleKind},
        limiter::{AutoRule, LimitBounds, LimiterConfig},
        reader::{ConfigReader, ConfigSection, Field, join},
        unit::Rate,
        yaml::{YamlNode, YamlValue},
    },
};

/// A rate, and the value that says it.
#[derive(Clone, Copy)]
pub(super) struct WrittenRate<'n> {
    pub(super) rate: Rate,
    pub(super) node: &'n YamlNode,
}

impl ConfigReader {
    /// Reads the rates that the algorithm of a limiter allows. A limiter with `rate: auto` has one, with which it starts.
    /// `misused` is true if the limiter has keys of another algorithm.
    pub(super) fn rates_for<'n>(
        &mut self,
        section: &ConfigSection<'n>,
        rate: Option<&Field<'n>>,
        kind: RuleKind,
        misused: bool,
        limiter: &mut LimiterConfig,
    ) -> Vec<WrittenRate<'n>> {
        let learns = rate.is_some_and(is_auto);
        let has_bounds = section.get("learn").is_some();
        for key in ["start", "min"].into_iter().filter(|_| !learns && kind.has_auto_rate()) {
            if let Some(field) = section.get(key).filter(|_| key == "start" || !has_bounds) {
                self.note_at(&field, "belongs to `rate: auto`, and this limiter has another rate");
            }
        }
        match (rate, kind) {
            (Some(field), kind) if learns && kind.has_auto_rate() => {
                self.auto_rate(section, field, limiter).into_iter().collect()
            }
            (Some(field), kind) if learns && kind != RuleKind::Concurrency => {
                let name = kind.word();
                self.note_at(
                    field,
                    format!(
                        "`auto` is for token_bucket, sliding_window and leaky_bucket, and this limiter is a {name}"
                    ),
                );
                Vec::new()
            }
            (None, RuleKind::Concurrency) => Vec::new(),
            (Some(field), RuleKind::Concurrency) => {
                let reason =
                    "belongs to the other algorithms; a concurrency limiter has `max` instead";
                self.note_at(field, reason);
                Vec::new()
            }
            (Some(field), _) => self.rates_of(section, field, kind),
            // A user who wrote keys of another algorithm more likely forgot to name that algorithm.
            (None, _) if misused => Vec::new(),
            (None, _) => {
                self.required(section, "rate", ", as in `rate: 5/s`");
                Vec::new()
            }
        }
    }

    /// Reads the bounds of an automatic rate, and returns the rate that it starts with.
    fn auto_rate<'n>(
        &mut self,
        section: &ConfigSection<'n>,
        field: &Field<'n>,
        limiter: &mut LimiterConfig,
    ) -> Option<WrittenRate<'n>> {
        let start: Rate = self.read_required(section, "start", ", as in `start: 5/s`")?;
        let (min, max): (Option<Rate>, Option<Rate>) =
            (self.read(section, "min"), self.read(section, "max"));
        let first = start.nanohertz();
        // A quota is seldom a hundredth of the first guess, or a thousand times as great.
        let least = min.map_or((first / 100).max(MIN_RATE), |min| min.nanohertz());
        let most = max.unwrap_or(Rate { count: start.count.saturating_mul(1_000), ..start });
        let wrong = [("start", Some(start)), ("min", min)].into_iter().find_map(|(key, rate)| {
            let rate = rate.filter(Rate::is_too_slow_to_learn)?;
            Some((key, format!("{rate} is slower than the slowest rate that is learned, 1/11d")))
        });
        let wrong = wrong.or_else(|| match (min, max) {
            (Some(min), _) if first < least => {
                Some(("start", format!("{start} is below `min`, {min}")))
            }
            (_, Some(max)) if first > most.nanohertz() => {
                Some(("start", format!("{start} is above `max`, {max}")))
            }
            _ => None,
        });
        if let Some((key, reason)) = wrong {
            let place = section.get(key).map_or(section.place, |field| field.node.place);
            self.note(place, &join(&section.path, key), reason);
            return None;
        }
        let bounds = Bounds { start: first, min: least, unit: micros(start.period) };
        limiter.auto = Some(AutoRule::Rate { bounds, max: most });
        Some(WrittenRate { rate: start, node: field.node })
    }

    /// Reads `margin: auto`: a margin that is learned, between none and the shortest period.
    pub(super) fn auto_margin(&mut self, section: &ConfigSection<'_>, limiter: &mut LimiterConfig) {
        let Some(field) = section.get("margin").filter(is_auto) else { return };
        let Some(most) = limiter.rates.iter().map(|rate| micros(rate.period)).min() else { return };
        if limiter.auto.is_some() {
            let reason = "is learned from the same refusals as `rate: auto`; learn one of the two";
            self.note_at(&field, reason);
            return;
        }
        limiter.auto = Some(AutoRule::Margin(AutoMargin { most }));
    }

    /// Reads `learn: limit` with its bounds.
    pub(super) fn learn(&mut self, section: &ConfigSection<'_>, limiter: &mut LimiterConfig) {
        let Some(field) = section.get("learn") else { return };
        let word: Option<&str> = self.read(section, "learn");
        let ([rate], [rule], None) = (&limiter.rates[..], &limiter.algorithms[..], limiter.auto)
        else {
            let reason = if limiter.auto.is_some() {
                "cannot go with a rate or a margin that refusals teach; keep one of the two"
            } else {
                "needs a limiter with one `rate`; write a limiter for each of the list"
            };
            return self.note_at(&field, reason);
        };
        let (min, max): (Option<Rate>, Option<Rate>) =
            (self.read(section, "min"), self.read(section, "max"));
        // A quota that is ten times the written one is more likely a mistake.
        let (first, highest) = (rate.nanohertz(), rate.nanohertz().saturating_mul(10));
        let bounds = LimitBounds {
            min: min.map_or((first / 100).max(MIN_RATE), |min| min.nanohertz()),
            max: max.map_or(highest.min(MAX_RATE), |max| max.nanohertz()),
        };
        let at = |rate| rule.as_rate().and_then(|rule| rule.at_rate(rate));
        let reason = if !(bounds.min..=bounds.max).contains(&first) {
            format!("needs a `rate` from `min` to `max`, and {rate} is not")
        } else if bounds.min < MIN_RATE || at(bounds.min).is_none() || at(bounds.max).is_none() {
            "cannot be counted exactly from `min` to `max`; use a smaller `burst`, or a greater `min`".into()
        } else {
            limiter.learn = word.map(|_| bounds);
            return;
        };
        self.note_at(&field, reason);
    }

    /// Reads the rates of a limiter, and checks that its algorithm can keep as many.
    fn rates_of<'n>(
        &mut self,
        section: &ConfigSection<'_>,
        field: &Field<'n>,
        kind: RuleKind,
    ) -> Vec<WrittenRate<'n>> {
        let rates = self.rates(section, field, kind);
        if rates.len() > 1 && !kind.takes_lists() {
            let reason = format!(
                "is a list, and a {} takes one rate; lists are for token_bucket, sliding_window and \
                 fixed_window",
                kind.word()
            );
            self.note_at(field, reason);
        } else if rates.len() > 1
            && kind == RuleKind::TokenBucket
            && let Some(burst) = section.get("burst")
        {
            let reason = "needs a single rate; in a list each rate's burst is its own count";
            self.note_at(&burst, reason);
        }
        rates
    }

    /// Reads one rate or a list of them, and returns them with the shortest period first.
    fn rates<'n>(
        &mut self,
        section: &ConfigSection<'_>,
        field: &Field<'n>,
        kind: RuleKind,
    ) -> Vec<WrittenRate<'n>> {
        let read = |text: &str| kind.read_rate(text, section.get("resets").is_some());
        let YamlValue::List(items) = &field.node.value else {
            let rate = self.scalar(field, read);
            return rate.map(|rate| WrittenRate { rate, node: field.node }).into_iter().collect();
        };
        if let Some([least, most]) = LIMITER.bounds_without("rate", items.len()) {
            self.note_at(field, format!("must hold {least} to {most} rates"));
            return Vec::new();
        }
        let mut rates: Vec<WrittenRate<'_>> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            if let YamlValue::Map(_) = node.value {
                let reason = "must be a rate alone, as in [5/s, 100/min]; in a list each rate's burst is \
                              its own count";
                self.note_at(&item, reason);
                continue;
            }
            let Some(rate) = self.scalar(&item, read) else { continue };
            match rates.iter().find(|other| other.rate.period == rate.period) {
                Some(WrittenRate { rate: other, .. }) => self.note_at(
                    &item,
                    format!("has the same period as {other}; keep the stricter of the two"),
                ),
                None => rates.push(WrittenRate { rate, node }),
            }
        }
        rates.sort_by_key(|written| written.rate.period);
        rates
    }
}

/// Whether a value is the word `auto`.
pub(super) fn is_auto(field: &Field<'_>) -> bool {
    field.scalar().is_some_and(|scalar| &*scalar.text == "auto")
}
