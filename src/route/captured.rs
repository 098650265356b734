//! The parameters of a path that decide the keys or costs of a request. All readings of a path must agree on them, or a
//! spelling would get another bucket than the resource that it reaches.

use crate::{
    config,
    path::{PathTemplate, Paths},
};
use ahash::HashMap;
use std::sync::Arc;

/// The routes whose keys or costs are parameters of their path, by index, with the templates of these paths.
#[derive(Debug, Default)]
pub(super) struct CapturingRoutes(HashMap<usize, Arc<PathTemplate>>);

/// The parameters of one reading by name, in the order of the names. Empty for a route that uses none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Captured<'t>(Vec<(&'t str, Vec<u8>)>);

// === impl CapturingRoutes ===

impl CapturingRoutes {
    pub(super) fn new(routes: &[config::Route]) -> Self {
        let captures = routes.iter().enumerate().filter(|(_, route)| route.captures);
        let captures = captures.filter_map(|(i, route)| Some((i, route.path.template()?.clone())));
        Self(captures.collect())
    }

    /// The parameters that the route with index `route` takes from a reading.
    pub(super) fn of(&self, route: usize, reading: &[u8], paths: &Paths) -> Captured<'_> {
        // Almost no configuration has such routes, and this saves the look into the table.
        let template = if self.0.is_empty() { None } else { self.0.get(&route) };
        let Some(template) = template else { return Captured(Vec::new()) };
        let form = paths.key_form_of(reading);
        let values = template.captures(&form).unwrap_or_default();
        let names = template.names().iter().map(String::as_str);
        let mut all: Vec<_> = names.zip(values.into_iter().map(<[u8]>::to_vec)).collect();
        all.sort_unstable();
        Captured(all)
    }
}
