//! Decides requests under a configuration on virtual time, by the gateway's own routes, keys, costs and rules. Sends
//! nothing and reads no clock.

mod checks;
mod turns;

use super::{
    log_line::{LoggedEnding, LoggedRequest},
    tally::Tally,
};
use crate::{
    algorithm::{
        Micros,
        concurrency::Ticket,
        fair::{Place, Priority},
    },
    config::{Config, Mode},
    key::Parts,
    limit::micros,
    plan::{Plan, PolicyChecks},
    route::host_of,
    store::{Check, Checks, Decision, Entry, Reply, calls::Calls, memory::MemoryStore},
};
use checks::{with_logged_tenant, with_long_lease};
use http::{HeaderValue, Request, header::HOST};
use jiff::Timestamp;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    sync::Arc,
};
use turns::TurnCall;

/// The gateway's number in all tickets of a replay.
const GATEWAY: i64 = 1;

/// A configuration with the states of its limiters at one instant.
pub(super) struct Simulation {
    plan: Plan,
    store: MemoryStore,
    calls: Arc<Calls>,
    now: Micros,
    /// The instants of later steps, and the order in which they were planned.
    later: BinaryHeap<Reverse<(Micros, u64)>>,
    steps: HashMap<u64, Step>,
    planned: u64,
    /// The requests that wait for a concurrency permit, by the number of their ticket.
    queue: BTreeMap<i64, ReplayedCall>,
    /// The requests that wait for their turn, by the number of their ticket.
    in_turn: HashMap<i64, TurnCall>,
    tickets: i64,
    /// The requests of each route that wait.
    held: Vec<usize>,
    pub(super) tally: Tally,
}

/// A request on its way through its limiters.
struct ReplayedCall {
    route: usize,
    policy: usize,
    checks: Checks,
    /// The limiter of each check.
    limiters: Vec<usize>,
    ticket: Option<Ticket>,
    arrival: Micros,
    /// The end of the time that it may wait.
    until: Micros,
    took: Micros,
    is_held: bool,
}

/// Something that happens later.
enum Step {
    /// The slot of a request comes, which then takes its concurrency permits. The decision has the other permits.
    Slot(Box<ReplayedCall>, Decision),
    /// A request leaves the route's waiting ones.
    Leave(usize),
    /// A call ends, and releases its concurrency permits.
    Release(Checks, Ticket),
    /// A request in a queue asks again, because its time ends.
    Ask(i64),
    /// A request that waits for its turn confirms.
    Confirm(i64),
}

// === impl Simulation ===

impl Simulation {
    pub(super) fn new(config: Config) -> Self {
        let tally = Tally::new(&config);
        let held = vec![0; config.routes.len()];
        let calls = Arc::new(Calls::listed(GATEWAY));
        Self {
            plan: Plan::new(config, false),
            // One lock for all states: the limiters of one request may have different hash tags.
            store: MemoryStore::calling(calls.clone()),
            calls,
            now: Micros::MIN,
            later: BinaryHeap::new(),
            steps: HashMap::new(),
            planned: 0,
            queue: BTreeMap::new(),
            in_turn: HashMap::new(),
            tickets: 0,
            held,
            tally,
        }
    }

    /// Decides a request, which comes no earlier than the one before.
    pub(super) fn decide(&mut self, logged: LoggedRequest) {
        self.run_until(logged.at);
        self.now = logged.at;
        self.renew_windows();
        let LoggedRequest { recorded, waited, took, .. } = logged;
        let call = self.call(&logged);
        let route = call.as_ref().map_or_else(|route| *route, |call| Some(call.route));
        self.tally.recorded(route, logged.limiter.as_deref(), recorded, waited);
        match call {
            Err(route) => self.tally.count(route, LoggedEnding::Other, 0),
            Ok(call) if call.checks.is_empty() => {
                self.tally.count(Some(call.route), LoggedEnding::Passed, 0);
            }
            Ok(call) => self.ask(ReplayedCall { took, ..call }),
        }
        self.serve_woken();
    }

    /// Has the windows of the calendar as they are around the instant.
    fn renew_windows(&mut self) {
        if let Ok(now) = Timestamp::from_microsecond(self.now)
            && self.plan.config.has_past_windows(now)
        {
            let mut config = self.plan.config.clone();
            config.renew_windows(now);
            self.plan = Plan::new(config, false);
        }
    }

    /// Lets the rest happen: requests that wait get their slots.
    pub(super) fn finish(&mut self) {
        self.run_until(Micros::MAX);
    }

