//! Runs a history from its first request until no trace of it may be left, on virtual time.

use crate::{
    controls::Defect,
    gateway::{Process, Request, checks},
    history::{Asker, Fault, History, MS, Micros, Route, SECOND, UpstreamThrottle, What},
    network::Network,
    steps::Steps,
    upstream::{Seen, SeenRefusal, SeenReport, Upstream},
};
use fastrand::Rng;
use paceway::{
    limit::{self, Admission},
    store::{Checks, Source, Store, StoreAdmin},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// How long requests of a gateway that leaves may run on.
const DRAIN: Micros = 1500 * MS;

/// The digits of the random part of a name.
const NONCE: usize = 16;

/// The facts of a history after its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) seen: Vec<Seen>,
    pub(crate) refusals: Vec<SeenRefusal>,
    pub(crate) reports: Vec<SeenReport>,
    /// The lost messages of each gateway.
    pub(crate) lost: Vec<i64>,
    /// The largest number of gateways that the store has counted.
    pub(crate) counted: i64,
    /// A limiter has worked at a lower rate.
    pub(crate) lowered: bool,
    /// Descriptions of wrong states after the end.
    pub(crate) left_over: Vec<String>,
    /// The calls that the store executed, as lines, with their instants.
    pub(crate) store: Vec<(Micros, String)>,
}

/// The processes by gateway, each with the number of its life.
type Processes = Arc<Mutex<Vec<(Option<Process>, usize)>>>;

#[derive(Clone)]
struct Fleet {
    history: Arc<History>,
    network: Network,
    upstream: Arc<Upstream>,
    processes: Processes,
    steps: Steps,
}

/// Runs `history`; with `tells`, the record has lines about the store.
pub(crate) fn run(history: &History, defect: Option<Defect>, tells: bool) -> Record {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async { Fleet::new(history, defect).live(tells).await })
}

// === impl Fleet ===

impl Fleet {
    fn new(history: &History, defect: Option<Defect>) -> Self {
        let count = history.gateways.len();
        let network = Network::new(count, defect);
        let processes = (0..count).map(|_| (None, 0)).collect();
        Self {
            history: Arc::new(history.clone()),
            network,
            upstream: Arc::default(),
            processes: Arc::new(Mutex::new(processes)),
            steps: Steps::default(),
        }
    }

    async fn live(self, tells: bool) -> Record {
        tokio::spawn(self.network.clone().deliver());
        for number in 0..self.history.gateways.len() {
            let fleet = self.clone();
            tokio::spawn(async move {
                fleet.network.until(fleet.history.gateways[number].start).await;
                fleet.start(number).await;
            });
        }
        for route in 0..self.history.routes.len() {
            tokio::spawn(self.clone().load(route));
        }
        for throttle in self.history.throttles.clone() {
            tokio::spawn(self.clone().free(throttle));
        }
        for fault in self.history.faults.clone() {
            tokio::spawn(self.clone().suffer(fault));
        }
        tokio::select! {
            () = self.network.until(self.history.end()) => {}
            () = self.steps.too_many() => {
                panic!("seed {}, {:?}: it never leaves an instant", self.history.seed, self.history.scene)
            }
        }
        let mut left_over = self.tasks_left();
        left_over.extend(self.epilogue().await);
        let mut seen = self.upstream.seen.lock().clone();
        seen.sort_by_key(|seen| (seen.came, seen.number));
        let store = match tells {
            true => self.executed(),
            false => Vec::new(),
        };
        let refusals = self.upstream.refusals.lock().clone();
        let reports = self.upstream.reports.lock().clone();
        let (counted, lowered) = {
            let world = self.network.world.lock();
            (world.server.counted, world.lowered)
        };
        let lost = self.network.lost();
        Record { seen, refusals, reports, lost, counted, lowered, left_over, store }
    }

    fn executed(&self) -> Vec<(Micros, String)> {
        let world = self.network.world.lock();
        let line = |(at, gateway, ask, said): &(Micros, usize, _, _)| {
            let ms = *at as f64 / MS as f64;
            let line = format!("{ms:>9.1} ms store, gateway {gateway}: {ask:?} -> {said:?}");
            (*at, without_nonces(&line))
        };
        world.executed.iter().map(line).collect()
    }

