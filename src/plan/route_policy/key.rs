//! The settings by which two routes share a policy. Reads no limiter.

use crate::{
    config::{self, AnswerForm, Charge, KeptMemory, PriorityRule},
    key::Template,
};
use http::HeaderName;
use std::time::Duration;

/// The settings by which two routes are compared: routes with equal keys share a policy.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PolicyKey<'a> {
    limiters: &'a [Charge],
    key: Option<&'a Template>,
    missing: &'a [String],
    /// The index of the route if it changes headers: a value may be secret in one route and not in another.
    headers: Option<usize>,
    upstream: usize,
    priority: &'a PriorityRule,
    max_wait: Duration,
    max_wait_cap: Duration,
    max_waiting: usize,
    tells_quota: bool,
    share: Option<&'a [HeaderName]>,
    revalidate: Option<KeptMemory>,
    /// The index of the route if it has a memory of its own.
    memory: Option<usize>,
    answers: AnswerForm,
}

// === impl PolicyKey ===

impl<'a> PolicyKey<'a> {
    pub(super) fn of(i: usize, route: &'a config::Route) -> Self {
        // Exhaustive, so that a new key of routes does not compile until it is either compared here or named as one that
        // may differ between routes of one policy.
        let config::Route {
            name: _,
            path: _,
            captures: _,
            methods: _,
            host: _,
            upstream,
            limiters,
            key,
            missing,
            priority,
            max_wait,
            max_wait_cap,
            max_waiting,
            headers,
            tells_quota,
            share,
            revalidate,
            answers,
        } = route;
        let own_memory = revalidate.filter(|memory| !memory.is_of_upstream);
        Self {
            limiters,
            key: key.as_ref(),
            missing,
            headers: (!headers.is_empty()).then_some(i),
            upstream: *upstream,
            priority,
            max_wait: *max_wait,
            max_wait_cap: *max_wait_cap,
            max_waiting: *max_waiting,
            tells_quota: *tells_quota,
            share: share.as_deref(),
            revalidate: *revalidate,
            memory: own_memory.map(|_| i),
            answers: *answers,
        }
    }
}
