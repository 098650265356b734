//! Keys, costs and turns of a request, for the layers: closures that read them from it.

use super::{AcquireError, LimitedCall, Limiter};
use crate::algorithm::fair::Priority;
use std::{fmt, sync::Arc};

type KeyOf<R> = Arc<dyn Fn(&R) -> Option<String> + Send + Sync>;
type CostOf<R> = Arc<dyn Fn(&R) -> u32 + Send + Sync>;
type PriorityOf<R> = Arc<dyn Fn(&R) -> Priority + Send + Sync>;

/// The closures of a layer, each with the index of the limit that it is for.
pub(super) struct Extract<R> {
    keys: Vec<(usize, KeyOf<R>)>,
    costs: Vec<(usize, CostOf<R>)>,
    tenant: Option<KeyOf<R>>,
    priority: Option<PriorityOf<R>>,
    /// The error of each call, because the layer names a limit that its limiter does not have.
    wrong: Option<AcquireError>,
}

// === impl Extract ===

impl<R> Extract<R> {
    pub(super) fn key(
        &mut self,
        index: usize,
        key: impl Fn(&R) -> Option<String> + Send + Sync + 'static,
    ) {
        self.keys.push((index, Arc::new(key)));
    }

    pub(super) fn cost(&mut self, index: usize, cost: impl Fn(&R) -> u32 + Send + Sync + 'static) {
        self.costs.push((index, Arc::new(cost)));
    }

    pub(super) fn tenant(&mut self, tenant: impl Fn(&R) -> Option<String> + Send + Sync + 'static) {
        self.tenant = Some(Arc::new(tenant));
    }

    pub(super) fn priority(&mut self, priority: impl Fn(&R) -> Priority + Send + Sync + 'static) {
        self.priority = Some(Arc::new(priority));
    }

    /// Ends each call with `error`, unless an earlier one does.
    pub(super) fn fail(&mut self, error: AcquireError) {
        self.wrong.get_or_insert(error);
    }

    /// The call that `request` makes of `limiter`. A request without a key shares the state of all such requests.
    pub(super) fn call<'a>(&self, limiter: &'a Limiter, request: &R) -> LimitedCall<'a> {
        let call = limiter.call().failing(self.wrong.as_ref());
        let call = self.keys.iter().fold(call, |call, (index, key)| match key(request) {
            Some(key) => call.key_at(*index, key),
            None => call,
        });
        let call =
            self.costs.iter().fold(call, |call, (index, cost)| call.cost_at(*index, cost(request)));
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
        Self { keys: Vec::new(), costs: Vec::new(), tenant: None, priority: None, wrong: None }
    }
}

impl<R> Clone for Extract<R> {
    fn clone(&self) -> Self {
        let Self { keys, costs, tenant, priority, wrong } = self;
        Self {
            keys: keys.clone(),
            costs: costs.clone(),
            tenant: tenant.clone(),
            priority: priority.clone(),
            wrong: wrong.clone(),
        }
    }
}

impl<R> fmt::Debug for Extract<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.keys.iter().map(|(index, _)| index).collect();
        f.debug_struct("Extract").field("keys", &keys).finish_non_exhaustive()
    }
}
