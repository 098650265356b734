//! The store in the memory of this process. It executes the native rules, for a single gateway and for tests.

mod backend;
mod changes;
mod copies;
mod debts;
mod gates;
mod locked;
mod notes;
mod pages;
mod scan;
mod shard;
mod stored_state;
mod turns;

use super::{
    Alternative, Alternatives, Check, Checks, Decision, Entry, Pauses, Reply, calls::Calls,
    turn::of_queue,
};
use crate::algorithm::{
    DataLoss, Grant, Level, Micros, OpenRule, RuleState,
    concurrency::Ticket,
    gate::OpenGate,
    reserve::{self, Want},
};
use ahash::RandomState;
use debts::Debts;
use locked::LockedShards;
use notes::Notes;
use parking_lot::{Mutex, MutexGuard};
use shard::{Shard, StateIndex};
use smallvec::SmallVec;
use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
};
use stored_state::Print;
use tokio::time::Instant;

/// Parts of the table, each with a lock of its own. 32 are few enough that a million states fill tables on huge pages.
const SHARDS: usize = 32;
/// The largest number of states. Beyond it, all new keys of a limiter share one state, which is stricter but takes no more
/// memory. A full table takes about 0.15 GB, and with keys their names besides.
pub const MAX_KEYS: usize = 1 << 20;
/// A state is kept 5 s longer than it matters (in µs), as on Redis, because the clock of a test may step back.
const GRACE: Micros = 5_000_000;
/// The instant at which a store's clock starts unless [`MemoryStore::starting_at`] says it, in µs since 1970: about the year 2001. A dump of states then has no instants
/// near zero.
const EPOCH: Micros = 1_000_000_000_000_000;

/// States by key, in parts that the key alone decides: a limiter has one state, whatever others a request names with it. A
/// decision takes the lock of each part that its keys are in, mostly one. Clones share the states.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    /// The second one makes prints longer. No client knows their seeds.
    hashers: [RandomState; 2],
    /// The store's clock at `start`, µs.
    epoch: Micros,
    start: Instant,
    shared: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shards: Box<[Locked]>,
    calls: Arc<Calls>,
    pauses: Arc<Pauses>,
    keys: AtomicUsize,
    notes: Notes,
    debts: Mutex<Debts>,
    /// The instant of the last data loss ([`MemoryStore::lose`]), in µs; 0 if there was none.
    lost: AtomicI64,
}

/// The lock of a part, aligned so that two locks never share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Locked(Mutex<Shard>);

/// The best way of a request, by its index, with the tickets to wake when no part is locked any more.
struct ChosenWay {
    chosen: usize,
    called: Vec<Ticket>,
}

/// A state that a decision works on.
struct OpenedState {
    open: OpenRule,
    /// The print under which it is put back: that of its key, or of the state that keys share when there are too many.
    print: Print,
    /// `None` if no state is kept there, or if its grants were lost.
    place: Option<StateIndex>,
    /// The gate of a limiter that is paused, or was not long ago.
    gate: Option<Box<OpenGate>>,
}

// === impl MemoryStore ===

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::default(), SHARDS)
    }
}

impl MemoryStore {
    /// A store whose clock starts at `now`, µs since 1970, so that windows of a day begin at midnight.
    pub fn starting_at(now: Micros) -> Self {
        Self { epoch: now, ..Self::default() }
    }

    /// A store that wakes the requests whose tickets are of `calls`, or of those that joined them. It stands for a Redis
    /// server, whose keys need no common hash tag, so all of its states have one lock.
    pub fn calling(calls: Arc<Calls>) -> Self {
        Self::new(calls, 1)
    }

    fn new(calls: Arc<Calls>, shards: usize) -> Self {
        let shared = Inner {
            shards: (0..shards).map(|_| Locked::default()).collect(),
            calls,
            pauses: Arc::default(),
            keys: AtomicUsize::new(0),
            notes: Notes::default(),
            debts: Mutex::default(),
            lost: AtomicI64::new(0),
        };
        Self {
            hashers: [RandomState::new(), RandomState::new()],
            epoch: EPOCH,
            start: Instant::now(),
            shared: Arc::new(shared),
        }
    }

