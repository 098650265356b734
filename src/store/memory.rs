//! The store in this process: the rules executed natively, for one gateway or for tests.

use super::{
    Answer, BoxFuture, Check, Checks, Decision, Entry, Reply, Source, Store, StoreError,
    calls::Calls, hash_tag,
};
use crate::algorithm::{
    Grant, Level, Micros, Open, State,
    concurrency::{self, Ticket},
    reserve::{self, Want},
};
use ahash::RandomState;
use indexmap::IndexMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::time::Instant;

const SHARDS: usize = 64;
/// States kept at most. Beyond it a key that is new is counted together with all others of its limiter that
/// are: stricter while it lasts, and nobody's memory. About 0.3 GB when all are in use.
pub const MAX_KEYS: usize = 1 << 20;
/// A state is kept this much longer than it matters, µs, as on Redis: a test's clock may go back.
const GRACE: Micros = 5_000_000;
/// Other states looked at when one is changed, so that those that are past make room for new ones.
const SWEEP: usize = 2;
/// So that no instant of a test or of a long-lived process comes near zero, which no rule needs but
/// a state dump reads better with. About the year 2001.
const EPOCH: Micros = 1_000_000_000_000_000;

/// States by key, sharded by hash tag: the keys of one request share a tag, hence one lock.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    start: Instant,
    calls: Arc<Calls>,
    keys: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shard {
    states: IndexMap<Arc<str>, Kept, RandomState>,
    /// Where the sweep goes on.
    sweep: usize,
}

#[derive(Debug)]
struct Kept {
    state: State,
    /// From when on it equals an absent one.
    past: Micros,
}

/// And whether it is the state of all who came when there were too many.
type Opened = (Open, bool);

// === impl MemoryStore ===

impl Default for MemoryStore {
    fn default() -> Self {
        Self::calling(Arc::default())
    }
}

