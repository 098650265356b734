//! A store of a program's own. Its states are in a map under a mutex, and the rules of the package decide; a real one keeps
//! them where several processes reach them. It knows no turns: where a limit is shared fairly, calls are served in the order
//! in which they come.
//!
//! ```sh
//! cargo run -p paceway-limit --example own_store
//! ```

use paceway_limit::{
    Limit, Limiter, Rate, StoreError, StoreHandle,
    backend::{
        Alternative, Backend, BoxFuture, Calls, Check, Decision, Entry, Gate, GateChange, Grant,
        Level, Micros, Note, NoteChange, OpenGate, OpenRule, Part, Pause, Reply, RuleState,
        ScanPlace, ScanStep, Ticket, Want, charge, decide, earliest_way, lower, offer,
    },
};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    future::ready,
    io::{self, Write},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

/// The instant at which the clock of the store starts, in µs: instants near zero would be before it.
const EPOCH: Micros = 1_000_000_000_000_000;

/// A store of limiters in the memory of this process.
#[derive(Debug)]
pub(crate) struct OwnStore {
    states: Mutex<States>,
    calls: Arc<Calls>,
    start: Instant,
}

#[derive(Debug, Default)]
struct States {
    kept: HashMap<Arc<str>, KeptState>,
    /// The pauses of limiters, and what was granted since.
    gates: HashMap<Arc<str>, Gate>,
    texts: HashMap<Arc<str>, Arc<str>>,
    /// The number of states at which those that are past are removed.
    sweep: usize,
    /// The tickets to which concurrency permits were passed on.
    called: Vec<Ticket>,
}

/// A state, which equals an absent one from `past` on.
#[derive(Debug)]
struct KeptState {
    state: RuleState,
    past: Micros,
}

/// A state that is worked on. It changes nothing until it is put back.
struct Opened {
    open: OpenRule,
    gate: Option<OpenGate>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = StoreHandle::over(Arc::new(OwnStore::default()), Duration::from_millis(50));
    let limiter = Limiter::new(Limit::token_bucket("mail", Rate::per_second(5), 2), store)?;
    for _ in 0..4 {
        let call = limiter.acquire(1).await?;
        writeln!(io::stdout(), "waited {:?}", call.waited())?;
    }
    Ok(())
}

// === impl OwnStore ===

impl Default for OwnStore {
    fn default() -> Self {
        Self { states: Mutex::default(), calls: Arc::default(), start: Instant::now() }
    }
}

impl OwnStore {
    fn now(&self) -> Micros {
        EPOCH + i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX - EPOCH)
    }
}

impl Backend for OwnStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let mut states = self.states.lock();
        // All entries of a list happen at one instant.
        let now = self.now();
        let replies = entries.iter().map(|entry| states.execute(now, entry)).collect();
        for ticket in states.called.drain(..) {
            self.calls.call_holder_of(ticket);
        }
        Box::pin(ready(Ok(replies)))
    }

    fn exchange(
        &self,
        key: Arc<str>,
        change: Option<NoteChange>,
    ) -> BoxFuture<Result<Note, StoreError>> {
        let texts = &mut self.states.lock().texts;
        if let Some(change) = change.filter(|change| change.expected.as_ref() == texts.get(&key)) {
            texts.insert(key.clone(), change.text);
        }
        Box::pin(ready(Ok(Note { text: texts.get(&key).cloned(), now: self.now() })))
    }

    fn scan(&self, prefix: Arc<str>, _: ScanPlace) -> BoxFuture<Result<ScanStep, StoreError>> {
        let states = self.states.lock();
        let names = states.kept.keys().filter(|key| key.starts_with(&*prefix)).cloned().collect();
        Box::pin(ready(Ok(ScanStep { names, next: None })))
    }
}

// === impl States ===

