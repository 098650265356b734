//! Warns of routes whose requests get nothing from a limiter while those of another route wait for it.

use crate::config::{
    fair::PriorityRule,
    limiter::{LimiterConfig, Mode},
    settings::{Config, Route},
    unit::Span,
};
use std::time::Duration;

/// Without an order of the requests, a wait below this is worth a warning.
const SHORT: Duration = Duration::from_secs(1);
/// A queue of a tenth of a second gives its slots to others soon.
const LONG: Duration = Duration::from_millis(100);
/// How many times as long requests of the other route wait.
const TIMES: u32 = 10;
/// The slots that a request with the first turn may have to wait for.
const TURN: u32 = 3;

impl Config {
    /// Returns a sentence for each limiter that one route holds requests for, and another does not. All permits are promised
    /// to the requests that wait, so that the others get none.
    pub(super) fn starved_routes(&self) -> Vec<String> {
        if !self.limiting {
            return Vec::new();
        }
        let all = self.limiters.iter().enumerate();
        all.filter_map(|(i, limiter)| self.starved(i, limiter)).collect()
    }

    fn starved(&self, i: usize, limiter: &LimiterConfig) -> Option<String> {
        let turn = turn(limiter).filter(|_| limiter.mode == Mode::Enforce)?;
        let uses = |route: &&Route| route.limiters.iter().any(|charge| charge.limiter == i);
        let wait = |route: &Route| route.max_wait.max(route.max_wait_cap);
        let routes = || self.routes.iter().filter(uses);
        let longest = routes().max_by_key(|route| wait(route))?;
        let has_floor = |route: &&Route| match route.priority {
            PriorityRule::High => limiter.floors.high.is_some(),
            PriorityRule::Normal => limiter.floors.normal.is_some(),
            PriorityRule::Low | PriorityRule::Header(_) | PriorityRule::Rfc9218 => false,
        };
        let shortest =
            routes().filter(|route| !has_floor(route)).min_by_key(|route| wait(route))?;
        let (short, long) = (wait(shortest), wait(longest));
        if short >= turn || long < LONG.max(short.saturating_mul(TIMES)) {
            return None;
        }
        let budget = if short.is_zero() { "0".into() } else { Span(short).to_string() };
        Some(format!(
            "requests of the route `{}` get nothing from the limiter `{}` while requests of the route `{}` wait for it: the next \
             permits are promised to those, and `max_wait` of the first route is {budget}; see \"Users that cannot wait\" in fair.md",
            shortest.name, limiter.name, longest.name,
        ))
    }
}

/// The shortest wait for which there is no warning: the time to the next turn, if the requests have an order.
fn turn(limiter: &LimiterConfig) -> Option<Duration> {
    let slot = limiter.rates.iter().map(|rate| {
        let count = u32::try_from(rate.count).unwrap_or(u32::MAX).max(1);
        rate.period / count
    });
    let slot = slot.max()?;
    Some(if limiter.has_turns { slot.saturating_mul(TURN) } else { SHORT })
}
