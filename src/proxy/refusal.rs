//! Finds out whether the upstream's answer refuses the request, and pauses the limiters then. Sends nothing again.

use super::{
    Proxy, Routed,
    forward::{AttemptTimes, Received},
    read_ahead::ReadAhead,
    record::Record,
};
use crate::{
    config,
    limit::{Reservation, micros},
    store::{Check, Checks, Pause},
    throttle::{RefusalStreak, Timestamp, UpstreamRefusal},
    upstream::{KeptBytes, ResponseBody},
};
use std::{iter::zip, mem, sync::Arc, time::Duration};
use tokio::{task::JoinHandle, time::Instant};

/// A pause that a refusal has asked for, on its way to the store.
pub(super) struct Pausing {
    pub(super) span: Duration,
    /// Ends when the store has answered, with whether it confirmed the pause.
    pub(super) task: JoinHandle<bool>,
}

// === impl Received ===

impl Received {
    /// Reads the start of the body ahead, unless that has happened.
    pub(super) async fn hold(&mut self, record: &mut Record<'_>, bound: &Arc<KeptBytes>) {
        if self.read_ahead.is_none() {
            let started = Instant::now();
            self.read_ahead = Some(ReadAhead::of(self.response.body_mut(), bound).await);
            record.took(started.elapsed());
        }
    }

    /// Whether the whole body is read. The exchange with the upstream is over then, and what it still has is dropped.
    pub(super) fn is_over(&mut self) -> bool {
        let is_over = self.read_ahead.as_ref().is_some_and(ReadAhead::has_ended);
        if is_over {
            drop(mem::replace(self.response.body_mut(), ResponseBody::ended()));
        }
        is_over
    }
}

// === impl Proxy ===

impl Proxy {
    fn upstream_config(&self, routed: &Routed<'_>) -> &config::Upstream {
        &self.0.plan.config.upstreams[routed.policy.upstream]
    }

    /// How the refusals of the request's upstream are handled.
    pub(super) fn throttle(&self, routed: &Routed<'_>) -> &config::ThrottleConfig {
        &self.upstream_config(routed).throttle
    }

    fn streak(&self, routed: &Routed<'_>) -> &RefusalStreak {
        &self.0.plan.heard[routed.policy.upstream].streak
    }

    /// Notes an answer that refuses its request, or does not.
    pub(super) fn learn(
        &self,
        routed: &Routed<'_>,
        reservation: Option<&Reservation>,
        AttemptTimes { sent, took }: AttemptTimes,
        is_refusal: bool,
    ) {
        let plan = &self.0.plan;
        if is_refusal {
            plan.upstreams[routed.policy.upstream].throttled.increment(1);
        } else if self.streak(routed).is_begun() {
            self.streak(routed).accepted(plan.micros(sent));
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
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        received: &mut Received,
    ) -> Option<UpstreamRefusal> {
        let rules = &self.throttle(routed).rules;
        let (status, headers) = (received.response.status(), received.response.headers());
        if rules.needs_body(status, headers) {
            received.hold(record, &self.0.plan.kept).await;
        }
        let body = received.read_ahead.as_ref().and_then(ReadAhead::whole);
        let headers = received.response.headers();
        let heard = rules.hear(status, headers, body, Timestamp::now());
        self.learn(routed, received.reservation.as_ref(), received.times, heard.refusal.is_some());
        if heard.refusal.is_none() && !heard.quotas.is_empty() {
            self.lower(routed, received, &heard);
        }
        heard.refusal
    }

    /// Pauses the limiters of a refused request, each for the key that the request has there. `None` if none of them is one
    /// that its refusals pause. A task of its own tells the store, so that a client that leaves does not prevent it.
    pub(super) fn pause(
        &self,
        routed: &Routed<'_>,
        checks: Option<&Checks>,
        (refusal, sent): (&UpstreamRefusal, Instant),
    ) -> Option<Pausing> {
        let (plan, config) = (&self.0.plan, self.throttle(routed));
        let (sent, now) = (plan.micros(sent), plan.micros(Instant::now()));
        let in_a_row = self.streak(routed).refused(sent, now);
        let span = config.rules.pause(refusal, in_a_row);
        let limiter = |i: usize| routed.policy.limiter(i);
        let checks = checks?.iter().enumerate();
        let paused = checks.filter(|(i, check)| check.enforce && config.pauses.has(limiter(*i)));
        let (limiters, checks): (Vec<usize>, Vec<Check>) =
            paused.map(|(i, check)| (limiter(i), check.clone())).unzip();
        if checks.is_empty() {
            return None;
        }
        let remaining = &plan.heard[routed.policy.upstream].remaining;
        checks.iter().for_each(|check| remaining.refuses(&check.key, now));
        // A refusal that comes during a pause begins none.
        let known = self.0.store.pauses();
        let begins = zip(&limiters, &checks).filter(|(_, check)| known.get(&check.key).is_none());
        let mut begun: Vec<usize> = begins.map(|(limiter, _)| *limiter).collect();
        begun.dedup();
        begun.iter().for_each(|limiter| plan.limiters[*limiter].metrics.pauses.increment(1));
        tracing::debug!(
            upstream = self.upstream_config(routed).name,
            status = refusal.status.as_u16(),
            source = ?refusal.source,
            in_a_row,
            pause_ms = span.as_secs_f64() * 1e3,
            "the upstream refuses a request"
        );
        let pause = Pause { span: micros(span), status: refusal.status.as_u16() };
        let asked = self.0.store.pause(&checks.into(), pause);
        let task = tokio::spawn(async move {
            let answer = asked.get().await;
            if let Err(error) = &answer {
                tracing::debug!(%error, "the store did not confirm a pause");
            }
            answer.is_ok()
        });
        Some(Pausing { span, task })
    }
}
