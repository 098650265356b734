//! Reads `limiters`, in their short and their long form, and checks that each key belongs to the algorithm.

use super::rules::{Kind, Rule};
use crate::{
    algorithm::{
        Algorithm, Concurrency,
        auto_margin::AutoMargin,
        auto_rate::{AutoRate, MAX_RATE, MIN_RATE, nanohertz},
    },
    config::{
        keys::LIMITER,
        limiter::{AutoRule, FailurePolicy, LimiterConfig, Mode, Scope},
        reader::{ConfigReader, ConfigSection, Field, join, positive, span},
        settings::StoreConfig,
        unit::{self, Rate},
        yaml::{self, YamlNode, YamlValue},
    },
    key::Template,
    store::OnLoss,
};
use std::time::Duration;

const MAX_RATES: usize = 8;
const MAX_PERMITS: u64 = 1_000_000_000;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const MILLISECOND: Duration = Duration::from_millis(1);

/// The keys that only some algorithms have, with these algorithms.
const USES: &[(&str, &[Kind])] = &[
    ("burst", &[Kind::TokenBucket]),
    ("margin", &[Kind::SlidingWindow, Kind::LeakyBucket]),
    ("capacity", &[Kind::LeakyBucket]),
    ("warm_up", &[Kind::WarmUp]),
    ("cold_factor", &[Kind::WarmUp]),
    ("start", &[Kind::TokenBucket, Kind::SlidingWindow, Kind::LeakyBucket]),
    ("min", &[Kind::TokenBucket, Kind::SlidingWindow, Kind::LeakyBucket]),
    ("max", &[Kind::Concurrency]),
    ("lease", &[Kind::Concurrency]),
];

impl ConfigReader {
    /// Reads all limiters. A limiter with a mistake has no algorithm, and routes may still refer to it.
    pub(super) fn limiters(
        &mut self,
        root: &ConfigSection<'_>,
        store: &StoreConfig,
    ) -> Vec<LimiterConfig> {
        let Some(field) = root.get("limiters") else { return Vec::new() };
        let maps = match &field.node.value {
            // The reading continues, because routes refer to these limiters.
            YamlValue::List(items) => {
                self.note_at(
                    &field,
                    "must be a map of `NAME: RATE` lines; take the `-` before them away",
                );
                items.iter().filter(|item| matches!(item.value, YamlValue::Map(_))).collect()
            }
            _ => vec![field.node],
        };
        let policies = match store {
            StoreConfig::Memory => (FailurePolicy::Share, OnLoss::Close),
            StoreConfig::Redis { on_failure, on_loss, .. } => (*on_failure, *on_loss),
        };
        let mut limiters = Vec::new();
        for node in maps {
            let Some(section) = self.map(&Field { path: field.path.clone(), node }) else {
                continue;
            };
            let named = section.entries.iter();
            limiters
                .extend(named.map(|(key, node)| self.limiter(&section.path, key, node, policies)));
        }
        limiters
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
        let kind = match section.get("algorithm") {
            Some(field) => self.scalar(&field, Kind::parse),
            None => Some(Kind::TokenBucket),
        };
        // The keys that a limiter may have depend on its algorithm, so without one none is checked.
        let Some(kind) = kind else { return limiter };
        self.rules(&section, rate, kind, &mut limiter);
        limiter
    }

