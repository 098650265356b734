//! Between route and upstream: what the limiters say of a request, and how it is held until its slot has come.

use super::{Client, Proxy, Routed, asked_host, connection, record::Record};
use crate::{
    answer::Failure,
    config::Mode,
    key::Parts,
    limit::{self, Admission, Slot},
    metrics::Verdict,
    plan::{RoutePolicy, Waiting},
    store::{Checks, Decision, Source, StoreError},
    upstream::{Connection, Pool, Resend, UpstreamError},
};
use smallvec::SmallVec;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Level;

/// Why a request is not sent once more.
pub(super) enum Unpaid {
    /// No limiter gave permits in time.
    Refused,
    /// There is no connection; the permits went back.
    Connect(UpstreamError),
}

// === impl Proxy ===

impl Proxy {
    /// Asks the route's limiters; `None` where there are none.
    pub(super) async fn admit(
        &self,
        record: &mut Record<'_>,
        client: &Client,
        routed: &Routed<'_>,
    ) -> Result<Option<Admission>, Failure> {
        let (policy, request) = (routed.policy, &routed.request);
        let trusted = &self.plan.config.trusted_proxies;
        let parts = || Parts {
            client_ip: client.client_ip(request.headers(), trusted),
            host: asked_host(request),
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            paths: self.plan.config.paths,
        };
        let checks = match routed.fixed {
            Some(checks) => Ok(Some(checks.clone())),
            None => policy.checks(&self.plan.limiters, parts),
        };
        let checks = checks.map_err(|why| Failure::BadRequest(why.into()))?;
        let Some(checks) = checks else { return Ok(None) };
        let wanted = routed.budget;
        // Who cannot wait may still go at once.
        let full = !wanted.is_zero() && self.plan.held.of(routed.route) >= policy.max_waiting;
        let budget = if full { Duration::ZERO } else { wanted };
        let admission = limit::ask(&self.store, &checks, budget).await;
        let admission = admission.map_err(|error| self.undecided(routed, error))?;
        if tracing::enabled!(Level::DEBUG) {
            self.tell(record, routed, Some(&checks), &admission);
        }
        match &admission {
            Admission::Granted(slot) => {
                record.bound = Some(policy.limiter(slot.bound_by));
                self.count(record, policy, slot, |check| check);
            }
            Admission::Queued(place) => {
                let limiter = policy.limiter(place.bound_by);
                record.bound = Some(limiter);
                self.decided(limiter, Verdict::Wait, place.source);
            }
            Admission::Refused(decision) => {
                let is_place = checks[decision.bound_by].is_lease();
                let fits = decision.wait > 0 && limit::duration(decision.wait) <= wanted;
                if full && (is_place || fits) {
                    self.refused(record, policy, decision);
                    let retry_after = if is_place { decision.retry_after } else { decision.wait };
                    return Err(Failure::QueueFull { retry_after });
                }
                let late = limit::micros(wanted) - limit::micros(budget);
                let retry_after = decision.retry_after - late;
                let decision = Decision { retry_after, ..decision.clone() };
                return Err(self.refused(record, policy, &decision));
            }
        }
        Ok(Some(admission))
    }

    /// Shows a decision in the log. Names of states hold secrets as hashes only.
    #[cold]
    fn tell(
        &self,
        record: &Record<'_>,
        routed: &Routed<'_>,
        asked: Option<&Checks>,
        said: &Admission,
    ) {
        let millis = |span: Duration| span.as_secs_f64() * 1e3;
        let (bound_by, check, outcome, wait_ms, source, retry_ms) = match said {
            Admission::Granted(slot) => {
                let outcome = if slot.wait.is_zero() { "pass" } else { "wait" };
                let check = Some(slot.bound());
                (slot.bound_by, check, outcome, Some(millis(slot.wait)), slot.source, None)
            }
            Admission::Queued(place) => {
                (place.bound_by, Some(place.bound()), "queue", None, place.source, None)
            }
            Admission::Refused(decision) => {
                let retry = millis(limit::duration(decision.retry_after));
                (
                    decision.bound_by,
                    asked.map(|checks| &checks[decision.bound_by]),
                    "refuse",
                    None,
                    decision.source,
                    Some(retry),
                )
            }
        };
        tracing::debug!(
            request_id = record.id.to_str().unwrap_or("-"),
            route = self.plan.config.routes[routed.route].name,
            limiter = self.plan.limiters[routed.policy.limiter(bound_by)].limiter.name,
            key = check.map(|check| &*check.key),
            cost = check.map(|check| check.cost),
            outcome,
            wait_ms,
            retry_after_ms = retry_ms,
            source = source.name(),
            "decision"
        );
    }

