//! Reads `throttle` of an upstream.

use super::names::LimiterName;
use crate::{
    config::{
        limiter::LimiterConfig,
        reader::{ConfigReader, ConfigSection},
        throttle::{PausedLimiters, RetryConfig, ThrottleConfig},
        unit::Span,
        yaml::YamlValue,
    },
    throttle::{Condition, ThrottleRules},
};
use http::StatusCode;
use std::num::NonZeroU32;

impl ConfigReader {
    /// Reads `throttle`: `on`, `off`, or a map.
    pub(super) fn throttle(
        &mut self,
        upstream: &ConfigSection<'_>,
        limiters: &[LimiterConfig],
    ) -> ThrottleConfig {
        let field = upstream.get("throttle");
        let mut is_on = true;
        match field.as_ref().map(|field| &field.node.value) {
            Some(YamlValue::Scalar(_) | YamlValue::Broken) => {
                is_on = self.read_or_default(upstream, "throttle");
            }
            Some(YamlValue::List(_)) => {
                let reason = "must be `on`, `off` or a map; conditions are written `when: [429]`";
                field.iter().for_each(|field| self.note_at(field, reason));
            }
            Some(YamlValue::Map(_)) | None => {}
        }
        let section = self.long_form(upstream, "throttle");
        let section = section.unwrap_or_else(|| upstream.empty_at("throttle"));
        let style = self.read_or_default(&section, "style");
        let mut rules = ThrottleRules::new(style, self.conditions(&section));
        rules.max_pause = self.read_or_default(&section, "max_pause");
        let default = rules.default_pause.min(rules.max_pause);
        rules.default_pause = self.read(&section, "default_pause").unwrap_or(default);
        if rules.default_pause > rules.max_pause
            && let Some(field) = section.get("default_pause")
        {
            let reason = format!("is above `max_pause`, which is {}", Span(rules.max_pause));
            self.note_at(&field, reason);
        }
        if let Some(free) = self.free(&section, &rules) {
            rules.free = free;
        }
        let learn: &str = self.read_or_default(&section, "learn");
        rules.learns = learn != "off";
        let pauses = self.paused_limiters(&section, limiters);
        ThrottleConfig { is_on, rules, pauses, retry: self.retry(&section) }
    }

    /// Reads `when`. `None` if it is missing, or after a mistake.
    fn conditions(&mut self, section: &ConfigSection<'_>) -> Option<Vec<Condition>> {
        let field = section.get("when")?;
        let items = self.list(&field)?;
        if let Some([least, most]) = section.keys.bounds_without("when", items.len()) {
            let hint =
                if items.is_empty() { "; to pass refusals on, write `throttle: off`" } else { "" };
            self.note_at(&field, format!("must hold {least} to {most} conditions{hint}"));
            return None;
        }
        let conditions = self.distinct(&field, items, |reader, item| {
            if let YamlValue::Map(_) = item.node.value {
                reader.note_at(item, "must be a single value, as in `\"503 with retry-after\"`");
                return None;
            }
            reader.scalar(item, Condition::parse)
        });
        (!conditions.is_empty()).then_some(conditions)
    }

    /// Reads `free`. `None` if it is missing.
    fn free(
        &mut self,
        section: &ConfigSection<'_>,
        rules: &ThrottleRules,
    ) -> Option<Vec<StatusCode>> {
        let field = section.get("free")?;
        let items = self.list(&field)?;
        if let Some([least, most]) = section.keys.bounds_without("free", items.len()) {
            self.note_at(&field, format!("must hold {least} to {most} statuses"));
            return None;
        }
        Some(self.distinct(&field, items, |reader, item| {
            let read = |text: &str| match StatusCode::from_bytes(text.as_bytes()) {
                Ok(status) if rules.refuses_always(status) => {
                    Err("is a refusal by `when`, whose permits count as spent")
                }
                Ok(status) if (200..600).contains(&status.as_u16()) => Ok(status),
                _ => Err("is no status of an answer; write one from 200 to 599, as in `[304]`"),
            };
            reader.scalar(item, read)
        }))
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
        PausedLimiters::Some(self.distinct(
            &field,
            items,
            |reader, item| match reader.limiter_named(item, limiters, |_| Ok(())) {
                Some(LimiterName::Known(limiter)) => Some(limiter),
                Some(LimiterName::Missing(_)) | None => None,
            },
        ))
    }

    fn retry(&mut self, throttle: &ConfigSection<'_>) -> RetryConfig {
        let scalar = throttle.get("retry").filter(|field| field.scalar().is_some());
        if let Some(field) = &scalar {
            self.note_at(field, "must be a map, as in `{ attempts: 3, max_body: 64KiB }`");
        }
        let section = match scalar {
            Some(_) => throttle.empty_at("retry"),
            None => self.section_or_empty(throttle, "retry"),
        };
        let attempts: u32 = self.read_or_default(&section, "attempts");
        RetryConfig {
            attempts: NonZeroU32::new(attempts).unwrap_or(NonZeroU32::MIN),
            max_body: self.read_or_default(&section, "max_body"),
        }
    }
}