    /// Finds the limiters of a request. The error is the route of a request that the gateway answers itself, if it has one.
    fn call(&mut self, logged: &LoggedRequest) -> Result<ReplayedCall, Option<usize>> {
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
        let policy = plan.counters[0].direct[route].policy;
        let parts = || Parts {
            client_ip: logged.client,
            host,
            method: &logged.method,
            uri: &logged.uri,
            headers: &logged.headers,
            body: None,
            body_length: None,
            paths: config.paths,
            template: config.routes[route].path.template().map(|template| &**template),
            descriptor: None,
            account: None,
        };
        let priority = plan.policies[policy].priority.fixed().or(logged.priority);
        let priority = priority.unwrap_or(Priority::Normal);
        let checks = plan.policies[policy]
            .checks(&plan.limiters, priority, parts)
            .map_err(|_| Some(route))?;
        let (checks, limiters) = match checks {
            Some(PolicyChecks { checks, policy: own }) => {
                let limiters: Vec<_> = (0..checks.len()).map(|i| own.limiter(i)).collect();
                let checks = checks.iter().zip(&limiters).map(|(check, limiter)| {
                    let fair = plan.limiters[*limiter].limiter.fair.as_ref();
                    with_long_lease(with_logged_tenant(check.clone(), fair, logged))
                });
                (checks.collect(), limiters)
            }
            None => (Checks::from([]), Vec::new()),
        };
        let needs_ticket = |check: &Check| check.is_lease() || check.turn.is_some();
        let ticket = checks.iter().any(needs_ticket).then(|| {
            self.tickets += 1;
            Ticket { gateway: GATEWAY, number: self.tickets, deadline: 0 }
        });
        let until = logged.at + micros(plan.policies[policy].max_wait);
        let (arrival, took, is_held) = (logged.at, 0, false);
        Ok(ReplayedCall { route, policy, checks, limiters, ticket, arrival, until, took, is_held })
    }

    fn ask(&mut self, call: ReplayedCall) {
        let is_at_max_waiting =
            !call.is_held && self.held[call.route] >= self.plan.policies[call.policy].max_waiting;
        let budget = if is_at_max_waiting { 0 } else { (call.until - self.now).max(0) };
        let decision = self.reserve(&call.checks, budget, call.ticket);
        if let Some(queued) = decision.queued {
            let after = queued.ask_after.min(budget);
            return self.enqueue(call, queued.deadline, after);
        }
        if !decision.admitted {
            return self.refuse(call, decision.bound_by);
        }
        match Place::among(&decision.parts) {
            Some((_, place)) => self.wait_for_turn(call, decision, place),
            None => self.go(call, decision),
        }
    }

    /// The rates have granted a request, and its slot is certain.
    fn go(&mut self, call: ReplayedCall, decision: Decision) {
        self.count(&call, &decision);
        let has_concurrency = call.checks.iter().any(Check::is_lease);
        let at = self.now + decision.wait;
        if has_concurrency && decision.wait > 0 {
            let call = self.hold(call);
            self.plan_step(at, Step::Slot(Box::new(call), decision));
        } else {
            self.start(call, at);
        }
    }

    /// The slot of a request with concurrency limiters has come: it takes their permits, or waits for them.
    fn take_concurrency_permits(&mut self, call: ReplayedCall, decision: &Decision) {
        let concurrent: Checks =
            call.checks.iter().filter(|check| check.is_lease()).cloned().collect();
        let budget = (call.until - self.now).max(0);
        let taken = self.reserve(&concurrent, budget, call.ticket);
        if taken.admitted {
            return self.start(call, self.now);
        }
        for (check, part) in call.checks.iter().zip(&decision.parts) {
            if part.at >= 0 && !check.is_lease() {
                self.run(Entry::Refund { check: check.clone(), grant: part.grant });
            }
        }
        let bound_by = call.checks.iter().position(Check::is_lease).unwrap_or_default();
        match taken.queued {
            Some(queued) => self.enqueue(call, queued.deadline, queued.ask_after.min(budget)),
            None => self.refuse(call, bound_by),
        }
    }

    fn enqueue(&mut self, call: ReplayedCall, deadline: Micros, after: Micros) {
        let mut call = self.hold(call);
        let Some(ticket) = &mut call.ticket else { return };
        ticket.deadline = deadline;
        let number = ticket.number;
        self.queue.insert(number, call);
        self.plan_step(self.now + after.max(1), Step::Ask(number));
    }