    fn rules(
        &mut self,
        section: &ConfigSection<'_>,
        rate: Option<Field<'_>>,
        kind: Kind,
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
        for key in ["start", "min"].into_iter().filter(|_| !learns && kind.has_auto_rate()) {
            if let Some(field) = section.get(key) {
                self.note_at(&field, "belongs to `rate: auto`, and this limiter has another rate");
            }
        }
        let rates = match (&rate, kind) {
            (Some(field), kind) if learns && kind.has_auto_rate() => {
                self.auto_rate(section, field, limiter).into_iter().collect()
            }
            (Some(field), kind) if learns && kind != Kind::Concurrency => {
                let name = kind.name();
                self.note_at(
                    field,
                    format!(
                        "`auto` is for token_bucket, sliding_window and leaky_bucket, and this limiter is a {name}"
                    ),
                );
                Vec::new()
            }
            (None, Kind::Concurrency) => Vec::new(),
            (Some(field), Kind::Concurrency) => {
                let reason =
                    "belongs to the other algorithms; a concurrency limiter has `max` instead";
                self.note_at(field, reason);
                Vec::new()
            }
            (Some(field), _) => self.rates_of(section, field, kind),
            // A user who wrote keys of another algorithm more likely forgot to name that algorithm.
            (None, _) if misused => Vec::new(),
            (None, _) => {
                let reason = "is missing, as in `rate: 5/s`";
                self.note(section.place, &join(&section.path, "rate"), reason);
                Vec::new()
            }
        };
        let Some(rule) = rule.filter(|_| self.mistakes.len() == before) else { return };
        if let Rule::Concurrency { max, lease } = rule {
            match Concurrency::new(max, lease) {
                Some(rule) => limiter.algorithms.push(Algorithm::Concurrency(rule)),
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
                    limiter.algorithms.push(algorithm);
                    limiter.rates.push(rate);
                }
                Err((key, reason)) => {
                    let place = section.get(key).map_or(node.place, |field| field.node.place);
                    self.note(place, &section.path, reason);
                }
            }
        }
        if section.get("margin").as_ref().is_some_and(is_auto) {
            let most = limiter.rates.iter().map(|rate| micros(rate.period)).min();
            match most {
                Some(most) if limiter.auto.is_none() => {
                    limiter.auto = Some(AutoRule::Margin(AutoMargin { most }));
                }
                Some(_) => {
                    let reason =
                        "is learned from the same refusals as `rate: auto`; learn one of the two";
                    let place =
                        section.get("margin").map_or(section.place, |field| field.node.place);
                    self.note(place, &join(&section.path, "margin"), reason);
                }
                None => {}
            }
        }
        if self.mistakes.len() > before {
            limiter.algorithms.clear();
            limiter.rates.clear();
            limiter.auto = None;
        }
    }

    /// Notes a mistake for each key that belongs to another algorithm. Returns whether one is there.
    fn misused(&mut self, section: &ConfigSection<'_>, kind: Kind) -> bool {
        let before = self.mistakes.len();
        let default = if section.get("algorithm").is_none() { ", the default" } else { "" };
        let has_auto_rate = section.get("rate").as_ref().is_some_and(is_auto);
        for (key, kinds) in USES {
            // With `rate: auto`, `max` is the highest rate.
            let is_bound = *key == "max" && has_auto_rate && kind.has_auto_rate();
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
    fn rule(&mut self, section: &ConfigSection<'_>, kind: Kind) -> Option<Rule> {
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
                let field = self.required(section, "warm_up", "as in `warm_up: 4s`")?;
                let warm_up = self.scalar(&field, |text| span(text, MILLISECOND, HOUR))?;
                Rule::WarmUp { warm_up: micros(warm_up), cold_factor }
            }
            Kind::Concurrency => {
                let lease = |text: &str| span(text, Duration::from_secs(1), DAY);
                let lease = self.get(section, "lease", Duration::from_secs(60), lease);
                let field = self.required(section, "max", "as in `max: 4`")?;
                let max = self.scalar(&field, permits)??;
                Rule::Concurrency { max, lease: micros(lease) }
            }
        })
    }

    /// Reads the bounds of an automatic rate, and returns the rate that it starts with.
    fn auto_rate<'n>(
        &mut self,
        section: &ConfigSection<'n>,
        field: &Field<'n>,
        limiter: &mut LimiterConfig,
    ) -> Option<(Rate, &'n YamlNode)> {
        let start = self.required(section, "start", "as in `start: 5/s`")?;
        let start = self.scalar(&start, unit::rate)?;
        let hertz = |rate: Rate| {
            let count = i64::try_from(rate.count).unwrap_or(i64::MAX);
            nanohertz(count, micros(rate.period)).clamp(MIN_RATE, MAX_RATE)
        };
        let first = hertz(start);
        let mut bound = |key, default: i64| {
            self.get(section, key, None, |text| unit::rate(text).map(Some)).map_or(default, hertz)
        };
        // A quota is seldom a hundredth of the first guess, or a thousand times as great.
        let min = bound("min", (first / 100).max(MIN_RATE));
        let max = bound("max", first.saturating_mul(1_000).min(MAX_RATE));
        if !(min..=max).contains(&first) {
            let place = section.get("start").map_or(section.place, |field| field.node.place);
            let reason = "must lie between `min` and `max`";
            self.note(place, &join(&section.path, "start"), reason);
            return None;
        }
        let period = micros(start.period);
        limiter.auto = Some(AutoRule::Rate(AutoRate { start: first, min, max, period }));
        Some((start, field.node))
    }

    fn required<'n>(
        &mut self,
        section: &ConfigSection<'n>,
        key: &str,
        example: &str,
    ) -> Option<Field<'n>> {
        let field = section.get(key);
        if field.is_none() {
            let path = join(&section.path, key);
            self.note(section.place, &path, format!("is missing, {example}"));
        }
        field
    }

    /// Reads the rates of a limiter, and checks that its algorithm can keep as many.
    fn rates_of<'n>(
        &mut self,
        section: &ConfigSection<'_>,
        field: &Field<'n>,
        kind: Kind,
    ) -> Vec<(Rate, &'n YamlNode)> {
        let rates = self.rates(field);
        if rates.len() > 1 && !kind.takes_lists() {
            let reason = format!(
                "is a list, and a {} takes one rate; lists are for token_bucket, sliding_window and \
                 fixed_window",
                kind.name()
            );
            self.note_at(field, reason);
        } else if rates.len() > 1
            && kind == Kind::TokenBucket
            && let Some(burst) = section.get("burst")
        {
            let reason = "needs a single rate; in a list each rate's burst is its own count";
            self.note_at(&burst, reason);
        }
        rates
    }

    /// Reads one rate or a list of them, and returns them with the shortest period first.
    fn rates<'n>(&mut self, field: &Field<'n>) -> Vec<(Rate, &'n YamlNode)> {
        let YamlValue::List(items) = &field.node.value else {
            let rate = self.scalar(field, unit::rate);
            return rate.map(|rate| (rate, field.node)).into_iter().collect();
        };
        if !(1..=MAX_RATES).contains(&items.len()) {
            self.note_at(field, format!("must hold 1 to {MAX_RATES} rates"));
            return Vec::new();
        }
        let mut rates: Vec<(Rate, &YamlNode)> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            if let YamlValue::Map(_) = node.value {
                let reason = "must be a rate alone, as in [5/s, 100/min]; in a list each rate's burst is \
                              its own count";
                self.note_at(&item, reason);
                continue;
            }
            let Some(rate) = self.scalar(&item, unit::rate) else { continue };
            match rates.iter().find(|(other, _)| other.period == rate.period) {
                Some((other, _)) => self.note_at(
                    &item,
                    format!("has the same period as {other}; keep the stricter of the two"),
                ),
                None => rates.push((rate, node)),
            }
        }
        rates.sort_by_key(|(rate, _)| rate.period);
        rates
    }
}

