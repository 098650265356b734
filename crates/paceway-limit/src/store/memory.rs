//! The store in this process: the rules executed natively, for one gateway or for tests.

mod pages;
mod shard;

use super::{
    Answer, BoxFuture, Check, Checks, Decision, Entry, Reply, Source, Store, StoreAdmin,
    StoreError, calls::Calls, hash_tag,
};
use crate::algorithm::{
    DataLoss, Grant, Level, Micros, Open,
    concurrency::{self, Ticket},
    reserve::{self, Want},
};
use ahash::RandomState;
use parking_lot::Mutex;
use shard::{Place, Print, Shard};
use smallvec::SmallVec;
use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
};
use tokio::time::Instant;

/// Few enough that a million states fill tables that huge pages help.
const SHARDS: usize = 32;
/// States kept at most. Beyond it a key that is new is counted together with all others of its limiter that
/// are: stricter while it lasts, and nobody's memory. About 0.15 GB when all are in use.
pub const MAX_KEYS: usize = 1 << 20;
/// A state is kept this much longer than it matters, µs, as on Redis: a test's clock may go back.
const GRACE: Micros = 5_000_000;
/// So that no instant of a test or of a long-lived process comes near zero, which no rule needs but
/// a state dump reads better with. About the year 2001.
const EPOCH: Micros = 1_000_000_000_000_000;

/// States by key, sharded by hash tag: the keys of one request share a tag, hence one lock. Clones share the states.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    /// The second makes prints longer; nobody outside knows either.
    hashers: [RandomState; 2],
    start: Instant,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    shards: Box<[Locked]>,
    calls: Arc<Calls>,
    keys: AtomicUsize,
    /// When [`MemoryStore::lose`] was called last, µs; 0 for never.
    lost: AtomicI64,
}

/// Who locks one does not keep others from its neighbours.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Locked(Mutex<Shard>);

/// A state that is worked on.
struct Opened {
    open: Open,
    /// Where it goes back to: the state of all who came when there were too many, perhaps.
    print: Print,
    /// `None`: nothing is kept there, or nothing that counts.
    place: Option<Place>,
}

// === impl MemoryStore ===

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::default(), SHARDS)
    }
}

impl MemoryStore {
    /// One that calls those whose tickets are of `calls`, or joined to them. It takes the place of a Redis server, whose
    /// keys need no common hash tag, so all of its states have one lock.
    pub fn calling(calls: Arc<Calls>) -> Self {
        Self::new(calls, 1)
    }

    fn new(calls: Arc<Calls>, shards: usize) -> Self {
        let shared = Shared {
            shards: (0..shards).map(|_| Locked::default()).collect(),
            calls,
            keys: AtomicUsize::new(0),
            lost: AtomicI64::new(0),
        };
        Self {
            hashers: [RandomState::new(), RandomState::new()],
            start: Instant::now(),
            shared: Arc::new(shared),
        }
    }

