//! The store in this process: the rules executed natively, for one gateway or for tests.

use super::{
    Answer, BoxFuture, Check, Checks, Decision, Entry, Reply, Store, StoreError, hash_tag,
};
use crate::algorithm::{
    Level, Micros, State,
    reserve::{self, Want},
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};
use tokio::time::Instant;

const SHARDS: usize = 64;
/// So that no instant of a test or of a long-lived process comes near zero, which no rule needs but
/// a state dump reads better with. About the year 2001.
const EPOCH: Micros = 1_000_000_000_000_000;

type States = HashMap<Arc<str>, State>;

/// States by key, sharded by hash tag: the keys of one request share a tag, hence one lock.
///
/// It holds one state per key that somebody used; keys come from the configuration.
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<States>]>,
    hasher: RandomState,
    start: Instant,
}

// === impl MemoryStore ===

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            start: Instant::now(),
        }
    }
}

impl MemoryStore {
    /// The store's clock: it never goes back.
    fn now(&self) -> Micros {
        EPOCH + i64::try_from(self.start.elapsed().as_micros()).unwrap_or(i64::MAX - EPOCH)
    }

    fn shard(&self, key: &str) -> &Mutex<States> {
        &self.shards[self.hasher.hash_one(hash_tag(key)) as usize % SHARDS]
    }

    /// Executes `entries` in order at `now` (tests bring their own clock).
    pub fn run_at(&self, now: Micros, entries: &[Entry]) -> Vec<Reply> {
        entries
            .iter()
            .map(|entry| match entry {
                Entry::Decide { checks, budget } => {
                    Reply::Decision(self.decide_at(now, checks, *budget))
                }
                Entry::GiveBack { check, grant } => {
                    let mut states = self.shard(&check.key).lock();
                    let mut open = check.algorithm.open(states.get(&check.key), now);
                    let given = open.give_back(*grant, check.cost);
                    if given {
                        keep(&mut states, &check.key, open.close());
                    }
                    Reply::GivenBack(given)
                }
                Entry::Look { check } => Reply::Level(self.look_at(now, check)),
            })
            .collect()
    }

    fn decide_at(&self, now: Micros, checks: &Checks, budget: Micros) -> Decision {
        let mut states = self.shard(&checks[0].key).lock();
        let open = |check: &Check| check.algorithm.open(states.get(&check.key), now);
        let mut opened: SmallVec<[_; 2]> = checks.iter().map(open).collect();
        let mut wants: SmallVec<[Want<'_>; 2]> = checks
            .iter()
            .zip(&mut opened)
            .map(|(check, open)| Want { open, cost: check.cost, enforce: check.enforce })
            .collect();
        let decision = Decision::new(reserve::decide(&mut wants, budget), budget);
        drop(wants);
        let parts = checks.iter().zip(opened).zip(&decision.parts);
        for ((check, open), _) in parts.filter(|(_, part)| part.at >= 0) {
            keep(&mut states, &check.key, open.close());
        }
        decision
    }

    fn look_at(&self, now: Micros, check: &Check) -> Level {
        let states = self.shard(&check.key).lock();
        check.algorithm.open(states.get(&check.key), now).level()
    }
}

impl Store for MemoryStore {
    fn decide(&self, checks: &Checks, budget: Micros) -> Answer<Decision> {
        Answer::Ready(Ok(self.decide_at(self.now(), checks, budget)))
    }

    fn give_back(&self, checks: &Checks, parts: &[reserve::Part]) {
        let entries: Vec<_> = super::batch::gifts(checks, parts).collect();
        self.run_at(self.now(), &entries);
    }

    fn look(&self, check: &Check) -> Answer<Level> {
        Answer::Ready(Ok(self.look_at(self.now(), check)))
    }

    fn flush(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

impl super::batch::Script for MemoryStore {
    fn run(&self, entries: Vec<Entry>) -> BoxFuture<Result<Vec<Reply>, StoreError>> {
        let replies = self.run_at(self.now(), &entries);
        Box::pin(std::future::ready(Ok(replies)))
    }
}

fn keep(states: &mut States, key: &Arc<str>, closed: Option<(State, Micros)>) {
    match closed {
        Some((state, _)) => match states.get_mut(key) {
            Some(slot) => *slot = state,
            None => drop(states.insert(key.clone(), state)),
        },
        None => drop(states.remove(key)),
    }
}