impl States {
    fn execute(&mut self, now: Micros, entry: &Entry) -> Reply {
        match entry {
            Entry::Reserve { checks, budget, ticket } => {
                Reply::Decision(self.reserve(now, checks, *budget, *ticket))
            }
            Entry::Choose { among, budget, ticket } => {
                Reply::Decision(self.choose(now, among.ways(), *budget, *ticket))
            }
            // A store may decide the request alone.
            Entry::Block { checks, budget, .. } => {
                Reply::Decision(self.reserve(now, checks, *budget, None))
            }
            Entry::MoveUp { checks, budget, parts } => {
                Reply::Decision(self.move_up(now, checks, *budget, parts))
            }
            Entry::Refund { check, grant } => self.refund(now, check, *grant),
            Entry::Renew { check, grant } => Reply::Done(self.change(now, check, |opened| {
                opened.open.leases().is_some_and(|leases| leases.renew(*grant))
            })),
            Entry::Forget { check } => {
                let had_gate = self.gates.remove(&check.key).is_some();
                Reply::Done(self.kept.remove(&check.key).is_some() || had_gate)
            }
            Entry::Look { check } => self.look(now, check),
            Entry::Pause { check, pause } => {
                self.pause(now, check, *pause);
                self.look(now, check)
            }
            Entry::Lower { check, told } => {
                let most = told.permits.max(0);
                self.change(now, check, |opened| {
                    match opened.open.rate().filter(|_| told.span > 0) {
                        Some(open) => {
                            let change = Gate::remaining(opened.gate.as_ref(), open, now, *told);
                            if let Some(change) = change {
                                opened.gate = check.open_gate(Some(change.gate), now);
                            }
                            false
                        }
                        None => opened.open.rate_mut().is_some_and(|open| lower(open, most)),
                    }
                });
                self.look(now, check)
            }
            Entry::Charge { check } => {
                let mut left = check.cost;
                self.change(now, check, |opened| {
                    left = opened.open.rate_mut().map_or(left, |open| charge(open, check.cost));
                    left < check.cost
                });
                Reply::Owed(left)
            }
            Entry::Confirm { .. } => Reply::Failed(StoreError::Refused("no turns".into())),
            Entry::Leave { .. } => Reply::Done(false),
            Entry::Tenants { .. } => Reply::Tenants(Vec::new()),
        }
    }