/// Whether the limiter in `field` may have a key, as far as its algorithm is known.
fn uses(field: &Field<'_>, key: &str) -> bool {
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
    let kinds = USES.iter().find(|(name, _)| *name == key).map(|(_, kinds)| *kinds);
    match (kind, kinds) {
        (Some(Kind::Concurrency), None) => key != "rate",
        (Some(kind), Some(kinds)) => kinds.contains(&kind),
        _ => true,
    }
}

/// Whether a value is the word `auto`.
fn is_auto(field: &Field<'_>) -> bool {
    field.scalar().is_some_and(|scalar| &*scalar.text == "auto")
}

/// Whether the rule can be counted at the lowest and at the highest automatic rate.
fn has_bounds(algorithm: &Algorithm, auto: Option<AutoRule>) -> bool {
    let Some(AutoRule::Rate(AutoRate { min, max, .. })) = auto else { return false };
    algorithm.at_rate(min, 1).is_some() && algorithm.at_rate(max, 1).is_some()
}

fn permits(text: &str) -> Result<Option<i64>, String> {
    let permits = positive(text, MAX_PERMITS)?;
    i64::try_from(permits).map(Some).map_err(|_| "is too large".into())
}

/// A span in µs. The longest one here is a day, which fits.
fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn cold_factor(text: &str) -> Result<f64, &'static str> {
    let reason = "must be a number above 1 and at most 100, as in 3 or 2.5";
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let factor = text.parse().ok().filter(|factor| digits && *factor > 1.0 && *factor <= 100.0);
    factor.ok_or(reason)
}
