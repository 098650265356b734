//! The plan that another one takes over from, with its parts by name.

use super::Plan;
use std::collections::HashMap;

/// The plan that another one takes over from; empty at the start of a gateway.
pub(super) struct Previous<'a> {
    pub(super) plan: Option<&'a Plan>,
    limiters: HashMap<&'a str, usize>,
    routes: HashMap<&'a str, usize>,
    upstreams: HashMap<&'a str, usize>,
}

// === impl Previous ===

impl<'a> Previous<'a> {
    /// The state before the first plan.
    pub(super) fn none() -> Self {
        let [limiters, routes, upstreams] = [const { None::<&str> }; 3].map(by_name);
        Self { plan: None, limiters, routes, upstreams }
    }

    pub(super) fn of(plan: &'a Plan) -> Self {
        let config = &plan.config;
        Self {
            plan: Some(plan),
            limiters: by_name(config.limiters.iter().map(|limiter| limiter.name.as_str())),
            routes: by_name(config.routes.iter().map(|route| route.name.as_str())),
            upstreams: by_name(config.upstreams.iter().map(|upstream| upstream.name.as_str())),
        }
    }

    /// The plan, and the index of its limiter of this name.
    pub(super) fn limiter(&self, name: &str) -> Option<(&'a Plan, usize)> {
        Some((self.plan?, *self.limiters.get(name)?))
    }

    /// The plan, and the index of its route of this name.
    pub(super) fn route(&self, name: &str) -> Option<(&'a Plan, usize)> {
        Some((self.plan?, *self.routes.get(name)?))
    }

    /// The plan, and the index of its upstream of this name.
    pub(super) fn upstream(&self, name: &str) -> Option<(&'a Plan, usize)> {
        Some((self.plan?, *self.upstreams.get(name)?))
    }
}

/// The index of each name.
fn by_name<'a>(names: impl IntoIterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    names.into_iter().enumerate().map(|(i, name)| (name, i)).collect()
}