    fn hold(&mut self, call: ReplayedCall) -> ReplayedCall {
        if !call.is_held {
            self.held[call.route] += 1;
        }
        ReplayedCall { is_held: true, ..call }
    }

    /// A request is sent at the instant `at`.
    fn start(&mut self, call: ReplayedCall, at: Micros) {
        let wait = at - call.arrival;
        let ending = if wait > 0 { LoggedEnding::Waited } else { LoggedEnding::Passed };
        self.tally.count(Some(call.route), ending, wait);
        let call = if wait > 0 { self.hold(call) } else { call };
        if call.is_held {
            self.plan_step(at, Step::Leave(call.route));
        }
        if let Some(ticket) = call.ticket.filter(|_| call.checks.iter().any(Check::is_lease)) {
            self.plan_step(at + call.took, Step::Release(call.checks, ticket));
        }
    }

    fn refuse(&mut self, call: ReplayedCall, bound_by: usize) {
        if call.is_held {
            self.held[call.route] -= 1;
        }
        self.tally.count(Some(call.route), LoggedEnding::Refused, 0);
        self.tally.limiter(call.limiters[bound_by], LoggedEnding::Refused, 0);
    }

    /// Counts the verdict of each limiter on an admitted request: of one with several rates the one that is furthest from
    /// "pass".
    fn count(&mut self, call: &ReplayedCall, decision: &Decision) {
        let mut last: Option<(usize, LoggedEnding, Micros)> = None;
        for (i, part) in decision.parts.iter().enumerate() {
            let limiter = call.limiters[i];
            let enforces = self.plan.limiters[limiter].limiter.mode == Mode::Enforce;
            let said = match (enforces, part.at) {
                // It waited in the queue.
                (true, _) if call.is_held && call.checks[i].is_lease() => {
                    (LoggedEnding::Waited, self.now - call.arrival)
                }
                (true, at) if at > 0 && decision.bound_by == i => (LoggedEnding::Waited, at),
                (true, _) | (false, 0) => (LoggedEnding::Passed, 0),
                (false, at) if at > 0 => (LoggedEnding::Waited, at),
                (false, _) => (LoggedEnding::Refused, 0),
            };
            last = match last {
                Some((own, ending, wait)) if own == limiter && said.0 == LoggedEnding::Passed => {
                    Some((own, ending, wait))
                }
                before => {
                    if let Some((own, ending, wait)) = before.filter(|(own, ..)| *own != limiter) {
                        self.tally.limiter(own, ending, wait);
                    }
                    Some((limiter, said.0, said.1))
                }
            };
        }
        if let Some((limiter, ending, wait)) = last {
            self.tally.limiter(limiter, ending, wait);
        }
    }

    fn run_until(&mut self, end: Micros) {
        while let Some(Reverse((at, number))) = self.later.peek().copied()
            && at <= end
        {
            self.later.pop();
            self.now = self.now.max(at);
            match self.steps.remove(&number) {
                Some(Step::Slot(call, decision)) => self.take_concurrency_permits(*call, &decision),
                Some(Step::Leave(route)) => self.held[route] -= 1,
                Some(Step::Release(checks, ticket)) => self.release(&checks, ticket),
                Some(Step::Ask(number)) => {
                    if let Some(call) = self.queue.remove(&number) {
                        self.ask(call);
                    }
                }
                Some(Step::Confirm(number)) => self.confirm_as_planned(number),
                None => {}
            }
            self.serve_woken();
        }
    }

    /// Releases the concurrency permits of a call. The store wakes the requests that get them.
    fn release(&self, checks: &Checks, ticket: Ticket) {
        let grant = ticket.grant();
        for check in checks.iter().filter(|check| check.is_lease()) {
            self.run(Entry::Refund { check: check.clone(), grant });
        }
    }

    fn plan_step(&mut self, at: Micros, step: Step) {
        self.planned += 1;
        self.steps.insert(self.planned, step);
        self.later.push(Reverse((at, self.planned)));
    }

    fn reserve(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Decision {
        match self.run(Entry::Reserve { checks: checks.clone(), budget, ticket }) {
            Some(Reply::Decision(decision)) => decision,
            // The memory store decides every request.
            _ => Decision::paused(0, 0),
        }
    }

    fn run(&self, entry: Entry) -> Option<Reply> {
        self.store.run_at(self.now, &[entry]).pop()
    }
}
