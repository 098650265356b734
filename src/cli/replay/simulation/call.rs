//! One request of a replay on its way through its limiters, as the caller of `limit::pace`.

use super::ReplayedGateway;
use crate::{
    algorithm::Micros,
    cli::replay::log_line::LoggedEnding,
    config::Mode,
    limit::{AlwaysReady, Caller, Reservation, Waiter, micros, pace},
    plan::Waiting,
    store::{Checks, Decision, StoreError},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A request with its route and its limiters.
pub(super) struct FoundCall {
    pub(super) route: usize,
    pub(super) checks: Checks,
    /// The limiter of each check.
    pub(super) limiters: Vec<usize>,
    pub(super) max_wait: Duration,
    pub(super) max_waiting: usize,
}

/// A request that asks its limiters.
struct ReplayedCall<'r> {
    gateway: &'r ReplayedGateway,
    call: &'r FoundCall,
    arrival: Instant,
    /// As many requests of the route wait as may: this one is only granted what it can have at once.
    is_at_max_waiting: bool,
    /// Counts it among those that wait, from its first wait on.
    waiting: Option<Waiting<'r>>,
    /// The check in whose queue it has waited.
    queued_by: Option<usize>,
}

/// The effect of one limiter on a request.
struct LimiterEffect {
    limiter: usize,
    ending: LoggedEnding,
    wait: Micros,
}

// === impl ReplayedGateway ===

impl ReplayedGateway {
    /// Takes a request through its limiters, and keeps its concurrency permits for as long as it `took` then.
    pub(super) async fn pace(self: Arc<Self>, call: FoundCall, took: Duration, number: u64) {
        let arrival = Instant::now();
        let is_at_max_waiting = self.plan.waiting.of(call.route) >= call.max_waiting;
        let mut caller = ReplayedCall {
            gateway: &self,
            call: &call,
            arrival,
            is_at_max_waiting,
            waiting: None,
            queued_by: None,
        };
        let mut callee = AlwaysReady::default();
        let paced = pace(&self.store, &call.checks, &mut caller, &mut callee).await;
        let route = Some(call.route);
        match paced {
            Err(limiter) => {
                let mut tally = self.tally.lock();
                tally.count(route, LoggedEnding::Refused, 0);
                tally.limiter(limiter, LoggedEnding::Refused, 0);
            }
            Ok((mut reservation, ())) => {
                let effects = caller.effects(&reservation);
                let wait = micros(reservation.at - arrival);
                let ending = if wait > 0 { LoggedEnding::Waited } else { LoggedEnding::Passed };
                let mut tally = self.tally.lock();
                tally.count(route, ending, wait);
                effects.iter().for_each(|own| tally.limiter(own.limiter, own.ending, own.wait));
                drop(tally);
                reservation.spend();
                if reservation.is_lease() {
                    let end = reservation.at + took;
                    self.running.lock().insert((end, number), reservation);
                    self.begins.notify_one();
                }
            }
        }
    }
}

// === impl ReplayedCall ===

impl ReplayedCall<'_> {
    /// The effects of all limiters on an admitted request: of one with several rates the one that is furthest from "pass".
    fn effects(&self, reservation: &Reservation) -> Vec<LimiterEffect> {
        let waited = micros(reservation.at - self.arrival);
        let mut all: Vec<LimiterEffect> = Vec::new();
        for (i, part) in reservation.parts().iter().enumerate() {
            let limiter = self.call.limiters[i];
            let is_enforced = self.gateway.plan.limiters[limiter].limiter.mode == Mode::Enforce;
            let has_bound = reservation.bound_by == i || self.queued_by == Some(i);
            let (ending, wait) = match part.at {
                _ if is_enforced && has_bound && waited > 0 => (LoggedEnding::Waited, waited),
                _ if is_enforced => (LoggedEnding::Passed, 0),
                0 => (LoggedEnding::Passed, 0),
                ..0 => (LoggedEnding::Refused, 0),
                at => (LoggedEnding::Waited, at),
            };
            let effect = LimiterEffect { limiter, ending, wait };
            // The checks of one limiter follow each other.
            match all.last_mut().filter(|last| last.limiter == limiter) {
                Some(_) if ending == LoggedEnding::Passed => {}
                Some(last) => *last = effect,
                None => all.push(effect),
            }
        }
        all
    }
}

impl Caller for ReplayedCall<'_> {
    /// The limiter that refuses.
    type Error = usize;

    fn left(&self) -> Duration {
        match self.is_at_max_waiting && self.waiting.is_none() {
            true => Duration::ZERO,
            false => self.call.max_wait.saturating_sub(self.arrival.elapsed()),
        }
    }

    fn queued(&mut self, waiter: &Waiter) {
        self.queued_by = Some(waiter.bound_by);
    }

    fn refused(&mut self, decision: Decision) -> usize {
        self.call.limiters[decision.bound_by]
    }

    fn undecided(&mut self, _: StoreError) -> usize {
        // The memory store decides every request.
        self.call.limiters[0]
    }

    fn waits(&mut self, bound_by: usize, _: Option<Duration>) -> Result<(), usize> {
        if self.waiting.is_none() {
            let FoundCall { route, limiters, max_waiting, .. } = self.call;
            let limiter = limiters[bound_by];
            let entered = Waiting::enter(&self.gateway.plan, *route, limiter, *max_waiting);
            self.waiting = Some(entered.ok_or(limiter)?);
        }
        Ok(())
    }
}
