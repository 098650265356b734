//! What this process knows of the states on a server: the marker that stands beside them, and which run of a server had
//! them. Twin of `epoch.lua`, which judges. Never asks: calls and connections tell it.
//!
//! A server that has lost its states has lost the marker with them. One that comes back with states of a moment ago, as a
//! replica does that is promoted, has the marker and is another run: then the next call says that it is in doubt. So it
//! does when the server has evicted keys: which ones, nobody knows.

use super::identity::Run;
use crate::{
    algorithm::{Micros, STATE_VERSION, in_names},
    log::{Permit, Throttle},
};
use ahash::HashMap;
use metrics::Counter;
use parking_lot::Mutex;
use std::{fmt, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How often a marker is told to live longer, far less than it lives.
const RENEWED: Duration = Duration::from_secs(24 * 60 * 60);
/// How soon behind a loss evicted keys are another one: who evicts all the time must not close limiters for good.
const AGAIN: Duration = Duration::from_secs(10);
/// Digits of an instant of a server.
const DIGITS: usize = 16;
/// A server may name another marker in each of its answers.
static LOST: Throttle = Throttle::new();

/// The markers that a process knows. All of its connections to one store share them.
pub struct Markers {
    prefix: Box<str>,
    losses: Counter,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// By lane. Lanes come from the configuration.
    lanes: HashMap<Box<str>, Lane>,
    /// By the place of a server its run, and when that was looked at.
    runs: HashMap<Box<str>, (Run, Instant)>,
    /// The place of the server that was the master last, where Sentinels name one.
    master: Option<Box<str>>,
}

struct Lane {
    marker: Marker,
    /// Its server may have lost writes since.
    in_doubt: bool,
    /// Keys have been evicted since it was lost: a doubt when that is long enough ago.
    evicted: bool,
    /// When a loss was last met here.
    lost: Option<Instant>,
    renewed: Instant,
}

/// Of states that are known from `at` on: since the first gateway came, or since they were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marker {
    lost: bool,
    at: Micros,
}

/// What a call says of the marker that it expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Expected {
    marker: Option<Marker>,
    in_doubt: bool,
    renews: bool,
    /// The call does not have the marker with it, which was asked for before.
    is_sure: bool,
}

// === impl Markers ===

impl Markers {
    /// For the states whose names begin with `prefix`; each loss that is met is counted.
    pub fn new(prefix: &str, losses: Counter) -> Arc<Self> {
        Arc::new(Self { prefix: prefix.into(), losses, known: Mutex::default() })
    }

    /// Hears which server the Sentinels name, of each connection; whether it is another one than the last of all.
    pub(super) fn is_another(&self, master: &str) -> bool {
        let before = self.known.lock().master.replace(master.into());
        before.is_some_and(|before| *before != *master)
    }

    /// The name of the marker of a lane: on one server, or beside the states of a hash tag.
    pub(super) fn key(&self, lane: &str) -> String {
        let (prefix, version) = (&self.prefix, in_names(STATE_VERSION));
        match lane.is_empty() {
            true => format!("{prefix}:marker{version}"),
            false => format!("{prefix}:{{{lane}}}:marker{version}"),
        }
    }

    /// What the next call on a lane is to say.
    pub(super) fn expected(&self, lane: &str) -> Expected {
        let mut known = self.known.lock();
        let Some(lane) = known.lanes.get_mut(lane) else { return Expected::default() };
        let renews = !lane.in_doubt && lane.renewed.elapsed() >= RENEWED;
        if renews {
            // Should the call not come through, the next day is early enough.
            lane.renewed = Instant::now();
        }
        let (marker, in_doubt) = (Some(lane.marker), lane.in_doubt);
        Expected { marker, in_doubt, renews, is_sure: false }
    }

