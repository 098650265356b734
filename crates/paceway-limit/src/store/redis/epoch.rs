//! The epoch of the states on a server, as this process knows it: since when they are complete. Never sends anything: calls
//! and connections report what they saw. `epoch.lua` is its twin in the script, and decides.
//!
//! The epoch is a key beside the states, so a server that loses its states loses the epoch with them. A promoted replica
//! may lack the writes of the last moment and still have the epoch, but it is another run of a server: the next call then
//! says that the epoch is in doubt. A call says so, too, after the server has evicted keys, because any state may be among
//! them.

use super::identity::ServerRun;
use crate::{
    algorithm::{Micros, STATE_VERSION, in_names},
    log::{Permit, Throttle},
    store::{
        Pauses,
        health::{Health, ScriptedServers, StateLosses},
    },
};
use ahash::HashMap;
use metrics::Counter;
use parking_lot::Mutex;
use std::{borrow::Cow, fmt, sync::Arc, time::Duration};
use tokio::time::Instant;

/// A call prolongs the life of the epoch's key once a day. The key lives far longer (400 days).
const RENEWED: Duration = Duration::from_secs(24 * 60 * 60);
/// Keys that are evicted within 10 s after a loss of data are part of that loss. A server that evicts all the time would
/// otherwise close its limiters for good.
const AGAIN: Duration = Duration::from_secs(10);
/// The greatest number of digits of an instant in µs since 1970; 16 digits last until the year 2286.
const DIGITS: usize = 16;
/// A server may name another epoch in each of its replies.
static LOST: Throttle = Throttle::new();
static SET_BACK: Throttle = Throttle::new();

/// The epochs of one store that a process knows, shared by all of its connections to that store.
pub struct Epochs {
    prefix: Box<str>,
    /// The name of the epoch's key on a server that is no Cluster.
    marker: Box<str>,
    losses: Counter,
    /// Where the pages and the log learn of losses.
    reported: Arc<StateLosses>,
    /// The pauses that the process knows, which a store that has lost its states may not know.
    pauses: Arc<Pauses>,
    /// The servers that keep no functions, which connections find out when they are made.
    pub(super) scripted: Arc<ScriptedServers>,
    known: Mutex<KnownEpochs>,
}

#[derive(Default)]
struct KnownEpochs {
    /// The epoch of each lane: `""` on one server, a hash tag in a Cluster. Lanes come from the configuration.
    lanes: HashMap<Box<str>, LaneEpoch>,
    /// For the address of each server its run, and when the server last reported it.
    runs: HashMap<Box<str>, (ServerRun, Instant)>,
    /// The address of the last master that Sentinels have named.
    master: Option<Box<str>>,
}

struct LaneEpoch {
    epoch: Epoch,
    /// The server may have lost writes since it reported this epoch.
    in_doubt: bool,
    /// The server has evicted keys since the last loss: a doubt, once that loss is 10 s old.
    evicted: bool,
    /// The greatest instant of the store's clock that was seen on this lane.
    seen: Micros,
    /// When a call on this lane last reported a loss of data.
    lost: Option<Instant>,
    renewed: Instant,
}

/// The beginning of an epoch: the instant `at` of the first call on empty states, or of the last loss of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Epoch {
    lost: bool,
    at: Micros,
    set_back: Option<SetBack>,
}

/// A step of the server's clock. The store's clock is ahead of it by `ahead` since the server's instant `since`, both in µs,
/// and follows it again by a hundredth of the time that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SetBack {
    ahead: Micros,
    since: Micros,
}

/// The epoch that a call expects, and what the script shall do with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Expected {
    epoch: Option<Epoch>,
    /// The greatest instant of the store's clock that was seen. A clock that is before that was set back.
    pub(super) seen: Micros,
    in_doubt: bool,
    renews: bool,
    /// The call cannot read the epoch's key, which another call has just read.
    is_sure: bool,
}

// === impl Epochs ===

impl Epochs {
    /// Knows no epoch yet of the states whose names begin with `prefix`; counts each loss of data in `losses`.
    pub fn new(prefix: &str, losses: Counter) -> Arc<Self> {
        Self::noting(prefix, losses, Arc::default(), Arc::default(), Arc::default())
    }

    /// The same, and the process of this `health` learns of each loss, and of servers without functions.
    pub fn reporting(prefix: &str, losses: Counter, health: &Health) -> Arc<Self> {
        let (reported, pauses) = (health.losses.clone(), health.pauses.clone());
        Self::noting(prefix, losses, reported, pauses, health.scripted.clone())
    }

    fn noting(
        prefix: &str,
        losses: Counter,
        reported: Arc<StateLosses>,
        pauses: Arc<Pauses>,
        scripted: Arc<ScriptedServers>,
    ) -> Arc<Self> {
        let marker = format!("{prefix}:marker{}", in_names(STATE_VERSION)).into();
        let (prefix, known) = (prefix.into(), Mutex::default());
        Arc::new(Self { prefix, marker, losses, reported, pauses, scripted, known })
    }

