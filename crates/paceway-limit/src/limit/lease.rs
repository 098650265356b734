//! The renewal of leases: a concurrency permit belongs to its holder for the time of one lease (60 s, say), so that a
//! process that crashes does not keep it for ever. A task renews it for as long as the call lasts.

use super::duration;
use crate::{
    algorithm::{Grant, MAX_BUDGET},
    log::{Permit, Throttle},
    store::{Check, Source, Store},
};
use std::{sync::Arc, time::Duration};
use tokio::{task::AbortHandle, time::sleep};

/// A lease whose renewal failed is tried again after this long, or after a third of the lease if that is shorter.
const RENEW_AGAIN: Duration = Duration::from_secs(1);
/// Bounds the warnings about expired leases: a store that stalls lets all of them expire together.
static EXPIRED: Throttle = Throttle::new();

/// Starts a task that renews a lease three times within its time, until the handle is aborted or the lease expires.
pub(super) fn renew(
    store: &Arc<dyn Store>,
    source: Source,
    check: &Check,
    grant: Grant,
) -> AbortHandle {
    let (store, check) = (store.clone(), check.clone());
    let period = duration(check.algorithm.lease().unwrap_or(MAX_BUDGET)) / 3;
    let renewal = tokio::spawn(async move {
        let mut pause = period;
        loop {
            sleep(pause).await;
            pause = match store.renew(source, &check, grant).get().await {
                Ok(true) => period,
                Ok(false) => {
                    if let Some(Permit { suppressed }) = EXPIRED.permit() {
                        let key = &check.key;
                        tracing::warn!(%key, suppressed, "a lease expired while it was held");
                    }
                    return;
                }
                // The store may answer again before the lease ends.
                Err(_) => period.min(RENEW_AGAIN),
            }
        }
    });
    renewal.abort_handle()
}