impl MemoryStore {
    /// One that calls those whose tickets are of `calls`, or joined to them.
    pub fn calling(calls: Arc<Calls>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            start: Instant::now(),
            calls,
            keys: AtomicUsize::new(0),
        }
    }

    /// The store's clock: it never goes back.
    fn now(&self) -> Micros {
        EPOCH + i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX - EPOCH)
    }

    /// How many states it keeps.
    pub fn keys(&self) -> usize {
        self.keys.load(Relaxed)
    }

    fn shard(&self, key: &str) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(hash_tag(key)) as usize % SHARDS]
    }

    /// Executes `entries` in order at `now` (tests bring their own clock).
    pub fn run_at(&self, now: Micros, entries: &[Entry]) -> Vec<Reply> {
        entries
            .iter()
            .map(|entry| match entry {
                Entry::Decide { checks, budget, ticket } => {
                    Reply::Decision(self.decide_at(now, checks, *budget, *ticket))
                }
                Entry::GiveBack { check, grant } => {
                    match self.change(now, check, |open| open.give_back(*grant, check.cost)) {
                        (_, true) => Reply::HandedOver,
                        (given, false) => Reply::Done(given),
                    }
                }
                Entry::Renew { check, grant } => {
                    let renew =
                        |open: &mut Open| open.leases().is_some_and(|leases| leases.renew(*grant));
                    Reply::Done(self.change(now, check, renew).0)
                }
                Entry::Forget { check } if check.is_lease() => {
                    let forget =
                        |open: &mut Open| open.leases().is_some_and(concurrency::Open::forget);
                    Reply::Done(self.change(now, check, forget).0)
                }
                Entry::Forget { check } => {
                    let mut shard = self.shard(&check.key).lock();
                    let gone = shard.states.swap_remove(&check.key).is_some();
                    self.keys.fetch_sub(usize::from(gone), Relaxed);
                    Reply::Done(gone)
                }
                Entry::Look { check } => Reply::Level(self.look_at(now, check)),
            })
            .collect()
    }

    fn decide_at(
        &self,
        now: Micros,
        checks: &Checks,
        budget: Micros,
        ticket: Option<Ticket>,
    ) -> Decision {
        let mut shard = self.shard(&checks[0].key).lock();
        if let [check] = &checks[..] {
            // Most requests have one.
            let mut opened = self.open(&mut shard, check, now);
            let (enforce, cost) = (check.enforce, check.cost);
            let mut wants = [Want { open: &mut opened.0, cost, enforce }];
            let decision = Decision::new(reserve::decide(&mut wants, budget, ticket));
            let taken = decision.parts.first().is_some_and(|part| part.at >= 0);
            let called = self.put(&mut shard, check, opened, taken, now);
            drop(shard);
            self.call(called);
            return decision;
        }
        // Pushed one by one: half of the instructions of a collect, and this is on the way of each decision.
        let mut opened: SmallVec<[Opened; 2]> = SmallVec::new();
        for check in checks.iter() {
            opened.push(self.open(&mut shard, check, now));
        }
        let mut wants: SmallVec<[Want<'_>; 2]> = SmallVec::new();
        for (check, (open, _)) in checks.iter().zip(&mut opened) {
            wants.push(Want { open, cost: check.cost, enforce: check.enforce });
        }
        let decision = Decision::new(reserve::decide(&mut wants, budget, ticket));
        drop(wants);
        let mut called = Vec::new();
        for (i, (check, opened)) in checks.iter().zip(opened).enumerate() {
            let taken = decision.parts.get(i).is_some_and(|part| part.at >= 0);
            called.append(&mut self.put(&mut shard, check, opened, taken, now));
        }
        drop(shard);
        self.call(called);
        decision
    }

    /// Whether it changed, and whether somebody was called.
    fn change(
        &self,
        now: Micros,
        check: &Check,
        change: impl FnOnce(&mut Open) -> bool,
    ) -> (bool, bool) {
        let mut shard = self.shard(&check.key).lock();
        let mut opened = self.open(&mut shard, check, now);
        let changed = change(&mut opened.0);
        let called = self.put(&mut shard, check, opened, changed, now);
        drop(shard);
        let has_called = !called.is_empty();
        self.call(called);
        (changed, has_called)
    }

    fn look_at(&self, now: Micros, check: &Check) -> Level {
        let mut shard = self.shard(&check.key).lock();
        let opened = self.open(&mut shard, check, now);
        let level = opened.0.level();
        let called = self.put(&mut shard, check, opened, false, now);
        drop(shard);
        self.call(called);
        level
    }

    fn open(&self, shard: &mut Shard, check: &Check, now: Micros) -> Opened {
        if let Some(kept) = shard.states.get_mut(&check.key) {
            return (check.algorithm.open(Some(&mut kept.state), now), false);
        }
        match &check.overflow {
            Some(shared) if self.keys() >= MAX_KEYS => {
                let kept = shard.states.get_mut(shared).map(|kept| &mut kept.state);
                (check.algorithm.open(kept, now), true)
            }
            _ => (check.algorithm.open(None, now), false),
        }
    }

    /// Puts an opened state where it came from: as it is now when it was `changed`, else as it was.
    fn put(
        &self,
        shard: &mut Shard,
        check: &Check,
        (mut open, is_shared): Opened,
        changed: bool,
        now: Micros,
    ) -> Vec<Ticket> {
        let shared = check.overflow.as_ref().filter(|_| is_shared);
        let key = shared.unwrap_or(&check.key);
        let leases = open.leases().map(|leases| leases.called());
        // Leases change by themselves: who has expired is gone.
        if !changed && leases.is_none() {
            if let Some(kept) = shard.states.get_mut(key) {
                open.put_back(&mut kept.state);
            }
            return Vec::new();
        }
        match open.close() {
            Some((state, ttl)) => match shard.states.get_mut(key) {
                Some(kept) => *kept = Kept { state, past: now + ttl + GRACE },
                None => {
                    shard.states.insert(key.clone(), Kept { state, past: now + ttl + GRACE });
                    self.keys.fetch_add(1, Relaxed);
                }
            },
            None => {
                let gone = shard.states.swap_remove(key).is_some();
                self.keys.fetch_sub(usize::from(gone), Relaxed);
            }
        }
        let swept = shard.sweep(now);
        self.keys.fetch_sub(swept, Relaxed);
        leases.unwrap_or_default()
    }

    fn call(&self, called: Vec<Ticket>) {
        for ticket in called {
            self.calls.call_holder_of(ticket);
        }
    }
}

// === impl Shard ===

impl Shard {
    /// Looks at the next few states; returns how many were past and are gone.
    fn sweep(&mut self, now: Micros) -> usize {
        let before = self.states.len();
        for _ in 0..SWEEP {
            if self.sweep >= self.states.len() {
                self.sweep = 0;
            }
            match self.states.get_index(self.sweep) {
                Some((_, kept)) if kept.past <= now => {
                    drop(self.states.swap_remove_index(self.sweep))
                }
                Some(_) => self.sweep += 1,
                None => break,
            }
        }
        before - self.states.len()
    }
}

impl Store for MemoryStore {
    fn decide(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        Answer::Ready(Ok(self.decide_at(self.now(), checks, budget, ticket)))
    }

    fn give_back(&self, _: Source, checks: &Checks, parts: &[reserve::Part]) {
        let entries: Vec<_> = super::batch::gifts(checks, parts).collect();
        self.run_at(self.now(), &entries);
    }

    fn renew(&self, _: Source, check: &Check, grant: Grant) -> Answer<bool> {
        self.done(Entry::Renew { check: check.clone(), grant })
    }

    fn forget(&self, check: &Check) -> Answer<bool> {
        self.done(Entry::Forget { check: check.clone() })
    }

    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn look(&self, check: &Check) -> Answer<Level> {
        Answer::Ready(Ok(self.look_at(self.now(), check)))
    }

    fn flush(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

impl MemoryStore {
    fn done(&self, entry: Entry) -> Answer<bool> {
        let replies = self.run_at(self.now(), &[entry]);
        Answer::Ready(Ok(matches!(replies[..], [Reply::Done(true)])))
    }
}

impl super::batch::Script for MemoryStore {
    fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let replies = self.run_at(self.now(), &entries);
        Box::pin(std::future::ready(Ok(replies)))
    }
}
