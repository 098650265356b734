//! Warns of tenants and priorities that change nothing.

use crate::algorithm::{
    Rule,
    fair::{Priority, queue::AHEAD},
};
use crate::config::{
    fair::PriorityRule,
    limiter::{LimiterConfig, Mode},
    settings::{Config, Route},
};

impl Config {
    /// Warns of `fair` at the limiter with index `i`, if no request ever waits for that.
    pub(super) fn nothing_to_share(&self, i: usize, limiter: &LimiterConfig) -> Option<String> {
        limiter.fair.as_ref()?;
        let name = &limiter.name;
        if limiter.mode == Mode::Observe {
            return Some(format!(
                "`fair` of the limiter `{name}` shares nothing: a limiter in mode `observe` holds no request"
            ));
        }
        let mut routes = self.routes.iter().filter(|route| uses(route, i)).peekable();
        // Another warning is about a limiter that nothing uses.
        routes.peek()?;
        let can_wait = |route: &Route| !route.max_wait.max(route.max_wait_cap).is_zero();
        (!routes.any(can_wait)).then(|| {
            format!(
                "`fair` of the limiter `{name}` shares nothing: no route that uses it has a `max_wait`, so that no request waits"
            )
        })
    }

    /// Warns of floors that no request makes use of, and of what they cost in a window.
    pub(super) fn floors(&self, i: usize, limiter: &LimiterConfig) -> Option<String> {
        let (name, capacity) = (&limiter.name, limiter.most_permits());
        let priority = match (limiter.floors.normal, limiter.floors.high) {
            (Some(_), _) => Priority::Low,
            (None, Some(_)) => Priority::Normal,
            (None, None) => return None,
        };
        if limiter.mode == Mode::Observe {
            return Some(format!(
                "`floors` of the limiter `{name}` keep nothing: a limiter in mode `observe` refuses no request"
            ));
        }
        let may_be_above = |route: &Route| match route.priority {
            PriorityRule::Low => false,
            PriorityRule::Normal => priority == Priority::Low,
            PriorityRule::High | PriorityRule::Rfc9218 | PriorityRule::Header(_) => true,
        };
        let mut routes = self.routes.iter().filter(|route| uses(route, i)).peekable();
        routes.peek()?;
        if !routes.any(may_be_above) {
            return Some(format!(
                "no request takes the permits that `floors` of the limiter `{name}` keep: none of its routes has a higher \
                 priority; write `priority: high` at one"
            ));
        }
        if let Some(other) = self.held_by_lower(i, priority, may_be_above) {
            let above = if priority == Priority::Low { "normal" } else { "high" };
            return Some(format!(
                "`floors` of the limiter `{name}` help no request while those of lower priorities have all permits of `{}`, \
                 which its routes need, too; write `floors: {{ {above}: 1 }}` there",
                self.limiters[other].name
            ));
        }
        let kept = limiter.floors.kept_from(priority, capacity);
        let rates = || limiter.algorithms.iter().filter_map(Rule::as_rate);
        if rates().any(|rate| rate.facts().window() > 0) {
            return Some(format!(
                "`floors` of the limiter `{name}` cost throughput: requests of lower priorities use at most {} of the \
                 {capacity} permits of a window, also while no other comes; a `token_bucket` gives them all that flows in",
                capacity - kept
            ));
        }
        // The permit of a slot is taken 50 ms before it.
        let ahead = rates().map(|rate| {
            let [period, count] = rate.facts().pace.map(i128::from);
            i64::try_from(2 * i128::from(AHEAD) * count / period).unwrap_or(i64::MAX / 2)
        });
        let ahead = ahead.max()?;
        let least = kept + 3 + ahead;
        (least > capacity).then(|| {
            format!(
                "`floors` of the limiter `{name}` keep {kept} of {capacity} permits, so that a request which cannot wait finds \
                 none in some moments; write `burst: {least}` or more"
            )
        })
    }

    /// The concurrency limiter without floors that requests need which `floors` of the limiter with index `i` help, and that
    /// requests up to `priority` use.
    fn held_by_lower(
        &self,
        i: usize,
        priority: Priority,
        may_be_above: impl Fn(&Route) -> bool,
    ) -> Option<usize> {
        let may_be_below = |route: &Route| route.priority.fixed().is_none_or(|own| own >= priority);
        let helped = self.routes.iter().filter(|route| uses(route, i) && may_be_above(route));
        let mut others = helped.flat_map(|route| &route.limiters).map(|charge| charge.limiter);
        others.find(|other| {
            let LimiterConfig { algorithms, floors, mode, .. } = &self.limiters[*other];
            let has_leases = algorithms.iter().any(|rule| rule.lease().is_some());
            let is_shared =
                || self.routes.iter().any(|route| uses(route, *other) && may_be_below(route));
            has_leases && floors.is_none() && *mode == Mode::Enforce && is_shared()
        })
    }

    /// Warns of a `priority` that no request can make use of.
    pub(super) fn idle_priority(&self, route: &Route) -> Option<String> {
        let enforces = |limiter: usize| self.limiters[limiter].mode == Mode::Enforce;
        let name = &route.name;
        match &route.priority {
            PriorityRule::Normal => None,
            _ if !route.limiters.iter().any(|charge| enforces(charge.limiter))
                && route.missing.is_empty() =>
            {
                Some(format!(
                    "`priority` of the route `{name}` changes nothing: no limiter holds its requests"
                ))
            }
            PriorityRule::Header(_) | PriorityRule::Rfc9218 if self.trusted_proxies.is_empty() => {
                Some(format!(
                    "every request of the route `{name}` has the priority `normal`: callers whose `priority` counts are named \
                     in `trusted_proxies`, which is empty"
                ))
            }
            _ => None,
        }
    }
}

fn uses(route: &Route, limiter: usize) -> bool {
    route.limiters.iter().any(|charge| charge.limiter == limiter)
}
