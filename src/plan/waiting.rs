//! The requests that wait in this gateway. Plans that follow each other share the numbers, so that `max_waiting` also counts
//! the requests that wait under a plan that was replaced.

use super::{Plan, previous::Previous};
use crate::config::Config;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The number of requests that wait in this gateway, in sum and for each route.
pub(crate) struct WaitingCounts {
    all: Arc<WaitingSum>,
    /// The number of waiting requests of each route, by its index.
    of_routes: Box<[Arc<AtomicUsize>]>,
}

/// The number of all waiting requests, in a cache line that holds nothing else: each request with a budget reads it.
#[derive(Default)]
#[repr(align(64))]
struct WaitingSum(AtomicUsize);

/// Counts a waiting request from its creation to its drop, for its route and for the limiter that bound it.
pub(crate) struct Waiting<'a> {
    plan: &'a Plan,
    /// The indices of the route and of the limiter.
    route: usize,
    limiter: usize,
}

// === impl WaitingCounts ===

impl WaitingCounts {
    /// The numbers for the routes of `config`. A route of the same name in the previous plan has the same number.
    pub(super) fn new(config: &Config, previous: &Previous<'_>) -> Self {
        let all = previous.plan.map(|plan| plan.waiting.all.clone()).unwrap_or_default();
        let known = |name| previous.route(name).map(|(plan, i)| plan.waiting.of_routes[i].clone());
        let of_routes = config.routes.iter().map(|route| known(&route.name).unwrap_or_default());
        Self { all, of_routes: of_routes.collect() }
    }

    /// How many requests wait.
    pub(super) fn all(&self) -> usize {
        self.all.0.load(Relaxed)
    }

    /// How many requests of a route wait. The sum is looked at first: it is in a cache and usually 0, while the number
    /// of one route among thousands is not.
    pub(crate) fn of(&self, route: usize) -> usize {
        match self.all.0.load(Relaxed) {
            0 => 0,
            _ => self.of_routes[route].load(Relaxed),
        }
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    /// Counts a request as waiting; returns `None` when `most` requests of the route wait already.
    pub(crate) fn enter(plan: &'a Plan, route: usize, limiter: usize, most: usize) -> Option<Self> {
        if plan.waiting.of_routes[route].fetch_add(1, Relaxed) >= most {
            plan.waiting.of_routes[route].fetch_sub(1, Relaxed);
            return None;
        }
        plan.waiting.all.0.fetch_add(1, Relaxed);
        plan.limiters[limiter].waiting.fetch_add(1, Relaxed);
        plan.routes[route].waiting.increment(1.0);
        Some(Self { plan, route, limiter })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.plan.waiting.of_routes[self.route].fetch_sub(1, Relaxed);
        self.plan.waiting.all.0.fetch_sub(1, Relaxed);
        self.plan.limiters[self.limiter].waiting.fetch_sub(1, Relaxed);
        self.plan.routes[self.route].waiting.decrement(1.0);
    }
}