    /// Notes the master that Sentinels have named for a new connection; returns whether it is another one than for the
    /// connection before.
    pub(super) fn is_another(&self, master: &str) -> bool {
        let before = self.known.lock().master.replace(master.into());
        before.is_some_and(|before| *before != *master)
    }

    /// Returns the name of the key that holds a lane's epoch, such as `paceway:marker`, or `paceway:{tag}:marker` in a
    /// Cluster.
    pub(super) fn key(&self, lane: &str) -> Cow<'_, str> {
        let (prefix, version) = (&self.prefix, in_names(STATE_VERSION));
        if lane.is_empty() {
            Cow::Borrowed(&self.marker)
        } else {
            Cow::Owned(format!("{prefix}:{{{lane}}}:marker{version}"))
        }
    }

    /// Returns the epoch that the next call on a lane expects.
    pub(super) fn expected(&self, lane: &str) -> Expected {
        let mut known = self.known.lock();
        let Some(lane) = known.lanes.get_mut(lane) else { return Expected::default() };
        let renews = !lane.in_doubt && lane.renewed.elapsed() >= RENEWED;
        if renews {
            // If the call fails, the next day is early enough.
            lane.renewed = Instant::now();
        }
        let (epoch, seen, in_doubt) = (Some(lane.epoch), lane.seen, lane.in_doubt);
        Expected { epoch, seen, in_doubt, renews, is_sure: false }
    }

    /// Returns what a call expects that cannot read the epoch's key, after a call that has read it; `None` when the lane is
    /// in doubt again.
    pub(super) fn settled(&self, lane: &str) -> Option<Expected> {
        let known = self.known.lock();
        let lane = known.lanes.get(lane).filter(|lane| !lane.in_doubt)?;
        let epoch = Some(lane.epoch);
        Some(Expected { epoch, seen: 0, in_doubt: false, renews: false, is_sure: true })
    }

    /// Notes the instant of the store's clock at which a call on a lane was executed.
    pub(super) fn see(&self, lane: &str, now: Micros) {
        if let Some(lane) = self.known.lock().lanes.get_mut(lane) {
            lane.seen = lane.seen.max(now);
        }
    }

    /// Returns the greatest instant of the store's clock that was seen on a lane.
    pub(super) fn last_instant(&self, lane: &str) -> Micros {
        self.known.lock().lanes.get(lane).map_or(0, |lane| lane.seen)
    }

    /// Returns the instant of the last loss of data on a lane, as far as this process knows.
    pub(super) fn lost_at(&self, lane: &str) -> Option<Micros> {
        let known = self.known.lock();
        let epoch = known.lanes.get(lane)?.epoch;
        epoch.lost.then_some(epoch.at)
    }

    /// Notes the clock of a server that is no Cluster, and returns the store's.
    pub(super) fn see_server(&self, clock: Micros) -> Micros {
        let mut known = self.known.lock();
        let Some(lane) = known.lanes.get_mut("") else { return clock };
        let ahead = lane.epoch.set_back.map_or(0, |set_back| set_back.left(clock));
        lane.seen = lane.seen.max(clock + ahead);
        clock + ahead
    }

    /// Notes the epoch that the script has reported to a call that expected another one.
    pub(super) fn learn(&self, lane: &str, expected: Expected, epoch: Epoch) {
        let mut known = self.known.lock();
        let before = known.lanes.get(lane);
        let is_loss =
            epoch.lost && before.is_some_and(|it| (it.epoch.lost, it.epoch.at) != (true, epoch.at));
        let set_back = epoch.set_back;
        let set_back = set_back.filter(|_| before.and_then(|it| it.epoch.set_back) != set_back);
        let seen = before.map_or(0, |before| before.seen);
        // The call does not settle a doubt that arose after it was sent.
        let in_doubt = before.is_some_and(|before| before.in_doubt) && !expected.in_doubt;
        let now = Instant::now();
        let lost = if is_loss { Some(now) } else { before.and_then(|before| before.lost) };
        // The loss covers the keys that were evicted before it.
        let evicted = !is_loss && before.is_some_and(|before| before.evicted);
        let learned = LaneEpoch { epoch, in_doubt, evicted, seen, lost, renewed: now };
        known.lanes.insert(lane.into(), learned);
        drop(known);
        if let Some(SetBack { ahead, since }) = set_back {
            self.reported.note_clock(ahead, since);
            if let Some(Permit { suppressed }) = SET_BACK.permit() {
                let set_back_s = ahead as f64 / 1e6;
                let lane = (!lane.is_empty()).then_some(lane);
                tracing::warn!(
                    lane,
                    set_back_s,
                    suppressed,
                    "the clock of the store was set back; limiters \
                    continue with the instant before, and follow that clock again by 1 % of the time"
                );
            }
        }
        if is_loss {
            self.pauses.lost_states();
        }
        self.reported.note(lane, epoch.lost.then_some(epoch.at), is_loss);
        if is_loss {
            self.losses.increment(1);
            let Some(Permit { suppressed }) = LOST.permit() else { return };
            let message = "the store has lost states, or may have: limiters count every permit as \
                           granted that can have been granted before, except those with `on_loss: trust`";
            let lane = (!lane.is_empty()).then_some(lane);
            tracing::warn!(lane, suppressed, "{message}");
        }
    }

    /// Notes that a new connection to the server at `endpoint` leads to `run`. The lanes of that server are in doubt if it
    /// was another run before, or if this run has been promoted since.
    pub(super) fn meet(&self, endpoint: &str, run: &ServerRun, is_there: impl Fn(&str) -> bool) {
        let mut known = self.known.lock();
        let before = known.runs.insert(endpoint.into(), (run.clone(), Instant::now()));
        let promoted_before = before.as_ref().and_then(|(before, _)| before.promoted_at);
        let is_promoted = run.promoted_at.is_some() && run.promoted_at != promoted_before;
        let lanes = known.lanes.iter_mut().filter(|(lane, _)| is_there(lane));
        let lanes = lanes.map(|(_, lane)| lane);
        match before {
            Some((before, looked)) if before.id == run.id && !is_promoted => {
                let has_evicted = run.evicted > before.evicted;
                lanes.for_each(|lane| lane.look(has_evicted, looked));
            }
            None if !is_promoted => {}
            _ => lanes.for_each(|lane| lane.in_doubt = true),
        }
    }

    /// Whether the server at `endpoint` has reported its run: a server without the right to `INFO` never does.
    pub(super) fn knows(&self, endpoint: &str) -> bool {
        self.known.lock().runs.contains_key(endpoint)
    }

    /// Notes what the server at `endpoint` reports while a connection lasts. A late report of an earlier run is ignored.
    pub(super) fn look(&self, endpoint: &str, run: &ServerRun, is_there: impl Fn(&str) -> bool) {
        let is_it = |(known, _): &(ServerRun, Instant)| known.id == run.id;
        let is_known = self.known.lock().runs.get(endpoint).is_some_and(is_it);
        if is_known {
            self.meet(endpoint, run, is_there);
        }
    }
}