    /// What a call says that does not have the marker with it, behind one that had; `None` when the lane is in doubt again.
    pub(super) fn settled(&self, lane: &str) -> Option<Expected> {
        let known = self.known.lock();
        let lane = known.lanes.get(lane).filter(|lane| !lane.in_doubt)?;
        let marker = Some(lane.marker);
        Some(Expected { marker, in_doubt: false, renews: false, is_sure: true })
    }

    /// A call that said `expected` was told another marker.
    pub(super) fn learn(&self, lane: &str, expected: Expected, marker: Marker) {
        let mut known = self.known.lock();
        let before = known.lanes.get(lane);
        let is_loss = marker.lost && before.is_some_and(|before| before.marker != marker);
        // A doubt that came up behind the call is not settled by it.
        let in_doubt = before.is_some_and(|before| before.in_doubt) && !expected.in_doubt;
        let now = Instant::now();
        let lost = if is_loss { Some(now) } else { before.and_then(|before| before.lost) };
        // Who has met the loss looks on.
        let evicted = !is_loss && before.is_some_and(|before| before.evicted);
        let learned = Lane { marker, in_doubt, evicted, lost, renewed: now };
        known.lanes.insert(lane.into(), learned);
        drop(known);
        if is_loss {
            self.losses.increment(1);
            let Some(Permit { suppressed }) = LOST.permit() else { return };
            let message = "the store has lost states, or may have: limiters go on as if all that can \
                           have been granted before had been";
            let lane = (!lane.is_empty()).then_some(lane);
            tracing::warn!(lane, suppressed, "{message}");
        }
    }

    /// A new connection leads to the run `run` of the server at `place`. Where another run was there before, or that one
    /// has taken the place of another server since, what is known of the lanes that are there is in doubt.
    pub(super) fn meet(&self, place: &str, run: &Run, is_there: impl Fn(&str) -> bool) {
        let mut known = self.known.lock();
        let before = known.runs.insert(place.into(), (run.clone(), Instant::now()));
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

    /// Whether a server at `place` has said what run it is.
    pub(super) fn knows(&self, place: &str) -> bool {
        self.known.lock().runs.contains_key(place)
    }

    /// What the server at `place` says while a connection lasts. What comes late, from a run before, says nothing.
    pub(super) fn look(&self, place: &str, run: &Run, is_there: impl Fn(&str) -> bool) {
        let is_it = |(known, _): &(Run, Instant)| known.id == run.id;
        let is_known = self.known.lock().runs.get(place).is_some_and(is_it);
        if is_known {
            self.meet(place, run, is_there);
        }
    }
}

// === impl Lane ===

impl Lane {
    /// Its server was asked, and before at `looked`, for the keys that it has evicted.
    fn look(&mut self, has_evicted: bool, looked: Instant) {
        // Whoever met a loss since has seen them, or sees what comes behind.
        let is_seen = self.lost.is_some_and(|lost| lost >= looked);
        self.evicted |= has_evicted && !is_seen;
        if self.evicted && self.lost.is_none_or(|lost| lost.elapsed() >= AGAIN) {
            (self.evicted, self.in_doubt) = (false, true);
        }
    }
}

impl fmt::Debug for Markers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Markers").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

// === impl Marker ===

impl Marker {
    /// Reads what the script says; `None` of what it never says.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (kind, digits) = text.split_first()?;
        let lost = match kind {
            b'N' => false,
            b'L' => true,
            _ => return None,
        };
        let is_instant =
            (1..=DIGITS).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
        let at = std::str::from_utf8(digits).ok().filter(|_| is_instant)?.parse().ok()?;
        Some(Self { lost, at })
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Marker { lost, at }) = self.marker else { return Ok(()) };
        let sign = match (self.is_sure, self.in_doubt, self.renews) {
            (true, ..) => "=",
            (_, true, _) => "?",
            (_, _, true) => "+",
            _ => "",
        };
        write!(f, "{}{at}{sign}", if lost { 'L' } else { 'N' })
    }
}

#[cfg(test)]
mod tests;
