//! The store of a fleet: it executes the rules natively, by its own clock, and loses the data that a server can lose.
//! It knows nothing of networks.

use crate::history::Micros;
use paceway::{
    algorithm::{Level, Rule},
    limit::micros,
    store::{
        ABSENT, Beat, Check, Entry, GONE, Heartbeat, Pause, PauseVersion, Reply, Store as _,
        calls::Calls, memory::MemoryStore,
    },
};
use std::{collections::BTreeMap, sync::Arc};

/// The instant on the store's clock at which a history begins, µs: some day in November 2023.
pub(crate) const EPOCH: Micros = 1_700_000_000_000_000;

#[derive(Debug)]
pub(crate) struct Server {
    memory: MemoryStore,
    /// The calls that it has executed, with their instants; a failover replays a part of them.
    log: Vec<(Micros, Arc<Vec<Entry>>)>,
    /// The lives of gateways, by the id that each sends with its heartbeats.
    alive: BTreeMap<Arc<str>, Life>,
    /// The largest number of them at one time.
    pub(crate) counted: i64,
    /// The tickets of the gateways that receive its notifications, by the number of their connection.
    hearing: BTreeMap<i64, Arc<Calls>>,
    office: Arc<Calls>,
    /// By how much the store's clock is ahead of the history's, µs; a fault changes it.
    ahead: Micros,
    /// Whether the store hides its losses, so that no gateway notices them: a defect of `controls.rs`.
    pub(crate) hides_losses: bool,
    /// The rule of the first request: a defect of `controls.rs` has it for all.
    pub(crate) first_rule: Option<Rule>,
    /// The instants at which it lost states.
    pub(crate) losses: Vec<Micros>,
}

/// A gateway as the store knows it.
#[derive(Debug, Clone, Copy)]
struct Life {
    gateway: usize,
    /// The instant of its last heartbeat.
    heard: Micros,
    is_idle: bool,
}

impl Default for Server {
    fn default() -> Self {
        let office = Arc::new(Calls::numbered(1 << 51));
        Self {
            memory: MemoryStore::calling(office.clone()),
            log: Vec::new(),
            alive: BTreeMap::new(),
            counted: 0,
            hearing: BTreeMap::new(),
            office,
            ahead: 0,
            hides_losses: false,
            first_rule: None,
            losses: Vec::new(),
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

    /// It changes when a count of the rest of a quota begins.
    pub(crate) fn counts_begun(&self) -> PauseVersion {
        self.memory.pauses().version()
    }

    /// The level of the limiter of `check`.
    pub(crate) fn level(&self, at: Micros, check: &Check) -> Level {
        match self.memory.run_at(self.now(at), &[Entry::Look { check: check.clone() }])[..] {
            [Reply::Level(level)] => level,
            _ => Level::default(),
        }
    }

    /// Whether a pause would lower the rate of the limiter of `check`: that of a call which was sent before the present working
    /// rate does not.
    pub(crate) fn falls(&self, at: Micros, check: &Check, pause: Pause) -> bool {
        let before = self.level(at, check);
        let is_new = before.rate == 0 || pause.ago <= before.since;
        !check.is_lease() && pause.unit(check) > 0 && is_new
    }

    /// Answers a heartbeat as `presence.lua` does: with the number of gateways and of absent ones. `open` says which gateways
    /// have connections.
    pub(crate) fn beat(
        &mut self,
        at: Micros,
        gateway: usize,
        heartbeat: &Heartbeat,
        open: &[bool],
    ) -> Beat {
        let Heartbeat { id, is_idle, .. } = heartbeat;
        let now = self.now(at);
        let (present, gone) = (now - micros(ABSENT), now - micros(GONE));
        let is_alone = heartbeat.is_alone && !is_idle;
        let heard = if is_alone { present } else { now };
        let entered = self.alive.insert(id.clone(), Life { gateway, heard, is_idle: *is_idle });
        self.alive.retain(|other, life| {
            let is_gone = life.is_idle && life.heard <= present && !open[life.gateway];
            let is_replaced = heartbeat.is_first && life.gateway == gateway && other != id;
            life.heard > gone && !is_gone && !is_replaced
        });
        let absent = self.alive.values().filter(|life| life.heard <= present).count();
        let [gateways, absent] = [self.alive.len(), absent - usize::from(is_alone)]
            .map(|count| i64::try_from(count).expect("few"));
        self.counted = self.counted.max(gateways);
        Beat { gateways, absent, entered: entered.is_none(), now: Some(now) }
    }

    pub(crate) fn leave(&mut self, id: &Arc<str>) {
        self.alive.remove(id);
    }

    /// From now on `calls` receives the notifications for its tickets, or no longer does.
    pub(crate) fn hear(&mut self, calls: &Arc<Calls>, hears: bool) {
        let deaf = Arc::new(Calls::numbered(calls.gateway()));
        let calls = if hears { calls.clone() } else { deaf };
        self.office.join(&calls);
        self.hearing.insert(calls.gateway(), calls);
    }

    pub(crate) fn step(&mut self, by: Micros) {
        self.ahead += by;
    }

    /// Loses all states and the set of gateways, as `FLUSHALL` does.
    pub(crate) fn flush(&mut self, at: Micros) {
        self.replace_by(at, 0);
        self.alive.clear();
    }

    /// Loses the writes of the last `by` µs, as a failover to a replica does.
    pub(crate) fn fall_back(&mut self, at: Micros, by: Micros) {
        let now = self.now(at);
        let kept = self.log.iter().take_while(|(executed, _)| *executed < now - by).count();
        self.replace_by(at, kept);
        self.alive.retain(|_, life| life.heard < now - by);
    }

    /// Replaces the states with those after the first `kept` calls, and notes the loss of the others.
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
            self.losses.push(at);
        }
    }
}
