//! Lowers limiters to what the upstream says is left of their quotas, which other programs use as well, and pauses those of
//! which nothing is left. Raises none.

use super::{Exchange, Proxy, Routed, forward::Outgoing};
use crate::{
    config::Rate,
    limit::micros,
    plan::{Consequence, HeardRemainder},
    store::{Answer, Check, Pause, Store},
    throttle::{Heard, MIN_PAUSE},
};
use http::StatusCode;
use std::{slice, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

// === impl Exchange ===

impl Exchange<'_> {
    /// Lowers the limiters of a request to the quotas that its answer reports, less the calls of this gateway that were sent
    /// after its request. An answer says nothing of a key if another one has been read whose request was sent later. The
    /// pause after a refusal makes the limiters empty by itself.
    #[cold]
    pub(super) fn lower(
        &self,
        routed: &Routed<'_>,
        outgoing: &Outgoing<'_>,
        status: StatusCode,
        heard: &Heard,
    ) {
        let (proxy, plan) = (self.proxy, &self.proxy.0.plan);
        let reservation = outgoing.reservation.as_ref();
        let Some(reservation) = reservation.filter(|_| self.throttle(routed).is_on) else {
            return;
        };
        let times = (plan.micros(outgoing.times.sent), plan.micros(Instant::now()));
        let checks = reservation.checks().iter().enumerate();
        let rates = checks.filter_map(|(i, check)| Some((i, check, check.algorithm.as_rate()?)));
        let is_only = rates.clone().count() == 1;
        for (i, check, rule) in rates.filter(|(_, check, _)| check.enforce) {
            let (limiter, rate) = routed.policy.owner(i);
            let limiter = &plan.config.limiters[limiter];
            let Some(rate) = limiter.rates.get(rate) else { continue };
            let facts = rule.facts();
            if facts.window() > 0 && is_full_sooner(rate, heard) {
                continue;
            }
            let capacity = u64::try_from(facts.capacity).unwrap_or_default();
            let remaining = heard.remaining(&limiter.name, rate, capacity, is_only);
            let Some(remaining) = remaining else { continue };
            // A level is never above the limit.
            let Ok(remaining) = i64::try_from(remaining) else { continue };
            if remaining >= facts.capacity {
                continue;
            }
            let all = &plan.heard[routed.policy.upstream].remaining;
            let is_bucket = facts.window() == 0 && rule.rate() > 0;
            let permit = 1_000_000_000_000_000 / rule.rate().max(1);
            let of = HeardRemainder { remaining, cost: check.cost, permit, is_bucket };
            match all.hears(&check.key, times, of) {
                Consequence::None => {}
                Consequence::Pause => {
                    let limiter = routed.policy.limiter(i);
                    if self.throttle(routed).pauses.has(limiter) {
                        // The next slot is one permit away, so that a shorter pause would change nothing.
                        let span = micros(MIN_PAUSE).max(2 * permit);
                        let pause = Pause::keeping_rate(span, status.as_u16());
                        hold_back(proxy, limiter, check, pause);
                    }
                }
                Consequence::Tell(left) => tell(&proxy.0.store, check, left),
                Consequence::TellIn(span) => {
                    let (own, upstream) = (proxy.clone(), routed.policy.upstream);
                    let (check, at) = (check.clone(), times.1 + span);
                    tokio::spawn(async move {
                        sleep(Duration::from_micros(span)).await;
                        if let Some(remaining) =
                            own.0.plan.heard[upstream].remaining.next(&check.key, at)
                        {
                            tell(&own.0.store, &check, remaining);
                        }
                    });
                }
            }
        }
    }
}

/// Pauses one limiter before its upstream refuses a call. No request waits for that.
fn hold_back(proxy: &Proxy, limiter: usize, check: &Check, pause: Pause) {
    let store = &proxy.0.store;
    if store.pauses().get(&check.key).is_none() {
        proxy.0.plan.limiters[limiter].metrics.pauses.increment(1);
    }
    let paused = store.pause(&slice::from_ref(check).to_vec().into(), pause);
    tokio::spawn(async move {
        if let Err(error) = paused.get().await {
            tracing::debug!(%error, "the store did not confirm a pause");
        }
    });
}

/// Lowers a level to `remaining`. No request waits for that.
fn tell(store: &Arc<dyn Store>, check: &Check, remaining: i64) {
    let lowered = store.lower(check, remaining);
    if let Answer::Ready(_) = lowered {
        return;
    }
    tokio::spawn(async move {
        if let Err(error) = lowered.get().await {
            tracing::debug!(%error, "the store did not lower a level");
        }
    });
}

/// Whether a quota is full again before a window of the limiter would give back the permits that are taken of it now. The
/// window would stay full for an hour, say, after the upstream has begun a new one in 2 s.
fn is_full_sooner(rate: &Rate, heard: &Heard) -> bool {
    let is_sooner = |reset: Duration| reset < rate.period / 10 * 9;
    heard.quotas.iter().any(|quota| quota.reset.is_some_and(is_sooner))
}
