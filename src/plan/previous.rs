//! The plan that another one takes over from, with its parts by name.

use super::{LimiterPlan, Plan, former_states::UsedStates};
use crate::config::Config;
use std::collections::{HashMap, HashSet};

/// The most limiters that the file does not name any more and whose states are known.
const MOST_ABSENT: usize = 4_096;

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

    /// The states in which permits of the limiter of this name count, also if the plan does not have it any more.
    pub(super) fn used_states(&self, name: &str) -> Option<UsedStates> {
        let absent = || self.plan?.absent.iter().find(|own| own.limiter.name == name).cloned();
        let own = self.limiter(name).map(|(plan, i)| plan.limiters[i].used_states());
        own.or_else(absent)
    }

    /// The states in which permits of limiters count that `config` does not have.
    pub(super) fn absent(&self, config: &Config) -> Vec<UsedStates> {
        let Some(plan) = self.plan else { return Vec::new() };
        let named: HashSet<_> = config.limiters.iter().map(|own| &own.name).collect();
        let gone = plan.limiters.iter().filter(|own| !named.contains(&own.limiter.name));
        let known = plan.absent.iter().filter(|own| !named.contains(&own.limiter.name));
        let all = gone.map(LimiterPlan::used_states).chain(known.map(|own| own.clone().now()));
        let mut all: Vec<_> = all.filter(|own| !own.all.is_empty()).collect();
        if all.len() > MOST_ABSENT {
            all.truncate(MOST_ABSENT);
            tracing::warn!(
                "too many limiters were removed: what the oldest of them granted is forgotten"
            );
        }
        all
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
