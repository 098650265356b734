//! Tenants, weights and priorities at one limiter. The limiter and the order of its waiting requests are those of this crate;
//! the callers are a model on virtual time.

mod callers;
mod laws;

use super::{EPOCH, Random, SECOND, table};
use callers::{Callers, SCENES, Scene};
use laws::{Seen, Sent};
use paceway::{
    algorithm::{
        Algorithm, FixedWindow, Micros, SlidingWindow, TokenBucket,
        concurrency::Ticket,
        fair::{Place, queue::AHEAD},
    },
    store::{Check, Checks, Decision, Entry, Reply, Turn, calls::Calls, memory::MemoryStore},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

pub(crate) const LEGEND: &str = "Sharing. A limiter of 20 calls a second (token bucket, burst 1), whose waiting requests take turns.
Share: the part of the permits that these callers got while all callers of the scene waited.
";
const GATEWAY: i64 = 1;

/// An event of a run, ordered by its number among those of one instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request of these callers.
    Request(usize),
    /// The request with this number confirms its slot.
    Confirm(i64),
    /// The requests of these callers that wait leave.
    Leave(usize),
}

/// A request that waits.
struct Waiting {
    callers: usize,
    checks: Checks,
    place: Place,
    arrival: Micros,
    /// Whether no other request of its callers waited when it came.
    is_newcomer: bool,
}

struct Run {
    scene: &'static Scene,
    rule: Algorithm,
    now: Micros,
    store: MemoryStore,
    calls: Arc<Calls>,
    events: BinaryHeap<Reverse<(Micros, u64, Event)>>,
    planned: u64,
    tickets: i64,
    waiting: BTreeMap<i64, Waiting>,
    /// How many requests of each of the callers wait.
    counts: Vec<i64>,
    /// How often callers have begun or ceased to wait.
    changes: i64,
    seen: Seen,
}

/// The table of all scenes, and what broke a law. Only the runs with a token bucket have rows.
pub(crate) fn simulate(seeds: u64, markdown: bool) -> (String, Vec<String>) {
    let head = ["scene", "callers", "served", "refused", "share", "wait p50", "wait p95"];
    let (mut lines, mut broken) = (vec![head.map(str::to_owned)], Vec::new());
    for scene in SCENES {
        let rules = [
            TokenBucket::new(20, SECOND, scene.burst()).map(Algorithm::TokenBucket),
            SlidingWindow::new(20, SECOND, 0).map(Algorithm::SlidingWindow),
            FixedWindow::new(20, SECOND).map(Algorithm::FixedWindow),
        ];
        for (i, rule) in rules.into_iter().flatten().enumerate() {
            let mut all = Seen::new(scene);
            for seed in 0..seeds {
                let seen = Run::new(scene, rule, seed).run();
                broken.extend(seen.broken_laws(scene, &rule));
                all.add(seen);
            }
            if i == 0 {
                lines.extend(all.lines(scene));
            }
        }
    }
    (table(&lines, markdown), broken)
}

// === impl Run ===

impl Run {
    fn new(scene: &'static Scene, rule: Algorithm, seed: u64) -> Self {
        let calls = Arc::new(Calls::listed(GATEWAY));
        let mut new = Self {
            scene,
            rule,
            now: EPOCH,
            store: MemoryStore::calling(calls.clone()),
            calls,
            events: BinaryHeap::new(),
            planned: 0,
            tickets: 0,
            waiting: BTreeMap::new(),
            counts: vec![0; scene.callers.len()],
            changes: 0,
            seen: Seen::new(scene),
        };
        let mut random = Random(seed);
        for (i, callers) in scene.callers.iter().enumerate() {
            for at in callers.arrivals(scene, &mut random) {
                new.plan(EPOCH + at, Event::Request(i));
            }
            if let Some(at) = callers.leave_at {
                new.plan(EPOCH + at, Event::Leave(i));
            }
        }
        new
    }