    async fn start(&self, number: usize) {
        let life = self.processes.lock()[number].1;
        let process = Process::start(&self.history, &self.network, number, life).await;
        self.processes.lock()[number] = (Some(process), life + 1);
    }

    async fn load(self, route: usize) {
        let mut rng = Rng::with_seed(self.history.seed ^ (route as u64 + 1) << 32);
        let &Route { keys, every, leave, budget, .. } = &self.history.routes[route];
        for number in 0.. {
            sleep(limit::duration(rng.i64(1..=2 * every))).await;
            if self.network.now() >= self.history.last_request() {
                return;
            }
            let (gateway, worker) = (rng.usize(..), rng.usize(..));
            let leaves = rng.u32(0..100) < leave;
            let patience = limit::duration(rng.i64(0..=budget.max(1)));
            let key = rng.i64(0..keys);
            let mut processes = self.processes.lock();
            let gateway = self.history.receiver(route, gateway);
            let Some(process) = processes[gateway].0.as_mut().filter(|it| it.is_open) else {
                continue;
            };
            let (store, line) = process.stores[worker % process.stores.len()].clone();
            let request = Request {
                number: number + 100_000 * route,
                gateway,
                route,
                key,
                leaves_after: leaves.then_some(patience),
                line,
            };
            let Self { history, network, upstream, .. } = self.clone();
            let task =
                tokio::spawn(self.steps.count(request.go(history, network, upstream, store)));
            process.requests.push(task.abort_handle());
        }
    }

    async fn suffer(self, Fault { at, lasts, what }: Fault) {
        let network = &self.network;
        network.until(at).await;
        let until = at + lasts;
        match what {
            What::Silence(gateway) => network.change(|world, _| world.silence(gateway, until)),
            What::Cut(gateway) => network.change(|world, _| world.cut_all(Some(gateway), until)),
            What::Stall(gateway) => network.change(|world, _| world.stall(gateway, until)),
            What::Freeze => network.change(|world, _| world.freeze(until)),
            What::Flush => network.change(|world, now| world.server.flush(now)),
            What::Step(by) => network.change(|world, _| world.server.step(by)),
            What::Restart => network.change(|world, now| {
                world.cut_all(None, until);
                world.lose_messages();
                world.server.flush(now);
            }),
            What::Failover(by) => network.change(|world, now| {
                world.cut_all(None, until);
                world.lose_messages();
                world.server.fall_back(now, by);
            }),
            What::Crash(gateway) => {
                network.change(|world, _| world.kill(gateway));
                drop(self.stop(gateway));
                network.until(until).await;
                self.start(gateway).await;
            }
            What::Loop(gateway, lives, is_dead) => {
                while network.now() < until {
                    sleep(limit::duration(lives)).await;
                    network.change(|world, _| world.kill(gateway));
                    drop(self.stop(gateway));
                    sleep(limit::duration(is_dead)).await;
                    self.start(gateway).await;
                }
            }
            What::Leave(gateway) => {
                if let Some(process) = &mut self.processes.lock()[gateway].0 {
                    process.is_open = false;
                }
                network.until(at + DRAIN).await;
                let process = self.stop(gateway);
                if let Some(process) = &process {
                    process.process.leave(Duration::from_millis(200)).await;
                }
                sleep(Duration::from_millis(200)).await;
                network.change(|world, _| world.kill(gateway));
                network.until(until.max(at + DRAIN) + SECOND).await;
                self.start(gateway).await;
            }
        }
    }

    /// An operator resets the limiters of a route, because the upstream refuses no longer.
    async fn free(self, throttle: UpstreamThrottle) {
        let Some(ended) = throttle.ended else { return };
        self.network.until(ended).await;
        let keeper = self
            .processes
            .lock()
            .iter()
            .find_map(|(process, _)| process.as_ref().map(|process| process.keeper.clone()));
        for check in self.checks(throttle.route).iter() {
            let Some(keeper) = &keeper else { return };
            keeper.forget(check).get().await.expect("the store answers");
        }
    }

    fn stop(&self, gateway: usize) -> Option<Process> {
        let mut process = self.processes.lock()[gateway].0.take()?;
        process.end();
        Some(process)
    }