    /// The store's clock in µs, which never steps back.
    pub(crate) fn now(&self) -> Micros {
        let elapsed = i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.epoch.saturating_add(elapsed)
    }

    /// How many states the store keeps now.
    pub fn keys(&self) -> usize {
        self.shared.keys.load(Relaxed)
    }

    /// Loses the data from before `now`, as a restarted server does: every limiter counts as if all that it may have
    /// granted were granted. The states stay, but no decision believes them. This store loses nothing by itself; the
    /// method specifies the losses of the Redis store.
    pub fn lose(&self, now: Micros) {
        self.shared.lost.store(now, Relaxed);
    }

    fn print(&self, key: &str) -> Print {
        Print(self.hashers.each_ref().map(|hasher| hasher.hash_one(key)))
    }

    /// The index of the part that has the state of a key, and the state that its keys share when there are too many.
    fn shard_of(&self, own: Print) -> usize {
        match &*self.shared.shards {
            [_] => 0,
            _ => own.0[0] as usize % SHARDS,
        }
    }

    fn lock(&self, own: Print) -> MutexGuard<'_, Shard> {
        self.shared.shards[self.shard_of(own)].0.lock()
    }

    /// Executes `entries` in order at the instant `now`, in µs, which tests choose.
    pub fn run_at(&self, now: Micros, entries: &[Entry]) -> Vec<Reply> {
        entries.iter().map(|entry| self.execute_at(now, entry)).collect()
    }

    /// Executes one entry at the instant `now`, in µs.
    pub(crate) fn execute_at(&self, now: Micros, entry: &Entry) -> Reply {
        match entry {
            Entry::Reserve { checks, budget, ticket } => {
                Reply::Decision(self.decide_at(now, checks, *budget, *ticket))
            }
            Entry::Choose { among, budget, ticket } => {
                Reply::Decision(self.choose_at(now, among, *budget, *ticket))
            }
            Entry::Block { checks, budget, ask } => {
                self.decide_with_block_at(now, checks, *budget, *ask)
            }
            Entry::MoveUp { checks, budget, parts } => {
                Reply::Decision(self.move_up_at(now, checks, *budget, parts))
            }
            Entry::Refund { check, grant } => self.refund_at(now, check, *grant),
            Entry::Renew { check, grant } => Reply::Done(self.renew_at(now, check, *grant)),
            Entry::Forget { check } => Reply::Done(self.forget_at(now, check)),
            Entry::Look { check } => Reply::Level(self.look_at(now, check)),
            Entry::Pause { check, pause } => Reply::Level(self.pause_at(now, check, *pause)),
            Entry::Lower { check, told } => Reply::Level(self.lower_at(now, check, *told)),
            Entry::Charge { check } => Reply::Owed(self.charge_at(now, check)),
            Entry::Confirm { checks, place } => {
                Reply::Decision(self.confirm_at(now, checks, *place))
            }
            Entry::Leave { checks, place } => Reply::Done(self.leave_at(now, checks, *place)),
            Entry::Tenants { check } => Reply::Tenants(self.tenants_of(check)),
        }
    }

    pub(super) fn decide_at(
        &self,
        now: Micros,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Decision {
        let has_turn = ticket.is_some() && of_queue(checks).is_some();
        if !has_turn && let Some(granted) = self.grant_now(checks, now) {
            return granted;
        }
        self.decide_within(self.lock_all(checks), now, checks, budget, ticket)
    }

    /// Decides a request by the way that is the best at the instant `now`: the states of all are locked meanwhile.
    #[cold]
    fn choose_at(
        &self,
        now: Micros,
        among: &Alternatives,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Decision {
        let mut shards = self.lock_all(among.all());
        let ChosenWay { chosen, called } =
            self.earliest_within(&mut shards, now, among, budget, ticket);
        let Alternative { checks, id, .. } = &among.ways()[chosen];
        let decision = self.decide_within(shards, now, checks, budget, ticket);
        self.call(called);
        Decision { chosen: Some(*id), ..decision }
    }

    /// The index of the way that is the best at the instant `now`. Nothing is taken.
    pub(in crate::store) fn earliest_at(
        &self,
        now: Micros,
        among: &Alternatives,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> usize {
        let mut shards = self.lock_all(among.all());
        let ChosenWay { chosen, called } =
            self.earliest_within(&mut shards, now, among, budget, ticket);
        drop(shards);
        self.call(called);
        chosen
    }

    /// Finds the way that is the best, to which the locked `shards` are set then.
    fn earliest_within(
        &self,
        shards: &mut LockedShards<'_>,
        now: Micros,
        among: &Alternatives,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> ChosenWay {
        let (ways, mut called) = (among.ways(), Vec::new());
        let first_of = |way: usize| ways[..way].iter().map(|way| way.checks.len()).sum();
        // The states of all ways are opened, as on Redis: a rate that is found continues from the last instant at which it was read.
        let offers = ways.iter().enumerate().map(|(i, way)| {
            shards.begin_at(first_of(i));
            let mut opened = self.open_all(shards, &way.checks, now);
            let offer = reserve::offer(&mut wants(&way.checks, &mut opened), budget, ticket);
            called.append(&mut self.put_all(shards, &way.checks, opened, |_| false, now));
            offer
        });
        let offers: Vec<_> = offers.collect();
        let chosen = reserve::earliest_way(ways.iter().map(|way| way.after), |way| offers[way]);
        shards.begin_at(first_of(chosen));
        ChosenWay { chosen, called }
    }

    /// Decides a request at the limiters of `checks`, whose parts are locked.
    #[inline]
    fn decide_within(
        &self,
        mut shards: LockedShards<'_>,
        now: Micros,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Decision {
        if let Some(ticket) = ticket
            && let Some(q) = of_queue(checks)
        {
            return self.decide_in_turn(shards, now, checks, q, budget, ticket);
        }
        let mut opened = self.open_all(&mut shards, checks, now);
        let reserved = reserve::decide(&mut wants(checks, &mut opened), budget, ticket);
        let decision = Decision::new(reserved);
        let is_taken = |i: usize| decision.parts.get(i).is_some_and(|part| part.at >= 0);
        let called = self.put_all(&mut shards, checks, opened, is_taken, now);
        drop(shards);
        self.call(called);
        decision
    }

    /// Opens the state of a check, whose key has this `print`.
    #[inline]
    fn open(&self, shard: &mut Shard, check: &Check, print: Print, now: Micros) -> OpenedState {
        let place = shard.find(print);
        match &check.overflow {
            Some(shared)
                if place.is_none() && self.keys() >= MAX_KEYS && !shard.has_gate(print) =>
            {
                let before = shard.len();
                shard.make_room(now);
                self.count(before, shard.len());
                let print = self.print(shared);
                let place = shard.find(print);
                self.open_at(shard, print, place, check, now)
            }
            _ => self.open_at(shard, print, place, check, now),
        }
    }

    /// Inlined, as is [`Self::put`]: an opened state is 290 bytes, which a call copies.
    #[inline(always)]
    fn open_at(
        &self,
        shard: &mut Shard,
        print: Print,
        place: Option<StateIndex>,
        check: &Check,
        now: Micros,
    ) -> OpenedState {
        let loss = self.loss(check);
        let gate = shard.open_gate(print, check, now);
        if let Some(place) = place
            && let Some(open) = shard.open(place, &check.algorithm, loss, now)
        {
            return OpenedState { open, print, place: Some(place), gate };
        }
        let open = check.algorithm.open(loss, None, now);
        OpenedState { open, print, place: None, gate }
    }

    fn loss(&self, check: &Check) -> Option<DataLoss> {
        let at = self.shared.lost.load(Relaxed);
        if at > 0 { check.loss(at) } else { None }
    }

    /// Puts an opened state back: as it is now if it was `changed`, otherwise as it was before.
    #[inline(always)]
    fn put(
        &self,
        shard: &mut Shard,
        check: &Check,
        OpenedState { mut open, print, place, gate }: OpenedState,
        changed: bool,
        now: Micros,
    ) -> Vec<Ticket> {
        if let Some(gate) = gate {
            shard.put_gate(now, print, &gate);
        }
        let leases = open.leases().map(|leases| leases.notified());
        // Leases change by themselves: expired permits have been removed.
        if !changed && leases.is_none() {
            if let Some(place) = place {
                shard.put_back(print, place, open);
            }
            return Vec::new();
        }
        let before = shard.len();
        match open.close() {
            Some((state, ttl)) => {
                shard.put(print, place, state, now + ttl);
                // Only a limiter with a key has a shared state, under which nothing is listed.
                if place.is_none() && check.overflow.is_some() && shard.len() > before {
                    self.list(shard, print, check);
                }
            }
            None => drop(self.vacate(shard, print, check, now)),
        }
        shard.sweep(now);
        self.count(before, shard.len());
        leases.unwrap_or_default()
    }

    /// Replaces a state by one that no request has used. After a data loss, an absent state would count as a lost one.
    /// Returns whether there was a state, and whether there is one now.
    fn vacate(&self, shard: &mut Shard, print: Print, check: &Check, now: Micros) -> (bool, bool) {
        let gone = shard.remove(print);
        let Some(loss) = self.loss(check) else { return (gone, false) };
        let left = check.algorithm.open(Some(loss), None, now).level().reset_after;
        let rate = check.algorithm.as_rate().filter(|_| left > 0);
        if let Some(rate) = rate {
            shard.keep_until(print, RuleState::Rate(rate.unused(now)), now + left);
        }
        (gone, rate.is_some())
    }

    fn count(&self, before: usize, after: usize) {
        // Mostly they are equal, and then no worker has to write the shared counter.
        match after.checked_sub(before) {
            Some(0) => {}
            Some(more) => drop(self.shared.keys.fetch_add(more, Relaxed)),
            None => drop(self.shared.keys.fetch_sub(before - after, Relaxed)),
        }
    }

    fn call(&self, called: Vec<Ticket>) {
        for ticket in called {
            self.shared.calls.call_holder_of(ticket);
        }
    }
}

// === impl OpenedState ===

impl OpenedState {
    /// The permits that a request asks of this state.
    #[inline]
    fn want(&mut self, check: &Check) -> Want<'_> {
        // A concurrency limiter has to know whose turn it is that asks.
        if let Some(turn) = &check.turn
            && let Some(leases) = self.open.leases()
        {
            leases.take_turn(turn);
        }
        let Self { open, gate, .. } = self;
        Want {
            open,
            cost: check.cost,
            enforce: check.enforce,
            gate: gate.as_deref_mut(),
            kept: check.floor(),
        }
    }

    /// Whether permits of grants come back to the gate, so that requests that wait move up.
    fn takes_back(&self) -> bool {
        match (&self.gate, &self.open) {
            (Some(gate), OpenRule::Rate(open)) => gate.takes_back(open),
            _ => true,
        }
    }

    /// Returns the permits of a grant to the state and to its gate. Returns whether either has something of it.
    fn refund(&mut self, grant: Grant, cost: i64) -> bool {
        let given = self.open.refund(grant, cost);
        self.refund_gate(grant, cost) || given
    }

    fn refund_gate(&mut self, grant: Grant, cost: i64) -> bool {
        match (&mut self.gate, &self.open) {
            (Some(gate), OpenRule::Rate(open)) => gate.refund(open, grant, cost),
            _ => false,
        }
    }

    fn level(&self) -> Level {
        match (&self.gate, &self.open) {
            (Some(gate), OpenRule::Rate(open)) => gate.level(open),
            (_, open) => open.level(),
        }
    }
}

/// The permits that a request asks of its limiters.
#[inline]
fn wants<'o>(checks: &[Check], opened: &'o mut [OpenedState]) -> SmallVec<[Want<'o>; 2]> {
    // Pushing one by one takes half of the instructions of a collect, and every decision does this.
    let mut wants = SmallVec::new();
    for (check, state) in checks.iter().zip(opened) {
        wants.push(state.want(check));
    }
    wants
}

#[cfg(test)]
mod tests;
