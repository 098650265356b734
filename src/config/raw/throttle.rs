//! Reads `throttle` of an upstream.

use crate::{
    config::{
        keys::{RETRY, THROTTLE},
        limiter::LimiterConfig,
        reader::{
            ConfigReader, ConfigSection, Field, LimiterName, MAX_TIMEOUT, bytes, positive, span,
        },
        throttle::{PausedLimiters, RetryConfig, ThrottleConfig},
        unit::Span,
        yaml::YamlValue,
    },
    throttle::{Condition, MIN_PAUSE, Style, ThrottleRules},
};
use std::num::NonZeroU32;

const MAX_CONDITIONS: usize = 32;
const MAX_ATTEMPTS: u64 = 100;
/// The longest body that may be kept for another attempt.
const MAX_BODY: usize = 16 << 20;

impl ConfigReader {
    /// Reads `throttle`: `on`, `off`, or a map.
    pub(super) fn throttle(
        &mut self,
        upstream: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
    ) -> ThrottleConfig {
        let mut throttle = ThrottleConfig::default();
        let Some(field) = upstream.get("throttle") else { return throttle };
        if let YamlValue::Scalar(_) | YamlValue::Broken = field.node.value {
            let choices = [("on", true), ("off", false)];
            throttle.is_on = self.one_of(upstream, "throttle", &choices).unwrap_or(true);
            return throttle;
        }
        if let YamlValue::List(_) = field.node.value {
            self.note_at(
                &field,
                "must be `on`, `off` or a map; conditions are written `when: [429]`",
            );
            return throttle;
        }
        let Some(section) = self.section(&field, &THROTTLE) else { return throttle };
        let style = self.one_of(&section, "style", &Style::NAMED).unwrap_or(Style::Auto);
        throttle.rules = ThrottleRules::new(style, self.conditions(&section));
        let pause = |text: &str| span(text, MIN_PAUSE, MAX_TIMEOUT);
        let rules = &mut throttle.rules;
        rules.max_pause = self.get(&section, "max_pause", rules.max_pause, pause);
        let default = rules.default_pause.min(rules.max_pause);
        rules.default_pause = self.get(&section, "default_pause", default, pause);
        if rules.default_pause > rules.max_pause
            && let Some(field) = section.get("default_pause")
        {
            let reason = format!("is above `max_pause`, which is {}", Span(rules.max_pause));
            self.note_at(&field, reason);
        }
        let learns = self.one_of(&section, "learn", &[("remaining", true), ("off", false)]);
        throttle.rules.learns = learns.unwrap_or(true);
        throttle.pauses = self.paused_limiters(&section, limiters);
        throttle.retry = self.retry(&section);
        throttle
    }

    /// Reads `when`. `None` if it is missing, or after a mistake.
    fn conditions(&mut self, section: &ConfigSection<'_>) -> Option<Vec<Condition>> {
        let field = section.get("when")?;
        let items = self.list(&field)?;
        if !(1..=MAX_CONDITIONS).contains(&items.len()) {
            let hint =
                if items.is_empty() { "; to pass refusals on, write `throttle: off`" } else { "" };
            self.note_at(&field, format!("must hold 1 to {MAX_CONDITIONS} conditions{hint}"));
            return None;
        }
        let mut conditions: Vec<Condition> = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            if let YamlValue::Map(_) = node.value {
                self.note_at(&item, "must be a single value, as in `\"503 with retry-after\"`");
                continue;
            }
            let Some(condition) = self.scalar(&item, Condition::parse) else { continue };
            match conditions.contains(&condition) {
                true => self.note_at(&item, "named twice"),
                false => conditions.push(condition),
            }
        }
        (!conditions.is_empty()).then_some(conditions)
    }

    /// Reads `pauses`: `all`, or the names of limiters.
    fn paused_limiters(
        &mut self,
        section: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
    ) -> PausedLimiters {
        let Some(field) = section.get("pauses") else { return PausedLimiters::All };
        if let YamlValue::Scalar(_) | YamlValue::Broken = field.node.value {
            self.scalar(&field, |text| match text {
                "all" => Ok(()),
                _ if limiters.iter().any(|limiter| limiter.name == text) => {
                    Err("must be `all` or a list, as in `[NAME]`")
                }
                _ => Err("is neither `all` nor a list of limiters"),
            });
            return PausedLimiters::All;
        }
        let Some(items) = self.list(&field) else { return PausedLimiters::All };
        if items.is_empty() {
            self.note_at(&field, "pauses nothing; to pass refusals on, write `throttle: off`");
        }
        let mut paused = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item: Field<'_> = field.item(i, node);
            let named = self.limiter_named(&item, limiters, |_| Ok(()));
            let Some(LimiterName::Known(limiter)) = named else { continue };
            match paused.contains(&limiter) {
                true => self.note_at(&item, "named twice"),
                false => paused.push(limiter),
            }
        }
        PausedLimiters::Some(paused)
    }

    fn retry(&mut self, section: &ConfigSection<'_>) -> RetryConfig {
        let mut retry = RetryConfig::default();
        let Some(field) = section.get("retry") else { return retry };
        if let YamlValue::Scalar(_) = field.node.value {
            self.note_at(&field, "must be a map, as in `{ attempts: 3, max_body: 64KiB }`");
            return retry;
        }
        let Some(section) = self.section(&field, &RETRY) else { return retry };
        retry.attempts = self.get(&section, "attempts", retry.attempts, attempts);
        retry.max_body =
            self.get(&section, "max_body", retry.max_body, |text| bytes(text, 0, MAX_BODY));
        retry
    }
}

fn attempts(text: &str) -> Result<NonZeroU32, String> {
    let attempts = positive(text, MAX_ATTEMPTS)?;
    u32::try_from(attempts).ok().and_then(NonZeroU32::new).ok_or_else(|| "is too large".into())
}
