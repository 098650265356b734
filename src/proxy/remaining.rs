//! Lowers limiters to what the upstream says is left of their quotas, which other programs use as well. Raises none.

use super::{Proxy, Routed, forward::Received};
use crate::{algorithm::Algorithm, config::Rate, store::Answer, throttle::Heard};
use std::{sync::atomic::Ordering, time::Duration};

// === impl Proxy ===

impl Proxy {
    /// Lowers the limiters of a request to the quotas that its answer reports. An answer says nothing if another one has been
    /// read whose request was sent later: calls that have been sent since would not be counted in it. Calls under way are
    /// not deducted: the next answers count them.
    /// The pause after a refusal makes the limiters empty by itself.
    #[cold]
    pub(super) fn lower(&self, routed: &Routed<'_>, received: &Received, heard: &Heard) {
        let plan = &self.0.plan;
        let Some(reservation) =
            received.reservation.as_ref().filter(|_| self.throttle(routed).is_on)
        else {
            return;
        };
        let sent = plan.micros(received.times.sent);
        if plan.heard[routed.policy.upstream].newest.fetch_max(sent, Ordering::Relaxed) > sent {
            return;
        }
        let has_rate = |algorithm: &Algorithm| !matches!(algorithm, Algorithm::Concurrency(_));
        let checks = || reservation.checks().iter().enumerate();
        let is_only = checks().filter(|(_, check)| has_rate(&check.algorithm)).count() == 1;
        for (i, check) in checks().filter(|(_, check)| check.enforce && has_rate(&check.algorithm))
        {
            let (limiter, rate) = routed.policy.owner(i);
            let limiter = &plan.config.limiters[limiter];
            let Some(rate) = limiter.rates.get(rate) else { continue };
            let most = check.algorithm.limit();
            if is_full_sooner(&check.algorithm, rate, heard) {
                continue;
            }
            let of = (rate, u64::try_from(most).unwrap_or_default());
            let Some(remaining) = heard.remaining(&limiter.name, of, is_only) else { continue };
            // A level is never above the limit.
            let Ok(remaining) = i64::try_from(remaining) else { continue };
            if remaining < most {
                let lowered = self.0.store.lower(check, remaining);
                if let Answer::Ready(_) = lowered {
                    continue;
                }
                tokio::spawn(async move {
                    if let Err(error) = lowered.get().await {
                        tracing::debug!(%error, "the store did not lower a level");
                    }
                });
            }
        }
    }
}

/// Whether a quota is full again before a window of the limiter would give back the permits that are taken of it now. The
/// window would stay full for an hour, say, after the upstream has begun a new one in 2 s.
fn is_full_sooner(algorithm: &Algorithm, rate: &Rate, heard: &Heard) -> bool {
    let is_window = matches!(algorithm, Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_));
    let is_sooner = |reset: Duration| reset < rate.period / 10 * 9;
    is_window && heard.quotas.iter().any(|quota| quota.reset.is_some_and(is_sooner))
}
