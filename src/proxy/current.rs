//! The proxy of one worker, which a reload replaces while requests are served.

use super::{Inner, Proxy};
use crate::{plan::Plan, upstream::Pool};
use arc_swap::ArcSwap;
use std::sync::Arc;

/// The proxy of one worker as it is now. A request loads it once, when it begins, and keeps it until it ends.
#[derive(Debug, Clone)]
pub struct CurrentProxy(Arc<ArcSwap<Inner>>);

// === impl CurrentProxy ===

impl CurrentProxy {
    /// Begins with this proxy.
    pub fn new(proxy: Proxy) -> Self {
        Self(Arc::new(ArcSwap::new(proxy.0)))
    }

    /// The proxy for the next request.
    pub fn load(&self) -> Proxy {
        Proxy(self.0.load_full())
    }

    /// The plan for the next request.
    pub fn plan(&self) -> Arc<Plan> {
        self.0.load().plan.clone()
    }

    /// Serves the next requests by `plan` and to these upstreams. Running and waiting requests keep the proxy that they
    /// loaded. Connections to upstreams stay open if their pools are among the new ones.
    pub fn replace(&self, plan: Arc<Plan>, upstreams: Vec<Pool>) {
        let next = self.0.load().next(plan, upstreams);
        self.0.store(Arc::new(next));
    }

    /// The connections of this worker, by index of the upstream.
    pub fn pools(&self) -> Vec<Pool> {
        self.0.load().upstreams.clone()
    }
}
