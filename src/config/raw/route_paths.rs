//! Reads the paths that a route takes, `suffix` or `path`, and checks that keys name parameters of the path.

use crate::{
    config::{
        limiter::{Charge, LimiterConfig},
        reader::{ConfigReader, ConfigSection, join},
    },
    path::{PathRule, PathTemplate, Paths, Suffix},
    suggest::suggest,
};
use std::sync::Arc;

impl ConfigReader {
    /// Reads `suffix` or `path` of a route, and returns it as written and as a rule.
    pub(super) fn path_rule(
        &mut self,
        section: &ConfigSection<'_>,
        paths: &Paths,
    ) -> (String, Option<PathRule>) {
        let suffix = section.get("suffix");
        if let Some(field) = section.get("path") {
            if suffix.is_some() {
                self.note_at(&field, "is beside `suffix`; a route has one of the two");
            }
            let read = |text: &str| PathTemplate::parse(text, paths).map(Arc::new);
            let written = field.scalar().map_or("", |scalar| &scalar.text).to_owned();
            return (written, self.scalar(&field, read).map(PathRule::Template));
        }
        let how = "; \"*\" matches every path, and `path` a whole one";
        let Some(field) = self.required(section, "suffix", how) else {
            return (String::new(), None);
        };
        let written = field.scalar().map_or("", |scalar| &scalar.text).to_owned();
        let suffix = self.scalar(&field, |text| Suffix::parse_for(text, paths));
        (written, suffix.map(PathRule::Suffix))
    }

    /// Notes a mistake if a route names a limiter with a key or a cost such as `{path.channel}`, and its path has no
    /// parameter of that name.
    pub(super) fn check_parameters(
        &mut self,
        section: &ConfigSection<'_>,
        rule: &PathRule,
        charges: &[Charge],
        limiters: &[LimiterConfig],
    ) {
        let names = rule.template().map_or(&[][..], |template| template.names());
        for charge in charges {
            let mut used = parameters(charge, limiters);
            let Some(unknown) = used.find(|name| !names.iter().any(|own| own == name)) else {
                continue;
            };
            let hint = match suggest(unknown, names.iter().map(String::as_str)) {
                Some(hint) => hint,
                None if names.is_empty() => {
                    "write the route with `path`, as in `path: \"/a/{x}\"`".into()
                }
                None => format!("there are: {}", names.join(", ")),
            };
            let limiter = &limiters[charge.limiter].name;
            let reason = format!(
                "charges `{limiter}`, which uses `{{path.{unknown}}}`, and this route's path has no such parameter; {hint}"
            );
            let place = section.get("limiters").map_or(section.place, |field| field.node.place);
            self.note(place, &join(&section.path, "limiters"), reason);
        }
    }
}

/// The parameters of paths that the key of a limiter, its tenant or a cost at it uses.
pub(super) fn parameters<'c>(
    charge: &'c Charge,
    limiters: &'c [LimiterConfig],
) -> impl Iterator<Item = &'c str> {
    let limiter = &limiters[charge.limiter];
    let tenant = limiter.fair.as_ref().map(|fair| &fair.by);
    limiter
        .key
        .iter()
        .chain(tenant)
        .chain(charge.cost.templates())
        .flat_map(|template| template.path_parameters())
}
