//! Reads `descriptors`. Each entry becomes a route that takes no path, so that it has limiters, a budget and counters as
//! every route has.

use super::routes::{Charged, route_name};
use crate::{
    config::{
        fair::PriorityRule,
        http::AnswerForm,
        keys::DESCRIPTOR,
        limiter::LimiterConfig,
        reader::{ConfigReader, ConfigSection, Field},
        services::{DescriptorRule, Services},
        settings::Route,
        yaml::{YamlEntry, YamlValue},
    },
    key::Template,
    path::PathRule,
    upstream::headers::Rules,
};

impl ConfigReader {
    /// Reads the entries, and adds a route for each of them.
    pub(super) fn descriptors(
        &mut self,
        root: &ConfigSection<'_>,
        services: &Services,
        limiters: &[LimiterConfig],
        routes: &mut Vec<Route>,
    ) -> Vec<DescriptorRule> {
        let Some(field) = root.get("descriptors") else { return Vec::new() };
        let Some(items) = self.list(&field) else { return Vec::new() };
        if services.envoy_rate_limit.is_none() {
            self.note_at(
                &field,
                "needs `services: { envoy_rate_limit: ADDRESS }`, which asks with them",
            );
        }
        if let Some([_, most]) = root.keys.bounds_without("descriptors", items.len()) {
            self.note_at(&field, format!("must hold at most {most}"));
            return Vec::new();
        }
        let mut rules = Vec::new();
        for (i, node) in items.iter().enumerate() {
            let item = field.item(i, node);
            let next = routes.len();
            let Some((rule, route)) = self.descriptor(&item, limiters, next) else { continue };
            if routes.iter().any(|other| other.name == route.name) {
                let name = &route.name;
                self.note_at(
                    &item,
                    format!("has the name `{name}`, as another entry or route has; set `name`"),
                );
                continue;
            }
            rules.push(rule);
            routes.push(route);
        }
        rules
    }

    /// Reads an entry, whose route will have the index `next`.
    fn descriptor(
        &mut self,
        field: &Field<'_>,
        limiters: &[LimiterConfig],
        next: usize,
    ) -> Option<(DescriptorRule, Route)> {
        let section = self.section(field, &DESCRIPTOR)?;
        let pairs = self.required(&section, "match", ", as in `match: { path: /search }`");
        let pairs = pairs.and_then(|field| self.pairs(&field));
        let written = pairs
            .iter()
            .flatten()
            .map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or("*")));
        let written = written.collect::<Vec<_>>().join(",");
        let name = self.read_by(&section, "name", route_name).unwrap_or(written);
        let (charges, missing) = self.charges(&section, limiters);
        let key = self.read_by(&section, "key", key_of_descriptor);
        let charged = Charged { charges: &charges, is_incomplete: !missing.is_empty(), limiters };
        let max_wait = self.wait(&section, "max_wait", &charged).unwrap_or_default();
        let route = Route {
            name,
            path: PathRule::Descriptor,
            captures: false,
            methods: Vec::new(),
            host: None,
            upstream: 0,
            limiters: charges,
            key,
            missing,
            priority: PriorityRule::Normal,
            max_wait,
            max_wait_cap: max_wait,
            max_waiting: self.read_or_default(&section, "max_waiting"),
            headers: Rules::default(),
            tells_quota: false,
            share: None,
            revalidate: None,
            answers: AnswerForm::Problem,
        };
        Some((DescriptorRule { pairs: pairs?, route: next }, route))
    }

    /// Reads the keys of a match, each with its value; `None` for one that may have any.
    fn pairs(&mut self, field: &Field<'_>) -> Option<Vec<(String, Option<String>)>> {
        let section = self.map(field)?;
        if let Some([least, most]) = DESCRIPTOR.bounds_without("match", section.entries.len()) {
            self.note_at(field, format!("must have {least} to {most} keys"));
            return None;
        }
        let mut pairs = Vec::new();
        for YamlEntry { key, node } in section.entries {
            let YamlValue::Scalar(scalar) = &node.value else {
                let path = format!("{}.{}", field.path, key.name);
                self.note(node.place, &path, "must be a single value");
                continue;
            };
            let value = (scalar.text != "*").then(|| scalar.text.clone());
            pairs.push((key.name.clone(), value));
        }
        Some(pairs)
    }
}

/// Reads the key of an entry. A descriptor has its own keys and values, and no part of the request that Envoy decides.
fn key_of_descriptor(text: &str) -> Result<Template, String> {
    let template = Template::parse(text)?;
    let mut parts = text.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    match parts.find(|part| !part.starts_with("descriptor.")) {
        None => Ok(template),
        Some(part) => {
            let has = if text == format!("{{{part}}}") {
                ""
            } else {
                &*format!("has `{{{part}}}`, which ")
            };
            Err(format!("{has}is no part of a descriptor; write `{{descriptor.NAME}}`"))
        }
    }
}
