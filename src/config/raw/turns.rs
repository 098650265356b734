//! Reads `fair` of a limiter and `priority` of a route, and finds the limiters whose requests take turns.

use crate::{
    algorithm::{Rule, fair::Priority},
    config::{
        fair::{FairSharing, PRIORITIES, PriorityRule},
        keys::{FAIR, Kind},
        limiter::{LimiterConfig, Mode},
        reader::{ConfigReader, ConfigSection, Field, join},
        settings::Route,
        value::Value,
        yaml::{YamlEntry, YamlValue},
    },
    key::Template,
    suggest::suggest,
};
use http::HeaderName;
use std::collections::{BTreeMap, HashSet};

impl ConfigReader {
    /// Reads `fair` of a limiter.
    pub(super) fn fair(&mut self, section: &ConfigSection<'_>) -> Option<FairSharing> {
        let field = section.get("fair")?;
        if let YamlValue::Scalar(_) | YamlValue::List(_) = field.node.value {
            self.note_at(&field, "must be a map, as in `fair: { by: \"{header.x-team}\" }`");
            return None;
        }
        let section = self.section_at(section, "fair")?;
        let by = self.read_required(&section, "by", ", as in `by: \"{header.x-team}\"`");
        let weights = match section.get("weights") {
            Some(field) => self.weights(&field, by.as_ref()),
            None => BTreeMap::new(),
        };
        Some(FairSharing { by: by?, weights })
    }

    fn weights(&mut self, field: &Field<'_>, by: Option<&Template>) -> BTreeMap<String, i64> {
        let mut weights = BTreeMap::new();
        let Some(section) = self.map(field) else { return weights };
        let Kind::Map { most, of, .. } = FAIR.kind_of("weights") else { return weights };
        if section.entries.len() as u64 > *most {
            self.note_at(field, format!("must have at most {most} weights"));
            return weights;
        }
        // A name that is a credential is quoted by no message.
        let is_secret = by.is_some_and(Template::is_secret);
        for YamlEntry { key, node } in section.entries {
            let name = if is_secret { "***" } else { &key.name };
            let item = Field { path: join(&section.path, name), node };
            let Some(weight) = self.scalar(&item, |text| i64::read(text, of)) else { continue };
            // A request brings the name in this form.
            let name = by.map_or_else(|| key.name.clone(), |by| by.canonical(&key.name));
            if weights.insert(name, weight).is_some() {
                self.note(key.place, &item.path, "names a tenant that has a weight already");
            }
        }
        weights
    }

    /// Reads `priority` of a route.
    pub(super) fn priority(&mut self, section: &ConfigSection<'_>) -> PriorityRule {
        self.read_by_or_default(section, "priority", priority)
    }
}

fn priority(text: &str) -> Result<PriorityRule, String> {
    const FORMS: &str = "a priority is high, normal or low, or rfc9218, or a header of trusted callers, as in \
                         `\"{header.x-priority}\"`";
    match PRIORITIES.iter().find(|(name, _)| *name == text) {
        Some((_, Priority::High)) => return Ok(PriorityRule::High),
        Some((_, Priority::Normal)) => return Ok(PriorityRule::Normal),
        Some((_, Priority::Low)) => return Ok(PriorityRule::Low),
        None => {}
    }
    if text == "rfc9218" {
        return Ok(PriorityRule::Rfc9218);
    }
    if text.contains(['{', '}']) {
        let name = text.strip_prefix("{header.").and_then(|rest| rest.strip_suffix('}'));
        let name = name.and_then(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        return name.map(PriorityRule::Header).ok_or_else(|| format!("names no header; {FORMS}"));
    }
    let names = PRIORITIES.iter().map(|(name, _)| *name).chain(["rfc9218"]);
    let hint = suggest(text, names).unwrap_or_else(|| FORMS.into());
    Err(format!("is no priority; {hint}"))
}

/// Finds the limiters whose waiting requests take turns: those with `fair` or floors, and those that a route with another
/// priority than `normal` uses. All requests of such a limiter take part, whatever their route.
pub(super) fn find_turns(limiters: &mut [LimiterConfig], routes: &[Route]) {
    let ranked = routes.iter().filter(|route| route.priority != PriorityRule::Normal);
    let ranked: HashSet<usize> =
        ranked.flat_map(|route| &route.limiters).map(|charge| charge.limiter).collect();
    for (i, limiter) in limiters.iter_mut().enumerate() {
        let has_order = limiter.fair.is_some() || ranked.contains(&i) || !limiter.floors.is_none();
        limiter.has_turns = has_order && limiter.mode == Mode::Enforce;
        for algorithm in &mut limiter.algorithms {
            if let Rule::Permits(rule) = algorithm {
                *rule = rule.with_turns(limiter.has_turns);
            }
        }
    }
}
