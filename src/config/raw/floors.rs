//! Reads `floors` of a limiter: the permits that it keeps back for requests of higher priorities.

use crate::{
    algorithm::{
        Rule,
        fair::{Floor, Floors, Priority},
    },
    config::{
        limiter::LimiterConfig,
        reader::{ConfigReader, ConfigSection},
        unit,
        yaml::YamlValue,
    },
};

/// The most permits of a floor.
const MOST: u64 = 1_000_000_000;

impl ConfigReader {
    /// Reads `floors` of a limiter whose rules are known.
    pub(super) fn floors(&mut self, section: &ConfigSection<'_>, limiter: &mut LimiterConfig) {
        let Some(field) = section.get("floors") else { return };
        if let YamlValue::Scalar(_) | YamlValue::List(_) = field.node.value {
            return self.note_at(&field, "must be a map, as in `floors: { high: 20% }`");
        }
        if limiter.bounds().is_some() {
            let reason = "cannot go with `rate: auto`, whose permits flow one after the other; write the rate as a number";
            return self.note_at(&field, reason);
        }
        let Some(section) = self.section_at(section, "floors") else { return };
        let floors = Floors {
            high: self.read_by(&section, "high", floor),
            normal: self.read_by(&section, "normal", floor),
        };
        let key_rules = limiter.key_rates.rules().iter().map(|own| Rule::Rate(own.rule));
        let mut rules = limiter.algorithms.iter().copied().chain(key_rules);
        let kept = |rule: &Rule| floors.kept_from(Priority::Low, rule.limit());
        if let Some(rule) = rules.find(|rule| kept(rule) >= rule.limit()) {
            let (kept, capacity) = (kept(&rule), rule.limit());
            let cure = match rule {
                Rule::Permits(_) => "a greater `max`",
                Rule::Rate(_) => "a greater `burst` or rate",
            };
            let reason = format!(
                "keeps back {kept} of {capacity} permits, so that requests of lower priorities never pass; write a smaller \
                 floor or {cure}"
            );
            return self.note_at(&field, reason);
        }
        limiter.floors = floors;
    }
}

fn floor(text: &str) -> Result<Floor, String> {
    const FORMS: &str =
        "a floor is a number of permits, such as `2`, or a part of all, from `1%` to `99%`";
    let read = |text: &str, most| match unit::whole(text.trim_end()) {
        Ok(number @ 1..) if number <= most => Ok(number.cast_signed()),
        _ => Err(format!("is no floor; {FORMS}")),
    };
    match text.strip_suffix('%') {
        Some(percent) => read(percent, 99).map(Floor::Percent),
        None => read(text, MOST).map(Floor::Permits),
    }
}