    fn decided(&self, limiter: usize, verdict: Verdict, source: Source) {
        self.own().limiters[limiter].decisions.count(verdict, source);
    }

    /// Counts a refusal, and says it.
    fn refused(
        &self,
        record: &mut Record<'_>,
        policy: &RoutePolicy,
        decision: &Decision,
    ) -> Failure {
        let (limiter, rate) = policy.owner(decision.bound_by);
        record.bound = Some(limiter);
        self.decided(limiter, Verdict::Refuse, decision.source);
        let policy = self.plan.limiters[limiter].policies[rate].clone();
        let remaining = decision.level.remaining;
        Failure::Limited { policy, retry_after: decision.retry_after, remaining }
    }

    /// Counts what each limiter said: of several rates the one that said the most.
    /// `index` says which check of the route a part of the slot belongs to.
    fn count(
        &self,
        record: &mut Record<'_>,
        policy: &RoutePolicy,
        slot: &Slot,
        index: impl Fn(usize) -> usize,
    ) {
        let mut said: SmallVec<[(usize, Verdict); 4]> = SmallVec::new();
        for (i, part) in slot.parts().iter().enumerate() {
            let limiter = policy.limiter(index(i));
            let enforce = self.plan.limiters[limiter].limiter.mode == Mode::Enforce;
            let verdict = match (enforce, part.at) {
                (true, at) if at > 0 && slot.bound_by == i => Verdict::Wait,
                (true, _) => Verdict::Pass,
                (false, ..0) => Verdict::WouldRefuse,
                (false, 0) => Verdict::WouldPass,
                (false, _) => Verdict::WouldWait,
            };
            match said.last_mut() {
                Some((last, most)) if *last == limiter => *most = verdict.max(*most),
                _ => said.push((limiter, verdict)),
            }
        }
        for (limiter, verdict) in said {
            record.observed |= matches!(verdict, Verdict::WouldWait | Verdict::WouldRefuse);
            self.decided(limiter, verdict, slot.source);
        }
    }

    /// Holds a request until its slot has come and its places are free, with a connection at hand. `slot` becomes that.
    pub(super) async fn wait(
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        admission: Box<Admission>,
        upstream: &Pool,
        slot: &mut Option<Slot>,
    ) -> Result<Connection, Failure> {
        let Routed { route, policy, .. } = *routed;
        let bound = record.bound.unwrap_or(policy.limiter(0));
        let waiting = Waiting::enter(&self.plan, route, bound, policy.max_waiting);
        let Some(_waiting) = waiting else {
            let wait = match &*admission {
                Admission::Granted(slot) => slot.wait,
                Admission::Queued(_) | Admission::Refused(_) => Duration::ZERO,
            };
            return Err(Failure::QueueFull { retry_after: limit::micros(wait) });
        };
        let wanted = routed.budget;
        let started = Instant::now();
        record.waits_since = Some(started);
        // Most requests never wait, and none should be larger for it.
        let held =
            Box::pin(self.held(record, routed, *admission, upstream, started + wanted)).await;
        record.waited();
        let (granted, connection) = held?;
        *slot = Some(granted);
        Ok(connection)
    }

