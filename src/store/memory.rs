//! The store in this process: the rules executed natively, for one gateway or for tests.

mod shard;

use super::{
    Answer, BoxFuture, Check, Checks, Decision, Entry, Reply, Store, StoreError, calls::Calls,
    hash_tag,
};
use crate::algorithm::{
    Grant, Level, Micros, Open,
    concurrency::{self, Ticket},
    reserve::{self, Want},
};
use ahash::RandomState;
use parking_lot::Mutex;
use shard::{Print, Shard};
use smallvec::SmallVec;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};
use tokio::time::Instant;

const SHARDS: usize = 64;
/// States kept at most. Beyond it a key that is new is counted together with all others of its limiter that
/// are: stricter while it lasts, and nobody's memory. About 0.15 GB when all are in use.
pub const MAX_KEYS: usize = 1 << 20;
/// A state is kept this much longer than it matters, µs, as on Redis: a test's clock may go back.
const GRACE: Micros = 5_000_000;
/// So that no instant of a test or of a long-lived process comes near zero, which no rule needs but
/// a state dump reads better with. About the year 2001.
const EPOCH: Micros = 1_000_000_000_000_000;

/// States by key, sharded by hash tag: the keys of one request share a tag, hence one lock.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    /// The second makes prints longer; nobody outside knows either.
    hashers: [RandomState; 2],
    start: Instant,
    calls: Arc<Calls>,
    keys: AtomicUsize,
}

/// A state that is worked on, where it goes back to, and whether it is the one of all who came when there were too many.
type Opened = (Open, Print, bool);

// === impl MemoryStore ===

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hashers: [RandomState::new(), RandomState::new()],
            start: Instant::now(),
            calls: Arc::default(),
            keys: AtomicUsize::new(0),
        }
    }
}

impl MemoryStore {
    /// The store's clock: it never goes back.
    fn now(&self) -> Micros {
        EPOCH + i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX - EPOCH)
    }

    /// How many states it keeps.
    pub fn keys(&self) -> usize {
        self.keys.load(Relaxed)
    }

    fn shard(&self, key: &str) -> &Mutex<Shard> {
        &self.shards[self.hashers[0].hash_one(hash_tag(key)) as usize % SHARDS]
    }

    fn print(&self, key: &str) -> Print {
        Print(self.hashers.each_ref().map(|hasher| hasher.hash_one(key)))
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
                    let gone = self.shard(&check.key).lock().remove(self.print(&check.key));
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
            let called = self.put(&mut shard, opened, taken, now);
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
        for (check, (open, ..)) in checks.iter().zip(&mut opened) {
            wants.push(Want { open, cost: check.cost, enforce: check.enforce });
        }
        let decision = Decision::new(reserve::decide(&mut wants, budget, ticket));
        drop(wants);
        let mut called = Vec::new();
        for (i, opened) in opened.into_iter().enumerate() {
            let taken = decision.parts.get(i).is_some_and(|part| part.at >= 0);
            called.append(&mut self.put(&mut shard, opened, taken, now));
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
        let called = self.put(&mut shard, opened, changed, now);
        drop(shard);
        let has_called = !called.is_empty();
        self.call(called);
        (changed, has_called)
    }

    fn look_at(&self, now: Micros, check: &Check) -> Level {
        let mut shard = self.shard(&check.key).lock();
        let opened = self.open(&mut shard, check, now);
        let level = opened.0.level();
        let called = self.put(&mut shard, opened, false, now);
        drop(shard);
        self.call(called);
        level
    }

    fn open(&self, shard: &mut Shard, check: &Check, now: Micros) -> Opened {
        let print = self.print(&check.key);
        if let Some(open) = shard.open(print, &check.algorithm, now) {
            return (open, print, false);
        }
        match &check.overflow {
            Some(shared) if self.keys() >= MAX_KEYS => {
                let print = self.print(shared);
                let open = shard.open(print, &check.algorithm, now);
                (open.unwrap_or_else(|| check.algorithm.open(None, now)), print, true)
            }
            _ => (check.algorithm.open(None, now), print, false),
        }
    }

    /// Puts an opened state where it came from: as it is now when it was `changed`, else as it was.
    fn put(
        &self,
        shard: &mut Shard,
        (mut open, print, _): Opened,
        changed: bool,
        now: Micros,
    ) -> Vec<Ticket> {
        let leases = open.leases().map(|leases| leases.called());
        // Leases change by themselves: who has expired is gone.
        if !changed && leases.is_none() {
            shard.put_back(print, open);
            return Vec::new();
        }
        let before = shard.len();
        match open.close() {
            Some((state, ttl)) => shard.put(print, state, now, ttl),
            None => drop(shard.remove(print)),
        }
        shard.sweep(now);
        let after = shard.len();
        // Never below zero, not even for a moment.
        self.keys.fetch_add(after.saturating_sub(before), Relaxed);
        self.keys.fetch_sub(before.saturating_sub(after), Relaxed);
        leases.unwrap_or_default()
    }

    fn call(&self, called: Vec<Ticket>) {
        for ticket in called {
            self.calls.call(ticket.number);
        }
    }
}

impl Store for MemoryStore {
    fn decide(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        Answer::Ready(Ok(self.decide_at(self.now(), checks, budget, ticket)))
    }

    fn give_back(&self, checks: &Checks, parts: &[reserve::Part]) {
        let entries: Vec<_> = super::batch::gifts(checks, parts).collect();
        self.run_at(self.now(), &entries);
    }

    fn renew(&self, check: &Check, grant: Grant) -> Answer<bool> {
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