    fn plan(&mut self, at: Micros, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at, self.planned, event)));
    }

    fn run(mut self) -> Seen {
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            match event {
                Event::Request(callers) => self.ask(callers),
                Event::Confirm(number) => self.confirm(number),
                Event::Leave(callers) => self.leave(callers),
            }
            loop {
                let woken = self.calls.take_woken();
                if woken.is_empty() {
                    break;
                }
                woken.into_iter().for_each(|number| self.confirm(number));
            }
        }
        self.seen.unanswered = self.waiting.len();
        self.seen
    }

    fn decide(&self, entry: Entry) -> Option<Decision> {
        match self.store.run_at(self.now, &[entry]).pop() {
            Some(Reply::Decision(decision)) if decision.admitted => Some(decision),
            _ => None,
        }
    }

    fn ask(&mut self, i: usize) {
        let Callers { name, weight, priority, max_wait, costs, .. } = self.scene.callers[i];
        let turn = Turn::new(name, weight, priority);
        self.tickets += 1;
        let cost = costs[self.tickets as usize % costs.len()];
        let checks = Checks::from([Check::new("it", self.rule).with_cost(cost).with_turn(turn)]);
        let ticket = Ticket { gateway: GATEWAY, number: self.tickets, deadline: 0 };
        let (checks, budget, ticket) = (checks, max_wait, Some(ticket));
        let Some(decision) = self.decide(Entry::Reserve { checks: checks.clone(), budget, ticket })
        else {
            return self.seen.refused[i] += 1;
        };
        let arrival = self.now;
        let Some((_, place)) = Place::among(&decision.parts) else {
            let (at, waiting) = (self.now + decision.wait, Vec::new());
            let sent =
                Sent { callers: i, arrival, at, waiting, cost, changes: 0, is_newcomer: true };
            return self.seen.sent.push(sent);
        };
        let is_newcomer = self.counts[i] == 0;
        let waiting = Waiting { callers: i, checks, place, arrival, is_newcomer };
        self.waiting.insert(self.tickets, waiting);
        self.count(i, 1);
        self.confirm_before(self.tickets, decision.wait);
    }

    fn confirm_before(&mut self, number: i64, wait: Micros) {
        let early = if wait > AHEAD { wait - AHEAD } else { wait / 2 };
        self.plan(self.now + early, Event::Confirm(number));
    }

    fn confirm(&mut self, number: i64) {
        let Some(own) = self.waiting.get(&number) else { return };
        let entry = Entry::Confirm { checks: own.checks.clone(), place: own.place };
        match self.decide(entry) {
            None => self.seen.broken_promises += 1,
            Some(decision) if Place::among(&decision.parts).is_some() => {
                return self.confirm_before(number, decision.wait);
            }
            Some(decision) => {
                let (waiting, at) = (self.counts.clone(), self.now + decision.wait);
                let Waiting { callers, arrival, is_newcomer, .. } = *own;
                let (changes, cost) = (self.changes, own.checks[0].cost);
                let sent = Sent { callers, arrival, at, waiting, cost, changes, is_newcomer };
                self.seen.sent.push(sent);
            }
        }
        if let Some(gone) = self.waiting.remove(&number) {
            self.count(gone.callers, -1);
        }
    }

    /// Counts requests that begin or cease to wait.
    fn count(&mut self, callers: usize, more: i64) {
        let was = self.counts[callers];
        self.counts[callers] += more;
        self.changes += i64::from((was == 0) != (was + more == 0));
    }

    fn leave(&mut self, callers: usize) {
        let all = std::mem::take(&mut self.waiting);
        let (left, stay): (BTreeMap<_, _>, _) =
            all.into_iter().partition(|(_, own)| own.callers == callers);
        self.waiting = stay;
        for Waiting { checks, place, arrival, .. } in left.into_values() {
            self.count(callers, -1);
            self.store.run_at(self.now, &[Entry::Leave { checks, place }]);
            self.seen.left.push((arrival, self.now));
        }
    }
}
