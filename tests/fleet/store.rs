//! The store of a fleet: it executes the rules natively, by its own clock, and loses what a server can lose. It knows
//! nothing of networks.

use crate::history::Micros;
use paceway::{
    limit::micros,
    store::{
        Entry, Reply,
        batch::{ABSENT, Beat, GONE},
        calls::Calls,
        memory::MemoryStore,
    },
};
use std::{collections::BTreeMap, sync::Arc};

/// Of the store's clock when a history begins.
pub(crate) const EPOCH: Micros = 1_700_000_000_000_000;

#[derive(Debug)]
pub(crate) struct Server {
    memory: MemoryStore,
    /// What it has executed, and when.
    log: Vec<(Micros, Arc<Vec<Entry>>)>,
    /// When each gateway was last heard.
    alive: BTreeMap<Arc<str>, Micros>,
    /// Those who hear its calls, by the number of their gateway.
    hearing: BTreeMap<i64, Arc<Calls>>,
    office: Arc<Calls>,
    /// By how much its clock is ahead.
    ahead: Micros,
    /// Whether its losses are noticed.
    pub(crate) hides_losses: bool,
}

impl Default for Server {
    fn default() -> Self {
        let office = Arc::new(Calls::numbered(1 << 51));
        Self {
            memory: MemoryStore::calling(office.clone()),
            log: Vec::new(),
            alive: BTreeMap::new(),
            hearing: BTreeMap::new(),
            office,
            ahead: 0,
            hides_losses: false,
        }
    }
}

// === impl Server ===

impl Server {
    pub(crate) fn now(&self, at: Micros) -> Micros {
        EPOCH + at + self.ahead
    }

    pub(crate) fn run(&mut self, at: Micros, entries: &Arc<Vec<Entry>>) -> Vec<Reply> {
        let now = self.now(at);
        self.log.push((now, entries.clone()));
        self.memory.run_at(now, entries)
    }

    /// As `presence.lua`.
    pub(crate) fn beat(&mut self, at: Micros, id: &Arc<str>, alone: bool) -> Beat {
        let now = self.now(at);
        let (present, gone) = (now - micros(ABSENT), now - micros(GONE));
        self.alive.insert(id.clone(), if alone { present } else { now });
        self.alive.retain(|_, heard| *heard > gone);
        let absent = self.alive.values().filter(|heard| **heard <= present).count();
        let [gateways, absent] = [self.alive.len(), absent - usize::from(alone)]
            .map(|count| i64::try_from(count).expect("few"));
        Beat { gateways, absent, now: Some(now) }
    }

    pub(crate) fn leave(&mut self, id: &Arc<str>) {
        self.alive.remove(id);
    }

    /// From now on who has a ticket of `calls` is called, or not any more.
    pub(crate) fn hear(&mut self, calls: &Arc<Calls>, hears: bool) {
        let deaf = Arc::new(Calls::numbered(calls.gateway()));
        let calls = if hears { calls.clone() } else { deaf };
        self.office.join(&calls);
        self.hearing.insert(calls.gateway(), calls);
    }

    pub(crate) fn step(&mut self, by: Micros) {
        self.ahead += by;
    }

    /// Everything is gone.
    pub(crate) fn flush(&mut self, at: Micros) {
        self.replace_by(at, 0);
        self.alive.clear();
    }

    /// What was written in the last µs is gone.
    pub(crate) fn fall_back(&mut self, at: Micros, by: Micros) {
        let now = self.now(at);
        let kept = self.log.iter().take_while(|(executed, _)| *executed < now - by).count();
        self.replace_by(at, kept);
        self.alive.retain(|_, said| *said < now - by);
    }

    /// The states are those behind the first `kept` calls.
    fn replace_by(&mut self, at: Micros, kept: usize) {
        self.log.truncate(kept);
        self.office = Arc::new(Calls::numbered(1 << 51));
        self.memory = MemoryStore::calling(self.office.clone());
        for (now, entries) in &self.log {
            self.memory.run_at(*now, entries);
        }
        self.hearing.values().for_each(|calls| self.office.join(calls));
        if !self.hides_losses {
            self.memory.lose(self.now(at));
        }
    }
}