    async fn held(
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        mut admission: Admission,
        upstream: &Pool,
        until: Instant,
    ) -> Result<(Slot, Connection), Failure> {
        let policy = routed.policy;
        let mut is_last_call = false;
        loop {
            let next = match admission {
                Admission::Granted(slot) => {
                    let come = async {
                        slot.near(upstream.lead()).await;
                        let connection = connection(upstream, None).await?;
                        slot.come().await;
                        Ok(connection)
                    };
                    let connection = tokio::select! {
                        biased;
                        connection = come => connection?,
                        () = self.drain.ends_before(slot.at) => {
                            let left = slot.at.saturating_duration_since(Instant::now());
                            return Err(Failure::Draining { retry_after: limit::micros(left) });
                        }
                    };
                    let left = until.saturating_duration_since(Instant::now());
                    let is_late = slot.is_late();
                    if !is_late && slot.is_complete() {
                        return Ok((slot, connection));
                    }
                    // It is taken again when the places are there, or the next slot has come.
                    connection.recycle();
                    if is_late {
                        let late = policy.limiter(slot.bound_by);
                        self.plan.limiters[late].metrics.late.increment(1);
                        Box::pin(slot.ask_again(left)).await
                    } else {
                        Box::pin(slot.take_places(left)).await
                    }
                }
                Admission::Queued(_) if is_last_call => {
                    return Err(Failure::Draining { retry_after: 0 });
                }
                Admission::Queued(place) => {
                    tokio::select! {
                        biased;
                        () = place.called() => {}
                        () = self.drain.last_call() => is_last_call = true,
                    }
                    // At the last call no time is left to wait: the request gets its place now, or 503.
                    let left = match is_last_call {
                        true => Duration::ZERO,
                        false => until.saturating_duration_since(Instant::now()),
                    };
                    Box::pin(place.ask_again(left)).await
                }
                Admission::Refused(decision) if is_last_call => {
                    record.bound = Some(policy.limiter(decision.bound_by));
                    return Err(Failure::Draining { retry_after: decision.retry_after });
                }
                Admission::Refused(decision) => return Err(self.refused(record, policy, &decision)),
            };
            admission = next.map_err(|error| self.undecided(routed, error))?;
            if tracing::enabled!(Level::DEBUG) {
                self.tell(record, routed, None, &admission);
            }
        }
    }

    /// Takes permits for a request whose first attempt the upstream may have counted, or whose slot has passed, and a fresh
    /// connection, within what is left of the request's budget. The request keeps the places that it holds. With no time
    /// left it is only granted what can be had at once.
    pub(super) async fn pay_again(
        &self,
        record: &mut Record<'_>,
        routed: &Routed<'_>,
        first: &Slot,
        again: &Resend,
        mut fresh: Option<Connection>,
    ) -> Result<Connection, Unpaid> {
        let Routed { route, policy, budget, .. } = *routed;
        let (checks, indices) = first.for_another_attempt();
        if checks.is_empty() {
            return match fresh {
                Some(connection) => Ok(connection),
                None => again.connection().await.map_err(Unpaid::Connect),
            };
        }
        let until = record.started + budget;
        let mut waiting = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let admission = limit::ask(&self.store, &checks, left).await;
            let mut slot = match admission.map_err(|error| self.undecided(routed, error)) {
                Ok(Admission::Granted(slot)) => slot,
                Ok(Admission::Refused(mut decision)) => {
                    decision.bound_by = indices[decision.bound_by];
                    self.refused(record, policy, &decision);
                    return Err(Unpaid::Refused);
                }
                // No place is asked for.
                Ok(Admission::Queued(_)) | Err(_) => return Err(Unpaid::Refused),
            };
            let bound = policy.limiter(indices[slot.bound_by]);
            self.count(record, policy, &slot, |check| indices[check]);
            if !slot.wait.is_zero() {
                // The upstream may close what is idle meanwhile.
                fresh = None;
                if waiting.is_none() {
                    waiting = Waiting::enter(&self.plan, route, bound, policy.max_waiting);
                    record.bound = Some(bound);
                    record.waits_since.get_or_insert_with(Instant::now);
                }
                if waiting.is_none() {
                    return Err(Unpaid::Refused);
                }
            }
            let come = async {
                slot.near(self.upstreams[policy.upstream].lead()).await;
                let connection = match fresh.take() {
                    Some(connection) => connection,
                    None => again.connection().await.map_err(Unpaid::Connect)?,
                };
                slot.come().await;
                Ok(connection)
            };
            let connection = tokio::select! {
                biased;
                connection = come => connection?,
                // The drain ends sooner: the request is answered at once, not cut.
                () = self.drain.ends_before(slot.at) => return Err(Unpaid::Refused),
            };
            if slot.is_late() {
                self.plan.limiters[bound].metrics.late.increment(1);
                fresh = Some(connection);
                continue;
            }
            slot.spend();
            return Ok(connection);
        }
    }

    /// The store gave no decision.
    fn undecided(&self, routed: &Routed<'_>, error: StoreError) -> Failure {
        let route = &self.plan.config.routes[routed.route].name;
        tracing::debug!(route, %error, "undecided");
        Failure::Store(error)
    }
}