    /// Decides about all limiters at once, and keeps what the decision has changed.
    fn reserve(
        &mut self,
        now: Micros,
        checks: &[Check],
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Decision {
        let mut opened = self.open_all(now, checks);
        let decision = decide_opened(checks, &mut opened, budget, ticket);
        for (i, (check, opened)) in checks.iter().zip(opened).enumerate() {
            let is_taken = decision.parts.get(i).is_some_and(|part| part.at >= 0);
            self.put(now, check, opened, is_taken);
        }
        decision
    }

    /// Decides by the way with the earliest slot.
    fn choose(
        &mut self,
        now: Micros,
        ways: &[Alternative],
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Decision {
        let way = earliest_way(ways.iter().map(|way| way.after), |i| {
            let checks = &ways[i].checks;
            let mut opened = self.open_all(now, checks);
            offer(&mut wants(checks, &mut opened), budget, ticket)
        });
        let decision = self.reserve(now, &ways[way].checks, budget, ticket);
        Decision { chosen: Some(ways[way].id), ..decision }
    }

    /// Returns the permits of `parts` and takes others at an earlier instant, or changes nothing.
    fn move_up(
        &mut self,
        now: Micros,
        checks: &[Check],
        budget: Micros,
        parts: &[Part],
    ) -> Decision {
        let mut opened = self.open_all(now, checks);
        let level = opened[0].open.level();
        // A gate counts permits, and knows no free ones before others.
        let is_given = checks.iter().zip(&mut opened).zip(parts).all(|((check, opened), part)| {
            opened.gate.is_none() && (part.at < 0 || opened.open.refund(part.grant, check.cost))
        });
        let decision = is_given.then(|| decide_opened(checks, &mut opened, budget, None));
        let Some(decision) = decision.filter(|decision| decision.admitted) else {
            return Decision::kept(level);
        };
        for (check, opened) in checks.iter().zip(opened) {
            self.put(now, check, opened, true);
        }
        decision
    }

    fn refund(&mut self, now: Micros, check: &Check, grant: Grant) -> Reply {
        let called = self.called.len();
        let is_given = self.change(now, check, |Opened { open, gate }| {
            let is_given = open.refund(grant, check.cost);
            if let (Some(gate), Some(rate)) = (gate, open.rate()) {
                gate.refund(rate, grant, check.cost);
            }
            is_given
        });
        if self.called.len() > called { Reply::HandedOver } else { Reply::Done(is_given) }
    }

    fn look(&mut self, now: Micros, check: &Check) -> Reply {
        let mut level = Level::default();
        self.change(now, check, |Opened { open, gate }| {
            level = match (gate, open.rate()) {
                (Some(gate), Some(rate)) => gate.level(rate),
                _ => open.level(),
            };
            false
        });
        Reply::Level(level)
    }

    fn pause(&mut self, now: Micros, check: &Check, pause: Pause) {
        let refusal = pause.refusal(check);
        self.change(now, check, |opened| {
            if let Some(leases) = opened.open.leases() {
                leases.pause(Gate::new(now, refusal.span, refusal.status));
                return true;
            }
            if let Some(rule) = check.algorithm.as_rate() {
                let GateChange { gate, .. } =
                    Gate::refused(opened.gate.as_ref(), now, refusal, rule);
                opened.gate = check.open_gate(Some(gate), now);
            }
            false
        });
    }

    /// Works on one state, and keeps it if that returns true, which this returns, too.
    fn change(
        &mut self,
        now: Micros,
        check: &Check,
        work: impl FnOnce(&mut Opened) -> bool,
    ) -> bool {
        let mut opened = self.open(now, check);
        let is_changed = work(&mut opened);
        self.put(now, check, opened, is_changed);
        is_changed
    }

    fn open_all(&self, now: Micros, checks: &[Check]) -> Vec<Opened> {
        checks.iter().map(|check| self.open(now, check)).collect()
    }

    fn open(&self, now: Micros, check: &Check) -> Opened {
        let kept = self.kept.get(&check.key).filter(|kept| kept.past > now);
        let mut state = kept.map(|kept| kept.state.clone());
        Opened {
            open: check.algorithm.open(None, state.as_mut(), now),
            gate: check.open_gate(self.gates.get(&check.key).cloned(), now),
        }
    }

    fn put(&mut self, now: Micros, check: &Check, opened: Opened, is_changed: bool) {
        let Opened { mut open, gate } = opened;
        match gate.filter(|gate| gate.ends() > now) {
            Some(gate) => drop(self.gates.insert(check.key.clone(), gate.gate().clone())),
            None => drop(self.gates.remove(&check.key)),
        }
        let is_lease = check.is_lease();
        self.called.extend(open.leases().into_iter().flat_map(|leases| leases.notified()));
        // Leases end by themselves.
        if !is_changed && !is_lease {
            return;
        }
        match open.close() {
            Some((state, lasts)) => {
                self.kept.insert(check.key.clone(), KeptState { state, past: now + lasts });
            }
            None => drop(self.kept.remove(&check.key)),
        }
        if self.kept.len() >= self.sweep {
            self.kept.retain(|_, kept| kept.past > now);
            self.sweep = 2 * self.kept.len() + 1_000;
        }
    }
}

fn decide_opened(
    checks: &[Check],
    opened: &mut [Opened],
    budget: Micros,
    ticket: Option<Ticket>,
) -> Decision {
    Decision::new(decide(&mut wants(checks, opened), budget, ticket))
}

/// The permits that a request asks of its limiters.
fn wants<'o>(checks: &[Check], opened: &'o mut [Opened]) -> Vec<Want<'o>> {
    let wants = checks.iter().zip(opened).map(|(check, Opened { open, gate })| Want {
        open,
        cost: check.cost,
        enforce: check.enforce,
        gate: gate.as_mut(),
        kept: check.floor(),
    });
    wants.collect()
}
