//! Finds out whether the upstream's answer refuses the request, and pauses the limiters then. Sends nothing again.

use super::{
    Exchange, Routed,
    outgoing::{AttemptTimes, Outgoing, Received},
    read_ahead::ReadAhead,
    record::Record,
};
use crate::{
    config,
    plan::{CheckOwner, RefusalStreaks},
    store::{Answer, Check, Pause},
    throttle::{QuotaRate, ThrottleRules, Timestamp, UpstreamRefusal, rate_for},
    upstream::{KeptBytes, ResponseBody},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time::Instant};

/// A pause that a refusal has asked for, on its way to the store.
pub(super) struct Pausing {
    /// The longest pause of the limiters that it pauses.
    pub(super) span: Duration,
    /// Ends when the store has answered, with whether it confirmed the pauses.
    pub(super) task: JoinHandle<bool>,
}

// === impl Received ===

impl Received {
    /// Whether the answer may be a refusal, or say what remains of a quota.
    pub(super) fn says_something(&self, rules: &ThrottleRules) -> bool {
        rules.concerns(self.head.status(), self.answered.seen)
    }

    /// Reads the start of the body ahead, unless that has happened.
    pub(super) async fn hold(&mut self, record: &mut Record<'_>, bound: &Arc<KeptBytes>) {
        if self.read_ahead.is_none() {
            let started = Instant::now();
            self.read_ahead = Some(ReadAhead::of(&mut self.answered.body, bound).await);
            record.took(started.elapsed());
        }
    }

    /// Whether the whole body is read. The exchange with the upstream is over then, and what it still has is dropped.
    pub(super) fn is_over(&mut self) -> bool {
        let is_over = self.read_ahead.as_ref().is_some_and(ReadAhead::has_ended);
        if is_over {
            self.answered.body = ResponseBody::ended();
        }
        is_over
    }
}

// === impl Exchange ===

