//! The marks that an attempt leaves: counts, the line of the log, the trace, and the list of recent requests. Decides nothing.

use super::Attempt;
use crate::{
    config::Mode,
    limit::Reservation,
    metrics::Verdict,
    plan::{CheckOwner, RecentReason, RecentRequest},
    proxy::quota_left::QuotaLeft,
    store::{Check, Source},
    throttle::Timestamp,
};
use std::time::Duration;
use tracing::Level;

/// The times in a line about a decision.
#[derive(Default)]
pub(super) struct Times {
    pub(super) wait: Option<Duration>,
    pub(super) retry_after: Option<Duration>,
}

/// The verdict of a limiter on a request.
struct LimiterVerdict {
    limiter: usize,
    verdict: Verdict,
}

/// Whether [`Attempt::log`] is worth its arguments.
pub(super) fn is_logged() -> bool {
    tracing::enabled!(Level::DEBUG)
}

// === impl Attempt ===

impl Attempt<'_, '_> {
    /// Notes the limiter of a check as the one that bound the request.
    pub(super) fn bind(&mut self, check: usize) {
        let limiter = self.policy.limiter(self.index(check));
        self.record.bind(limiter, self.checks.get(check));
    }

    /// Notes a decision about the limiter of a check, for the trace.
    #[inline]
    pub(super) fn trace(
        &mut self,
        decision: &'static str,
        bound_by: Option<usize>,
        source: Option<Source>,
    ) {
        if let Some(trace) = &mut self.record.trace {
            let limiter = bound_by.map(|check| {
                let check = self.indices.map_or(check, |indices| indices[check]);
                &self.proxy.0.plan.limiters[self.policy.limiter(check)].limiter.name
            });
            trace.decided(decision, limiter.map(String::as_str), source.map(Source::name));
        }
    }

    /// Counts the verdict of a limiter.
    pub(super) fn count_verdict(&self, limiter: usize, verdict: Verdict, source: Source) {
        self.proxy.counters().limiters[limiter].decisions.count(verdict, source);
    }

    /// Counts the verdict of each limiter: of a limiter with several rates the verdict that is furthest from "pass".
    pub(super) fn count(&mut self, reservation: &Reservation) {
        // The checks of one limiter follow each other.
        let mut last: Option<LimiterVerdict> = None;
        for (i, part) in reservation.parts().iter().enumerate() {
            let limiter = self.policy.limiter(self.index(i));
            let plan = &self.proxy.0.plan.limiters[limiter];
            let enforce = plan.limiter.mode == Mode::Enforce;
            if let Some(margin) = plan.margin().filter(|_| !reservation.is_after_pause()) {
                margin.asked(part.at > 0 && reservation.bound_by == i);
            }
            let verdict = match (enforce, part.at) {
                (true, at) if at > 0 && reservation.bound_by == i => Verdict::Wait,
                (true, _) => Verdict::Pass,
                (false, ..0) => Verdict::WouldRefuse,
                (false, 0) => Verdict::WouldPass,
                (false, _) => Verdict::WouldWait,
            };
            last = match last {
                Some(most) if most.limiter == limiter => {
                    Some(LimiterVerdict { limiter, verdict: verdict.max(most.verdict) })
                }
                before => {
                    self.count_grant(before, reservation.source);
                    Some(LimiterVerdict { limiter, verdict })
                }
            };
        }
        self.count_grant(last, reservation.source);
    }

    /// Counts the verdict of a limiter that granted its permits, or would not have.
    fn count_grant(&mut self, said: Option<LimiterVerdict>, source: Source) {
        if let Some(LimiterVerdict { limiter, verdict }) = said {
            self.record.observed |= matches!(verdict, Verdict::WouldWait | Verdict::WouldRefuse);
            self.count_verdict(limiter, verdict, source);
        }
    }

    /// Logs a reservation, and keeps what its answer tells of it.
    #[inline]
    pub(super) fn sees(&mut self, outcome: &'static str, reservation: &Reservation) {
        if is_logged() {
            let times = Times { wait: Some(reservation.wait), ..Times::default() };
            let (bound_by, source) = (reservation.bound_by, reservation.source);
            self.log(outcome, reservation.bound(), bound_by, source, times);
        }
        if self.record.trace.is_some() {
            self.trace(outcome, Some(reservation.bound_by), Some(reservation.source));
        }
        if self.policy.tells_quota {
            self.note_quota(reservation);
        }
    }

    /// Keeps what the limiter that bound has left, for the answer.
    #[cold]
    fn note_quota(&mut self, reservation: &Reservation) {
        let CheckOwner { limiter, rate } = self.policy.owner(self.index(reservation.bound_by));
        let is_decided = reservation.bound().enforce && reservation.source != Source::None;
        self.record.quota = is_decided.then(|| {
            let key = &reservation.bound().key;
            let policy = self.proxy.0.plan.limiters[limiter].policy(rate, key, reservation.level);
            Box::new(QuotaLeft::new(policy, reservation))
        });
    }

    /// Notes a request that does not pass at once, for operators; `check` is the index of the one that holds or refuses it.
    #[cold]
    pub(super) fn note(&self, check: Option<usize>, reason: RecentReason) {
        let plan = &self.proxy.0.plan;
        plan.recent.note(RecentRequest {
            at: Timestamp::now(),
            id: self.record.id.clone(),
            route: plan.route_names[self.route].clone(),
            state: check.and_then(|check| self.checks.get(check)).map(|check| check.key.clone()),
            reason,
        });
    }

    /// Logs an answer of the store, at the level `debug`. Names of states hold secrets as hashes only.
    #[cold]
    pub(super) fn log(
        &self,
        outcome: &str,
        check: &Check,
        bound_by: usize,
        source: Source,
        times: Times,
    ) {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        let limiter = self.policy.limiter(self.index(bound_by));
        tracing::debug!(
            request_id = self.record.id.to_str().unwrap_or("-"),
            route = self.proxy.0.plan.config.routes[self.route].name,
            limiter = self.proxy.0.plan.limiters[limiter].limiter.name,
            key = &*check.key,
            cost = check.cost,
            outcome,
            wait_ms = times.wait.map(millis),
            retry_after_ms = times.retry_after.map(millis),
            source = source.name(),
            "decision"
        );
    }
}
