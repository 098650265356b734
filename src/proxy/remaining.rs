//! Lowers limiters to what the upstream says is left of their quotas, which other programs use as well. Raises none.

use super::{Exchange, Routed, outgoing::Outgoing};
use crate::{
    limit::micros,
    plan::{CheckOwner, Consequence, HeardRemainder, Left},
    store::{Answer, Check, Store},
    throttle::Heard,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

/// Most upstreams name a reset in whole seconds.
const ROUNDED: Duration = Duration::from_secs(1);

// === impl Exchange ===

impl Exchange<'_> {
    /// Lowers the limiters of a request to the quotas that its answer reports, less the calls of this gateway that were sent
    /// after its request. An answer says nothing of a key if another one has been read whose request was sent later. The
    /// pause after a refusal makes the limiters empty by itself.
    #[cold]
    pub(super) fn lower(&self, routed: &Routed<'_>, outgoing: &Outgoing<'_>, heard: &Heard) {
        let (proxy, plan) = (self.proxy, &self.proxy.0.plan);
        let reservation = outgoing.reservation.as_ref();
        let Some(reservation) = reservation.filter(|_| self.throttle(routed).is_on) else {
            return;
        };
        let (sent, now) = (plan.micros(outgoing.times.sent), plan.micros(Instant::now()));
        let checks = reservation.checks().iter().enumerate();
        let rates = checks.filter_map(|(i, check)| Some((i, check, check.algorithm.as_rate()?)));
        let is_only = rates.clone().count() == 1;
        for (i, check, rule) in rates.filter(|(_, check, _)| check.enforce) {
            let CheckOwner { limiter, rate } = routed.policy.owner(i);
            let limiter = &plan.config.limiters[limiter];
            let Some(rate) = limiter.rates.get(rate) else { continue };
            let facts = rule.facts();
            let capacity = u64::try_from(facts.capacity).unwrap_or_default();
            let report = heard.remaining(&limiter.name, rate, capacity, is_only);
            let Some(report) = report else { continue };
            // A level is never above the limit.
            let Ok(remaining) = i64::try_from(report.remaining) else { continue };
            let all = &plan.heard[routed.policy.upstream].remaining;
            let is_bucket = facts.window() == 0 && rule.rate() > 0;
            let permit = 1_000_000_000_000_000 / rule.rate().max(1);
            let time_of = |permits: i64| {
                Duration::from_micros(permits.max(0).saturating_mul(permit).unsigned_abs())
            };
            let full = time_of(facts.capacity - remaining);
            let reset = report.reset.filter(|reset| *reset <= rate.period + ROUNDED);
            let reset = reset.filter(|reset| {
                !(is_bucket && is_when_full(*reset, full) && *reset <= 2 * ROUNDED)
            });
            // Without the report the rule grants all that it holds, and permits that come back until the reset.
            let more = time_of(remaining - facts.capacity);
            if remaining >= facts.capacity && reset.is_none_or(|reset| reset <= more) {
                continue;
            }
            let (reset, period) = (reset.map_or(0, micros), micros(rate.period));
            let of = HeardRemainder { remaining, permit, is_bucket, reset, period };
            match all.hears(&check.key, sent, now, of) {
                Consequence::None => {}
                Consequence::Tell(left) => tell(&proxy.0.store, check, left),
                Consequence::TellIn(span) => {
                    let (own, upstream) = (proxy.clone(), routed.policy.upstream);
                    let (check, at) = (check.clone(), now + span);
                    tokio::spawn(async move {
                        sleep(Duration::from_micros(span)).await;
                        let next = own.0.plan.heard[upstream].remaining.next(&check.key, at);
                        if let Some(left) = next {
                            tell(&own.0.store, &check, left);
                        }
                    });
                }
            }
        }
    }
}

/// Lowers a limiter to what is left. No request waits for that.
fn tell(store: &Arc<dyn Store>, check: &Check, left: Left) {
    let lowered = store.lower(check, left.permits, left.span);
    if let Answer::Ready(_) = lowered {
        return;
    }
    tokio::spawn(async move {
        if let Err(error) = lowered.get().await {
            tracing::debug!(%error, "the store did not lower a level");
        }
    });
}

/// Whether a reset is the instant at which a bucket is full again: some vendors name that one. Until the end of a window no
/// permit comes back, but a bucket gives one after the other.
fn is_when_full(reset: Duration, full: Duration) -> bool {
    (full / 5 * 4).saturating_sub(ROUNDED) <= reset && reset <= full / 5 * 6 + ROUNDED
}