    /// The checks of the first key, as a request of `route` has them that comes now.
    fn checks(&self, route: usize) -> Checks {
        let came = self.network.now();
        checks(&self.history, Asker { route, came, ..Asker::default() })
    }

    /// Finds tasks in addition to those that a gateway has as long as it lives.
    fn tasks_left(&self) -> Vec<String> {
        if self.history.faults.iter().any(|fault| fault.what.ends_a_gateway()) {
            return Vec::new();
        }
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        // Two tasks for each worker and the admin side, one for the store's health and one for calls; and the network's
        // task.
        let most = 1 + self.history.gateways.iter().map(|it| 2 * (it.workers + 1)).sum::<usize>();
        if alive > most { vec![format!("{alive} tasks are left, of {most}")] } else { Vec::new() }
    }

    /// Asks each store after all requests have ended: the store must decide, and its answer must be true.
    async fn epilogue(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let stores: Vec<(usize, Arc<dyn Store>)> = {
            let processes = self.processes.lock();
            let processes = processes.iter().filter_map(|(process, _)| process.as_ref());
            processes
                .flat_map(|it| it.stores.iter().map(|(store, _)| (it.number, store.clone())))
                .collect()
        };
        for (number, store) in &stores {
            for route in 0..self.history.routes.len() {
                let asked = limit::ask(store, &self.checks(route), Duration::ZERO).await;
                let source = match &asked {
                    Ok(Admission::Granted(slot)) => Some(slot.source),
                    Ok(Admission::Queued(place)) => Some(place.source),
                    Ok(Admission::Refused(decision)) => Some(decision.source),
                    Err(_) => None,
                };
                if source != Some(Source::Shared) {
                    wrong.push(format!("gateway {number} does not decide by the store: {asked:?}"));
                }
            }
        }
        if let Some((_, store)) = stores.first() {
            for route in 0..self.history.routes.len() {
                sleep(Duration::from_secs(1)).await;
                wrong.extend(self.come_back(store, route).await);
            }
        }
        wrong
    }

    /// A lone caller that is refused passes when it comes back after the time that the refusal named; all concurrency
    /// permits are free.
    async fn come_back(&self, store: &Arc<dyn Store>, route: usize) -> Option<String> {
        let checks = self.checks(route);
        let zero = Duration::ZERO;
        let fewest = checks.iter().map(|check| check.algorithm.limit() / check.cost).min()?;
        // All ask at the same time: between two calls of a distant store permits would flow in.
        let ask = |_| {
            let (store, checks) = (store.clone(), checks.clone());
            tokio::spawn(async move { limit::ask(&store, &checks, zero).await })
        };
        let asked: Vec<_> = (0..=fewest).map(ask).collect();
        let (mut held, mut refused) = (Vec::new(), None);
        for asked in asked {
            match asked.await.expect("no panic") {
                Ok(Admission::Granted(slot)) => held.push(slot),
                Ok(Admission::Refused(decision)) => refused = Some(decision),
                other => return Some(format!("route {route}: {other:?}")),
            }
        }
        let Some(refused) = refused else {
            return Some(format!("route {route}: no caller is refused"));
        };
        if checks[refused.bound_by].is_lease() {
            let bound = &checks[refused.bound_by];
            let most = bound.algorithm.limit();
            let most = most - bound.floor().min(most - 1);
            let free = i64::try_from(held.len()).expect("few");
            return (free != most)
                .then(|| format!("route {route}: {free} places are free, of {most}"));
        }
        // The answers of a distant store were late, so this gateway decided, and the store is charged after the refusal.
        if held.iter().any(|slot| slot.source != Source::Shared) {
            return None;
        }
        held.iter_mut().for_each(limit::Reservation::spend);
        drop(held);
        sleep(limit::duration(refused.retry_after)).await;
        match limit::ask(store, &checks, zero).await {
            Ok(Admission::Granted(_)) => None,
            other => Some(format!(
                "route {route}: a caller that comes back after {} µs has {other:?}",
                refused.retry_after
            )),
        }
    }
}

/// Removes the random part from the names of states that only one gateway uses.
fn without_nonces(line: &str) -> String {
    let mut parts = line.split("#wait:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| line + "#wait" + part.get(NONCE..).unwrap_or_default())
}
