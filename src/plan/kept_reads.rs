//! How the reads of each route may cost nothing, and the kept answers of upstreams and routes. A plan takes over those of the
//! previous one, by name, unless the memory has another size or the addresses of the upstream have changed.

use super::previous::Previous;
use crate::{
    config::{Config, KeptMemory, Route, Upstream},
    reads::KeptAnswers,
};
use http::HeaderName;
use std::sync::Arc;

/// How the reads of a route may cost nothing.
#[derive(Debug)]
pub(crate) struct ReadPolicy {
    /// The headers in which reads agree that become one call; `None` if none do.
    pub(crate) share: Option<Box<[HeaderName]>>,
    /// The answers that the upstream is asked to confirm.
    pub(crate) kept: Option<Arc<KeptAnswers>>,
}

/// The kept answers of all upstreams and routes.
#[derive(Debug)]
pub(super) struct KeptReads {
    /// Those of the upstreams, by index; `None` where none are kept.
    upstreams: Box<[Option<Arc<KeptAnswers>>]>,
    /// Those of the routes that have a memory of their own.
    routes: Box<[Option<Arc<KeptAnswers>>]>,
}

// === impl KeptReads ===

impl KeptReads {
    pub(super) fn new(config: &Config, previous: &Previous<'_>) -> Self {
        let upstreams = config.upstreams.iter().map(|upstream| {
            let bytes = upstream.revalidate?;
            let known = previous.upstream(&upstream.name).and_then(|(plan, i)| {
                let is_same = is_same_api(&plan.config.upstreams[i], upstream);
                plan.kept_answers.upstreams[i].clone().filter(|_| is_same)
            });
            Some(same_or_new(known, bytes))
        });
        let routes = config.routes.iter().map(|route| {
            let memory = route.revalidate.filter(|memory| !memory.is_of_upstream)?;
            let known = previous.route(&route.name).and_then(|(plan, i)| {
                let was = &plan.config.upstreams[plan.config.routes[i].upstream];
                let is_same = is_same_api(was, &config.upstreams[route.upstream]);
                plan.kept_answers.routes[i].clone().filter(|_| is_same)
            });
            Some(same_or_new(known, memory.bytes))
        });
        Self { upstreams: upstreams.collect(), routes: routes.collect() }
    }

    /// How the reads of a route may cost nothing; `None` if none may.
    pub(super) fn policy(&self, i: usize, route: &Route) -> Option<ReadPolicy> {
        let kept = route.revalidate.and_then(|KeptMemory { is_of_upstream, .. }| {
            if is_of_upstream {
                self.upstreams[route.upstream].clone()
            } else {
                self.routes[i].clone()
            }
        });
        let share = route.share.clone().map(Vec::into_boxed_slice);
        (share.is_some() || kept.is_some()).then_some(ReadPolicy { share, kept })
    }
}

/// Whether the answers of one upstream are those of another one, too.
fn is_same_api(one: &Upstream, other: &Upstream) -> bool {
    one.name == other.name && one.targets == other.targets
}

fn same_or_new(known: Option<Arc<KeptAnswers>>, bytes: usize) -> Arc<KeptAnswers> {
    let same = known.filter(|known| known.memory() == bytes);
    same.unwrap_or_else(|| KeptAnswers::new(bytes))
}