impl<'a> Exchange<'a> {
    pub(super) fn upstream_config(&self, routed: &Routed<'_>) -> &'a config::Upstream {
        &self.proxy.0.plan.config.upstreams[routed.policy.upstream]
    }

    /// How the refusals of the request's upstream are handled.
    pub(super) fn throttle(&self, routed: &Routed<'_>) -> &'a config::ThrottleConfig {
        &self.upstream_config(routed).throttle
    }

    fn streaks(&self, routed: &Routed<'_>) -> &RefusalStreaks {
        &self.proxy.0.plan.heard[routed.policy.upstream].streaks
    }

    /// Notes an answer that refuses its request, or does not.
    #[inline]
    pub(super) fn learn(&self, routed: &Routed<'_>, outgoing: &Outgoing<'_>, is_refusal: bool) {
        // Nearly all answers teach nothing.
        if is_refusal || routed.policy.learns || self.streaks(routed).is_begun() {
            self.learn_from(routed, outgoing, is_refusal);
        }
    }

    #[cold]
    fn learn_from(&self, routed: &Routed<'_>, outgoing: &Outgoing<'_>, is_refusal: bool) {
        let (plan, reservation) = (&self.proxy.0.plan, outgoing.reservation.as_ref());
        let AttemptTimes { sent, took } = outgoing.times;
        if is_refusal {
            plan.upstreams[routed.policy.upstream].throttled.increment(1);
        } else if self.streaks(routed).is_begun()
            && let Some(reservation) = reservation
        {
            let keys = reservation.checks().iter().map(|check| &check.key);
            let longest = as_micros(self.throttle(routed).rules.max_pause);
            self.streaks(routed).accepted(keys, plan.micros(sent), longest);
        }
        if let Some(reservation) = reservation
            && routed.policy.learns
        {
            let refused = is_refusal.then_some(sent);
            routed.policy.learn(&plan.limiters, reservation.checks(), took, refused);
        }
    }

    /// Reads an answer that may be a refusal, and the start of its body if that decides. Counts a refusal.
    pub(super) async fn hear(
        &mut self,
        routed: &Routed<'_>,
        outgoing: &Outgoing<'_>,
        received: &mut Received,
    ) -> Option<UpstreamRefusal> {
        let rules = &self.throttle(routed).rules;
        let status = received.head.status();
        if rules.needs_body(status, received.head.headers()) {
            received.hold(&mut self.record, &self.proxy.0.plan.kept).await;
        }
        let body = received.read_ahead.as_ref().and_then(ReadAhead::whole);
        let heard = rules.hear(status, received.head.headers(), body, Timestamp::now());
        self.learn(routed, outgoing, heard.refusal.is_some());
        if routed.policy.hears_rates {
            self.learn_rates(routed, outgoing, &rules.rates(received.head.headers()));
        }
        if heard.refusal.is_none() && !heard.quotas.is_empty() {
            self.lower(routed, outgoing, &heard);
        }
        heard.refusal
    }

    /// Learns the rates of the quotas that an answer names.
    #[cold]
    fn learn_rates(&self, routed: &Routed<'_>, outgoing: &Outgoing<'_>, quotas: &[QuotaRate]) {
        let Some(reservation) = outgoing.reservation.as_ref().filter(|_| !quotas.is_empty()) else {
            return;
        };
        let plan = &self.proxy.0.plan;
        let learning = reservation.checks().iter().enumerate().filter_map(|(i, check)| {
            let CheckOwner { limiter, rate } = routed.policy.owner(i);
            let limiter = &plan.limiters[limiter];
            let learned = limiter.learned.as_ref().filter(|_| rate == 0)?;
            Some((limiter, learned, limiter.key_in(&check.key)?))
        });
        let is_for_one = learning.clone().count() == 1;
        for (limiter, learned, key) in learning {
            let limiter = &limiter.limiter;
            let Some(start) = limiter.rates.first() else { continue };
            if let Some(rate) = rate_for(quotas, &limiter.name, start, is_for_one) {
                learned.hear(key, rate);
            }
        }
    }

    /// Pauses the limiters of a refused request, each for the key that the request has there. `None` if none of them is one
    /// that its refusals pause. A task of its own tells the store, so that a client that leaves does not prevent it.
    pub(super) fn pause(
        &self,
        routed: &Routed<'_>,
        outgoing: &Outgoing<'_>,
        refusal: &UpstreamRefusal,
    ) -> Option<Pausing> {
        let (plan, store) = (&self.proxy.0.plan, &self.proxy.0.store);
        let config = self.throttle(routed);
        let (sent, now) = (plan.micros(outgoing.times.sent), plan.micros(Instant::now()));
        let (rules, streaks) = (&config.rules, self.streaks(routed));
        let known = store.pauses();
        // Each key has its own refusals in a row. Only a refusal that names no time makes pauses of different lengths.
        let mut spans: BTreeMap<Duration, Vec<Check>> = BTreeMap::new();
        let mut begun = Vec::new();
        let by_account = routed.policy.is_by_account;
        for (i, check) in outgoing.checks?.iter().enumerate() {
            let limiter = routed.policy.limiter(i);
            let has_pause = config.pauses.has(limiter);
            // A limiter of all accounts says nothing about the others.
            let is_of_others = by_account && !plan.limiters[limiter].limiter.is_of_accounts();
            if !check.enforce || is_of_others || !has_pause && check.bounds.is_none() {
                continue;
            }
            let in_a_row = streaks.refused(&check.key, sent, now, as_micros(rules.max_pause));
            // A refusal that comes during a pause begins none.
            if known.get(&check.key).is_none() {
                begun.push(limiter);
            }
            // A rate that is found learns of every refusal.
            let span = if has_pause { rules.pause(refusal, in_a_row) } else { Duration::ZERO };
            spans.entry(span).or_default().push(check.clone());
        }
        let span = *spans.last_key_value()?.0;
        begun.dedup();
        begun.iter().for_each(|limiter| plan.limiters[*limiter].metrics.pauses.increment(1));
        tracing::debug!(
            upstream = self.upstream_config(routed).name,
            status = refusal.status.as_u16(),
            source = ?refusal.source,
            pause_ms = span.as_secs_f64() * 1e3,
            "the upstream refuses a request"
        );
        let asked = spans.into_iter().map(|(span, checks)| {
            let mut pause = Pause::of(span, refusal.status.as_u16());
            if !rules.learns {
                pause = Pause::keeping_rate(pause.span, pause.status);
            }
            store.pause(&checks.into(), pause.since_sent(outgoing.times.sent.elapsed()))
        });
        let asked: Vec<_> = asked.collect();
        Some(Pausing { span, task: tokio::spawn(confirm(asked)) })
    }
}

/// Waits for the answers of the store to pauses. Returns whether it has confirmed all.
async fn confirm(asked: Vec<Answer<()>>) -> bool {
    let mut is_confirmed = true;
    for asked in asked {
        if let Err(error) = asked.get().await {
            tracing::debug!(%error, "the store did not confirm a pause");
            is_confirmed = false;
        }
    }
    is_confirmed
}

/// A span of the configuration in µs; it is at most a day.
fn as_micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
