//! Decides requests under a configuration on virtual time, by the gateway's own routes, keys and costs, and by `limit::pace`.
//! Sends nothing. The runtime's clock is paused, and moves on when every request waits.

mod call;

use super::{
    log_line::{LoggedEnding, LoggedRequest},
    tally::Tally,
};
use crate::{
    algorithm::fair::Priority,
    config::{Config, FairSharing},
    key::Parts,
    limit::{Reservation, duration},
    plan::Plan,
    route::host_of,
    store::{Check, Checks, Store, Turn, memory::MemoryStore},
};
use call::FoundCall;
use http::{HeaderValue, Request, header::HOST};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, advance, sleep_until},
};

/// A configuration with the states of its limiters at one instant.
pub(super) struct Simulation {
    gateway: Arc<ReplayedGateway>,
    /// When the runtime began. Its timers count in whole ms from there.
    start: Instant,
    /// The number of requests so far.
    requests: u64,
}

/// The parts of a replay that its requests share.
struct ReplayedGateway {
    plan: Plan,
    store: Arc<dyn Store>,
    /// The same store, whose clock is that of the log.
    states: MemoryStore,
    tally: Mutex<Tally>,
    /// The calls with concurrency permits, by the instants of their ends and the numbers of their requests.
    running: Mutex<BTreeMap<(Instant, u64), Reservation>>,
    /// Notified when one of these calls begins.
    begins: Notify,
}

// === impl Simulation ===

impl Simulation {
    /// Begins a replay on the current runtime, whose clock is paused.
    pub(super) fn new(config: Config) -> Self {
        let states = MemoryStore::default();
        let gateway = ReplayedGateway {
            tally: Mutex::new(Tally::new(&config)),
            plan: Plan::new(config, false),
            store: Arc::new(states.clone()),
            states,
            running: Mutex::default(),
            begins: Notify::new(),
        };
        Self { gateway: Arc::new(gateway), start: Instant::now(), requests: 0 }
    }

    /// Decides a request, which comes no earlier than the one before.
    pub(super) async fn decide(&mut self, logged: LoggedRequest) {
        let span = duration(logged.at - self.gateway.states.now());
        if self.requests == 0 {
            // The windows of a `fixed_window` begin at the instants at which they began then.
            advance(span).await;
        }
        self.requests += 1;
        self.run_until(Instant::now() + duration(logged.at - self.gateway.states.now())).await;
        let found = self.gateway.find(&logged);
        let LoggedRequest { recorded, waited, took, limiter, .. } = logged;
        let route = found.as_ref().map_or_else(|route| *route, |call| Some(call.route));
        let call = {
            let mut tally = self.gateway.tally.lock();
            tally.recorded(route, limiter.as_deref(), recorded, waited);
            match found {
                Err(route) => return tally.count(route, LoggedEnding::Other, 0),
                Ok(call) if call.checks.is_empty() => {
                    return tally.count(route, LoggedEnding::Passed, 0);
                }
                Ok(call) => call,
            }
        };
        let gateway = self.gateway.clone();
        let mut paced = Box::pin(gateway.pace(call, duration(took), self.requests));
        // Most requests have no need of a task.
        if poll_fn(|cx| Poll::Ready(paced.as_mut().poll(cx).is_pending())).await {
            tokio::spawn(paced);
        }
    }

    /// Lets the rest happen: requests that wait get their slots.
    pub(super) async fn finish(&self) {
        let longest = self.gateway.plan.config.routes.iter().map(|route| route.max_wait).max();
        self.run_until(Instant::now() + longest.unwrap_or_default() + Duration::from_secs(1)).await;
    }

    /// The counts so far.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.gateway.tally.lock()
    }

    /// Lets everything happen that comes before `at`: calls end, and requests that wait get their slots.
    async fn run_until(&self, at: Instant) {
        loop {
            let end = self.gateway.next_end().filter(|end| *end <= at);
            tokio::select! {
                biased;
                () = self.gateway.begins.notified() => {}
                () = self.go_to(end.unwrap_or(at)) => match end {
                    // Requests that wait get its permits.
                    Some(_) => drop(self.gateway.running.lock().pop_first()),
                    None => return,
                }
            }
        }
    }

    /// Moves the clock to `at`, which may lie between two ticks of the timers.
    async fn go_to(&self, at: Instant) {
        // Requests that have got a permit go first.
        yield_now().await;
        let ticks = at.duration_since(self.start).as_millis();
        sleep_until(self.start + Duration::from_millis(ticks as u64)).await;
        advance(at.saturating_duration_since(Instant::now())).await;
    }
}

// === impl ReplayedGateway ===

impl ReplayedGateway {
    fn next_end(&self) -> Option<Instant> {
        self.running.lock().first_key_value().map(|((end, _), _)| *end)
    }

    /// Finds the limiters of a request. The error is the route of a request that the gateway answers itself, if it has one.
    fn find(&self, logged: &LoggedRequest) -> Result<FoundCall, Option<usize>> {
        let (plan, config) = (&self.plan, &self.plan.config);
        let mut request = Request::new(());
        *request.method_mut() = logged.method.clone();
        *request.uri_mut() = logged.uri.clone();
        *request.headers_mut() = logged.headers.clone();
        request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static("localhost"));
        crate::proxy::validate(config, &request).map_err(|_| None)?;
        let host = logged.host.as_deref().map(host_of);
        let covers = |one: usize, other: usize| config.routes[one].covers(&config.routes[other]);
        let found = plan.table.find_covering(&logged.method, host, logged.uri.path(), covers);
        let route = found.ok().flatten().ok_or(None)?;
        let policy = &plan.policies[plan.counters[0].direct[route].policy];
        let parts = || Parts {
            client_ip: logged.client,
            host,
            method: &logged.method,
            uri: &logged.uri,
            headers: &logged.headers,
            body: None,
            paths: config.paths,
            template: config.routes[route].path.template().map(|template| &**template),
            descriptor: None,
        };
        let priority = policy.priority.fixed().or(logged.priority);
        let priority = priority.unwrap_or(Priority::Normal);
        let checks = policy.checks(&plan.limiters, priority, parts).map_err(|_| Some(route))?;
        let (checks, limiters) = match checks {
            Some((checks, own)) => {
                let limiters: Vec<_> = (0..checks.len()).map(|i| own.limiter(i)).collect();
                let checks = checks.iter().zip(&limiters).map(|(check, limiter)| {
                    let fair = plan.limiters[*limiter].limiter.fair.as_ref();
                    with_logged_tenant(check.clone(), fair, logged)
                });
                (checks.collect(), limiters)
            }
            None => (Checks::from([]), Vec::new()),
        };
        let (max_wait, max_waiting) = (policy.max_wait, policy.max_waiting);
        Ok(FoundCall { route, checks, limiters, max_wait, max_waiting })
    }
}

/// The check with the tenant that the log names, if the log lacks what names it in the configuration.
fn with_logged_tenant(check: Check, fair: Option<&FairSharing>, logged: &LoggedRequest) -> Check {
    let turn = match (&check.turn, fair, &logged.tenant) {
        (Some(turn), Some(fair), Some(tenant)) if logged.format.lacks(&fair.by) => {
            Some(Turn::new(tenant.as_str(), fair.weight(tenant), turn.priority))
        }
        _ => check.turn.clone(),
    };
    Check { turn, ..check }
}