// === impl LaneEpoch ===

impl LaneEpoch {
    /// Notes whether the server has evicted keys since `looked`, when it was asked before.
    fn look(&mut self, has_evicted: bool, looked: Instant) {
        // A loss that was reported after `looked` covers them.
        let is_seen = self.lost.is_some_and(|lost| lost >= looked);
        self.evicted |= has_evicted && !is_seen;
        if self.evicted && self.lost.is_none_or(|lost| lost.elapsed() >= AGAIN) {
            (self.evicted, self.in_doubt) = (false, true);
        }
    }
}

impl fmt::Debug for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

// === impl Epoch ===

impl Epoch {
    /// Reads an epoch as the script writes it, such as `N1700000000000000`; `None` if the text is something else.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (kind, rest) = text.split_first()?;
        let lost = match kind {
            b'N' => false,
            b'L' => true,
            _ => return None,
        };
        let mut numbers = rest.split(|byte| *byte == b'/').map(read_instant);
        let at = numbers.next()??;
        let set_back = match (numbers.next(), numbers.next(), numbers.next()) {
            (None, ..) => None,
            (Some(ahead), Some(since), None) => Some(SetBack { ahead: ahead?, since: since? }),
            _ => return None,
        };
        Some(Self { lost, at, set_back })
    }
}

fn read_instant(digits: &[u8]) -> Option<Micros> {
    let is_instant = (1..=DIGITS).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_instant)?.parse().ok()
}

// === impl SetBack ===

impl SetBack {
    /// By how much the store's clock is still ahead when that of the server is `clock`, as the script computes it.
    fn left(self, clock: Micros) -> Micros {
        (self.ahead - (clock - self.since).max(0) / 100).max(0)
    }
}

// === impl Expected ===

impl Expected {
    /// The word for the script, such as `N1700000000000000+`. Each call has one, so it is written without a formatter.
    pub(super) fn word(self) -> String {
        let Some(Epoch { lost, at, set_back }) = self.epoch else { return String::new() };
        let set_back = set_back
            .map_or_else(String::new, |SetBack { ahead, since }| format!("/{ahead}/{since}"));
        let sign = match (self.is_sure, self.in_doubt, self.renews) {
            (true, ..) => "=",
            (_, true, _) => "?",
            (_, _, true) => "+",
            _ => "",
        };
        [if lost { "L" } else { "N" }, &at.to_string(), &set_back, sign].concat()
    }
}

#[cfg(test)]
mod tests;
