//! Keys, costs and turns of a request, for the layers: closures that read them from it.

use super::{LimitedCall, Limiter};
use crate::algorithm::fair::Priority;
use std::{fmt, sync::Arc};

type KeyOf<R> = Arc<dyn Fn(&R) -> Option<String> + Send + Sync>;
type CostOf<R> = Arc<dyn Fn(&R) -> u32 + Send + Sync>;
type PriorityOf<R> = Arc<dyn Fn(&R) -> Priority + Send + Sync>;

/// The closures of a layer, each with the name of the limit that it is for.
pub(super) struct Extract<R> {
    keys: Vec<(Arc<str>, KeyOf<R>)>,
    costs: Vec<(Arc<str>, CostOf<R>)>,
    tenant: Option<KeyOf<R>>,
    priority: Option<PriorityOf<R>>,
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

    pub(super) fn tenant(&mut self, tenant: impl Fn(&R) -> Option<String> + Send + Sync + 'static) {
        self.tenant = Some(Arc::new(tenant));
    }

    pub(super) fn priority(&mut self, priority: impl Fn(&R) -> Priority + Send + Sync + 'static) {
        self.priority = Some(Arc::new(priority));
    }

    /// The call that `request` makes of `limiter`. A request without a key shares the state of all such requests.
    pub(super) fn call<'a>(&self, limiter: &'a Limiter, request: &R) -> LimitedCall<'a> {
        let call = self.keys.iter().fold(limiter.call(), |call, (limit, key)| match key(request) {
            Some(key) => call.key(limit, key),
            None => call,
        });
        let call =
            self.costs.iter().fold(call, |call, (limit, cost)| call.cost(limit, cost(request)));
        let call = match self.tenant.as_ref().and_then(|tenant| tenant(request)) {
            Some(tenant) => call.tenant(tenant),
            None => call,
        };
        match &self.priority {
            Some(priority) => call.priority(priority(request)),
            None => call,
        }
    }
}

impl<R> Default for Extract<R> {
    fn default() -> Self {
        Self { keys: Vec::new(), costs: Vec::new(), tenant: None, priority: None }
    }
}

impl<R> Clone for Extract<R> {
    fn clone(&self) -> Self {
        let (tenant, priority) = (self.tenant.clone(), self.priority.clone());
        Self { keys: self.keys.clone(), costs: self.costs.clone(), tenant, priority }
    }
}

impl<R> fmt::Debug for Extract<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.keys.iter().map(|(limit, _)| limit.clone()).collect();
        f.debug_struct("Extract").field("keys", &keys).finish_non_exhaustive()
    }
}