    /// The store's clock: it never goes back.
    fn now(&self) -> Micros {
        EPOCH + i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX - EPOCH)
    }

    /// How many states it keeps.
    pub fn keys(&self) -> usize {
        self.shared.keys.load(Relaxed)
    }

    /// Nothing is known of what was granted before `now`, as behind a restart of a server: it counts as far as it can.
    /// The states stay, and are not believed. By itself this store loses nothing: it is how the Redis store's losses
    /// are specified.
    pub fn lose(&self, now: Micros) {
        self.shared.lost.store(now, Relaxed);
    }

    fn shard(&self, key: &str) -> &Mutex<Shard> {
        match &*self.shared.shards {
            [only] => &only.0,
            shards => &shards[self.hashers[0].hash_one(hash_tag(key)) as usize % SHARDS].0,
        }
    }

    fn print(&self, key: &str) -> Print {
        Print(self.hashers.each_ref().map(|hasher| hasher.hash_one(key)))
    }

    /// Executes `entries` in order at `now` (tests bring their own clock).
    pub fn run_at(&self, now: Micros, entries: &[Entry]) -> Vec<Reply> {
        entries
            .iter()
            .map(|entry| match entry {
                Entry::Reserve { checks, budget, ticket } => {
                    Reply::Decision(self.decide_at(now, checks, *budget, *ticket))
                }
                Entry::Refund { check, grant } => {
                    match self.change(now, check, |open| open.refund(*grant, check.cost)) {
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
                Entry::Forget { check } => Reply::Done(self.forget_at(now, check)),
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
            let mut wants = [Want { open: &mut opened.open, cost, enforce }];
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
        for (check, Opened { open, .. }) in checks.iter().zip(&mut opened) {
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

    fn forget_at(&self, now: Micros, check: &Check) -> bool {
        let (mut shard, print) = (self.shard(&check.key).lock(), self.print(&check.key));
        let before = shard.len();
        let (gone, is_kept) = self.vacate(&mut shard, print, check, now);
        self.count(before, shard.len());
        gone || is_kept
    }

    /// Makes a state one that nobody has used. Absent, it would be one that is lost for as long as that matters. Whether
    /// there was one, and whether there is one now.
    fn vacate(&self, shard: &mut Shard, print: Print, check: &Check, now: Micros) -> (bool, bool) {
        let gone = shard.remove(print);
        let Some(loss) = self.loss(check) else { return (gone, false) };
        let left = absent(check, Some(loss), now).level().reset_after;
        let unused = check.algorithm.unused(now).filter(|_| left > 0);
        let is_kept = unused.is_some();
        if let Some(state) = unused {
            shard.keep_until(print, state, now + left);
        }
        (gone, is_kept)
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
        let changed = change(&mut opened.open);
        let called = self.put(&mut shard, check, opened, changed, now);
        drop(shard);
        let has_called = !called.is_empty();
        self.call(called);
        (changed, has_called)
    }

    fn look_at(&self, now: Micros, check: &Check) -> Level {
        let mut shard = self.shard(&check.key).lock();
        let opened = self.open(&mut shard, check, now);
        let level = opened.open.level();
        let called = self.put(&mut shard, check, opened, false, now);
        drop(shard);
        self.call(called);
        level
    }

    fn open(&self, shard: &mut Shard, check: &Check, now: Micros) -> Opened {
        let print = self.print(&check.key);
        let place = shard.find(print);
        match &check.overflow {
            Some(shared) if place.is_none() && self.keys() >= MAX_KEYS => {
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

    fn open_at(
        &self,
        shard: &mut Shard,
        print: Print,
        place: Option<Place>,
        check: &Check,
        now: Micros,
    ) -> Opened {
        let loss = self.loss(check);
        if let Some(place) = place
            && let Some(open) = shard.open(place, &check.algorithm, loss, now)
        {
            return Opened { open, print, place: Some(place) };
        }
        Opened { open: absent(check, loss, now), print, place: None }
    }

    fn loss(&self, check: &Check) -> Option<DataLoss> {
        let at = self.shared.lost.load(Relaxed);
        (at > 0).then_some(DataLoss { at, horizon: check.horizon })
    }

    /// Puts an opened state where it came from: as it is now when it was `changed`, else as it was.
    fn put(
        &self,
        shard: &mut Shard,
        check: &Check,
        Opened { mut open, print, place }: Opened,
        changed: bool,
        now: Micros,
    ) -> Vec<Ticket> {
        let leases = open.leases().map(|leases| leases.notified());
        // Leases change by themselves: who has expired is gone.
        if !changed && leases.is_none() {
            if let Some(place) = place {
                shard.put_back(print, place, open);
            }
            return Vec::new();
        }
        let before = shard.len();
        match open.close() {
            Some((state, ttl)) => shard.put(print, place, state, now + ttl),
            None => drop(self.vacate(shard, print, check, now)),
        }
        shard.sweep(now);
        self.count(before, shard.len());
        leases.unwrap_or_default()
    }

    fn count(&self, before: usize, after: usize) {
        // As a rule they are equal, and then no other worker need hear of it.
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

/// A state that nobody has written, or that is lost.
fn absent(check: &Check, loss: Option<DataLoss>, now: Micros) -> Open {
    match loss {
        None => check.algorithm.open(None, now),
        Some(loss) => check.algorithm.open_after(loss, None, now),
    }
}

impl Store for MemoryStore {
    fn reserve(&self, checks: &Checks, budget: Micros, ticket: Option<Ticket>) -> Answer<Decision> {
        Answer::Ready(Ok(self.decide_at(self.now(), checks, budget, ticket)))
    }

    fn refund(&self, _: Source, checks: &Checks, parts: &[reserve::Part]) {
        let entries: Vec<_> = super::batch::gifts(checks, parts).collect();
        self.run_at(self.now(), &entries);
    }

    fn renew(&self, _: Source, check: &Check, grant: Grant) -> Answer<bool> {
        self.done(Entry::Renew { check: check.clone(), grant })
    }

    fn calls(&self) -> &Arc<Calls> {
        &self.shared.calls
    }

    fn look(&self, check: &Check) -> Answer<Level> {
        Answer::Ready(Ok(self.look_at(self.now(), check)))
    }
}

impl StoreAdmin for MemoryStore {
    fn forget(&self, check: &Check) -> Answer<bool> {
        self.done(Entry::Forget { check: check.clone() })
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
        &self.shared.calls
    }

    fn run(&self, entries: Arc<Vec<Entry>>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let replies = self.run_at(self.now(), &entries);
        Box::pin(std::future::ready(Ok(replies)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else all workers come to one lock, and a request waits while one table of all grows.
    #[test]
    fn keys_that_are_spread_are_in_many_shards() {
        for limiter in ["a", "keyed", "per_client"] {
            let store = MemoryStore::default();
            let shards = (0..64).map(|tag| {
                let key = format!("paceway:{{{limiter}.{tag:02}}}:T:{limiter}:k");
                std::ptr::from_ref(store.shard(&key)).addr()
            });
            let used = shards.collect::<std::collections::HashSet<_>>().len();
            assert!(used >= SHARDS / 3, "{used} of {SHARDS}");
        }
    }
}
