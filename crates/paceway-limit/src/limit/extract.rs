//! Keys and costs of a request, for the layers: closures that read them from it.

use super::{LimitedCall, Limiter};
use std::{fmt, sync::Arc};

type KeyOf<R> = Arc<dyn Fn(&R) -> Option<String> + Send + Sync>;
type CostOf<R> = Arc<dyn Fn(&R) -> u32 + Send + Sync>;

/// The closures of a layer, each with the name of the limit that it is for.
pub(super) struct Extract<R> {
    keys: Vec<(Arc<str>, KeyOf<R>)>,
    costs: Vec<(Arc<str>, CostOf<R>)>,
}

// === impl Extract ===

impl<R> Extract<R> {
    pub(super) fn key(
        &mut self,
        limit: &str,
        key: impl Fn(&R) -> Option<String> + Send + Sync + 'static,
    ) {
        self.keys.push((limit.into(), Arc::new(key)));
    }

    pub(super) fn cost(&mut self, limit: &str, cost: impl Fn(&R) -> u32 + Send + Sync + 'static) {
        self.costs.push((limit.into(), Arc::new(cost)));
    }

    /// The call that `request` makes of `limiter`. A request without a key shares the state of all such requests.
    pub(super) fn call<'a>(&self, limiter: &'a Limiter, request: &R) -> LimitedCall<'a> {
        let call = self.keys.iter().fold(limiter.call(), |call, (limit, key)| match key(request) {
            Some(key) => call.key(limit, key),
            None => call,
        });
        self.costs.iter().fold(call, |call, (limit, cost)| call.cost(limit, cost(request)))
    }
}

impl<R> Default for Extract<R> {
    fn default() -> Self {
        Self { keys: Vec::new(), costs: Vec::new() }
    }
}

impl<R> Clone for Extract<R> {
    fn clone(&self) -> Self {
        Self { keys: self.keys.clone(), costs: self.costs.clone() }
    }
}

impl<R> fmt::Debug for Extract<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.keys.iter().map(|(limit, _)| limit.clone()).collect();
        f.debug_struct("Extract").field("keys", &keys).finish_non_exhaustive()
    }
}
